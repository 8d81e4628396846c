"""Jobs on labels in the house: their manifests, results without rows, reports that may fail, old and new words."""

import copy
import json
import pickle

import jsonschema
import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml
from click.testing import CliRunner

import daskrado
from daskrado.cli.main import cli
from daskrado.errors import UsageError
from daskrado.jobs.bags import BagsJob
from daskrado.jobs.base import Job, perform
from daskrado.jobs.labels import LabelsJob
from daskrado.jobs.load import load_job
from daskrado.jobs.manifest import manifest_schema
from daskrado.jobs.outcome import Result
from daskrado.jobs.show import plan_lines
from daskrado.lake.scan import Lake
from daskrado.ledger.ledger import Ledger
from daskrado.losses.linear_odd import AbsoluteOdd, UserLoss
from daskrado.table.yaml_file import parse

WARDS = ["cardiology", "maternity", "medicine", "oncology", "surgery"]
SHARES = dict(zip(WARDS, (0.6, 0.1, 0.4, 0.7, 0.3), strict=True))
PRIVATE = {
    "protect": {"unit": "one label"},
    "budget": {"epsilon": 1.0},
    "ledger": {"first_limit": {"epsilon": 10, "delta": 1e-3}},
}
KINDS = {
    "labels": {"kind": "labels", **PRIVATE},
    "gaussian": {
        "kind": "labels",
        **PRIVATE,
        "budget": {"epsilon": 1.0, "delta": 1e-6},
        "supervision": {"kind": "missing", "strata": {"column": "ward", "values": WARDS}},
    },
    "baseline": {"kind": "labels", "private": False, "loss": "square"},
    "at the source": {
        "kind": "labels",
        "protect": {"unit": "one label", "rows_per_unit": 2},
        "supervision": {"kind": "randomised_response", "epsilon": 1.0},
    },
    "bags": {"kind": "bags", "bags": "ward", "values": WARDS, **PRIVATE},
    "given": {"kind": "bags", "bags": "ward", "proportions": SHARES, "estimator": "mean_map"},
}
SECRET = 987_654_321_012_345


@pytest.fixture(scope="module")
def lake(clinic):
    path, domain = clinic(2000, 2)
    return str(path), domain


@pytest.fixture
def keys(lake, tmp_path):
    """``keys(name)``: the keys of a job."""
    path, domain = lake
    base = {"dataset": "clinic", "lake": path, "domain": domain, "output": str(tmp_path / "out")}
    return lambda name, **more: {**base, **KINDS[name], **more}


@pytest.mark.parametrize("name", KINDS)
def test_manifest_and_files(name, keys, tmp_path):
    result = daskrado.run(keys(name))
    manifest = json.loads((tmp_path / "out/manifest.json").read_text())
    jsonschema.validate(manifest, manifest_schema())
    assert (manifest["kind"], manifest["run"]) == (KINDS[name]["kind"], result.run)
    assert manifest["facts"]["rows"] == result.rows == 2000
    assert manifest["facts"]["mean_operator"] == result.value.mean.tolist()
    assert manifest["facts"]["fit"] == result.model.details
    assert [entry["name"] for entry in manifest["files"]] == ["model.json"]
    assert [charge["role"] for charge in manifest["charges"]] == (["labels"] if "budget" in KINDS[name] else [])
    assert (tmp_path / "out/report.html").exists()
    assert result.lines[0] == manifest["privacy_in_words"] == result.statement.sentence()
    assert result.statement.private is (name not in ("baseline", "given"))
    assert result.model.statement == result.statement
    if result.statement.private:
        assert manifest["statement"]["epsilon"] == pytest.approx(2.0 if name == "at the source" else 1.0, rel=1e-6)
        assert manifest["statement"]["delta"] == (1e-6 if name == "gaussian" else 0.0)


def everything(thing, seen):
    """What a result holds, at any depth."""
    if id(thing) in seen or isinstance(thing, type):
        return
    seen[id(thing)] = thing
    yield thing
    inner = list(thing.items()) if isinstance(thing, dict) else thing if isinstance(thing, list | tuple) else []
    for part in (*inner, *vars(thing).values()) if hasattr(thing, "__dict__") else inner:
        yield from everything(part, seen)


