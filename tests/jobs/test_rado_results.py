"""What runs of kind rados, adaboost and ``daskrado learn`` leave behind: one manifest, one result, one statement."""

from __future__ import annotations

import copy
import json
import math
import pickle
from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields, is_dataclass
from pathlib import Path
from typing import Any, ClassVar

import jsonschema
import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest
import yaml
from click.testing import CliRunner
from scipy.stats import norm

import daskrado
from daskrado.cli.main import cli
from daskrado.errors import UsageError
from daskrado.jobs.base import Job, perform
from daskrado.jobs.load import load_job
from daskrado.jobs.manifest import manifest_schema
from daskrado.jobs.outcome import Result
from daskrado.jobs.rados import RadosJob
from daskrado.lake.scan import Lake
from daskrado.learners.base import ReleaseLearner
from daskrado.models.linear import LinearModel
from daskrado.models.rados import RADO_STATISTICS, RadoSet, rados_of
from daskrado.privacy.filter import filter_for
from daskrado.privacy.release import Release
from daskrado.statistics.base import Summary
from daskrado.table.domain import Domain
from daskrado.table.yaml_file import parse

Clinic = Callable[..., tuple[Path, Domain]]
UNIT = {"relation": "replace_one", "unit": "one patient"}
PLAIN = {"name": "plain", "kind": "uniform", "count": 16, "private": False, "seed": 5}
PURE = {"name": "pure", "kind": "balanced", "count": 8, "protect": UNIT, "budget": {"epsilon": 0.5}}
RADOS = {"kind": "rados", "sets": [{**PLAIN, "learn": {"kind": "rado_moments"}}, PURE]}
ADABOOST = {"kind": "adaboost", "rounds": 5, "private": False}
KINDS = {"rados": RADOS, "adaboost": ADABOOST}


@pytest.fixture(autouse=True)
def no_plots(monkeypatch: pytest.MonkeyPatch) -> None:
    """Plots are drawn in other tests; here they would take most of the time."""
    monkeypatch.setattr("matplotlib.figure.Figure.savefig", lambda self, to, **_: to.write("<svg></svg>"))


def keys(clinic: Clinic, kind: dict[str, Any], **more: Any) -> dict[str, Any]:
    path, domain = clinic()
    content = {**kind, "dataset": "clinic", "lake": str(path), "domain": domain.model_dump(mode="json")}
    content |= {"output": "unused", "ledger": {"first_limit": {"epsilon": 20.0, "delta": 1e-5}}}
    return {**content, "cluster": {"kind": "in_process"}, **more}


def of_sets(clinic: Clinic, *sets: dict[str, Any]) -> Result:
    return daskrado.run(keys(clinic, {"kind": "rados", "sets": list(sets)}), write=False)


def parts(thing: Any) -> Iterator[Any]:
    """A value and everything that it holds."""
    yield thing
    inner: Any = ()
    if is_dataclass(thing):
        inner = [getattr(thing, field.name) for field in fields(thing)]
    elif isinstance(thing, dict):
        inner = thing.values()
    elif isinstance(thing, list | tuple):
        inner = thing
    for part in inner:
        yield from parts(part)


@pytest.mark.parametrize("kind", KINDS)
def test_every_manifest_has_the_one_envelope(kind: str, clinic: Clinic, tmp_path: Path) -> None:
    result = daskrado.run(keys(clinic, KINDS[kind]), out=tmp_path / "o")
    content = json.loads((tmp_path / "o" / "manifest.json").read_text())
    jsonschema.validate(content, manifest_schema())
    assert (content["kind"], content["run"], content["facts"]["rows"]) == (kind, result.run, 3000)
    assert [charge["role"] for charge in content["charges"]] == (["set~pure"] if kind == "rados" else [])
    published = {path.name for path in (tmp_path / "o").iterdir()} - {"manifest.json", "report.html"}
    assert {entry["name"] for entry in content["files"]} == published


def test_learning_from_a_file_has_the_same_envelope(clinic: Clinic, tmp_path: Path) -> None:
    of_sets(clinic, PLAIN).value.sets[0].rados.save(tmp_path / "some rados.parquet")
    result = daskrado.learn_rados(tmp_path / "some rados.parquet", out=tmp_path / "o")
    content = json.loads((tmp_path / "o" / "manifest.json").read_text())
    jsonschema.validate(content, manifest_schema())
    assert content["job"] == {"learner": {"kind": "rado_moments", "regularisation": None}}
    assert (content["facts"]["rows"], content["facts"]["rados"]) == (3000, 16)
    assert np.array_equal(LinearModel.load(tmp_path / "o" / "model.json").weights, result.model.weights)
    again = daskrado.learn_rados(tmp_path / "some rados.parquet", out=tmp_path / "o", overwrite=True)
    assert np.array_equal(again.model.weights, result.model.weights)


