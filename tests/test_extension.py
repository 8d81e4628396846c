"""Extending daskrado as README says: one class in one file each, run end to end, editing nothing else.

The files in ``tests/extensions`` are installed as any package would be: its entry points of the group
``daskrado`` name the modules. The command line and Python then know the new kinds.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from daskrado.jobs.manifest import manifest_schema
from daskrado.table.domain import Domain

FILES = Path(__file__).with_name("extensions")
MODULES = ("leaky_laplace", "pair_set", "row_count", "side_learner", "side_sums", "wide_votes")
BUDGET = {"epsilon": 2.0, "delta": 1e-5}
Clinic = Callable[..., tuple[Path, Domain]]
Shell = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def python(tmp_path: Path) -> Shell:
    """``python(*words)``: a fresh interpreter in which the extensions are installed."""
    made = tmp_path / "site" / "clinic_extensions-1.0.dist-info"
    made.mkdir(parents=True)
    (made / "METADATA").write_text("Metadata-Version: 2.1\nName: clinic-extensions\nVersion: 1.0\n")
    (made / "entry_points.txt").write_text("[daskrado]\n" + "".join(f"{name} = {name}\n" for name in MODULES))
    paths = [str(tmp_path / "site"), str(FILES), str(FILES.parents[1])]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([*paths, os.environ.get("PYTHONPATH", "")])}

    def run(*words: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, *words]
        return subprocess.run(command, capture_output=True, text=True, env=environment, cwd=tmp_path)

    return run


def written(tmp_path: Path, path: Path, **keys: Any) -> Path:
    content = {
        "dataset": "clinic",
        "lake": str(path),
        "domain": f"{path}.yaml",
        "output": str(tmp_path / "out"),
        "protect": {"relation": "add_remove", "unit": "one patient"},
        "budget": BUDGET,
        "ledger": {"first_limit": {"epsilon": 20, "delta": 1e-3}},
    }
    (tmp_path / "p.yaml").write_text(yaml.safe_dump(content | keys))
    return tmp_path / "p.yaml"


def published(tmp_path: Path, folder: str = "out") -> dict[str, Any]:
    manifest: dict[str, Any] = json.loads((tmp_path / folder / "manifest.json").read_text())
    jsonschema.validate(manifest, manifest_schema())
    assert manifest["privacy_in_words"] in (tmp_path / folder / "report.html").read_text()
    return manifest


def test_each_is_one_small_file() -> None:
    assert sorted(path.stem for path in FILES.glob("*.py")) == sorted(MODULES)
    for path in FILES.glob("*.py"):
        assert len(path.read_text().splitlines()) < 80


@pytest.mark.slow
def test_a_statistic_a_mechanism_and_a_learner_of_ones_own(python: Shell, clinic: Clinic, tmp_path: Path) -> None:
    path, domain = clinic(3000, 3)
    job = written(tmp_path, path, learner={"kind": "sides", "shrink": 0.25}, mechanism="leaky_laplace")
    planned = python("-m", "daskrado", "plan", str(job))
    assert "statistic   side_sums" in planned.stdout, planned.stderr
    assert "this run: epsilon 2 at delta 1e-6 = " in planned.stdout
    done = python("-m", "daskrado", "run", str(job))
    assert done.returncode == 0, done.stderr
    assert "sides: " in done.stdout
    manifest = published(tmp_path)
    # It costs (2, 1e-6) and says so: not the pure epsilon 2 that its name suggests, nor the delta that was asked for.
    assert (manifest["statement"]["epsilon"], manifest["statement"]["delta"]) == (2.0, 1e-6)
    assert manifest["charges"][0]["event"] == {"kind": "approximate", "epsilon": "2", "delta": "0.000001"}
    assert manifest["job"]["learner"] == {"kind": "sides", "shrink": 0.25}
    model = json.loads((tmp_path / "out" / "model.json").read_text())
    assert len(model["weights"]) == domain.width
    code = f"import daskrado; print(repr(daskrado.run({str(job)!r}, out={str(tmp_path / 'again')!r})))"
    again = python("-c", code)
    assert again.returncode == 0, again.stderr
    assert manifest["privacy_in_words"] in again.stdout
    published(tmp_path, "again")


@pytest.mark.slow
def test_what_costs_more_than_was_asked_for_is_refused_before_anything_is_charged(
    python: Shell, clinic: Clinic, tmp_path: Path, own_ledger: Path
) -> None:
    job = written(tmp_path, clinic(3000, 3)[0], learner="sides", mechanism="leaky_laplace", budget={"epsilon": 2.0})
    refused = python("-m", "daskrado", "run", str(job))
    assert refused.returncode == 2
    assert "needs delta above 0" in refused.stderr
    small = {"epsilon": 2.0, "delta": 1e-7}  # below the delta that the mechanism has
    refused = python("-m", "daskrado", "run", str(written(tmp_path, clinic(3000, 3)[0], learner="sides",
                                                          mechanism="leaky_laplace", budget=small)))  # fmt: skip
    assert refused.returncode != 0
    assert not (tmp_path / "out").exists()
    assert not own_ledger.exists()


@pytest.mark.slow
def test_a_kind_of_job_of_ones_own(python: Shell, clinic: Clinic, tmp_path: Path) -> None:
    job = written(tmp_path, clinic(3000, 3)[0], kind="row_count", budget={"epsilon": 2.0})
    planned = python("-m", "daskrado", "plan", str(job))
    assert "counts      the rows of the lake" in planned.stdout, planned.stderr
    assert "this run: epsilon 2 = " in planned.stdout
    done = python("-m", "daskrado", "run", str(job))
    assert done.returncode == 0, done.stderr
    manifest = published(tmp_path)
    assert (manifest["kind"], manifest["statement"]["delta"]) == ("row_count", 0.0)
    assert abs(manifest["facts"]["count"] - 3000) < 60  # noise of scale 1/2 beyond that: below exp(-120)
    assert "rows" not in manifest["facts"]
    assert f"about {manifest['facts']['count']:,} rows" in done.stdout


@pytest.mark.slow
def test_a_vote_mechanism_and_a_set_of_rados_of_ones_own(python: Shell, clinic: Clinic, tmp_path: Path) -> None:
    path, _ = clinic(3000, 3)
    by_row = {"relation": "replace_one", "unit": "one patient"}
    keys = {"teachers": {"count": 500}, "answers": {"mechanism": "wide", "queries": 10}, "protect": by_row}
    planned = python("-m", "daskrado", "plan", str(written(tmp_path, path, kind="teachers", **keys)))
    assert "answers     wide, charged once, for up to 10 queries" in planned.stdout, planned.stderr
    margins = {line.split()[0]: int(line.split()[1].replace(",", "")) for line in planned.stdout.splitlines()
               if line.split()[0] in ("wide", "gaussian")}  # fmt: skip
    assert abs(margins["wide"] - 2 * margins["gaussian"]) <= 2  # twice the noise needs twice the margin
    keys["answers"]["mechanism"] = "narrow"
    refused = python("-m", "daskrado", "plan", str(written(tmp_path, path, kind="teachers", **keys)))
    assert "mechanism 'narrow' is unknown; allowed: gaussian, sparse_vector, stability, wide" in refused.stderr
    job = {"dataset": "clinic", "lake": str(path), "domain": f"{path}.yaml", "kind": "rados", "output": "out"}
    job["sets"] = [{"name": "two", "kind": "pairs", "count": 8, "learn": {"kind": "rado_moments"}}]
    (tmp_path / "r.yaml").write_text(yaml.safe_dump(job))
    done = python("-m", "daskrado", "run", str(tmp_path / "r.yaml"))
    assert done.returncode == 0, done.stderr
    assert "two: 8 rados of kind pairs" in done.stdout
    assert published(tmp_path)["job"]["sets"][0]["kind"] == "pairs"
