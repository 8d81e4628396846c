"""Jobs of kind labels and bags: same bits anywhere, honest ledgers, estimates that come back to the oracle."""

import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml
from click.testing import CliRunner
from damaged_files import damaged_copy

import daskrado
from daskrado.cli.main import cli
from daskrado.errors import BudgetError, DataError, UsageError
from daskrado.jobs.bags import BagsJob
from daskrado.jobs.base import perform
from daskrado.jobs.labels import LabelsJob
from daskrado.jobs.load import load_job
from daskrado.jobs.show import plan_lines
from daskrado.lake.collect import open_passes
from daskrado.lake.scan import open_lake
from daskrado.learners.on_passes.bag_estimators import alternate, lake_bags
from daskrado.learners.on_passes.linear_odd import ArrayFeatures, fit_mean
from daskrado.ledger.ledger import Ledger
from daskrado.losses.linear_odd import UserLoss, make_odd_loss
from daskrado.losses.margin import Huber
from daskrado.privacy.relations import Relation
from daskrado.statistics.base import Groups
from daskrado.table.domain import Domain
from daskrado.table.encoding import encode_table
from daskrado.table.lattice import Lattice
from daskrado.table.yaml_file import parse

ROOT = Path(__file__).parents[2]
ROWS = 4000
PURE = ("laplace", "l2_gamma")
WARDS = ["cardiology", "maternity", "medicine", "oncology", "surgery"]


@pytest.fixture(scope="module")
def lake(clinic):
    path, domain = clinic(ROWS, 3)
    table = pq.read_table(path)
    return path, domain, table


def oracle(table, domain):
    """Labels, rows as shares of the norm bound, and the mean operator, without any of the statistics' code."""
    encoded = encode_table(domain, table)
    x = encoded.block(0, table.num_rows, np.empty((table.num_rows, domain.width), order="F")).copy()
    x /= np.maximum(np.linalg.norm(x, axis=1, keepdims=True), domain.norm_bound)
    y = np.where(np.array(table.column("readmitted").to_pylist()) == "yes", 1.0, -1.0)
    return x, y, (y[:, None] * x).mean(axis=0)


def labels_job(source, domain, **content):
    base = {"dataset": "clinic", "lake": source, "domain": domain, "output": "unused"}
    if content.get("private", True) and "supervision" not in content:
        base |= {
            "protect": {"unit": "one label"},
            "budget": {"epsilon": 1.0},
            "ledger": {"first_limit": {"epsilon": 10}},
        }
    return parse(LabelsJob, {**base, **content}, "test")


def bags_job(source, domain, **content):
    base = {"dataset": "clinic", "lake": source, "domain": domain, "output": "unused", "bags": "ward"}
    return parse(BagsJob, {**base, **content}, "test")


def write(table, folder, parts=1):
    folder.mkdir()
    edges = np.linspace(0, table.num_rows, parts + 1).astype(int)
    for i in range(parts):
        pq.write_table(table.slice(edges[i], edges[i + 1] - edges[i]), folder / f"{i}.parquet")
    return str(folder)


def with_labels(table, y, name="readmitted"):
    values = pa.array(["yes" if v > 0 else "no" if v < 0 else None for v in y])
    if name in table.column_names:
        return table.set_column(table.column_names.index(name), name, values)
    return table.append_column(name, values)


def test_mean_operator_is_exact_without_noise_and_bits_do_not_depend_on_partitions(lake, tmp_path, two_workers):
    path, domain, table = lake
    _, _, mu = oracle(table, domain)
    results = [perform(labels_job(str(path), domain, private=False), write=False)]
    for parts in (1, 2, 7):
        source = write(table, tmp_path / str(parts), parts)
        results.append(perform(labels_job(source, domain, private=False), write=False))
    where = {"kind": "scheduler", "address": two_workers.scheduler.address}
    results.append(perform(labels_job(str(path), domain, private=False, cluster=where), write=False))
    for result in results:
        np.testing.assert_array_equal(result.value.mean, results[0].value.mean)
        np.testing.assert_array_equal(result.model.weights, results[0].model.weights)
        assert not result.model.statement.private
    np.testing.assert_allclose(results[0].value.mean, mu, atol=2e-6)  # the grid truncates by a step


