"""The nights of a lake that grows: days reach their limit exactly, and none passes it."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest
from seeded_noise import command

pytestmark = pytest.mark.slow

SCRIPT = Path(__file__).parents[2] / "pipelines" / "reproduce" / "nightly.py"
NIGHTS, PAID, ASKED = 12, 3, 5


def test_every_day_pays_as_often_as_it_can_and_no_more() -> None:
    options = ("--json", "--days", str(NIGHTS), "--rows", "20", "--epsilon", "0.1", "--limit", "0.3")
    words = command(SCRIPT, *options, "--last", str(ASKED))
    found = json.loads(subprocess.run(words, capture_output=True, text=True, check=True).stdout)
    left_out = sum(max(0, min(night, ASKED) - PAID) for night in range(1, NIGHTS + 1))
    assert found == {
        "nights": NIGHTS,
        "days_that_paid": NIGHTS,
        "days_at_their_limit": NIGHTS - (PAID - 1),
        "days_above_it": 0,
        "ledger_agrees_with_manifests": True,
        "days_left_out_in_all": left_out,
        "largest_loss": 0.3,
    }