@pytest.mark.parametrize("name", KINDS)
def test_a_result_holds_no_row(name, keys, lake):
    path, _ = lake
    frame = pq.read_table(path).to_pandas()
    frame["patient_id"] = SECRET + np.arange(len(frame))
    result = daskrado.run(keys(name, lake=frame), write=False)
    again = pickle.loads(pickle.dumps(result))
    for one in (again, copy.deepcopy(result)):
        assert repr(one) == repr(result)
        np.testing.assert_array_equal(one.value.mean, result.value.mean)
        np.testing.assert_array_equal(one.model.weights, result.model.weights)
    held = list(everything(result, {}))
    assert len(held) > 30
    assert not [thing for thing in held if isinstance(thing, pd.DataFrame | pa.Table | Lake | Job)]
    assert max(thing.size for thing in held if isinstance(thing, np.ndarray)) < 200  # as many as rows it is not
    shown = f"{result!r}{result._repr_html_()}{pickle.dumps(result)!r}{vars(result)}"
    assert str(SECRET)[:11] not in shown  # all ids begin so; shorter, digits might meet by chance
    assert (SECRET).to_bytes(8, "little") not in pickle.dumps(result)


@pytest.mark.parametrize("name", ["baseline", "given"])
def test_the_command_line_and_python_publish_the_same(name, keys, lake, tmp_path):
    domain = lake[1]
    content = keys(name) | {"domain": json.loads(domain.model_dump_json())}
    (tmp_path / "p.yaml").write_text(yaml.safe_dump(content, sort_keys=False))
    done = CliRunner().invoke(cli, ["run", str(tmp_path / "p.yaml")], catch_exceptions=False)
    result = daskrado.run(tmp_path / "p.yaml", out=tmp_path / "again")
    assert (tmp_path / "out/model.json").read_bytes() == (tmp_path / "again/model.json").read_bytes()
    assert done.output.splitlines()[:-1] == list(result.lines[:-1])  # the last line has times and the folder
    named = (daskrado.fit_labels if name == "baseline" else daskrado.fit_bags)(tmp_path / "p.yaml")
    np.testing.assert_array_equal(named.model.weights, result.model.weights)
    kept = []
    for folder in ("out", "again"):
        manifest = json.loads((tmp_path / folder / "manifest.json").read_text())
        kept.append({key: value for key, value in manifest.items() if key not in ("run", "seconds")})
    assert kept[0] == kept[1]


@pytest.mark.parametrize(("name", "part"), [("labels", "label_learning.bars"), ("bags", "bags.draw")])
def test_a_report_that_cannot_be_drawn_loses_nothing(name, part, keys, tmp_path, monkeypatch, own_ledger):
    def broken(*_, **__):
        raise KeyError("planted")

    monkeypatch.setattr(f"daskrado.jobs.{part}", broken)
    result = daskrado.run(keys(name))
    assert {path.name for path in (tmp_path / "out").iterdir()} == {"model.json", "manifest.json"}
    jsonschema.validate(json.loads((tmp_path / "out/manifest.json").read_text()), manifest_schema())
    assert any("report.html could not be drawn (KeyError)" in note for note in result.notes)
    assert [entry.state for entry in Ledger.open(own_ledger).entries("clinic")] == ["published"]


def same_job(one, two):
    assert one.model_dump(exclude={"domain"}) == two.model_dump(exclude={"domain"})


