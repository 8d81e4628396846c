"""The simulation of a shared cluster, in small: killed drivers leave nothing, guests change nothing, all jobs end."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.cluster, pytest.mark.slow]

SCRIPT = Path(__file__).parents[2] / "pipelines" / "reproduce" / "guests.py"


def test_nothing_is_left_behind_and_nothing_changes() -> None:
    words = [sys.executable, str(SCRIPT), "--json", "--deaths", "2", "--jobs", "2", "--rows", "10000"]
    found = json.loads(subprocess.run(words, capture_output=True, text=True, check=True).stdout)
    killed, workers = found["killed"], found["workers"]
    assert killed["drivers_killed"] == 2
    assert set(killed["ends"]) <= {"SIGKILL -9", "SIGKILL 0"}  # one may have ended before its moment came
    assert sum(killed["ends"].values()) == 2
    assert killed["jobs_run_afterwards"] == 3
    assert workers["same_bits"] == workers["charges"] == workers["charges_published"] == workers["jobs"] == 2
    assert set(found["at_once"]) == {"2_jobs", "4_jobs"}
