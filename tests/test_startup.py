"""What is imported when: names show at once, help and plans wait for no heavy library, a fit for no other kind."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import daskrado
from daskrado.jobs.base import Job
from daskrado.models.linear import LinearModel
from daskrado.privacy.statement import PrivacyStatement
from daskrado.registry import kinds
from daskrado.table.domain import Domain

REPOSITORY = Path(daskrado.__file__).parents[1]
HEAVY = (
    *("dask", "distributed", "pandas", "matplotlib", "jinja2", "numba", "opendp", "sklearn", "dp_accounting"),
    *("scipy.stats", "scipy.optimize", "scipy.sparse", "cryptography", "fsspec"),
)
QUICK = "quickstart.yaml"
PLANNED = [
    pytest.param(path.name, marks=[] if path.name == QUICK else [pytest.mark.slow])
    for path in sorted((REPOSITORY / "pipelines").glob("*.yaml"))
]


def imported(script: str, ledger: Path, *, cwd: Path = REPOSITORY) -> set[str]:
    """The modules that a new interpreter has loaded at the end of a script."""
    ends = "\nimport json as _json, sys as _sys\nprint('\\n' + _json.dumps(sorted(_sys.modules)))"
    done = subprocess.run(
        [sys.executable, "-c", script + ends],
        capture_output=True,
        text=True,
        timeout=300,
        cwd=cwd,
        env={
            "PATH": "/usr/bin:/bin",
            "PYTHONPATH": str(REPOSITORY),
            "DASKRADO_LEDGER": str(ledger),
            "HOME": str(cwd),
        },
    )
    assert done.returncode == 0, done.stderr
    return set(json.loads(done.stdout.splitlines()[-1]))


def test_importing_shows_the_public_names_and_loads_no_library(tmp_path: Path) -> None:
    script = (
        "import daskrado\n"
        "assert set(daskrado.__all__) <= set(dir(daskrado)), dir(daskrado)\n"
        "assert {'fit', 'run', 'resume', 'Domain', 'Result', '__version__'} <= set(dir(daskrado))"
    )
    loaded = imported(script, tmp_path / "ledger.db")
    assert not loaded & {*HEAVY, "numpy", "scipy", "pyarrow", "pydantic", "yaml", "click"}
    assert {name for name in loaded if name.startswith("daskrado")} == {"daskrado"}


def test_every_public_name_is_where_it_is_said_to_be() -> None:
    for name in daskrado.__all__:
        assert getattr(daskrado, name).__name__ == name
    with pytest.raises(AttributeError, match="no attribute 'fitt'"):
        daskrado.fitt  # noqa: B018


COMMAND = "from daskrado.cli.main import cli\ncli({arguments}, standalone_mode=False)"


@pytest.mark.parametrize("arguments", [["--help"], ["plan", "--help"], ["run", "--help"]])
def test_help_loads_no_library_but_that_of_the_command_line(arguments: list[str], tmp_path: Path) -> None:
    loaded = imported(COMMAND.format(arguments=arguments), tmp_path / "ledger.db")
    assert not loaded & {*HEAVY, "numpy", "scipy", "pyarrow", "pydantic"}


@pytest.mark.parametrize("pipeline", PLANNED)
def test_a_plan_loads_no_heavy_library(pipeline: str, tmp_path: Path) -> None:
    """All of the examples: of every kind of job."""
    arguments = ["plan", str(REPOSITORY / "pipelines" / pipeline)]
    if pipeline == "evaluate.yaml":  # the model of another pipeline's run
        domain = Domain.load(REPOSITORY / "data" / "clinic_sample.yaml")
        LinearModel(domain, np.zeros(domain.width), PrivacyStatement.none(), "none").save(tmp_path / "model.json")
        arguments += ["--set", f"model={tmp_path / 'model.json'}"]
    loaded = imported(COMMAND.format(arguments=arguments), tmp_path / "ledger.db")
    assert not loaded & set(HEAVY)


FIT = """
import daskrado
daskrado.fit("data/clinic_sample", "data/clinic_sample.yaml", dataset="clinic", epsilon=1, delta={delta},
             first_limit=(10, 1e-5), learner={learner!r}, rows=60_000, output={output!r})
"""


@pytest.mark.slow
@pytest.mark.parametrize(("learner", "delta"), [("moments", 1e-6), ("moments", 0), ("rado_newton", 1e-6)])
def test_a_fit_loads_its_own_kind_and_what_it_needs(learner: str, delta: float, tmp_path: Path) -> None:
    """Without a report nothing is drawn; a small lake is read in this process, by plain numpy."""
    loaded = imported(FIT.format(learner=learner, delta=delta, output=None), tmp_path / "ledger.db")
    assert loaded & set(HEAVY) <= {"opendp", "cryptography"}  # noise; row seeds
    assert "opendp" in loaded
    assert not loaded & {job.__module__ for name, job in kinds(Job, "daskrado.jobs").items() if name != "learn"}
    assert not {name for name in loaded if name.startswith(("daskrado.parties", "daskrado.audit", "daskrado.cli"))}
    assert "daskrado.jobs.learn" in loaded


@pytest.mark.slow
def test_a_report_loads_what_draws_it_and_no_more(tmp_path: Path) -> None:
    script = FIT.format(learner="moments", delta=1e-6, output=str(tmp_path / "out"))
    assert imported(script, tmp_path / "ledger.db") & set(HEAVY) <= {"opendp", "matplotlib", "jinja2"}
