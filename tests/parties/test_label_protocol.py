"""Two agents and nothing but files: what is refused, by name, and what is debited."""

import copy
import json
import pickle
from concurrent.futures import ThreadPoolExecutor

import jsonschema
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml
from click.testing import CliRunner

from daskrado.cli.main import cli
from daskrado.errors import BudgetError, DataError, LedgerError, MessageError, UsageError
from daskrado.jobs.load import load_job
from daskrado.jobs.manifest import manifest_schema
from daskrado.lake.joined import open_joined
from daskrado.ledger.ledger import Ledger
from daskrado.losses.linear_odd import AbsoluteOdd
from daskrado.parties.label_learner import learn_from_answer, make_request
from daskrado.parties.label_messages import ANSWER, REQUEST, read_request
from daskrado.parties.label_provider import Provider
from daskrado.parties.signing import SigningKey, load_public, make_keys
from daskrado.table.domain import Domain
from daskrado.table.label import Label
from daskrado.table.lattice import Lattice

ROWS = 600
READMITTED = Label(column="readmitted", positive="yes", negative="no")


@pytest.fixture(scope="module")
def world(clinic, tmp_path_factory):
    """Features and labels in lakes of their own, cut differently; keys of both parties and of a stranger."""
    path, domain = clinic(3000, 3)
    folder = tmp_path_factory.mktemp("world")
    table = pq.read_table(path).slice(0, ROWS)
    write(table.drop(["readmitted"]), folder / "features", 3)
    order = np.random.default_rng(0).permutation(ROWS)
    write(table.select(["patient_id", "readmitted"]).take(order), folder / "labels", 2)
    for name in ("learner", "provider", "stranger"):
        make_keys(folder / name)
    return folder, domain, table


def write(table, folder, parts=1):
    folder.mkdir(parents=True)
    edges = np.linspace(0, table.num_rows, parts + 1).astype(int)
    for i in range(parts):
        pq.write_table(table.slice(edges[i], edges[i + 1] - edges[i]), folder / f"{i}.parquet")
    return str(folder)


def request_of(world, **content):
    folder, domain, _ = world
    options = {"epsilon": 1.0, "mechanism": "laplace", **content}
    return make_request(str(folder / "features"), domain, SigningKey.load(folder / "learner"), **options)


def provider_of(world, tmp_path, limit=3.0, limit_delta=0, **content):
    folder, _, _ = world
    ledger = Ledger.open(tmp_path / "provider.sqlite")
    ledger.set_limit("labels", "label_flip", limit, limit_delta)
    options = {"labels": str(folder / "labels"), "trusted": (load_public(folder / "learner.pub"),), **content}
    options.setdefault("label", READMITTED)
    return Provider(
        key=SigningKey.load(folder / "provider"),
        dataset="labels",
        ledger=ledger,
        answers=tmp_path / "answers",
        **options,
    )


def learn(world, answer, request, features="features", trust="provider.pub", **content):
    folder, _, _ = world
    source = str(folder / features) if "/" not in str(features) else str(features)
    return learn_from_answer(answer, request, source, [load_public(folder / trust)], **content)


def resigned(text, key, change):
    """A message changed and signed again, by whoever holds a key."""
    message = json.loads(text)
    body = message["body"]
    change(body)
    return key.sign(message["schema"], body)


@pytest.mark.parametrize(("noise", "delta"), [("laplace", 0.0), ("l2_gamma", 0.0), ("gaussian", 1e-5)])
def test_the_whole_exchange(world, tmp_path, noise, delta):
    _, domain, table = world
    request = request_of(world, mechanism=noise, delta=delta, loss="matsushita")
    provider = provider_of(world, tmp_path, limit_delta=10 * delta)
    answer = provider.answer(request, str(world[0] / "features"))
    learned = learn(world, answer, request, output=tmp_path / "model")
    assert learned.model.statement.private
    assert learned.model.statement.delta == delta
    assert learned.rows == ROWS
    assert {p.name for p in (tmp_path / "model").iterdir()} == {"model.json", "manifest.json", "report.html"}
    entries = provider.ledger.entries("labels")
    assert [(e.state, e.relation, e.run) for e in entries] == [
        ("published", "label_flip", json.loads(request)["body"]["request"])
    ]
    # the vector is the labels' mean operator plus noise of the size that it declares
    from daskrado.table.encoding import encode_table

    x = encode_table(domain, table).block(0, ROWS, np.empty((ROWS, domain.width), order="F")).copy()
    x /= np.maximum(np.linalg.norm(x, axis=1, keepdims=True), domain.norm_bound)
    y = np.where(np.array(table.column("readmitted").to_pylist()) == "yes", 1.0, -1.0)
    off = learned.value.mean - (y[:, None] * x).mean(axis=0)
    assert 0.3 < np.sqrt(np.mean(off**2)) / learned.value.noise.std < 3
    body = json.loads(answer)["body"]
    assert body["noise"]["l1"] == pytest.approx(np.abs(x).sum(axis=1).max(), rel=1e-4)
    assert body["noise"]["l2"] == pytest.approx(1.0, rel=1e-5)


