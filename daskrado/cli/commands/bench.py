"""Commands that measure."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Annotated, Any, Literal

import click

from daskrado.cli.commands.signature import AsJson, Count, Lines, command

Rows = Annotated[int, click.IntRange(1000)]
bench = click.Group("bench", help="Measure the promises of speed and memory; each prints one JSON object.")


@command(bench)
def collect(*, rows: Rows = 8_000_000, features: Count = 28, as_json: AsJson = False) -> Lines:
    """Hadamard rados against a bare scan, dense rados and one worker.

    Examples:
      daskrado bench collect --json
    """
    from daskrado.cli.bench.collect import collect_figures

    return _shown(collect_figures(rows, features), as_json)


@command(bench)
def gradient(
    *,
    rows: Rows = 1_000_000,
    columns: Count = 12,
    steps: Annotated[
        int | None, click.IntRange(1), "Of the fit; by default as many as the learner's rule takes."
    ] = None,
    as_json: AsJson = False,
) -> Lines:
    """A pass of the noisy gradient against dense rows; a private fit from Parquet against scikit-learn in memory.

    Examples:
      daskrado bench gradient --rows 200000 --json
    """
    from daskrado.cli.bench.gradient import gradient_figures

    return _shown(gradient_figures(rows, columns, steps), as_json)


@command(bench)
def memory(
    *,
    rows: Annotated[int, click.IntRange(1000), "Rows of the smallest lake."] = 500_000,
    features: Count = 28,
    workers: Count = 2,
    memory_limit: Annotated[str, "Of each worker."] = "600MB",
    as_json: AsJson = False,
) -> Lines:
    """Peak memory of a worker for lakes of 1, 5 and 20 times the rows.

    Examples:
      daskrado bench memory --json
    """
    from daskrado.cli.bench.growth import memory_figures

    return _shown(memory_figures(rows, features, workers=workers, memory_limit=memory_limit), as_json)


@command(bench)
def boost(
    *,
    rounds: Count = 1000,
    rados: Annotated[int, click.IntRange(2)] = 1024,
    features: Count = 100,
    as_json: AsJson = False,
) -> Lines:
    """RadoBoost against the same rounds in naive NumPy.

    Examples:
      daskrado bench boost --rounds 1000 --json
    """
    from daskrado.cli.bench.peers import boost_figures

    return _shown(boost_figures(rounds, rados, features), as_json)


@command(bench)
def erm(*, rows: Rows = 2_000_000, features: Count = 30, as_json: AsJson = False) -> Lines:
    """A logistic fit from Parquet to gradient 1e-8 against scikit-learn on the same rows in memory.

    Examples:
      daskrado bench erm --rows 200000 --json
    """
    from daskrado.cli.bench.peers import erm_figures

    return _shown(erm_figures(rows, features), as_json)


@command(bench)
def ingest(
    *,
    rows: Annotated[int, click.IntRange(1000), "Of the table: 50,000,000 have 10 GB."] = 5_000_000,
    features: Count = 28,
    rounds: Annotated[int, click.IntRange(1), "Of one after the other; figures are medians."] = 3,
    as_json: AsJson = False,
) -> Lines:
    """CSV to Parquet by two workers and by one, against two bare parsing processes and one.

    Examples:
      daskrado bench ingest --json
    """
    from daskrado.cli.bench.ingest import ingest_figures

    return _shown(ingest_figures(rows, features, rounds), as_json)


@command(bench)
def teachers(
    *,
    rows: Rows = 2_000_000,
    features: Count = 28,
    teachers: Annotated[int, click.IntRange(2)] = 10_000,
    learner: Literal["logistic", "moments", "mean"] = "moments",
    workers: Count = 2,
    as_json: AsJson = False,
) -> Lines:
    """Train teachers on a quarter of the rows and on all of them: seconds, and memory of a worker.

    Examples:
      daskrado bench teachers --json
    """
    from daskrado.cli.bench.growth import teachers_figures

    return _shown(teachers_figures(rows, features, teachers, learner=learner, workers=workers), as_json)


@command(bench)
def ledger(
    *,
    entries: Annotated[int, click.IntRange(1), "Debits that the ledger holds."] = 100_000,
    datasets: Annotated[int, click.IntRange(1), "That they are spread over; each has four limits."] = 5,
    as_json: AsJson = False,
) -> Lines:
    """CPU seconds of planning, reserving, drawing and showing on a ledger of many entries, and on a new one.

    Examples:
      daskrado bench ledger --json
    """
    from daskrado.cli.bench.ledger import ledger_figures

    return _shown(ledger_figures(entries, datasets), as_json)


@command(bench)
def units(
    *,
    rows: Rows = 2_000_000,
    features: Count = 28,
    people: Annotated[int, click.IntRange(1), "Who own the rows."] = 1_000_000,
    workers: Count = 2,
    memory_limit: Annotated[str, "Of each worker."] = "600MB",
    as_json: AsJson = False,
) -> Lines:
    """A pass that bounds what people contribute against the plain pass, on clustered and on mixed lakes.

    Examples:
      daskrado bench units --rows 1000000 --people 100000 --json
    """
    from daskrado.cli.bench.units import units_figures

    return _shown(units_figures(rows, features, people, workers=workers, memory_limit=memory_limit), as_json)


@command(bench)
def jobs(*, rows: Rows = 1_000_000, passes: Count = 40, as_json: AsJson = False) -> Lines:
    """Two jobs at once on one scheduler against one after the other.

    Examples:
      daskrado bench jobs --json
    """
    from daskrado.cli.bench.sharing import jobs_figures

    return _shown(jobs_figures(rows, passes), as_json)


@command(bench)
def scale(
    *,
    workers: Count = 100,
    partitions: Count = 10_000,
    seconds: Annotated[float, click.FloatRange(0), "That a task sleeps."] = 1.0,
    passes: Count = 20,
    as_json: AsJson = False,
) -> Lines:
    """The real collect and gradient on simulated workers: what scheduler, driver and merges cost.

    Examples:
      daskrado bench scale --partitions 10000 --json
    """
    from daskrado.cli.bench.sharing import scale_figures

    return _shown(scale_figures(workers, partitions, seconds, passes), as_json)


def _shown(figures: Mapping[str, Any], as_json: bool) -> Lines:
    return json.dumps(figures) if as_json else [f"{name:>22}  {value}" for name, value in figures.items()]
