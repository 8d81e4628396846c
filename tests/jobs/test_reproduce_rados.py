"""The reproduction scripts of the RadoBoost tables run, print one JSON object, and meet a published figure."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
from seeded_noise import command

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]


def script(name: str, *options: str) -> dict[str, Any]:
    done = subprocess.run(
        command(ROOT / "pipelines" / "reproduce" / name, "--json", *options),
        capture_output=True,
        text=True,
        check=True,
    )
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def test_table_one_meets_its_targets_on_a_small_set(shared_data: Path) -> None:
    (result,) = script("radoboost_table1.py", "--data", "transfusion", "--rounds", "300")["sets"]
    assert result["rows"] == 748
    assert all(result["within_one_std"].values())
    assert result["p_hadamard_iid"] > 0.01
    assert set(result["error"]) >= {"AdaBoost", "AdaBoost(n)", "RadoBoost", "RadoBoost Hadamard", "moments"}


def test_table_two_draws_its_panels_and_says_what_epsilon_is_worth(shared_data: Path, tmp_path: Path) -> None:
    options = (
        "--data",
        "fertility",
        "transfusion",
        "--folds",
        "2",
        "--rounds",
        "60",
        "--out",
        str(tmp_path / "p.svg"),
    )
    found = script("radoboost_table2.py", *options)
    assert (tmp_path / "p.svg").read_text().startswith("<?xml")
    (left,) = found["left"]
    assert left["epsilon"][0] == 0.25
    assert left["epsilon"][-1] == 15
    assert (
        left["marginal_of_one_coordinate_only"][0]["composed_epsilon"] is None
    )  # the edges' mass alone exceeds delta
    (noisy,) = found["centre_right"]
    assert noisy["epsilon_at_delta_1e-6"][1] > 1000  # noise of a tenth of a standard deviation protects nobody
    assert set(noisy["right"]) == {"s=0.01m", "s=0.1m", "s=0.5m"}