def test_the_learners_result_and_manifest_are_those_of_any_job(world, tmp_path):
    request = request_of(world)
    body = json.loads(request)["body"]
    answer = provider_of(world, tmp_path).answer(request, str(world[0] / "features"))
    result = learn(world, answer, request, output=tmp_path / "model")
    manifest = json.loads((tmp_path / "model/manifest.json").read_text())
    jsonschema.validate(manifest, manifest_schema())
    assert (manifest["kind"], manifest["charges"], manifest["budget"]) == ("label learn", [], [])
    assert manifest["statement"] == json.loads(answer)["body"]["privacy"]
    facts = {"request": body["request"], "features_digest": body["features"]["digest"], "rows": ROWS}
    assert {key: manifest["facts"][key] for key in facts} == facts
    assert manifest["notes"] == ["the provider's ledger was debited, not one of the learner's"]
    again = pickle.loads(pickle.dumps(result))
    assert repr(again) == repr(copy.deepcopy(result)) == repr(result)
    np.testing.assert_array_equal(again.model.weights, result.model.weights)
    with pytest.raises(UsageError, match="label learn' is unknown"):  # no pipeline can ask for it
        load_job({"kind": "label learn"})


def test_messages_of_older_versions_are_read(world, tmp_path):
    """They wrote every option of a loss, null where it has none; keys of messages stay what they were."""
    request = request_of(world, loss={"kind": "absolute", "rho": 2.0})
    body = json.loads(request)["body"]
    assert (body["alpha"], body["noise"]) == (1.0, "laplace")
    older = {"kind": "absolute", "rho": 2.0, "generator": None}
    learner = SigningKey.load(world[0] / "learner")
    text = resigned(request, learner, lambda body: body.update(loss=older))
    assert read_request(text, [learner.public], "test").loss == AbsoluteOdd(2.0)
    assert provider_of(world, tmp_path).answer(text, str(world[0] / "features"))


def test_a_repeat_returns_the_same_bytes_and_is_not_debited(world, tmp_path):
    request, features = request_of(world), str(world[0] / "features")
    provider = provider_of(world, tmp_path)
    first = provider.answer(request, features)
    assert provider.answer(request, features) == first
    again = Provider(**{**vars(provider), "max_epsilon": 0.1})  # a stored answer costs nothing more
    assert again.answer(request, features) == first
    assert len(provider.ledger.entries("labels")) == 1
    other = provider.answer(request_of(world), features)  # the same question under a new id: new noise, new debit
    assert json.loads(other)["body"]["steps"] != json.loads(first)["body"]["steps"]
    assert len(provider.ledger.entries("labels")) == 2


def test_one_answer_when_many_ask_at_once(world, tmp_path):
    request, features = request_of(world), str(world[0] / "features")
    provider = provider_of(world, tmp_path)
    with ThreadPoolExecutor(4) as pool:
        answers = set(pool.map(lambda _: provider.answer(request, features), range(4)))
    assert len(answers) == 1
    assert [entry.state for entry in provider.ledger.entries("labels")] == ["published"]


def test_over_budget_is_refused_and_costs_nothing(world, tmp_path):
    features = str(world[0] / "features")
    provider = provider_of(world, tmp_path, limit=1.5)
    with pytest.raises(BudgetError, match="does not cover"):
        provider.answer(request_of(world, epsilon=2.0), features)
    strict = Provider(**{**vars(provider), "max_epsilon": 0.5})
    with pytest.raises(BudgetError, match=r"epsilon 1 is above 0\.5"):
        strict.answer(request_of(world), features)
    provider.answer(request_of(world), features)
    with pytest.raises(BudgetError, match="does not cover"):
        provider.answer(request_of(world), features)
    assert [entry.state for entry in provider.ledger.entries("labels")] == ["published"]


