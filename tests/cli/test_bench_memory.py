"""Memory of a worker does not grow with the lake."""

from __future__ import annotations

import os

import pytest

from daskrado.cli.bench.growth import memory_figures
from daskrado.errors import UsageError

pytestmark = pytest.mark.slow


@pytest.mark.cluster
def test_worker_memory_is_flat_while_the_lake_grows_twentyfold() -> None:
    """Within 15 %. The last lake has 130 MB in memory: a worker that held on to it would be half as large again.

    It is large enough to repay a compiler, but the workers are too small to hold one.
    """
    figures = memory_figures(30_000, 28, workers=1, scales=(1, 20))
    assert set(figures["worker_peak_mb"]) == {"1x", "20x"}
    assert figures["distinct_files"]
    assert figures["lake_mb"]["20x"] > 15 * figures["lake_mb"]["1x"]
    assert figures["growth"] < 1.15
    assert figures["worker_peak_mb"]["20x"] < 600


@pytest.mark.cluster
@pytest.mark.skipif("DASKRADO_LARGE" not in os.environ, reason="makes 20 GB; set DASKRADO_LARGE=1 to run it")
def test_a_lake_ten_times_the_memory_of_all_workers_finishes() -> None:
    figures = memory_figures(4_500_000, 28, scales=(1, 20))  # two workers of 600 MB, and at last a lake of 20 GB
    assert figures["distinct_files"]
    assert figures["lake_mb"]["20x"] > 10 * 2 * 600
    assert figures["worker_peak_mb"]["20x"] < 600


@pytest.mark.cluster
def test_where_the_disk_has_no_room_the_same_files_are_read_again_and_the_figures_say_so(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    room = 5 * 8 * 4 * 3000
    monkeypatch.setattr("shutil.disk_usage", lambda _: type("Usage", (), {"free": room}))
    figures = memory_figures(3000, 4, workers=1, scales=(20,))
    assert not figures["distinct_files"]
    assert figures["files"] == {"20x": 40}
    assert 8 * 4 * 20 * 3000 < 1e6 * figures["lake_mb"]["20x"] < 2 * 8 * 4 * 20 * 3000


def test_a_lake_that_does_not_fit_on_the_disk_is_not_begun() -> None:
    with pytest.raises(UsageError, match="the disk has room for"):
        memory_figures(10**12, 28)
