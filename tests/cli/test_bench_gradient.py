"""``daskrado bench gradient --json``: one JSON object, with every figure, on a small lake."""

import json

import pytest
from click.testing import CliRunner

from daskrado.cli.main import cli

pytestmark = pytest.mark.slow


def test_bench_gradient_prints_one_json_object() -> None:
    done = CliRunner().invoke(
        cli, ["bench", "gradient", "--rows", "40000", "--columns", "12", "--steps", "20", "--json"]
    )
    assert done.exit_code == 0, done.output
    figures = json.loads(done.output)
    assert (figures["rows"], figures["features"], figures["steps"]) == (40_000, 12 * 25 + 1, 20)
    assert figures["bytes_per_row"] == 12 + 1 + 4 + 1  # codes, intercept, what a 1 is worth, label
    assert figures["bytes_ratio_to_dense"] == pytest.approx(18 / (8 * 301 + 1), abs=1e-5)
    assert figures["pass_ratio_to_dense"] < 1 / 6
    ours, theirs = figures["cpu_seconds"], figures["sklearn_cpu_seconds"]
    # Seconds and ratio are printed to three places.
    least, most = (ours - 0.0005) / (theirs + 0.0005), (ours + 0.0005) / (theirs - 0.0005)
    assert least - 0.0005 <= figures["fit_ratio_to_sklearn"] <= most + 0.0005
    assert min(figures[name] for name in ("steps", "steps_per_second", "seconds", "peak_mb", "sklearn_seconds")) > 0