@pytest.mark.parametrize("kind", KINDS)
def test_a_result_holds_no_row_of_its_lake(kind: str, clinic: Clinic) -> None:
    frame = pd.concat([pd.read_parquet(p) for p in sorted(clinic()[0].glob("*.parquet"))], ignore_index=True)
    frame["site"] = [f"marker-{i}" for i in range(len(frame))]
    result = daskrado.run(keys(clinic, KINDS[kind], lake=frame), write=False)
    for text in (repr(result), result._repr_html_()):
        assert "marker-" not in text
        assert "clinic" in text
    assert b"marker-" in pickle.dumps(frame)
    assert b"marker-" not in pickle.dumps(result)
    for other in (pickle.loads(pickle.dumps(result)), copy.deepcopy(result)):
        assert repr(other) == repr(result)
        assert not [part for part in parts(other) if isinstance(part, pd.DataFrame | Lake | Summary | Job)]
    if kind == "rados":
        before, after = result.value.sets, copy.deepcopy(result).value.sets
        assert all(np.array_equal(a.rados.rados, b.rados.rados) for a, b in zip(before, after, strict=True))


@pytest.mark.parametrize("kind", ["rados", "adaboost"])
def test_python_and_the_command_line_do_the_same(kind: str, clinic: Clinic, tmp_path: Path) -> None:
    """On sets with public seeds and no noise, which are the same in every run."""
    chosen = {"kind": "rados", "sets": RADOS["sets"][:1]} if kind == "rados" else ADABOOST
    (tmp_path / "job.yaml").write_text(yaml.safe_dump(keys(clinic, chosen)))
    result = daskrado.run(tmp_path / "job.yaml", out=tmp_path / "a")
    words = ["run", str(tmp_path / "job.yaml"), "--out", str(tmp_path / "b")]
    done = CliRunner().invoke(cli, words, catch_exceptions=False, standalone_mode=False)
    assert done.output.splitlines()[:-1] == list(result.lines)[:-1]  # the last has seconds and the folder
    names = sorted(path.name for path in (tmp_path / "a").iterdir())
    assert names == sorted(path.name for path in (tmp_path / "b").iterdir())
    for name in names:
        if name.endswith(".parquet"):
            assert pq.read_table(tmp_path / "a" / name).equals(pq.read_table(tmp_path / "b" / name))
        elif name.endswith("model.json"):
            assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes()


def test_named_functions_take_the_same_path(clinic: Clinic) -> None:
    content = keys(clinic, {"sets": [PLAIN]})
    named = daskrado.make_rados(content)
    assert np.array_equal(named.value.sets[0].rados.rados, of_sets(clinic, PLAIN).value.sets[0].rados.rados)
    with pytest.raises(UsageError, match="learner: unknown key"):
        daskrado.make_rados({**content, "learner": {"kind": "moments"}})


@pytest.mark.parametrize("kind", KINDS)
def test_a_report_that_fails_loses_nothing(
    kind: str, clinic: Clinic, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*given: Any, **options: Any) -> Any:
        raise KeyError("a plot that nobody can draw")

    monkeypatch.setattr("daskrado.jobs.report.bars", fail)
    monkeypatch.setattr("daskrado.jobs.rados.bars", fail)
    result = daskrado.run(keys(clinic, KINDS[kind]), out=tmp_path / "o")
    assert [note for note in result.notes if note.startswith("report.html could not be drawn (KeyError)")]
    kept = {"plain.rados.parquet", "plain.model.json", "pure.rados.parquet"} if kind == "rados" else {"model.json"}
    assert {path.name for path in (tmp_path / "o").iterdir()} == kept | {"manifest.json"}
    jsonschema.validate(json.loads((tmp_path / "o" / "manifest.json").read_text()), manifest_schema())
    if kind == "rados":
        assert RadoSet.load(tmp_path / "o" / "pure.rados.parquet").statement.epsilon == 0.5


def test_pure_charges_add_up_in_a_models_and_in_a_runs_statement(clinic: Clinic) -> None:
    """Epsilons of pure events for the same unit add: 0.5 + 0.25 for the model, and 0.7 more for the whole run."""
    chosen = {**PURE, "learn": {"kind": "radoboost", "rounds": 3}, "keep_epsilon": 0.25}
    more = {**PURE, "name": "more", "budget": {"epsilon": 0.7}}
    result = of_sets(clinic, chosen, more)
    first, second = result.value.sets
    assert (first.rados.statement.epsilon, second.rados.statement.epsilon) == (0.5, 0.7)
    assert first.model.statement.epsilon == 0.75
    assert first.model.statement.mechanism == "laplace, then a charged choice of the round"
    assert result.statement.epsilon == pytest.approx(1.45, rel=1e-15)
    assert (result.statement.delta, first.model.statement.delta) == (0.0, 0.0)
    squares = sum((2 * norm.ppf(1 / (1 + math.exp(-epsilon)))) ** 2 for epsilon in (0.5, 0.25, 0.7))
    rule = filter_for(result.budget[0]["limit_epsilon"], result.budget[0]["limit_delta"])
    assert {charge["share"] for charge in result.budget} == {result.budget[0]["share"]}
    assert result.budget[0]["share"] == pytest.approx(squares / float(rule.mu) ** 2, rel=1e-6)


