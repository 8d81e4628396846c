"""The script of counting queries on Adult runs and prints one JSON object whose errors are those of its noise."""

from __future__ import annotations

import json
import math
import subprocess
from pathlib import Path

import pytest
from scipy.optimize import brentq
from seeded_noise import command

pytestmark = pytest.mark.slow

SCRIPT = Path(__file__).parents[2] / "pipelines" / "reproduce" / "queries_adult.py"


QUERIES, RUNS, DELTA = 400, 2, 1e-6


def laplace_scale(epsilon: float) -> float:
    """Of each of QUERIES pure releases, by the formula of Kairouz, Oh and Viswanath (2015), solved by bisection."""

    def delta(each: float) -> float:
        terms = (
            math.comb(QUERIES, i) * max(0.0, math.exp((QUERIES - i) * each) - math.exp(epsilon + i * each))
            for i in range(QUERIES + 1)
        )
        return math.fsum(terms) / (1 + math.exp(each)) ** QUERIES

    return 1 / float(brentq(lambda each: delta(each) - DELTA, 1e-4, 0.5))


def test_errors_on_adult(shared_data: Path) -> None:
    options = ["--json", "--counts", str(QUERIES), "--runs", str(RUNS), "--updates", "10"]
    done = subprocess.run(command(SCRIPT, *options), capture_output=True, text=True, check=True)
    found = json.loads(done.stdout)
    assert found["rows"] == 45222  # rows of Adult without missing values
    (result,) = found["results"]
    assert result["cells"] == 6 * 7 * 16 * 6 * 2 * 2
    assert result["queries"] == QUERIES
    # The mean of |noise| is its scale b. A count t is not made negative: b (1 - exp(-t / b) / 2), in b/2..b.
    scale = laplace_scale(1.0)
    unsure = 5 * scale / math.sqrt(QUERIES * RUNS)
    assert scale / 2 - unsure < result["errors"]["laplace each"]["mean"] < scale + unsure
    assert set(result["errors"]) >= {"multiplicative weights", "gaussian each", "cells"}
