"""Commands that measure."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import click


@click.group()
def bench() -> None:
    """Measure the promises of speed and memory; each prints one JSON object."""


@bench.command("collect")
@click.option("--rows", type=click.IntRange(1000), default=8_000_000, show_default=True)
@click.option("--features", type=click.IntRange(1), default=28, show_default=True)
@click.option("--json", "as_json", is_flag=True, help="One JSON object on stdout and nothing else.")
def bench_collect(rows: int, features: int, as_json: bool) -> None:
    """Hadamard rados against a bare scan, dense rados and one worker."""
    from daskrado.cli.bench.collect import collect_figures

    _show(collect_figures(rows, features), as_json)


@bench.command("memory")
@click.option(
    "--rows", type=click.IntRange(1000), default=500_000, show_default=True, help="Rows of the smallest lake."
)
@click.option("--features", type=click.IntRange(1), default=28, show_default=True)
@click.option("--workers", type=click.IntRange(1), default=2, show_default=True)
@click.option("--memory-limit", default="600MB", show_default=True, help="Of each worker.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object on stdout and nothing else.")
def bench_memory(rows: int, features: int, workers: int, memory_limit: str, as_json: bool) -> None:
    """Peak memory of a worker for lakes of 1, 5 and 20 times the rows."""
    from daskrado.cli.bench.memory import memory_figures

    _show(memory_figures(rows, features, workers=workers, memory_limit=memory_limit), as_json)


@bench.command("boost")
@click.option("--rounds", type=click.IntRange(1), default=1000, show_default=True)
@click.option("--rados", type=click.IntRange(2), default=1024, show_default=True)
@click.option("--features", type=click.IntRange(1), default=100, show_default=True)
@click.option("--json", "as_json", is_flag=True, help="One JSON object on stdout and nothing else.")
def bench_boost(rounds: int, rados: int, features: int, as_json: bool) -> None:
    """RadoBoost against the same rounds in naive NumPy."""
    from daskrado.cli.bench.rados import boost_figures

    _show(boost_figures(rounds, rados, features), as_json)


@bench.command("erm")
@click.option("--rows", type=click.IntRange(1000), default=2_000_000, show_default=True)
@click.option("--features", type=click.IntRange(1), default=30, show_default=True)
@click.option("--json", "as_json", is_flag=True, help="One JSON object on stdout and nothing else.")
def bench_erm(rows: int, features: int, as_json: bool) -> None:
    """A logistic fit from Parquet to gradient 1e-8 against scikit-learn on the same rows in memory."""
    from daskrado.cli.bench.erm import erm_figures

    _show(erm_figures(rows, features), as_json)


@bench.command("teachers")
@click.option("--rows", type=click.IntRange(1000), default=2_000_000, show_default=True)
@click.option("--features", type=click.IntRange(1), default=28, show_default=True)
@click.option("--teachers", type=click.IntRange(2), default=10_000, show_default=True)
@click.option("--learner", type=click.Choice(["logistic", "moments", "mean"]), default="moments", show_default=True)
@click.option("--workers", type=click.IntRange(1), default=2, show_default=True)
@click.option("--json", "as_json", is_flag=True, help="One JSON object on stdout and nothing else.")
def bench_teachers(rows: int, features: int, teachers: int, learner: str, workers: int, as_json: bool) -> None:
    """Train teachers on a quarter of the rows and on all of them: seconds, and memory of a worker."""
    from daskrado.cli.bench.teachers import teachers_figures

    _show(teachers_figures(rows, features, teachers, learner=learner, workers=workers), as_json)


def _show(figures: Mapping[str, Any], as_json: bool) -> None:
    if as_json:
        click.echo(json.dumps(figures))
    else:
        for name, value in figures.items():
            click.echo(f"{name:>22}  {value}")
