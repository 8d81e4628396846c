"""The forward path as a whole, from Python: what is published, what is charged, what survives a crash."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import dask
import dask.dataframe as dd
import fsspec
import numpy as np
import pandas as pd
import pytest
from damaged_files import damaged_copy

import daskrado
from daskrado.cluster import ClusterConfig
from daskrado.errors import BudgetError, DataError, UsageError
from daskrado.jobs.learn_outcome import headline_of
from daskrado.lake.make import make_lake
from daskrado.lake.score import score
from daskrado.ledger.ledger import Ledger, Mark
from daskrado.models.linear import LinearModel
from daskrado.privacy.relations import Relation
from daskrado.table.domain import Domain

Clinic = Callable[..., tuple[Path, Domain]]
LIMIT = (20.0, 1e-5)


def read(path: Path) -> pd.DataFrame:
    return pd.concat([pd.read_parquet(p) for p in sorted(path.glob("*.parquet"))], ignore_index=True)


def fit(lake: Any, domain: Domain, **options: Any) -> daskrado.Result:
    given = {"dataset": "clinic", "epsilon": 1.0, "delta": 1e-6, "first_limit": LIMIT, "workers": 0, **options}
    return daskrado.fit(lake, domain, **given)


def states(ledger: Path) -> list[str]:
    with Ledger.open(ledger, create=False) as opened:
        return [str(entry.state) for entry in opened.entries()]


def test_a_private_model_is_close_to_the_best_least_squares_one(clinic: Clinic, own_ledger: Path) -> None:
    path, domain = clinic(20_000, 2)
    private = fit(path, domain).model
    baseline = fit(path, domain, private=False, epsilon=None).model
    frame = read(path)
    truth = frame["readmitted"]
    error = (private.predict(frame) != truth).mean()
    best = (baseline.predict(frame) != truth).mean()
    majority = min((truth == "yes").mean(), (truth == "no").mean())
    assert best < majority - 0.05
    assert error < best + 0.03
    assert states(own_ledger) == ["published"]


def test_every_kind_of_lake_costs_and_learns_the_same(clinic: Clinic, tmp_path: Path) -> None:
    path, domain = clinic(3000, 3)
    frame = read(path)
    sources = [path, str(path / "*.parquet"), frame, dd.from_pandas(frame, npartitions=2)]
    results = [fit(s, domain, private=False, epsilon=None) for s in sources]
    assert all(np.array_equal(r.model.weights, results[0].model.weights) for r in results)
    assert isinstance(results[0].coefficients, pd.DataFrame)
    assert results[0].coefficients["weight"].abs().is_monotonic_decreasing


@pytest.mark.parametrize("relation", ["add_remove", "replace_one", "label_flip"])
@pytest.mark.parametrize(
    ("learner", "statistic"),
    [
        ("moments", None),
        ("mean", {"kind": "mean_operator"}),
        ({"kind": "radoboost", "rounds": 50}, {"kind": "hadamard_rados", "count": 16}),
        ({"kind": "radoboost", "rounds": 50}, {"kind": "balanced_rados", "count": 8}),
        ({"kind": "radoboost", "rounds": 50}, {"kind": "uniform_rados", "count": 8}),
    ],
    ids=["moments", "mean", "hadamard", "balanced", "uniform"],
)
def test_every_statistic_runs_under_every_relation(
    clinic: Clinic, tmp_path: Path, own_ledger: Path, relation: str, learner: Any, statistic: Any
) -> None:
    path, domain = clinic(3000, 3)
    out = tmp_path / "out"
    result = fit(
        path, domain, relation=relation, learner=learner, statistic=statistic, output=out, unit="one patient"
    )
    assert sorted(p.name for p in out.iterdir()) == ["manifest.json", "model.json", "report.html"]
    manifest = json.loads((out / "manifest.json").read_text())
    statement = manifest["statement"]
    assert statement["private"] is True
    assert (statement["relation"], statement["unit"]) == (relation, "one patient")
    assert 0 < statement["epsilon"] <= 1.0
    assert statement["delta"] == 1e-6
    assert 0 < manifest["budget"][0]["share"] < 1.0
    assert manifest["facts"].get("rows") == (None if relation == "add_remove" else 3000)
    if relation == "add_remove":  # exact times would tell the number of rows
        assert "seconds" not in manifest  # how long a pass takes tells how many rows there are
    model = LinearModel.load(out / "model.json")
    assert np.array_equal(model.weights, result.model.weights)
    page = (out / "report.html").read_text()
    for text in ("one patient", "epsilon", "Noise against signal", "Weights", "Budget", "<svg"):
        assert text in page
    assert states(own_ledger) == ["published"]


@pytest.mark.parametrize("kind", ["balanced_rados", "uniform_rados", "hadamard_rados"])
def test_the_report_sets_values_against_their_own_noise(clinic: Clinic, kind: str) -> None:
    """Of the mean of 64 rados that is an eighth of the noise on one; measured against the exact values."""
    path, domain = clinic(3000, 3)
    options = {"learner": {"kind": "radoboost", "rounds": 5}, "statistic": {"kind": kind, "count": 64, "seed": 5}}
    exact = headline_of(fit(path, domain, private=False, epsilon=None, **options).release)
    noisy = headline_of(fit(path, domain, relation="replace_one", **options).release)
    assert 0.4 < np.sqrt(np.mean((noisy.values - exact.values) ** 2)) / noisy.std < 1.8


@pytest.mark.parametrize(
    "misplaced",
    [
        lambda frame: {"lake": {"a": frame}},
        lambda frame: {"lake": [frame]},
        lambda frame: {"dataset": frame},
        lambda frame: {"learner": {"kind": "erm", "loss": frame}},
        lambda frame: {"learner": {"kind": frame}},
    ],
)
def test_a_frame_in_the_wrong_place_is_named_by_its_type_only(clinic: Clinic, misplaced: Any) -> None:
    path, domain = clinic(100, 1)
    with pytest.raises(UsageError) as caught:
        fit(**{"lake": path, "domain": domain, **misplaced(pd.DataFrame({"cell": ["SECRET"]}))})
    assert "SECRET" not in str(caught.value)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"first_limit": (1,)}, r"first_limit must be a pair \(epsilon, delta\), got tuple of 1"),
        ({"first_limit": 1}, r"first_limit must be a pair \(epsilon, delta\), got int"),
        ({"first_limit": ("a", 0)}, "first_limit.epsilon: input should be a valid number"),
        ({"learner": 3}, "learner must be a kind, or a mapping of kind and options, got int"),
        ({"statistic": 3}, "statistic must be a kind, or a mapping of kind and options, got int"),
        ({"workers": "2"}, "workers must be a whole number, got str"),
        ({"cluster": 3, "workers": None}, "a Dask client or a cluster object, got int"),
        ({"ledger": 3}, "ledger must be a path, got int"),
        ({"output": 3}, "output must be a path, got int"),
    ],
)
def test_arguments_of_another_form_are_named(clinic: Clinic, options: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        fit(*clinic(3000, 3), **options)


def test_a_statistic_may_be_given_by_its_kind_alone(clinic: Clinic) -> None:
    alone, whole = (fit(*clinic(3000, 3), private=False, statistic=s) for s in ("moments", {"kind": "moments"}))
    assert np.array_equal(alone.model.weights, whole.model.weights)


def test_a_dask_partition_without_a_column_is_refused_by_the_columns_name(clinic: Clinic) -> None:
    path, domain = clinic(3000, 3)
    rows = read(path)
    parts = [dask.delayed(rows), dask.delayed(rows.drop(columns="age"))]
    with pytest.raises(DataError, match="column 'age' is missing in a partition"):
        fit(dd.from_delayed(parts, meta=rows.iloc[:0], verify_meta=False), domain)


@pytest.mark.cluster
def test_a_lake_in_the_memory_of_this_process_is_read_here(clinic: Clinic, two_workers: Any, tmp_path: Path) -> None:
    path, domain = clinic(3000, 3)
    memory = fsspec.filesystem("memory")
    memory.put(str(path), "/here", recursive=True)
    there = ClusterConfig(kind="scheduler", address=two_workers.scheduler.address)
    found = fit("memory://here", domain, private=False, workers=None, cluster=there).model
    assert np.array_equal(found.weights, fit(path, domain, private=False).model.weights)
    assert score(found, "memory://here", tmp_path / "out", client=two_workers) == 3000
    memory.rm("/here", recursive=True)


def test_feature_flip_needs_a_boolean_feature(clinic: Clinic) -> None:
    path, domain = clinic(3000, 3)
    result = fit(path, domain, relation="feature_flip", feature="smoker")
    assert "only the value of 'smoker' is protected" in " ".join(result.statement.assumptions)
    with pytest.raises(UsageError, match="'age' is numeric, not boolean"):
        fit(path, domain, relation="feature_flip", feature="age")
    with pytest.raises(UsageError, match="feature names the protected boolean column"):
        fit(path, domain, relation="feature_flip")


def test_baselines_say_not_private_everywhere(clinic: Clinic, tmp_path: Path, own_ledger: Path) -> None:
    path, domain = clinic(3000, 3)
    fit(path, domain, private=False, epsilon=None, output=tmp_path / "out")
    for name in ("model.json", "manifest.json", "report.html"):
        assert "NOT PRIVATE" in (tmp_path / "out" / name).read_text()
    marks = Ledger.open(own_ledger).marks("clinic")
    assert [mark.mark for mark in marks] == [Mark.NOT_PRIVATE, Mark.MODEL]
    assert {mark.run for mark in marks} == {json.loads((tmp_path / "out" / "manifest.json").read_text())["run"]}


@pytest.mark.slow
def test_noise_is_fresh_and_sized_as_declared(clinic: Clinic) -> None:
    path, domain = clinic(3000, 3)
    exact = fit(path, domain, private=False, epsilon=None).release.values["mean"]
    noise = []
    for _ in range(12):
        released = fit(path, domain, epsilon=1.0, first_limit=(50.0, 1e-5)).release
        noise.append((released.values["mean"] - exact) / released.noise_std["mean"])
    sample = np.concatenate(noise)  # 12 x 26 standard normal draws
    assert len(np.unique(sample)) > 300
    assert 0.8 < sample.std() < 1.2
    assert abs(sample.mean()) < 0.25


@pytest.mark.usefixtures("fixed_noise")
def test_nothing_unnoised_is_published(clinic: Clinic, tmp_path: Path) -> None:
    path, domain = clinic(3000, 3)
    exact = fit(path, domain, private=False, epsilon=None).release
    fit(path, domain, output=tmp_path / "out")
    text = "".join((tmp_path / "out" / n).read_text() for n in ("model.json", "manifest.json", "report.html"))
    numbers = set(re.findall(r"[\d][\d.,e+-]*", re.sub(r"<svg.*?</svg>", "", text, flags=re.DOTALL)))
    assert len(numbers) > 100
    shown = {f"{value:.6g}".lstrip("-") for value in exact.values["mean"] if value}
    shown |= {str(abs(round(value / exact.lattice.step))) for value in exact.values["mean"] if value}
    assert not numbers & (shown | {"3,000", "3000"})
    with Ledger.open(os.environ["DASKRADO_LEDGER"], create=False) as ledger:
        assert ledger.entries()[0].fingerprint not in text


def test_overspending_is_refused_before_any_row_is_read(clinic: Clinic, own_ledger: Path) -> None:
    path, domain = clinic(3000, 3)
    fit(path, domain, epsilon=0.9, delta=0.0, first_limit=(1.0, 0.0), mechanism="laplace")
    calls: list[Any] = []
    with pytest.raises(BudgetError, match=r"0\.1"):
        fit(path, domain, epsilon=0.2, delta=0.0, mechanism="laplace", progress=lambda *a: calls.append(a))
    assert not calls
    fit(path, domain, epsilon=0.1, delta=0.0, mechanism="laplace")
    assert states(own_ledger) == ["published", "published"]


def test_a_copy_under_another_name_does_not_refill_the_budget(
    clinic: Clinic, own_ledger: Path, tmp_path: Path
) -> None:
    """A copy that keeps the times of its files. A table keeps its identity in any copy: tests/jobs/test_blocks.py."""
    path, domain = clinic(3000, 3)
    fit(path, domain)
    shutil.copytree(path, tmp_path / "copy")
    for lake in (path, tmp_path / "copy"):
        with pytest.raises(BudgetError, match=r"this data is already in the ledger .* as 'clinic'"):
            fit(lake, domain, dataset="fresh", first_limit=LIMIT)
    fit(clinic(3000, 7)[0], domain)  # under its own name, re-partitioned: charged on
    assert states(own_ledger) == ["published", "published"]


def test_no_limit_means_no_run(clinic: Clinic) -> None:
    path, domain = clinic(3000, 3)
    with pytest.raises(BudgetError, match="daskrado ledger limit clinic --epsilon"):
        fit(path, domain, first_limit=None)


def test_the_first_limit_never_overrides_the_owner(clinic: Clinic, own_ledger: Path) -> None:
    path, domain = clinic(3000, 3)
    with Ledger.open(own_ledger) as ledger:
        ledger.set_limit("clinic", Relation.LABEL_FLIP, "0.5", "1e-6")
    with pytest.raises(BudgetError):
        fit(path, domain)  # no limit under add_remove, and the owner has spoken elsewhere


def test_an_unreadable_file_voids_the_grant_and_leaves_nothing(
    clinic: Clinic, own_ledger: Path, tmp_path: Path
) -> None:
    path, domain = clinic(3000, 3)
    with pytest.raises(DataError, match="cannot be read as Parquet"):
        fit(damaged_copy(path, tmp_path / "bad"), domain, output=tmp_path / "out")
    assert states(own_ledger) == ["void"]
    assert not [p for p in tmp_path.iterdir() if "out" in p.name]


def test_an_unusable_row_is_refused_only_where_nobody_is_protected(clinic: Clinic, own_ledger: Path) -> None:
    path, domain = clinic(3000, 3)
    frame = read(path)
    frame.loc[3, "readmitted"] = "unknown"
    with pytest.raises(DataError, match="column 'readmitted': label outside"):
        daskrado.fit(frame, domain, dataset="clinic", private=False)
    fit(frame, domain)
    assert states(own_ledger) == ["published"]


@pytest.mark.slow
def test_the_output_folder_is_refused_before_the_budget_is_touched(
    clinic: Clinic, own_ledger: Path, tmp_path: Path
) -> None:
    path, domain = clinic(3000, 3)
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "precious.txt").write_text("mine")
    with pytest.raises(UsageError, match="--overwrite"):
        fit(path, domain, output=tmp_path / "out")
    assert not own_ledger.exists()
    with pytest.raises(UsageError, match="not overwritten"):
        fit(path, domain, output=tmp_path / "out", overwrite=True)
    assert (tmp_path / "out" / "precious.txt").read_text() == "mine"
    (tmp_path / "out" / "precious.txt").unlink()
    fit(path, domain, output=tmp_path / "out")
    fit(path, domain, output=tmp_path / "out", overwrite=True)
    assert sorted(p.name for p in (tmp_path / "out").iterdir()) == ["manifest.json", "model.json", "report.html"]
    assert [p.name for p in tmp_path.iterdir() if p.name.startswith(".")] == []


def test_of_two_runs_with_one_output_the_second_is_refused_before_its_debit(
    clinic: Clinic, own_ledger: Path, tmp_path: Path
) -> None:
    path, domain = clinic(300, 1)
    refused = []

    def meanwhile(done: int, total: int) -> None:
        try:
            fit(path, domain, output=tmp_path / "out", overwrite=True)
        except UsageError as error:
            refused.append(str(error))

    first = fit(path, domain, output=tmp_path / "out", progress=meanwhile)
    assert refused
    assert {f"{tmp_path / 'out'}: run {first.run[:12]} is writing there; wait for it, or choose another output"} == {
        *refused
    }
    assert states(own_ledger) == ["published"]
    assert json.loads((tmp_path / "out" / "manifest.json").read_text())["run"] == first.run


def test_group_privacy_multiplies_the_noise(clinic: Clinic) -> None:
    path, domain = clinic(3000, 3)
    one = fit(path, domain).release.noise_std["mean"]
    four = fit(path, domain, rows_per_unit=4)
    assert four.release.noise_std["mean"] == pytest.approx(4 * one)
    assert "for any 4 rows (up to 4 records added" in four.statement.sentence()


@pytest.mark.cluster
def test_workers_and_this_process_agree_to_the_last_bit(clinic: Clinic) -> None:
    path, domain = clinic(3000, 7)
    here = fit(path, domain, private=False, epsilon=None)
    there = fit(path, domain, private=False, epsilon=None, workers=2)
    assert np.array_equal(here.model.weights, there.model.weights)


def killed_run(code: str, environment: dict[str, str]) -> int:
    done = subprocess.run(
        [sys.executable, "-c", code], env={**os.environ, **environment}, capture_output=True, timeout=600
    )
    return done.returncode


@pytest.mark.slow
@pytest.mark.parametrize(
    ("where", "state"), [("daskrado.jobs.run.collect", "reserved"), ("daskrado.privacy.release._publish", "spent")]
)
def test_a_killed_run_stays_charged(clinic: Clinic, own_ledger: Path, tmp_path: Path, where: str, state: str) -> None:
    path, _ = clinic(3000, 3)
    module, _, name = where.rpartition(".")
    code = (
        f"import os, signal, daskrado, {module}\n"
        f"{module}.{name} = lambda *a, **k: os.kill(os.getpid(), signal.SIGKILL)\n"
        f"daskrado.fit({str(path)!r}, {str(path) + '.yaml'!r}, dataset='clinic', epsilon=1.0, delta=1e-6, "
        f"first_limit=(20.0, 1e-5), output={str(tmp_path / 'out')!r})\n"
    )
    assert killed_run(code, {}) == -signal.SIGKILL
    assert states(own_ledger) == [state]
    with Ledger.open(own_ledger) as ledger:
        assert 0 < float(ledger.spent("clinic", Relation.ADD_REMOVE).epsilon) <= 1.0
    assert not (tmp_path / "out").exists()


@pytest.mark.slow
@pytest.mark.parametrize("workers", ["0", "2"])
def test_ctrl_c_during_collect_gives_the_grant_back(tmp_path: Path, own_ledger: Path, workers: str) -> None:
    make_lake(tmp_path / "lake", rows=400_000, features=12, partitions=24, seed=1)
    pipeline = tmp_path / "p.yaml"
    pipeline.write_text(
        f"dataset: clinic\nlake: {tmp_path}/lake\ndomain: {tmp_path}/lake.yaml\noutput: {tmp_path}/out\n"
        "protect: {relation: add_remove, unit: one patient}\nbudget: {epsilon: 1.0, delta: 1.0e-6}\n"
        "ledger: {first_limit: {epsilon: 5, delta: 1.0e-5}}\n"
        "learner: {kind: radoboost}\nstatistic: {kind: balanced_rados, count: 2048}\n"
    )
    command = [
        sys.executable,
        "-c",
        "from daskrado.cli.main import main; main()",
        "run",
        str(pipeline),
        "--workers",
        workers,
    ]
    pipes: dict[str, Any] = {"stderr": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    process = subprocess.Popen(command, env=os.environ, start_new_session=True, **pipes)
    deadline = time.monotonic() + 600
    while not (own_ledger.exists() and _reserved(own_ledger)):
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.02)
    os.killpg(process.pid, signal.SIGINT)  # as a terminal does it: workers get it too
    out, err = process.communicate(timeout=600)
    assert process.returncode == 130, (out, err)
    assert [line[:28] for line in err.strip().splitlines()] == ["daskrado: error: interrupted"], err
    assert states(own_ledger) == ["void"]
    assert not [p for p in tmp_path.iterdir() if "out" in p.name]


def _reserved(path: Path) -> bool:
    from daskrado.errors import LedgerError

    try:
        return "reserved" in states(path)
    except LedgerError:  # the file is being created at this moment
        return False
