"""The reproduction script runs, prints one JSON object, and its grid says what the mathematics says."""

import json
import os
import subprocess
from pathlib import Path

import pytest
from seeded_noise import command

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]


def test_the_script_prints_one_json_object_on_a_realisable_problem() -> None:
    done = subprocess.run(
        command(
            ROOT / "pipelines" / "reproduce" / "teachers.py",
            *("--json", "--data", "separated", "--rows", "6000", "--teachers", "60", "300"),
            *("--queries", "40", "--epsilon", "4"),
        ),
        capture_output=True,
        text=True,
        timeout=300,
        check=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    report = json.loads(done.stdout)["separated"]
    cells = {(b["teachers"], c["mechanism"]): c for b in report["by_teachers"] for c in b["cells"]}
    assert set(cells) == {(k, name) for k in (60, 300) for name in ("gaussian", "sparse_vector", "stability")}
    assert cells[300, "gaussian"]["answered"] == 1.0
    assert cells[300, "gaussian"]["error_of_answers"] < 0.1
    assert cells[300, "gaussian"]["margin_needed"] == cells[60, "gaussian"]["margin_needed"]
    assert report["nonprivate_error"] < 0.02
    assert report["objective_perturbation_error"] < 0.1
