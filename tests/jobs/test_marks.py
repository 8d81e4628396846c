"""Whatever protects nobody marks its data set, also beside something private; what is protected does not."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

import daskrado
from daskrado.cli.main import cli
from daskrado.jobs.load import load_job
from daskrado.jobs.show import plan_lines
from daskrado.ledger.ledger import Ledger, Mark
from daskrado.ledger.show import ledger_lines
from daskrado.table.domain import Domain

Clinic = Callable[..., tuple[Path, Domain]]
WARDS = {"cardiology": 0.6, "maternity": 0.1, "medicine": 0.3, "oncology": 0.4, "surgery": 0.5}
PLAIN = {"name": "plain", "kind": "uniform", "count": 8, "private": False}
NOISY = {
    "name": "noisy",
    "kind": "hadamard",
    "count": 16,
    "protect": {"relation": "replace_one", "unit": "one patient"},
    "budget": {"epsilon": 1.0, "delta": 1e-6},
}
RUNS: dict[str, tuple[dict[str, Any], bool]] = {
    "plain rados": ({"kind": "rados", "sets": [PLAIN]}, True),
    "plain rados beside private ones": ({"kind": "rados", "sets": [NOISY, PLAIN]}, True),
    "rados of one support beside private ones": (
        {"kind": "rados", "sets": [NOISY, {"name": "s", "kind": "fixed_support", "support": 50, "count": 8}]},
        True,
    ),
    "private rados": ({"kind": "rados", "sets": [NOISY]}, False),
    "bags of given proportions": ({"kind": "bags", "bags": "ward", "proportions": WARDS}, True),
    "bags without privacy": ({"kind": "bags", "bags": "ward", "proportions": WARDS, "private": False}, True),
    "labels without privacy": ({"kind": "labels", "private": False}, True),
    "private labels": (
        {"kind": "labels", "protect": {"unit": "one label"}, "budget": {"epsilon": 1.0}},
        False,
    ),
    "labels that were randomised at their source": (
        {
            "kind": "labels",
            "protect": {"unit": "one label"},
            "supervision": {"kind": "randomised_response", "epsilon": 1.0},
        },
        False,
    ),
}


@pytest.mark.parametrize("run", RUNS)
@pytest.mark.parametrize("write", [False, True])
def test_what_protects_nobody_is_marked(
    clinic: Clinic, tmp_path: Path, own_ledger: Path, run: str, write: bool
) -> None:
    path, spec = clinic(3000, 3)
    keys, bare = RUNS[run]
    base = {"dataset": "c", "lake": str(path), "domain": spec, "output": str(tmp_path / "out")}
    limit = {} if bare and "sets" not in keys else {"ledger": {"first_limit": {"epsilon": 10, "delta": 1e-4}}}
    done = daskrado.run({**base, **limit, **keys}, write=write)
    marks = Ledger.open(own_ledger).marks("c") if own_ledger.exists() else []
    own = [marked for marked in marks if marked.mark is Mark.NOT_PRIVATE]
    assert [marked.run for marked in own] == [done.run] * bare


def test_another_name_does_not_hide_a_run_without_privacy(clinic: Clinic, own_ledger: Path, tmp_path: Path) -> None:
    """The mark belongs to whoever is in the files: also to the data set that they were charged as."""
    path, spec = clinic(3000, 3)
    limit = {"relation": "replace_one", "unit": "one patient", "first_limit": (10, 1e-5)}
    daskrado.fit(path, spec, dataset="c", epsilon=1.0, delta=1e-6, **limit)
    part = str(sorted(path.glob("*.parquet"))[1])
    done = daskrado.fit(part, spec, dataset="other", private=False, output=tmp_path / "out")
    ledger = Ledger.open(own_ledger)
    for name in ("c", "other"):
        own = [marked.mark for marked in ledger.marks(name) if marked.run == done.run]
        assert own == [Mark.NOT_PRIVATE, Mark.MODEL]


def _before(how: str, path: Path, spec: Domain, other: Path, out: Path) -> list[Mark]:
    """What somebody does with a part of a lake before it is charged; what is to be marked."""
    part = str(sorted(path.glob("*.parquet"))[1])
    if how == "private: false":
        daskrado.fit(part, spec, dataset="other", private=False, output=out)
        return [Mark.NOT_PRIVATE, Mark.MODEL]
    if how == "public rows":
        grid = [{"kind": "output_perturbation", "regularisation": ridge} for ridge in (0.05, 0.5)]
        learner = {"kind": "tuning", "grid": grid, "public_lake": part}
        limit = {"relation": "replace_one", "unit": "one patient", "first_limit": (10, 1e-5)}
        daskrado.fit(other, spec, dataset="other", epsilon=1.0, learner=learner, **limit)
        return [Mark.FEATURES]
    done = CliRunner().invoke(cli, ["lake", "check", part])
    assert done.exit_code == 0, done.output
    return [Mark.COUNTS]


@pytest.mark.parametrize("how", ["private: false", "public rows", "lake check"])
def test_what_was_read_without_protection_before_is_marked_and_said(
    clinic: Clinic, own_ledger: Path, tmp_path: Path, how: str
) -> None:
    """The files had no owner then: whoever charges them first is told, and so is everybody after."""
    path, spec = clinic(3000, 3)
    other, _ = clinic(2500, 2)
    ledger = Ledger.open(own_ledger)
    expected = _before(how, path, spec, other, tmp_path / "out")
    keys = {"dataset": "c", "lake": str(path), "domain": spec, "output": "unused", "budget": {"epsilon": 1.0}}
    keys |= {"protect": {"relation": "add_remove", "unit": "one patient"}, "ledger": {"first_limit": {"epsilon": 9}}}
    said = [f"{mark}{'' if mark is Mark.NOT_PRIVATE else ' published'} on 20" for mark in expected]
    assert not ledger.marks("c")
    planned = [line for line in plan_lines(load_job(keys), ledger) if line.startswith("marked ")]
    done = daskrado.run(keys, write=False)
    assert [marked.mark for marked in ledger.marks("c")] == expected
    for lines in (planned, done.lines, [*ledger_lines(ledger, "c")]):
        assert all(any(words in line for line in lines) for words in said), lines
    assert any(line.endswith("before these files were charged; no limit counts that") for line in done.lines)
    again = daskrado.run(keys, write=False)
    assert [marked.mark for marked in ledger.marks("c")] == expected
    assert not any("before these files were charged" in line for line in again.lines)


def test_files_that_nobody_exposed_are_not_marked(clinic: Clinic, own_ledger: Path) -> None:
    path, spec = clinic(3000, 3)
    other, _ = clinic(2500, 2)
    daskrado.fit(other, spec, dataset="other", private=False)
    daskrado.fit(path, spec, dataset="c", epsilon=1.0, unit="one patient", first_limit=(10, 0))
    assert not Ledger.open(own_ledger).marks("c")


def test_a_check_marks_whoever_owns_the_files(clinic: Clinic, own_ledger: Path) -> None:
    path, spec = clinic(3000, 3)
    daskrado.fit(path, spec, dataset="c", epsilon=1.0, unit="one patient", first_limit=(10, 0))
    done = CliRunner().invoke(cli, ["lake", "check", str(sorted(path.glob("*.parquet"))[0])])
    assert done.exit_code == 0, done.output
    assert [(marked.mark, marked.run) for marked in Ledger.open(own_ledger).marks("c")] == [
        (Mark.COUNTS, "lake check")
    ]
