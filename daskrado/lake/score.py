"""Scoring a lake out of core: one Parquet file of margins and predictions for each partition."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from distributed import Client, as_completed

from daskrado.encoding import needed_columns
from daskrado.errors import DataError, UsageError
from daskrado.lake.ownership import by_columns
from daskrado.lake.publish import new_folder
from daskrado.lake.scan import open_lake, require_columns
from daskrado.models import LinearModel

SCORED = ("margin", "predicted")
by_scoring = by_columns((), SCORED)


def score(
    model: LinearModel,
    source: Any,
    out: str | Path,
    *,
    keep: Sequence[str] = (),
    client: Client | None = None,
    overwrite: bool = False,
    progress: Callable[[int, int], None] | None = None,
) -> int:
    """Write ``margin`` and ``predicted`` for every row, with the ``keep`` columns; returns the number of rows.

    The schema of each file says what the model's privacy is.
    The output is about individual rows of the lake: it is as sensitive as the lake itself.
    """
    lake = open_lake(source, model.domain, label=False)
    for name in keep:
        if name not in lake.schema.names:
            raise UsageError(f"--keep {name}: the lake has no such column")
        if name in SCORED:
            raise UsageError(f"--keep {name}: scoring writes a column of that name")
    require_columns(source, keep)
    with new_folder(out, overwrite=overwrite, own=by_scoring, reading=(source,)) as folder:
        jobs = [(part, str(folder / f"part-{i:05d}.parquet")) for i, part in enumerate(lake.partitions)]
        if client is None:
            outcomes = (_score_part(model, part, keep, path) for part, path in jobs)
        else:
            futures = client.map(lambda job: _score_part(model, job[0], keep, job[1]), jobs, pure=False, retries=2)
            outcomes = (future.result() for future in as_completed(futures))
        problems = []
        for done, problem in enumerate(outcomes, start=1):
            if problem is not None:
                problems.append(problem)
            if progress is not None:
                progress(done, len(jobs))
        if problems:
            raise DataError(sorted(problems)[0] + (f" (and {len(problems) - 1} more files)" if problems[1:] else ""))
    return lake.rows


def _score_part(model: LinearModel, partition: Any, keep: Sequence[str], path: str) -> str | None:
    """Score one partition into a file; a problem is returned as text, so that it is not retried."""
    columns = list(dict.fromkeys([*needed_columns(model.domain, label=False), *keep]))
    writer: pq.ParquetWriter | None = None
    try:
        for _, table in partition.tables(columns):
            margins = model.margins(table)
            scored = table.select(list(keep)).append_column("margin", pa.array(margins))
            scored = scored.append_column("predicted", model.labels(margins))
            scored = scored.replace_schema_metadata({"privacy_in_words": model.statement.sentence()})
            if writer is None:
                writer = pq.ParquetWriter(path, scored.schema, compression="zstd")
            writer.write_table(scored)
    except DataError as error:
        where = getattr(partition, "path", partition.name)
        return str(error) if str(error).startswith(where) else f"{where}: {error}"
    finally:
        if writer is not None:
            writer.close()
    return None