def test_unknown_signers_are_refused(world, tmp_path):
    folder, features = world[0], str(world[0] / "features")
    provider = provider_of(world, tmp_path)
    request = request_of(world)
    stranger = SigningKey.load(folder / "stranger")
    with pytest.raises(MessageError, match="unknown signer"):
        provider.answer(resigned(request, stranger, lambda body: None), features)
    answer = provider.answer(request, features)
    with pytest.raises(MessageError, match="unknown signer"):
        learn(world, answer, request, trust="stranger.pub")
    with pytest.raises(MessageError, match="unknown signer"):
        learn(world, resigned(answer, stranger, lambda body: None), request)


def test_changed_bytes_are_refused(world, tmp_path):
    features = str(world[0] / "features")
    provider = provider_of(world, tmp_path)
    request = request_of(world)
    answer = provider.answer(request, features)
    draw = np.random.default_rng(1)
    for text, read in (
        (request, lambda t: provider.answer(t, features)),
        (answer, lambda t: learn(world, t, request)),
    ):
        for at in draw.integers(0, len(text), 25):
            changed = text[:at] + chr((ord(text[at]) + 1) % 127 or 32) + text[at + 1 :]
            with pytest.raises(MessageError):
                read(changed)
    changed = request.replace('"alpha":1.0', '"alpha":0.1')
    assert changed != request
    with pytest.raises(MessageError, match="changed after it was signed"):
        learn(world, answer, changed)
    assert len(provider.ledger.entries("labels")) == 1


def test_answers_of_other_requests_and_versions_are_refused(world, tmp_path):
    folder, features = world[0], str(world[0] / "features")
    provider = provider_of(world, tmp_path)
    learner, signer = SigningKey.load(folder / "learner"), SigningKey.load(folder / "provider")
    one, two = request_of(world), request_of(world)
    answer = provider.answer(one, features)
    with pytest.raises(MessageError, match="answers the request"):
        learn(world, answer, two)
    # the same id with another alpha: neither side takes it
    twisted = resigned(one, learner, lambda body: body.update(alpha=0.5))
    with pytest.raises(MessageError, match="other content"):
        provider.answer(twisted, features)
    with pytest.raises(MessageError, match="another version"):
        learn(world, answer, twisted)
    with pytest.raises(MessageError, match="schema is"):
        provider.answer(answer.replace(ANSWER, ANSWER), features)
    later = learner.sign(REQUEST.replace("/1", "/2"), json.loads(one)["body"])
    with pytest.raises(MessageError, match=r"label_request/2.*expected"):
        provider.answer(later, features)
    for change, name in (
        (lambda body: body.update(rows=5), "rows"),
        (lambda body: body.update(steps=body["steps"][1:]), "steps"),
        (lambda body: body.update(features_digest="0" * 64), "features_digest"),
        (lambda body: body.update(extra=1), "extra"),
        (lambda body: body["privacy"].update(epsilon=None), "epsilon"),
    ):
        with pytest.raises(MessageError, match=name):
            learn(world, resigned(answer, signer, change), one)
    for change, name in (
        (lambda body: body.update(alpha=-1), "alpha"),
        (lambda body: body.update(request="../../x"), "request"),
        (lambda body: body.update(domain_json="{}"), "domain_json"),
        (lambda body: body.update(noise="none"), "noise"),
        (lambda body: body.update(loss={"kind": "hinge"}), "linear-odd"),
        (lambda body: body.update(delta=1e-6), "delta"),
    ):
        with pytest.raises(MessageError, match=name):
            provider.answer(resigned(request_of(world), learner, change), features)