def test_rows_far_shorter_than_the_norm_bound_stay_within_the_grant(lake):
    """The event is reserved before rows are measured; on a grid that is coarse for them it is the same one."""
    path, domain, _ = lake
    wide = domain.model_copy(update={"norm_bound": 5000 * domain.norm_bound})
    limit = {"first_limit": {"epsilon": 50, "delta": 0.1}}
    job = labels_job(str(path), wide, noise="gaussian", budget={"epsilon": 1.0, "delta": 1e-6}, ledger=limit)
    assert perform(job, write=False).model.statement.epsilon == pytest.approx(1.0)


@pytest.mark.parametrize(("noise", "delta"), [("laplace", 0.0), ("l2_gamma", 0.0), ("gaussian", 1e-6)])
def test_noise_has_the_size_that_the_features_call_for(lake, noise, delta):
    """The released mean is off by about the standard deviation that these rows call for, neither more nor less."""
    path, domain, table = lake
    x, _, mu = oracle(table, domain)
    limit = {"first_limit": {"epsilon": 50, "delta": 0.1}}
    budget, d = {"epsilon": 0.5, "delta": delta}, domain.width
    scale1, scale2 = 2 * np.abs(x).sum(axis=1).max() / 0.5, 2 * np.linalg.norm(x, axis=1).max() / 0.5
    gaps = []
    for _ in range(4):
        result = perform(labels_job(str(path), domain, noise=noise, budget=budget, ledger=limit), write=False)
        gaps.append((result.value.mean - mu) * ROWS)
    size = float(np.sqrt(np.mean(np.square(gaps))))
    expected = {"laplace": np.sqrt(2) * scale1, "l2_gamma": np.sqrt(d + 1) * scale2}.get(noise)
    if expected is None:
        from daskrado.privacy.accountant import gaussian_mu

        expected = 2 * np.linalg.norm(x, axis=1).max() / gaussian_mu(0.5, 1e-6)
    assert result.value.noise.std * ROWS == pytest.approx(expected, rel=1e-4)
    assert 0.6 * expected < size < 1.6 * expected
    assert result.model.statement.epsilon <= 0.5 + 1e-12
    assert result.value.bounds.length > 0


def test_the_ledger_is_debited_once_and_refuses_more(lake, own_ledger):
    path, domain, _ = lake
    pipeline = labels_job(str(path), domain, budget={"epsilon": 6.0})
    result = perform(pipeline, write=False)
    assert result.budget[0]["share"] * result.budget[0]["limit_epsilon"] == pytest.approx(6.0)
    with pytest.raises(BudgetError, match="does not cover"):
        perform(pipeline, write=False)
    entries = Ledger.open(own_ledger).entries("clinic")
    assert [(entry.state, entry.relation) for entry in entries] == [("published", Relation.LABEL_FLIP)]


def test_a_run_that_fails_before_noise_gives_its_grant_back(lake, own_ledger, tmp_path):
    path, domain, table = lake
    with pytest.raises(DataError, match="cannot be read as Parquet"):
        perform(labels_job(str(damaged_copy(path, tmp_path / "damaged")), domain), write=False)
    y = np.ones(ROWS)
    y[7] = 0
    source = write(with_labels(table, y), tmp_path / "null")
    with pytest.raises(DataError, match=r"readmitted.: label outside"):
        perform(labels_job(source, domain, private=False, protect=None, budget=None), write=False)
    perform(labels_job(source, domain), write=False)  # a label is protected: that it is unusable shows nowhere
    assert [entry.state for entry in Ledger.open(own_ledger).entries("clinic")] == ["void", "published"]