def test_older_words_are_read(keys):
    new = {"mechanism": "l2_gamma", "regularisation": 0.5}
    old = {"noise": "l2_gamma", "strength": 0.5}
    same_job(load_job(keys("labels", **new)), load_job(keys("labels", **old)))
    everyone = {"sigma": None, "gamma": 0.1, "start": "laplacian", "labels": "best", "rounds": 20}
    mean_map = {"kind": "mean_map", "similarity": "gaussian", "weights": "rows", **everyone}
    same_job(
        load_job(keys("bags", estimator=mean_map)),
        load_job(keys("bags", estimator={"kind": "mean_map", "weights": "rows"})),
    )
    same_job(
        load_job(keys("bags", estimator={"gamma": 2})),
        load_job(keys("bags", estimator={"kind": "laplacian", "gamma": 2})),
    )
    loss = {"kind": "absolute", "rho": 2, "generator": None}
    assert load_job(keys("labels", loss=loss)).loss == AbsoluteOdd(2.0)
    same_job(load_job(keys("labels")), load_job(keys("labels", loss={"kind": "logistic", "rho": None})))


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"protect": {"unit": "u", "relation": "replace_one"}}, r"protect: relation must be label_flip"),
        ({"protect": {"unit": "u", "feature": "sex"}}, "feature"),
        ({"mechanism": "uniform"}, "mechanism: mechanism 'uniform' is unknown; allowed: gaussian, l2_gamma, laplace"),
        ({"noise": "uniform"}, "noise: mechanism 'uniform' is unknown"),
        ({"strength": True}, "strength must be a number, got True"),
        ({"regularisation": True}, "regularisation must be a number, got True"),
        ({"strength": -1}, r"strength: input should be greater than 0 \(got -1\)"),
        ({"strength": 1, "regularisation": 1}, "strength: unknown key"),
        ({"loss": "huber"}, "loss: 'huber' is unknown or not linear-odd"),
        ({"loss": {"kind": "absolute", "rho": 0}}, "rho must be above 0"),
        ({"loss": {"kind": "square", "rho": 1}}, r"loss\.rho: unknown key; square takes none"),
        ({"loss": {"kind": "proper", "generator": "x"}}, r"loss\.generator: 'x' is unknown; allowed: logistic"),
        ({"supervision": "none"}, "kind must be one of 'full', 'missing', 'noisy', 'randomised_response'"),
        ({"supervision": {"kind": "missing", "strata": {"column": "ward"}}}, r"supervision\.strata\.values: missing"),
        ({"supervision": {"kind": "missing", "strat": 1}}, r"supervision\.strat: unknown key"),
        (
            {"supervision": {"kind": "noisy", "positive_flips": 1, "negative_flips": 0}},
            r"supervision\.positive_flips: input should be less than 1",
        ),
    ],
)
def test_mistakes_are_named_in_one_line(change, why, keys):
    with pytest.raises(UsageError, match=why) as caught:
        load_job(keys("labels", **change))
    assert "\n" not in str(caught.value)


def test_labels_randomised_for_more_than_can_be_stated_are_refused(keys):
    choice = {"kind": "randomised_response", "epsilon": 20.0}
    job = load_job(keys("at the source", supervision=choice))
    assert job.statement.epsilon == 40.0  # two rows of one unit
    assert job.charges() == ()
    with pytest.raises(UsageError, match="epsilon 20 for each of 3 rows is epsilon 60 for one unit; at most 50"):
        load_job(keys("at the source", supervision=choice, protect={"unit": "u", "rows_per_unit": 3}))


def test_plans_name_what_the_job_does(keys):
    said = "\n".join(plan_lines(load_job(keys("labels", mechanism="l2_gamma")), None))
    assert "loss        logistic, regularisation 0.001" in said
    assert "mean: standard deviation" in said
    assert "supervision full" in said
    assert "assumes     all features, which rows have a label, and the number of rows are public" in said
    said = "\n".join(plan_lines(load_job(keys("bags")), None))
    assert "bags        5 values of 'ward'; estimator laplacian" in said
    assert "positives: standard deviation" in said


def test_a_private_run_with_a_loss_of_ones_own_is_published_and_not_remembered(keys, tmp_path, own_ledger):
    loss = UserLoss(np.vectorize(lambda z: (1 - z) ** 2))  # has no name of its own
    result = daskrado.fit_labels(keys("labels"), loss=loss, write=True)
    manifest = json.loads((tmp_path / "out/manifest.json").read_text())
    assert manifest["job"]["loss"]["kind"] == result.model.details["loss"] == "user"
    assert not own_ledger.with_name(own_ledger.name + ".runs").exists()
    plain = load_job(keys("labels", loss={"kind": "proper", "generator": "matsushita"}))
    assert plain.can_be_remembered
    assert not plain.model_copy(update={"loss": loss}).can_be_remembered


def test_proportions_in_a_file_are_found_beside_the_pipeline(keys, lake, tmp_path, monkeypatch):
    folder = tmp_path / "jobs"
    folder.mkdir()
    (folder / "shares.csv").write_text("bag,positive\n" + "".join(f"{w},{p}\n" for w, p in SHARES.items()))
    content = keys("given", proportions="shares.csv") | {"domain": json.loads(lake[1].model_dump_json())}
    (folder / "p.yaml").write_text(yaml.safe_dump(content, sort_keys=False))
    monkeypatch.chdir(tmp_path)
    result = daskrado.run(folder / "p.yaml", write=False)
    np.testing.assert_array_equal(result.value.mean, daskrado.run(keys("given"), write=False).value.mean)
    assert result.facts["proportions"] == SHARES


def test_results_are_of_one_type(keys):
    for name, kind in (("labels", LabelsJob), ("bags", BagsJob)):
        content = {key: value for key, value in keys(name).items() if key != "kind"}
        assert isinstance(perform(parse(kind, content, "test"), write=False), Result)