def test_features_that_changed_are_refused_on_both_sides(world, tmp_path):
    folder, _domain, table = world
    request = request_of(world)
    provider = provider_of(world, tmp_path)
    ages = table.column("age").to_numpy().copy()
    ages[17] = 40 if ages[17] != 40 else 41
    changed = table.drop(["readmitted"]).set_column(table.column_names.index("age"), "age", pa.array(ages))
    source = write(changed, tmp_path / "changed")
    with pytest.raises(DataError, match="features changed since the request"):
        provider.answer(request, source)
    assert provider.ledger.entries("labels") == []
    answer = provider.answer(request, str(folder / "features"))
    with pytest.raises(DataError, match="features changed"):
        learn(world, answer, request, features=source)
    # the same rows, cut and ordered otherwise, are the same features
    order = np.random.default_rng(5).permutation(ROWS)
    moved = write(table.drop(["readmitted"]).take(order), tmp_path / "moved", 5)
    np.testing.assert_array_equal(
        learn(world, answer, request, features=moved).model.weights, learn(world, answer, request).model.weights
    )


def test_keys_that_do_not_match_are_counted_not_shown(world, tmp_path):
    folder, domain, table = world
    features = str(folder / "features")
    pairs = table.select(["patient_id", "readmitted"])
    cases = {
        "missing": (pairs.slice(3), "3 keys of the features have no label"),
        "extra": (
            pa.concat_tables([pairs, pairs.slice(0, 1).set_column(0, "patient_id", pa.array([987654321]))]),
            "1 keys of the labels have no features",
        ),
        "repeated": (pa.concat_tables([pairs, pairs.slice(5, 2)]), "2 rows of the labels repeat a key"),
    }
    for name, (labels, why) in cases.items():
        with pytest.raises(DataError, match=why) as caught:
            open_joined(features, write(labels, tmp_path / name), domain)
        assert "987654321" not in str(caught.value)
    twice = write(pa.concat_tables([table, table.slice(0, 4)]).drop(["readmitted"]), tmp_path / "twice")
    with pytest.raises(DataError, match="4 rows of the features repeat a key"):
        open_joined(twice, str(folder / "labels"), domain)
    words = pairs.set_column(0, "patient_id", pairs.column(0).cast(pa.string()))
    with pytest.raises(DataError, match="'patient_id' is int64 in the features and string"):
        open_joined(features, write(words, tmp_path / "words"), domain)
    nulls = pairs.set_column(0, "patient_id", pa.array([None, *pairs.column(0).to_pylist()[1:]]))
    with pytest.raises(DataError, match=r"patient_id. is null in 1 rows"):
        open_joined(features, write(nulls, tmp_path / "nulls"), domain)
    with pytest.raises(UsageError, match="id"):
        open_joined(features, features, Domain.model_validate({**domain.model_dump(), "id": None}))
    with pytest.raises(UsageError, match="not a DataFrame"):
        open_joined(features, pairs.to_pandas(), domain)


def test_string_keys(world, tmp_path):
    _folder, domain, table = world
    named = table.set_column(0, "patient_id", pa.array([f"P-{i}" for i in table.column("patient_id").to_pylist()]))
    features = write(named.drop(["readmitted"]), tmp_path / "f", 2)
    labels = write(named.select(["readmitted", "patient_id"]).take(np.arange(ROWS)[::-1]), tmp_path / "y")
    joined = open_joined(features, labels, domain)
    found = pa.concat_tables(t for part in joined.partitions for _, t in part.tables(["patient_id", "readmitted"]))
    pairs = dict(zip(found.column("patient_id").to_pylist(), found.column("readmitted").to_pylist(), strict=True))
    assert pairs == dict(
        zip(named.column("patient_id").to_pylist(), named.column("readmitted").to_pylist(), strict=True)
    )


def test_labels_outside_the_domain_count_as_nothing(world, tmp_path):
    folder, _, table = world
    values = ["maybe", *table.column("readmitted").to_pylist()[1:]]
    labels = write(pa.table({"patient_id": table.column("patient_id"), "readmitted": values}), tmp_path / "odd")
    provider = provider_of(world, tmp_path, labels=labels)
    assert "maybe" not in provider.answer(request_of(world), str(folder / "features"))
    assert [entry.state for entry in provider.ledger.entries("labels")] == ["published"]