def test_published_files_hold_no_label_and_no_exact_sum(lake, tmp_path):
    path, domain, table = lake
    _, _, mu = oracle(table, domain)
    out = tmp_path / "out"
    result = perform(labels_job(str(path), domain, output=str(out)))
    manifest = json.loads((out / "manifest.json").read_text())
    assert manifest["statement"]["relation"] == "label_flip"
    assert manifest["facts"]["mean_operator"] == result.value.mean.tolist()
    assert np.abs(np.array(manifest["facts"]["mean_operator"]) - mu).min() > 0
    page = (out / "report.html").read_text()
    assert "theorem 10" in page
    assert "<svg" in page
    with pytest.raises(UsageError, match="exists"):
        perform(labels_job(str(path), domain, output=str(out)))


def test_noisy_labels_come_back_to_the_oracle(lake, tmp_path):
    _, domain, table = lake
    _, y, mu = oracle(table, domain)
    draw = np.random.default_rng(3)
    flips = draw.random(ROWS) < np.where(y > 0, 0.3, 0.1)
    seen = np.where(flips, -y, y)
    audited = np.where(draw.random(ROWS) < 0.5, y, 0.0)
    source = write(with_labels(with_labels(table, seen), audited, "truth"), tmp_path / "noisy")
    known = {"kind": "noisy", "positive_flips": 0.3, "negative_flips": 0.1}
    naive = perform(labels_job(source, domain, private=False), write=False)
    for choice in (known, {"kind": "noisy", "audit": "truth"}):
        learned = perform(labels_job(source, domain, private=False, supervision=choice), write=False)
        # the estimator's own spread: at most 2 sqrt(p (1 - p)) / ((1 - p+ - p-) sqrt(m)) for rows of norm 1
        spread = 2 * np.sqrt(0.3 * 0.7) / (0.6 * np.sqrt(ROWS))
        assert np.linalg.norm(learned.value.mean - mu) < 2 * spread
        assert np.linalg.norm(learned.value.mean - mu) < 0.6 * np.linalg.norm(naive.value.mean - mu)
    rates = learned.facts["flip_rates"]
    assert rates["positive"] == flips[(y > 0) & (audited != 0)].mean()  # counted by hand on the audited rows
    assert rates["negative"] == flips[(y < 0) & (audited != 0)].mean()
    with pytest.raises(DataError, match="audit column 'nothing'"):
        perform(
            labels_job(source, domain, private=False, supervision={"kind": "noisy", "audit": "nothing"}), write=False
        )


def test_randomised_response_labels_need_no_ledger(lake, tmp_path, own_ledger):
    from daskrado.privacy.local import BinaryResponse

    _, domain, table = lake
    _, y, mu = oracle(table, domain)
    reports = BinaryResponse.from_epsilon(1.0).randomise((y > 0).astype(np.int64))
    source = write(with_labels(table, 2.0 * reports - 1), tmp_path / "rr")
    choice = {"kind": "randomised_response", "epsilon": 1.0}
    pipeline = labels_job(source, domain, supervision=choice, protect={"unit": "one patient's label"})
    learned = perform(pipeline, write=False)
    assert learned.model.statement.epsilon == 1.0
    assert "source" in learned.model.statement.mechanism
    assert not own_ledger.exists()
    # a report's estimate of a label has variance 4 p (1 - p) / (2p - 1)^2, p = e / (1 + e)
    p = np.e / (1 + np.e)
    spread = np.sqrt(4 * p * (1 - p)) / ((2 * p - 1) * np.sqrt(ROWS))
    assert learned.facts["standard_error_at_most"] == pytest.approx(spread, rel=1e-5)
    assert np.abs(learned.value.mean - mu).max() < 6 * spread
    with pytest.raises(UsageError, match="drop budget"):
        labels_job(source, domain, supervision=choice, protect={"unit": "u"}, budget={"epsilon": 1})
    # five reports on one person: their likelihood ratios multiply, and e is the largest for each
    many = labels_job(source, domain, supervision=choice, protect={"unit": "one patient", "rows_per_unit": 5})
    statement = perform(many, write=False).model.statement
    assert (statement.epsilon, statement.rows_per_unit) == (5.0, 5)
    assert "at most 5 row(s)" in " ".join(statement.assumptions)
    planned = "\n".join(plan_lines(many, None))
    assert "epsilon = 5" in planned
    assert "no budget is spent" in planned


