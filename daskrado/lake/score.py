"""Scoring a lake out of core: one Parquet file of margins and predictions for each partition."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from daskrado.errors import DataError, PublishError, UsageError
from daskrado.lake.dealing import is_delayed, without_delayed
from daskrado.lake.failures import refuse
from daskrado.lake.files import first_line
from daskrado.lake.mapping import run_here, run_tasks
from daskrado.lake.ownership import by_columns
from daskrado.lake.publish import new_folder
from daskrado.lake.scan import open_lake, require_columns
from daskrado.models.linear import LinearModel
from daskrado.table.encoding import needed_columns

if TYPE_CHECKING:
    from distributed import Client

SCORED = ("margin", "predicted")
ASKED = ("probability", "rank")  # before them, where they are asked for
by_scoring = by_columns((), SCORED)


def score(
    model: LinearModel,
    source: Any,
    out: str | Path,
    *,
    keep: Sequence[str] = (),
    also: Sequence[str] = (),
    client: Client | None = None,
    overwrite: bool = False,
    progress: Callable[[int, int], None] | None = None,
) -> int:
    """Write ``margin`` and ``predicted`` for every row, with the ``keep`` columns; returns the number of rows.

    ``also`` are ``probability`` and ``rank``, where they are wanted.
    The schema of each file says what the model's privacy is.
    The output is about individual rows of the lake: it is as sensitive as the lake itself.
    """
    for name in also:
        _column(
            model, name, np.zeros((1, *model.weights.shape[:-1]))
        )  # a model without it is refused before a row is read
    lake = open_lake(source, model.domain, label=False, strict=True)
    for name in keep:
        if name not in lake.schema.names:
            raise UsageError(f"--keep {name}: the lake has no such column")
        if name in (*SCORED, *ASKED):
            raise UsageError(f"--keep {name}: scoring writes a column of that name")
    require_columns(source, keep)
    with new_folder(out, overwrite=overwrite, own=by_scoring, reading=(source,)) as folder:
        task = partial(_score_part, model, keep, tuple(also), Path(out))
        parts = [(part, folder, f"part-{i:05d}.parquet") for i, part in enumerate(lake.partitions)]
        if client is None or lake.in_memory:
            outcomes = run_here(task, parts, progress)
        else:
            items = [
                (without_delayed(part), folder, name, client.compute(part.content) if is_delayed(part) else None)
                for part, folder, name in parts
            ]
            where = [str(getattr(part, "path", part.name)) for part in lake.partitions]
            outcomes = run_tasks(client, "score", task, items, place=where.__getitem__, report=progress)
        problems = [problem for problem in outcomes if problem is not None]
        if problems:
            refuse(sorted(problems))
    return lake.rows


def _score_part(
    model: LinearModel,
    keep: Sequence[str],
    also: Sequence[str],
    out: Path,
    partition: Any,
    folder: Path,
    name: str,
    content: pa.Table | None = None,
) -> str | None:
    """Score one partition into a file; a problem is returned as text, so that it is not retried."""
    columns = list(dict.fromkeys([*needed_columns(model.domain, label=False), *keep]))
    writer: pq.ParquetWriter | None = None
    if content is None and is_delayed(partition):
        content = partition.content.compute()
    try:
        with contextlib.ExitStack() as stack:
            for _, table in partition.tables(columns) if content is None else [(0, content.select(columns))]:
                margins = model.margins(table)
                found: dict[str, Any] = {name: table.column(name) for name in keep}
                found |= {wanted: pa.array(_column(model, wanted, margins)) for wanted in also}
                found["margin"] = pa.array(margins if margins.ndim == 1 else margins.max(axis=1))
                found["predicted"] = model.labels(margins)
                scored = pa.table(found)  # without marks of a frame's columns
                scored = scored.replace_schema_metadata({"privacy_in_words": model.statement.sentence()})
                if writer is None:
                    made = pq.ParquetWriter(
                        folder / name, scored.schema, compression="zstd", write_page_checksum=True
                    )
                    writer = stack.enter_context(made)
                writer.write_table(scored)
    except DataError as error:
        where = getattr(partition, "path", partition.name)
        return str(error) if str(error).startswith(where) else f"{where}: {error}"
    except OSError as error:  # a lake that cannot be read is a DataError: this is the file that is written
        why = first_line(error) if error.errno is None else os.strerror(error.errno)
        raise PublishError(f"{out / name}: cannot be written ({why})") from None
    return None


def _column(model: LinearModel, name: str, margins: NDArray[np.float64]) -> NDArray[np.float64]:
    if name == "probability" and margins.ndim == 2:  # of several classes, that of the predicted one
        return np.asarray(model.shares(margins).max(axis=1))
    return model.probability_of(margins) if name == "probability" else model.rank_of(margins)