def test_a_request_is_checked_before_features_are_read(world, tmp_path):
    _, domain, _ = world
    key = SigningKey.load(world[0] / "learner")
    for options, why in (
        ({"epsilon": 0.0}, "epsilon"),
        ({"epsilon": 1.0, "loss": "hinge"}, "linear-odd"),
        ({"epsilon": 1.0, "mechanism": "gaussian"}, "delta"),
        ({"epsilon": 1.0, "mechanism": "none"}, "mechanism"),
        ({"epsilon": 1.0, "lattice_bits": 25}, "lattice_bits"),
    ):
        with pytest.raises(UsageError, match=why):
            make_request(str(tmp_path / "nowhere"), domain, key, **options)
    with pytest.raises(UsageError, match="above 0"):
        learn(world, "", "", regularisation=0.0)


def test_on_a_cluster_the_same_vector_without_noise(world, two_workers):
    """The joined lake gives the same bits in this process and on two workers."""
    from daskrado.lake.collect import collect
    from daskrado.statistics.label_means import LabelMeans
    from daskrado.table.lattice import Lattice

    folder, domain, _ = world
    joined = open_joined(str(folder / "features"), str(folder / "labels"), domain)
    statistic = LabelMeans(domain.width, 1 << 40, 1 << 52, 20)
    lattice = Lattice(domain.norm_bound, 20)
    here = collect(statistic, joined, domain, lattice)
    there = collect(statistic, joined, domain, lattice, client=two_workers)
    np.testing.assert_array_equal(here.vector, there.vector)
    assert here.rows == ROWS


@pytest.mark.slow
@pytest.mark.parametrize(
    "words",
    [
        ("--epsilon", "--mechanism", "--max-epsilon", "--regularisation", "--out"),
        ("--alpha", "--noise", "--max-alpha", "--strength", "--output"),  # the older ones
    ],
)
def test_command_line(world, tmp_path, words):
    folder, known, _ = world
    epsilon, mechanism, most, regularisation, output = words
    domain = tmp_path / "domain.yaml"
    domain.write_text(yaml.safe_dump(known.model_dump(mode="json")))
    run = CliRunner()

    def call(*words, code=0):
        result = run.invoke(cli, [str(w) for w in words], catch_exceptions=code == 0)
        assert result.exit_code == 0 or code, result.output
        return result

    ledger = tmp_path / "own.sqlite"
    call("ledger", "limit", "mine", "--relation", "label_flip", "--epsilon", "1", "--ledger", ledger)
    call("label", "keys", tmp_path / "me")
    request, answer = tmp_path / "request.json", tmp_path / "answer.json"
    features = folder / "features"
    call("label", "request", "--domain", domain, "--features", features, "--address", features, epsilon, "0.7",
         mechanism, "l2_gamma", "--key", tmp_path / "me", "--out", request)  # fmt: skip
    words = ["label", "answer", request, "--labels", folder / "labels", "--label", "readmitted=yes/no", "--dataset",
             "mine", "--key", folder / "provider", "--trust", tmp_path / "me.pub", "--ledger", ledger,
             most, "0.7"]  # fmt: skip
    for wrong in ("readmitted", "readmitted=yes", "readmitted=yes/no/maybe", "=yes/no", "readmitted=yes/yes"):
        with pytest.raises(UsageError, match=f"--label {wrong}"):
            call(*words, "--label", wrong, "--out", answer, code=2)
    call(*words, "--out", answer)
    call(*words, "--out", answer)  # the same bytes: nothing to do
    out = call("label", "learn", answer, "--request", request, "--features", features, "--trust",
               folder / "provider.pub", regularisation, "0.01", output, tmp_path / "model")  # fmt: skip
    assert "epsilon = 0.7" in out.output
    manifest = json.loads((tmp_path / "model/manifest.json").read_text())
    asked = {key: manifest["job"][key] for key in ("epsilon", "delta", "mechanism", "regularisation")}
    assert asked == {"epsilon": 0.7, "delta": 0.0, "mechanism": "l2_gamma", "regularisation": 0.01}
    assert len(Ledger.open(ledger).entries("mine")) == 1