def test_missing_labels(lake, tmp_path):
    _, domain, table = lake
    _, y, mu = oracle(table, domain)
    draw = np.random.default_rng(4)
    ward = np.array(table.column("ward").to_pylist())
    seen = draw.random(ROWS) < np.where(ward == "maternity", 0.9, 0.4)  # missing at random within wards only
    source = write(with_labels(table, np.where(seen, y, 0)), tmp_path / "missing", 2)
    strata = {"column": "ward", "values": WARDS}
    plain = perform(labels_job(source, domain, private=False, supervision={"kind": "missing"}), write=False)
    by_ward = perform(
        labels_job(source, domain, private=False, supervision={"kind": "missing", "strata": strata}), write=False
    )
    assert by_ward.facts["labelled_rows"] == seen.sum()
    assert np.linalg.norm(by_ward.value.mean - mu) < 0.6 * np.linalg.norm(plain.value.mean - mu)
    private = labels_job(
        source,
        domain,
        supervision={"kind": "missing", "strata": strata},
        protect={"unit": "one label"},
        budget={"epsilon": 5.0},
        ledger={"first_limit": {"epsilon": 10}},
    )
    noisy = perform(private, write=False)
    assert noisy.value.noise.dimension == 5 * domain.width
    assert np.linalg.norm(noisy.value.mean - by_ward.value.mean) <= noisy.value.bounds.length
    wrong = {"column": "ward", "values": WARDS[1:]}
    with pytest.raises(DataError, match="outside the 4 declared groups"):
        perform(
            labels_job(source, domain, private=False, supervision={"kind": "missing", "strata": wrong}), write=False
        )
    with pytest.raises(DataError, match=r"null|label"):
        perform(labels_job(source, domain, private=False), write=False)


def test_public_mistakes_cost_nothing(lake, tmp_path, own_ledger):
    """A bag without rows, features that are all zero: found before the grant is spent.

    That a group has no labels is said only where nobody is protected.
    """
    path, domain, table = lake
    _, y, _ = oracle(table, domain)
    ward = np.array(table.column("ward").to_pylist())
    private = {
        "protect": {"unit": "one label"},
        "budget": {"epsilon": 1.0},
        "ledger": {"first_limit": {"epsilon": 10}},
    }
    empty = write(with_labels(table, np.where(ward == "maternity", 0, y)), tmp_path / "empty", 2)
    flat = Domain.model_validate(
        {
            **domain.model_dump(include={"label", "norm_bound", "id"}),
            "intercept": 0.0,
            "columns": {"age": {"kind": "numeric", "lower": 18, "upper": 95}},
        }
    )
    ages = pa.array(np.full(ROWS, (18 + 95) / 2))
    zero = write(table.set_column(table.column_names.index("age"), "age", ages), tmp_path / "zero")
    strata = {"kind": "missing", "strata": {"column": "ward", "values": WARDS}}
    cases = [
        (
            bags_job(str(path), domain, values=[*WARDS, "geriatrics"], **private),
            r"1 of 6 bags have no rows \(geriatrics\)",
        ),
        (bags_job(zero, flat, values=WARDS, **private), "zero in all 1 features"),
        *((labels_job(zero, flat, noise=noise, **private), "zero in all 1") for noise in PURE),
    ]
    unprotected = labels_job(empty, domain, supervision=strata, private=False, protect=None, budget=None)
    with pytest.raises(DataError, match="1 of 5 groups have no labelled row"):
        perform(unprotected, write=False)
    for pipeline, why in cases:
        with pytest.raises(DataError, match=why) as told:
            perform(pipeline, write=False)
        assert not getattr(told.value, "__notes__", [])
    assert {entry.state for entry in Ledger.open(own_ledger).entries("clinic")} == {"void"}
    for noise in PURE:  # noise above 2^52 grid steps cannot be drawn: nothing is even reserved
        tiny = {**private, "budget": {"epsilon": 1e-9}}
        with pytest.raises(UsageError, match="noise scale"):
            perform(labels_job(str(path), domain, noise=noise, **tiny), write=False)
    assert {entry.state for entry in Ledger.open(own_ledger).entries("clinic")} == {"void"}


