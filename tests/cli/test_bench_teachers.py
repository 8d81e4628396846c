"""The measurement of teachers, on a small lake."""

import json

import pytest
from click.testing import CliRunner

from daskrado.cli.bench.growth import teachers_figures
from daskrado.cli.main import cli
from daskrado.errors import UsageError
from daskrado.lake import ensemble

pytestmark = pytest.mark.slow


@pytest.mark.cluster
def test_memory_of_a_worker_that_trains_is_flat_while_the_lake_grows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Within 15 %, in waves that are small enough for this lake to need several."""
    monkeypatch.setattr(ensemble, "WAVE_BYTES", 1 << 20)
    done = CliRunner().invoke(
        cli, ["bench", "teachers", "--rows", "16000", "--teachers", "100", "--workers", "1", "--json"]
    )
    assert done.exit_code == 0, done.output
    figures = json.loads(done.output)
    assert (figures["rows"], figures["teachers"], figures["features"]) == (16_000, 100, 28)
    peaks = figures["worker_peak_mb"]
    assert figures["growth"] == pytest.approx(peaks["full"] / peaks["quarter"], abs=1e-3)
    assert 50 < peaks["quarter"] < 600
    assert figures["growth"] < 1.15
    assert min(figures["train_seconds"].values()) > 0


def test_too_few_rows_are_refused() -> None:
    with pytest.raises(UsageError, match="must give 100 teachers two rows each"):
        teachers_figures(700, 4, 100)