@pytest.mark.parametrize(("moment", "state"), [("p.write_answer", "spent"), ("j.Journal.begin", "reserved")])
def test_a_provider_killed_before_its_answer_is_out_gives_it_on_the_same_charge(
    world, tmp_path, killed, moment, state
):
    """SIGKILL before the draw, and between the draw and the answer: one debit, and the sum that was drawn."""
    folder, _, _ = world
    provider = provider_of(world, tmp_path, limit=2.5)
    request, drawn = request_of(world), tmp_path / "drawn"
    cut_off(world, killed, provider, request, moment, drawn)
    assert [entry.state for entry in provider.ledger.entries("labels")] == [state]
    answer = json.loads(provider.answer(request, str(folder / "features")))["body"]
    assert [entry.state for entry in provider.ledger.entries("labels")] == ["published"]
    if state == "spent":
        step = Lattice(world[1].norm_bound, answer["lattice_bits"]).step
        assert np.allclose(np.array(answer["steps"]) * step, np.loadtxt(drawn), atol=step / 2)


def cut_off(world, killed, provider, request, moment, drawn):
    """The provider's process is killed when it comes to ``moment``; what it drew is written to ``drawn``."""
    folder, label = world[0], provider.label.model_dump()
    killed(
        "import numpy as np, daskrado.parties.label_provider as p, daskrado.ledger.journal as j\n"
        "from daskrado.table.label import Label\n"
        "from pathlib import Path\nfrom daskrado.ledger.ledger import Ledger\n"
        "from daskrado.parties.signing import SigningKey\n"
        "keep = j.Journal.keep\n"
        f"def noted(self, name, arrays): np.savetxt({str(drawn)!r}, arrays['mean']); keep(self, name, arrays)\n"
        "j.Journal.keep = noted\n"
        f"{moment} = lambda *a, **k: os.kill(os.getpid(), signal.SIGKILL)\n"
        f"key = SigningKey.load({str(folder / 'provider')!r})\n"
        f"p.Provider(key, {provider.trusted!r}, 'labels', {provider.labels!r}, Label(**{label!r}),"
        f" Ledger.open({str(provider.ledger.path)!r}), Path({str(provider.answers)!r}))"
        f".answer({request!r}, {str(folder / 'features')!r})\n"
    )


@pytest.mark.parametrize(("moment", "state"), [("p.write_answer", "spent"), ("j.Journal.begin", "reserved")])
def test_an_answer_that_was_cut_off_goes_on_under_its_own_terms_only(world, tmp_path, killed, moment, state):
    """Else the provider would sign a guarantee for a unit of 50 rows over noise that was drawn for one."""
    folder, features = world[0], str(world[0] / "features")
    learner = SigningKey.load(folder / "learner")
    provider, request = provider_of(world, tmp_path), request_of(world)
    cut_off(world, killed, provider, request, moment, tmp_path / "drawn")
    for change in ({"rows_per_unit": 50}, {"unit": "one household"}):
        with pytest.raises(DataError, match=r"terms of the answer .*changed since run"):
            Provider(**{**vars(provider), **change}).answer(request, features)
    for change in ({"noise": "l2_gamma"}, {"lattice_bits": 12}, {"created": "today"}):  # at the same alpha
        digest = {}
        if "lattice_bits" in change:
            digest = {"features": json.loads(request_of(world, lattice_bits=12))["body"]["features"]}
        twisted = resigned(request, learner, lambda body, new={**change, **digest}: body.update(new))
        with pytest.raises(DataError, match="changed since run"):
            provider.answer(twisted, features)
    assert [entry.state for entry in provider.ledger.entries("labels")] == [state]
    body = json.loads(provider.answer(request, features))["body"]
    assert (body["privacy"]["rows_per_unit"], body["noise"]["kind"]) == (1, "laplace")
    assert body["noise"]["scale"] == pytest.approx(2 * body["noise"]["l1"] / 1.0, rel=1e-9)  # 2 max|x|_1 / alpha
    assert [entry.state for entry in provider.ledger.entries("labels")] == ["published"]


def test_a_request_id_is_answered_once_wherever_answers_are_kept(world, tmp_path):
    request, features = request_of(world), str(world[0] / "features")
    provider = provider_of(world, tmp_path)
    first = provider.answer(request, features)
    other = Provider(**{**vars(provider), "answers": tmp_path / "elsewhere"})
    for _ in range(2):
        with pytest.raises(
            LedgerError, match=rf"{json.loads(request)['body']['request']} was answered before"
        ) as told:
            other.answer(request, features)
        assert str(tmp_path / "elsewhere") in str(told.value)
    assert [entry.state for entry in provider.ledger.entries("labels")] == ["published"]
    assert provider.answer(request, features) == first


