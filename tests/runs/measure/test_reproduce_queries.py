"""The script of counting queries on Adult runs and prints one JSON object whose errors are those of its noise."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[3] / "pipelines" / "reproduce" / "queries_adult.py"


def test_errors_on_adult(shared_data: Path) -> None:
    options = ["--json", "--counts", "50", "--runs", "2", "--updates", "10"]
    done = subprocess.run([sys.executable, str(SCRIPT), *options], capture_output=True, text=True, check=True)
    found = json.loads(done.stdout)
    assert found["rows"] == 45222  # rows of Adult without missing values
    (result,) = found["results"]
    assert result["cells"] == 6 * 7 * 16 * 6 * 2 * 2
    assert result["queries"] == 50
    # Laplace noise on each of 50 answers: the mean of |noise| is its scale, by optimal composition about 15 rows.
    assert result["errors"]["laplace each"]["mean"] == pytest.approx(15, rel=0.5)
    assert set(result["errors"]) >= {"multiplicative weights", "gaussian each", "cells"}
