"""``daskrado bench collect --json``: one JSON object on stdout and nothing else, with every figure."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

pytestmark = pytest.mark.slow


@pytest.mark.cluster
def test_bench_collect_prints_one_json_object() -> None:
    command = [sys.executable, "-c", "from daskrado.cli.main import main; main()", "bench", "collect"]
    done = subprocess.run(
        [*command, "--rows", "30000", "--features", "5", "--json"],
        capture_output=True,
        text=True,
        env=os.environ,
        check=True,
        timeout=300,
    )
    figures = json.loads(done.stdout)
    wanted = {
        "scan_seconds",
        "collect_seconds",
        "ratio_to_scan",
        "dense_ratio",
        "speedup_two_workers",
        "scan_speedup_two_workers",
        "worker_peak_mb",
    }
    assert wanted <= set(figures)
    assert set(figures["forms"]) == {"dictionary", "plain", "zstd", "float32"}
    assert all(value > 0 for form in figures["forms"].values() for value in form.values())
    assert all(figures[name] > 0 for name in wanted)
    collect, scan, half = figures["collect_seconds"], figures["scan_seconds"], 0.5e-4  # both are rounded to 1e-4
    assert (
        (collect - half) / (scan + half) - 1e-3 < figures["ratio_to_scan"] < (collect + half) / (scan - half) + 1e-3
    )