def test_two_folders_of_answers_at_once_give_one_answer(world, tmp_path):
    request, features = request_of(world), str(world[0] / "features")
    provider = provider_of(world, tmp_path)

    def ask(name):
        try:
            return Provider(**{**vars(provider), "answers": tmp_path / name}).answer(request, features)
        except LedgerError as error:
            return str(error)

    with ThreadPoolExecutor(2) as pool:
        told = list(pool.map(ask, ("one", "two")))
    assert sum("answered before" in text for text in told) == 1
    assert [entry.state for entry in provider.ledger.entries("labels")] == ["published"]


def test_the_provider_says_which_column_is_the_label(world, tmp_path):
    """Its lake holds another column of two values that nobody may ask for."""
    folder, domain, table = world
    pairs = table.select(["patient_id", "readmitted"]).append_column("hiv", table.column("readmitted"))
    provider = provider_of(world, tmp_path, labels=write(pairs, tmp_path / "wide"))
    other = Domain.model_validate({**domain.model_dump(), "label": {**READMITTED.model_dump(), "column": "hiv"}})
    turned = Domain.model_validate(
        {**domain.model_dump(), "label": {"column": "readmitted", "positive": "no", "negative": "yes"}}
    )
    key, features = SigningKey.load(folder / "learner"), str(folder / "features")
    for asked, name in ((other, "hiv=yes/no"), (turned, "readmitted=no/yes")):
        request = make_request(features, asked, key, epsilon=1.0)
        with pytest.raises(MessageError, match=f"asks for the label {name}.*answers for readmitted=yes/no alone"):
            provider.answer(request, str(tmp_path / "nowhere"))  # refused before anything is read
    assert provider.ledger.entries("labels") == []
    numbers = {"column": "readmitted", "positive": 1, "negative": 0}
    asked = Domain.model_validate({**domain.model_dump(), "label": numbers})
    values = pa.array([int(v == "yes") for v in table.column("readmitted").to_pylist()])
    labels = write(pa.table({"patient_id": table.column("patient_id"), "readmitted": values}), tmp_path / "numbers")
    written = Label(column="readmitted", positive="1", negative="0")  # a command line has no types
    provider = provider_of(world, tmp_path, labels=labels, label=written)
    assert provider.answer(make_request(features, asked, key, epsilon=1.0), features)


def test_features_that_are_all_zero_cost_the_provider_nothing(world, tmp_path):
    """Noise for them would have the scale 0."""
    folder, domain, table = world
    flat = Domain.model_validate(
        {
            **domain.model_dump(include={"label", "norm_bound", "id"}),
            "intercept": 0.0,
            "columns": {"age": {"kind": "numeric", "lower": 18, "upper": 95}},
        }
    )
    ages = pa.table({"patient_id": table.column("patient_id"), "age": np.full(ROWS, (18 + 95) / 2)})
    features, key = write(ages, tmp_path / "zero"), SigningKey.load(folder / "learner")
    provider = provider_of(world, tmp_path)
    for noise in ("laplace", "l2_gamma"):
        with pytest.raises(DataError, match="zero in all 1 features"):
            provider.answer(make_request(features, flat, key, epsilon=1.0, mechanism=noise), features)
    assert {entry.state for entry in provider.ledger.entries("labels")} == {"void"}
    with pytest.raises(UsageError, match="noise scale"):
        provider.answer(request_of(world, epsilon=1e-9, mechanism="l2_gamma"), str(folder / "features"))
    assert {entry.state for entry in provider.ledger.entries("labels")} == {"void"}


def test_a_damaged_stored_answer_is_named(world, tmp_path):
    request, features = request_of(world), str(world[0] / "features")
    provider = provider_of(world, tmp_path)
    answer = provider.answer(request, features)
    stored = next((tmp_path / "answers").glob("*.json"))
    swapped = answer.replace('"rows":600', '"rows":601')
    assert swapped != answer
    for damage in (b"", answer.encode()[:-40], b"[1]", b"\xff\xfe", swapped.encode(), b"{}", b"[" * 100_000):
        stored.write_bytes(damage)
        with pytest.raises(MessageError, match=stored.name):
            provider.answer(request, features)
    stored.write_text(answer)
    assert provider.answer(request, features) == answer
    assert len(provider.ledger.entries("labels")) == 1
