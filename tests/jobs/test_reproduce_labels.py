"""The label experiments, on the four hospitals: the claims that the figures are published for."""

import json
import os
import subprocess
from pathlib import Path

import pytest
from seeded_noise import command

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]


def test_the_hospitals(shared_data, tmp_path):
    environment = {**os.environ, "DASKRADO_DATA": str(shared_data), "PYTHONPATH": str(ROOT)}
    script = ROOT / "pipelines/reproduce/labels.py"
    words = command(script, "--json", "--data", "heart", "--repeats", "2", "--plots", str(tmp_path))
    done = subprocess.run(words, capture_output=True, text=True, env=environment, timeout=300, check=True)
    results = json.loads(done.stdout)
    heart, built = results["data"]["heart"], results["homogeneity_fails"]
    assert heart["bags"]["natural"]["bags"] == 4
    for noise in ("laplace", "l2_gamma", "gaussian"):
        gaps = heart["alpha"][f"{noise}_distance_to_oracle"]
        assert gaps[-1] < gaps[0] / 100  # alpha grows 3000 times: the estimate converges to the oracle
        assert abs(heart["alpha"][noise][-1] - heart["alpha"]["oracle"]) < 2
    assert built["laplacian_gaussian"] < built["mean_map"] - 5
    assert built["laplacian_gaussian_distance_to_oracle"] < 0.2 * built["mean_map_distance_to_oracle"]
    assert heart["flips"]["unbiased"][-1] < heart["flips"]["as_seen"][-1]
    assert (tmp_path / "labels_heart.svg").exists()
