"""The measurement behind ``daskrado bench ingest``: what a second worker gains, against two processes that parse."""

from __future__ import annotations

import shutil
import tempfile
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from statistics import median

import numpy as np
import pyarrow as pa
from pyarrow import csv

from daskrado.cli.bench.collect import timed
from daskrado.cluster import ClusterConfig, connect
from daskrado.lake.ingest import ingest
from daskrado.lake.pieces import Piece, pieces
from daskrado.lake.sniff import sniffed
from daskrado.lake.text_tables import TextFormat, byte_range

ROUNDS = 3
_BLOCK = 200_000


def ingest_figures(rows: int, features: int, rounds: int = ROUNDS) -> dict[str, float | int]:
    """Seconds of one and of two workers, and of one and of two processes that only parse the same pieces."""
    folder = Path(tempfile.mkdtemp(prefix="daskrado-bench-"))
    try:
        source = _table(folder / "table.csv", rows, features)
        one: list[float] = []
        two: list[float] = []
        bare_one: list[float] = []
        bare_two: list[float] = []
        with connect(ClusterConfig(workers=1)) as single, connect(ClusterConfig(workers=2)) as double:
            assert double is not None
            parts = pieces([source], sniffed(source, TextFormat())[0], double)
            for _ in range(rounds):
                bare_one.append(timed(partial(_bare, parts, 1))[0])
                bare_two.append(timed(partial(_bare, parts, 2))[0])
                for found, client in ((one, single), (two, double)):
                    job = partial(ingest, [source], str(folder / "lake"), client=client, overwrite=True)
                    found.append(timed(job)[0])
        gain, bare = median(one) / median(two), median(bare_one) / median(bare_two)
        return {
            "rows": rows,
            "rounds": rounds,
            "csv_mb": Path(source).stat().st_size >> 20,
            "seconds_one_worker": round(median(one), 2),
            "seconds_two_workers": round(median(two), 2),
            "speedup_two_workers": round(gain, 2),
            "bare_speedup_two_processes": round(bare, 2),
            "share_of_bare_gain": round(gain / bare, 2),
        }
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _table(path: Path, rows: int, features: int) -> str:
    draw = np.random.default_rng(11)
    with path.open("wb") as file:
        for start in range(0, rows, _BLOCK):
            count = min(_BLOCK, rows - start)
            columns = {f"x{i:02d}": np.round(draw.normal(size=count), 4) for i in range(features)}
            table = pa.table({**columns, "y": draw.integers(0, 2, count)})
            csv.write_csv(table, file, csv.WriteOptions(include_header=start == 0))
    return str(path)


def _bare(parts: list[Piece], processes: int) -> int:
    with ProcessPoolExecutor(processes, mp_context=get_context("spawn")) as pool:
        return sum(pool.map(_parsed, parts))


def _parsed(piece: Piece) -> int:
    assert piece.stop is not None
    content = pa.BufferReader(byte_range(piece.source, piece.start, piece.stop))
    options = csv.ReadOptions(use_threads=False, autogenerate_column_names=piece.start > 0)
    return int(csv.read_csv(content, options).num_rows)