def test_the_spherical_law_says_how_it_is_drawn(lake):
    path, domain, _ = lake
    for noise, said in (("l2_gamma", True), ("laplace", False)):
        told = "\n".join(plan_lines(labels_job(str(path), domain, noise=noise), None))
        assert ("uniform numbers of 128 bits" in told) is said


@pytest.mark.slow
def test_proportions_too_alike_are_refused_if_public_and_told_if_paid_for(lake, own_ledger, tmp_path):
    path, domain, _ = lake
    close = {**dict.fromkeys(WARDS, 0.5), "cardiology": 0.5000001}
    for kind in ("mean_map", "laplacian"):
        job = bags_job(str(path), domain, private=False, proportions=close, estimator={"kind": kind})
        with pytest.raises(DataError, match=r"between 0\.5 and 0\.5000001, .*condition.*cannot be estimated: age"):
            perform(job, write=False)
    clear = {**dict.fromkeys(WARDS, 0.5), "cardiology": 0.51}
    perform(bags_job(str(path), domain, private=False, proportions=clear), write=False)
    # 5 bags of negative labels: at epsilon 50 the released counts are exact but for one chance in 1e20
    negative = pq.read_table(path)
    labels = pa.array(["no"] * negative.num_rows)
    negative = negative.set_column(negative.column_names.index("readmitted"), "readmitted", labels)
    job = bags_job(
        write(negative, tmp_path / "negative"),
        domain,
        values=WARDS,
        protect={"unit": "one label"},
        budget={"epsilon": 50},
        ledger={"first_limit": {"epsilon": 50}},
        output=str(tmp_path / "out"),
    )
    result = perform(job)
    assert any("one label only (negative)" in note for note in result.notes)
    assert "one label only" in (tmp_path / "out/report.html").read_text()
    assert [entry.state for entry in Ledger.open(own_ledger).entries("clinic")] == ["published"]


def shares(table):
    ward, label = (np.array(table.column(c).to_pylist()) for c in ("ward", "readmitted"))
    return {w: float((label[ward == w] == "yes").mean()) for w in WARDS}


@pytest.mark.slow
def test_bags_with_given_proportions(lake, tmp_path):
    path, domain, table = lake
    given = shares(table)
    found = {}
    for kind in ("mean_map", "laplacian", "alternating"):
        pipeline = bags_job(str(path), domain, private=False, proportions=given, estimator={"kind": kind})
        found[kind] = perform(pipeline, write=False)
        assert not found[kind].model.statement.private
    csv = tmp_path / "shares.csv"
    csv.write_text("bag,positive,negative\n" + "".join(f"{w},{p!r},{1 - p!r}\n" for w, p in given.items()))
    again = perform(bags_job(str(path), domain, private=False, proportions=str(csv)), write=False)
    np.testing.assert_array_equal(again.value.mean, found["laplacian"].value.mean)
    # Mean Map by hand: least squares of bag means on proportions
    x, _, _ = oracle(table, domain)
    ward = np.array(table.column("ward").to_pylist())
    means = np.array([x[ward == w].mean(axis=0) for w in WARDS])
    p = np.array([given[w] for w in WARDS])
    classes = np.linalg.lstsq(np.column_stack([p, 1 - p]), means, rcond=None)[0]
    total = sum((ward == w).mean() * given[w] for w in WARDS)
    np.testing.assert_allclose(found["mean_map"].value.mean, total * classes[0] - (1 - total) * classes[1], atol=1e-5)


