"""The noisy gradient beside its peers, on few rows: the same rows for all, and every figure."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest
from seeded_noise import command

pytestmark = pytest.mark.slow

SCRIPT = Path(__file__).parents[2] / "pipelines" / "reproduce" / "gradient_peers.py"


def test_all_see_the_same_rows() -> None:
    words = command(SCRIPT, "--json", "--rows", "30000", "--columns", "4", "--steps", "20", "--peers", "lbfgs,saga")
    found = json.loads(subprocess.run(words, capture_output=True, text=True, check=True).stdout)
    assert list(found) == ["gradient", "lbfgs", "saga"]
    assert {figures["rows"] for figures in found.values()} == {30_000}
    # Two solvers of one convex problem agree; privacy costs a little, and a coin is right half of the time.
    assert found["lbfgs"]["accuracy"] == pytest.approx(found["saga"]["accuracy"], abs=0.005)
    assert 0.6 < found["gradient"]["accuracy"] <= found["lbfgs"]["accuracy"] + 0.01
    assert all(min(figures.values()) > 0 for figures in found.values())
    assert found["gradient"]["steps"] == 20