def test_a_pure_mechanism_is_stated_as_pure_whatever_delta_was_offered(clinic: Clinic) -> None:
    column = {"name": "c", "kind": "noisy_column", "features": ["smoker"], "unit": "one patient", "count": 8}
    for epsilon in (5.0, 1e-3):
        item = {**column, "mechanism": "laplace", "budget": {"epsilon": epsilon, "delta": 0.1}}
        (charge,) = load_job(keys(clinic, {"kind": "rados", "sets": [item]})).charges()
        assert (charge.statement.epsilon, charge.statement.delta) == (epsilon, 0.0)


def test_a_run_says_what_the_weakest_of_its_sets_says(clinic: Clinic) -> None:
    flip = {"name": "rr", "kind": "randomised_response", "features": ["smoker"], "unit": "one patient", "count": 8}
    feat = {"name": "feat", "kind": "dp_feat", "feature": "smoker", "epsilon": 2.0, "count": 8}
    two = of_sets(clinic, PURE, {**flip, "budget": {"epsilon": 2.0}})
    assert (str(two.statement.relation), two.statement.epsilon) == ("feature_flip", 2.0)
    assert of_sets(clinic, PURE, feat).statement.marginal is not None
    worst = of_sets(clinic, PURE, feat, PLAIN).statement
    assert (worst.private, worst.marginal) == (False, None)


def test_sets_that_cannot_be_stated_together_are_refused_before_anything_is_read(clinic: Clinic) -> None:
    """30 + 30 is more than the largest epsilon that any ledger grants."""
    most = {**PURE, "budget": {"epsilon": 30.0}}
    with pytest.raises(UsageError, match=r"set a, set b together: .* costs epsilon 60 .*; lower an epsilon"):
        daskrado.run(
            keys(clinic, {"kind": "rados", "sets": [{**most, "name": "a"}, {**most, "name": "b"}]}, lake="/nowhere")
        )


def test_learners_on_rados_are_found_with_their_options_and_older_spellings(clinic: Clinic, tmp_path: Path) -> None:
    @dataclass(frozen=True)
    class MeanOfRados(ReleaseLearner):
        """A learner of somebody else: the mean rado, scaled."""

        scale: float = 1.0

        name: ClassVar[str] = "mean_of_rados"
        statistics: ClassVar[tuple[str, ...]] = RADO_STATISTICS

        def fit(self, release: Release) -> tuple[Any, dict[str, Any]]:
            return self.scale * rados_of(release).mean(axis=0), {}

    own = {"kind": "mean_of_rados", "scale": 2.0}
    made = of_sets(clinic, {**PLAIN, "learn": own}).value.sets[0]
    assert np.array_equal(made.model.weights, 2.0 * made.rados.rados.mean(axis=0))
    file = tmp_path / "p.parquet"
    made.rados.save(file)
    assert np.array_equal(daskrado.learn_rados(file, own).model.weights, made.model.weights)
    assert daskrado.learn_rados(file, "mean_of_rados").model.learner == "mean_of_rados"

    def learned(*options: str) -> bytes:
        words = ["learn", str(file), *options, "--out", str(tmp_path / "o"), "--overwrite"]
        CliRunner().invoke(cli, words, catch_exceptions=False, standalone_mode=False)
        return (tmp_path / "o" / "model.json").read_bytes()

    newton = ("--learner", "rado_newton")
    assert learned(*newton, "--ridge", "2") == learned(*newton, "--regularisation", "2") != learned(*newton)
    older = {**PLAIN, "learn": {"kind": "rado_newton", "ridge": 2.0}}
    assert load_job(keys(clinic, {"kind": "rados", "sets": [older]})).sets[0].learn.regularisation == 2.0  # type: ignore[attr-defined]
    for learner, options, message in (
        ("moments", {}, r"kind must be one of .*'rado_moments', 'rado_newton', 'radoboost' \(got 'moments'\)"),
        ("radoboost", {"regularisation": 1.0}, "learner.regularisation: unknown key; radoboost takes clamp"),
        ("rado_newton", {"ridge": -1.0}, r"learner.regularisation: input should be greater than 0 \(got -1.0\)"),
        ("rado_moments", {"rounds": 3}, "learner.rounds: unknown key"),
    ):
        with pytest.raises(UsageError, match=message):
            daskrado.learn_rados(file, learner, **options)  # type: ignore[arg-type]


def test_a_job_can_be_run_twice(clinic: Clinic) -> None:
    """A mechanism draws once; a job plans anew."""
    job = parse(RadosJob, {k: v for k, v in keys(clinic, RADOS).items() if k != "kind"}, "test")
    first, second = perform(job, write=False), perform(job, write=False)
    assert np.array_equal(first.value.sets[0].rados.rados, second.value.sets[0].rados.rados)


def test_options_of_adaboost_that_contradict_each_other_are_refused_before_anything_is_read(clinic: Clinic) -> None:
    with pytest.raises(UsageError, match=r"clamp_low must be between 0 and clamp 0\.5, got 0\.8"):
        load_job(keys(clinic, {**ADABOOST, "clamp": 0.5, "clamp_low": 0.8}))
    with pytest.raises(UsageError, match="rounds: input should be greater than or equal to 1"):
        load_job(keys(clinic, {**ADABOOST, "rounds": 0}))