@pytest.mark.slow
def test_proportions_released_with_noise(lake, own_ledger, tmp_path):
    path, domain, table = lake
    pipeline = bags_job(
        str(path),
        domain,
        values=WARDS,
        protect={"unit": "one label"},
        budget={"epsilon": 0.15},
        ledger={"first_limit": {"epsilon": 10}},
        output=str(tmp_path / "out"),
        estimator={"kind": "alternating", "rounds": 2},
    )
    result = perform(pipeline)
    assert result.budget[0]["share"] * 10 == pytest.approx(0.15)
    exact = shares(table)
    for ward, share in result.facts["proportions"].items():
        assert abs(share - exact[ward]) < 0.3  # noise of scale 1/0.15 on 400 rows and more
    assert any(share != exact[ward] for ward, share in result.facts["proportions"].items())
    assert "<svg" in (tmp_path / "out/report.html").read_text()
    assert [entry.state for entry in Ledger.open(own_ledger).entries("clinic")] == ["published"]


def test_alternation_on_two_workers_has_the_same_bits(lake, two_workers):
    path, domain, table = lake
    found = []
    for where in ({"kind": "in_process"}, {"kind": "scheduler", "address": two_workers.scheduler.address}):
        choice = {"kind": "alternating", "rounds": 2, "similarity": "association"}
        pipeline = bags_job(
            str(path),
            domain,
            private=False,
            proportions=shares(table),
            estimator=choice,
            cluster=where,
            strength=0.01,
        )
        found.append(perform(pipeline, write=False))
    np.testing.assert_array_equal(found[0].value.mean, found[1].value.mean)
    np.testing.assert_array_equal(found[0].model.weights, found[1].model.weights)


@pytest.mark.parametrize("largest", [True, False])
def test_labels_by_margin_are_those_of_sorting(lake, tmp_path, largest):
    """The digit-by-digit selection over partitions against numpy's sort within each bag, ties included."""
    _, domain, table = lake
    table = pa.concat_tables([table.slice(0, 700), table.slice(0, 700)])  # every margin is tied with its twin
    x, _, _ = oracle(table, domain)
    ward = np.array(table.column("ward").to_pylist())
    weights = np.random.default_rng(6).normal(size=domain.width)
    positives = np.array([0.0, (ward == "maternity").sum(), 7.0, 12.5, 1.0])
    expected = np.zeros(domain.width)
    for j, name in enumerate(WARDS):
        mine = x[ward == name]
        margins = np.round((mine @ weights) * (1 if largest else -1), 4)  # twins tie; rounding keeps others apart
        y = -np.ones(len(mine))
        left = positives[j]
        for value in np.unique(margins)[::-1]:
            tied = margins == value
            take = min(left, tied.sum())
            y[tied] = 2 * take / tied.sum() - 1
            left -= take
            if left <= 0:
                break
        expected += (y[:, None] * mine).sum(axis=0)
    found = []
    for parts in (1, 3):
        source = open_lake(write(table, tmp_path / f"{parts}{largest}", parts), domain, label=False)
        with open_passes(source, domain, Lattice(domain.norm_bound, 20)) as passes:
            bags = lake_bags(passes, Groups("ward", tuple(WARDS)), x.sum(axis=0), len(x), None)
            found.append(bags.best_labels(weights, positives, largest=largest))
    np.testing.assert_array_equal(found[0], found[1])
    np.testing.assert_allclose(found[0] * len(x), expected, atol=0.02)


class ArrayBags(ArrayFeatures):
    """Bags in memory, for the alternation's own laws."""

    def best_labels(self, weights, positives, *, largest):
        y = -np.ones(len(self.rows))
        for j, count in enumerate(positives):
            mine = np.flatnonzero(j == BAG)
            order = np.argsort(-(self.rows[mine] @ weights) * (1 if largest else -1))
            y[mine[order[: round(count)]]] = 1.0
        return (y[:, None] * self.rows).mean(axis=0)


BAG = np.repeat(np.arange(6), 100)


def test_alternation_never_raises_its_objective_and_learns_from_counts():
    draw = np.random.default_rng(7)
    truth = np.array([2.0, -1.0, 0.5])
    x = draw.normal(size=(600, 3)) / 3 + np.linspace(-0.4, 0.4, 6)[BAG][:, None] * truth / 4
    y = np.sign(x @ truth + 0.05 * draw.normal(size=600))
    positives = np.array([(y[j == BAG] > 0).sum() for j in range(6)], dtype=float)
    start = np.array([0.1, 0.0, 0.1])
    for labels in ("best", "worst"):
        found = alternate(ArrayBags(x), make_odd_loss("logistic"), start, 1e-3, positives, labels=labels, rounds=15)
        if labels == "best":
            assert (np.diff(found.objectives) <= 1e-7).all()
            first = fit_mean(ArrayBags(x), make_odd_loss("logistic"), start, 1e-3).weights
            right = [np.mean(np.sign(x @ w) == y) for w in (first, found.fit.weights)]
            assert right[1] > max(0.8, right[0] + 0.05)
        else:
            assert found.fit.objective == min(found.objectives)


def test_bad_jobs_are_refused_in_one_line(lake):
    path, domain, table = lake
    given = shares(table)
    cases = [
        (lambda: labels_job(str(path), domain, loss="hinge"), "not linear-odd"),
        (lambda: labels_job(str(path), domain, strength=0), "strength"),
        (lambda: labels_job(str(path), domain, noise="gaussian"), "delta above 0"),
        (lambda: labels_job(str(path), domain, noise="laplace", budget={"epsilon": 1, "delta": 1e-6}), "pure"),
        (lambda: labels_job(str(path), domain, private=False, budget={"epsilon": 1}), "drop budget"),
        (lambda: labels_job(str(path), domain, supervision={"kind": "full"}), "protect and budget"),
        (
            lambda: labels_job(
                str(path),
                domain,
                private=False,
                supervision={"kind": "noisy", "positive_flips": 0.6, "negative_flips": 0.4},
            ),
            "must be below 1",
        ),
        (lambda: labels_job(str(path), domain, private=False, supervision={"kind": "noisy"}), "audit"),
        (
            lambda: labels_job(
                str(path),
                domain,
                protect={"unit": "u"},
                budget={"epsilon": 1},
                supervision={"kind": "noisy", "audit": "truth"},
            ),
            "outside the budget",
        ),
        (lambda: bags_job(str(path), domain, private=False), "give proportions"),
        (
            lambda: bags_job(str(path), domain, private=False, proportions={"a": 1.2}),
            r"^test: proportions\.a: input should be less than or equal to 1 \(got 1\.2\)$",
        ),
        (
            lambda: bags_job(str(path), domain, private=False, proportions={"a": {"positive": 0.5, "negative": 0.6}}),
            r"^test: proportions\.a: positive 0\.5 \+ negative 0\.6 do not sum to 1$",
        ),
        (
            lambda: bags_job(str(path), domain, private=False, proportions={"a": "x"}),
            r"^test: proportions\.a: must be a",
        ),
        (
            lambda: bags_job(str(path), domain, private=False, proportions={"a[1]": {"negative": 0.5}}),
            r"^test: proportions\.a\[1\]\.positive: missing, and it has no default$",
        ),
        (
            lambda: bags_job(str(path), domain, private=False, proportions=["a"]),
            r"^test: proportions: input should be a valid dictionary or a valid string \(got \['a'\]\)$",
        ),
        (
            lambda: bags_job(str(path), domain, private=False, values=["a", None]),
            r"^test: values\.1: input should be a valid boolean or a valid integer or a valid number "
            r"or a valid string \(got None\)$",
        ),
    ]
    for make, why in cases:
        with pytest.raises(UsageError, match=why) as caught:
            make()
        assert "\n" not in str(caught.value)
    with pytest.raises(DataError, match=r"one label only \(positive\).*cannot be estimated: age"):
        perform(bags_job(str(path), domain, private=False, proportions=dict.fromkeys(given, 1.0)), write=False)
    with pytest.raises(DataError, match="outside the 4 declared groups"):
        perform(bags_job(str(path), domain, private=False, proportions=dict(list(given.items())[1:])), write=False)
    with pytest.raises(DataError, match="no column 'wing'"):
        perform(bags_job(str(path), domain, private=False, bags="wing", proportions=given), write=False)
    extra = {**given, "dentistry": 0.2}
    with pytest.raises(DataError, match="1 of 6 bags have no rows"):
        perform(bags_job(str(path), domain, private=False, proportions=extra), write=False)


@pytest.mark.parametrize(
    "text", ["bag,share\na,0.5\n", "bag,positive\na,0.5\na,0.6\n", "bag,positive,negative\na,0.5,0.1\n"]
)
def test_bad_proportion_files_name_the_file(lake, tmp_path, text):
    path, domain, _ = lake
    csv = tmp_path / "p.csv"
    csv.write_text(text)
    with pytest.raises((DataError, UsageError), match=r"p\.csv"):
        perform(bags_job(str(path), domain, private=False, proportions=str(csv)), write=False)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["labels", "bags"])
def test_committed_pipelines_plan_and_run(name, tmp_path, monkeypatch):
    monkeypatch.chdir(ROOT)
    content = yaml.safe_load((ROOT / f"pipelines/{name}.yaml").read_text())
    content |= {
        "lake": ["data/clinic_sample/part-00000.parquet"],
        "domain": "data/clinic_sample.yaml",
        "output": str(tmp_path / "out"),
    }
    file = tmp_path / "p.yaml"
    file.write_text(yaml.safe_dump(content))
    load_job(ROOT / f"pipelines/{name}.yaml")
    run = CliRunner()
    planned = run.invoke(cli, ["plan", str(file)], catch_exceptions=False)
    assert "epsilon" in planned.output
    done = run.invoke(cli, ["run", str(file)], catch_exceptions=False)
    assert "written to" in done.output
    assert {p.name for p in (tmp_path / "out").iterdir()} == {"model.json", "manifest.json", "report.html"}


@pytest.mark.slow
def test_from_python_with_a_loss_of_ones_own(lake, tmp_path):
    path, domain, table = lake
    keys = {"dataset": "clinic", "lake": str(path), "domain": domain, "output": str(tmp_path / "o"), "private": False}
    plain = daskrado.fit_labels(keys).model.weights
    own = daskrado.fit_labels(keys, loss=UserLoss(lambda z: np.logaddexp(0, -z), lambda z: -1 / (1 + np.exp(z))))
    np.testing.assert_allclose(own.model.weights, plain, atol=2e-4)
    bags = daskrado.fit_bags({**keys, "kind": "bags", "bags": "ward", "proportions": shares(table)}, write=True)
    assert (tmp_path / "o/model.json").exists()
    assert bags.rows == ROWS
    with pytest.raises(UsageError, match="linear-odd"):
        daskrado.fit_labels(keys, loss=Huber(0.5))


def test_a_frame_in_memory_is_a_lake_too(lake):
    _, domain, table = lake
    plain = Domain.model_validate({**domain.model_dump(), "intercept": 0.0})
    frame = table.to_pandas()
    result = perform(labels_job(frame, plain, private=False), write=False)
    assert len(result.model.weights) == plain.width
