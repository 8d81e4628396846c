"""Commands from signatures: arguments, options, spellings, types, defaults, and what is printed."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Literal

import click
import pytest
from click.testing import CliRunner

from daskrado.cli.commands.signature import AsJson, Count, Lines, OnCluster, command

group = click.Group("things")


@command(group)
def show(
    first: Path,
    rest: tuple[str, ...] = (),
    *,
    size: Annotated[float, "--size", "--width", "How large."],
    kind: Literal["round", "square"] = "round",
    marks: Annotated[tuple[int, ...], "--mark N", "A mark (repeatable)."] = (),
    rows_per_unit: Count = 2,
    note: str | None = None,
    as_json: AsJson = False,
) -> Iterator[str]:
    """Show what was given."""
    yield f"{first.name} {rest} {size} {kind} {marks}"
    yield f"{rows_per_unit} {note} {as_json}"


@command(name="where-it-runs")
def where(*, cluster: OnCluster) -> Lines:
    """Say where."""
    return "nowhere said" if cluster is None else f"{cluster.kind} {cluster.workers}"


def said(made: click.Command, *words: str) -> str:
    done = CliRunner().invoke(made, words)
    assert done.exit_code == 0, done.output
    return done.output


def refused(made: click.Command, *words: str) -> str:
    done = CliRunner().invoke(made, words)
    assert done.exit_code == 2
    return done.output


def test_positional_parameters_are_arguments_and_keywords_are_options() -> None:
    assert said(group, "show", "a/b", "--size", "1") == "b () 1.0 round ()\n2 None False\n"
    words = ("show", "a", "x", "y", "--width", "-2.5", "--kind", "square", "--mark", "3", "--mark", "4", "--json")
    assert said(group, *words, "--rows-per-unit", "7", "--note", "n") == (
        "a ('x', 'y') -2.5 square (3, 4)\n7 n True\n"
    )


@pytest.mark.parametrize(
    ("words", "text"),
    [
        ((), "Missing argument 'FIRST'"),
        (("a",), "Missing option '--size'"),
        (("a", "--size", "x"), "'x' is not a valid float"),
        (("a", "--size", "1", "--kind", "flat"), "'round', 'square'"),
        (("a", "--size", "1", "--rows-per-unit", "0"), "x>=1"),
        (("a", "--size", "1", "--mark", "x"), "'x' is not a valid integer"),
        (("a", "--size"), "requires an argument"),
    ],
)
def test_what_does_not_fit_is_named(words: tuple[str, ...], text: str) -> None:
    assert text in refused(group, "show", *words)


def test_help_has_spellings_placeholders_and_defaults() -> None:
    text = " ".join(said(group, "show", "--help").split())
    assert "Show what was given." in text
    assert "--size, --width FLOAT How large. [required]" in text
    assert "--mark N A mark (repeatable)." in text
    assert "[default: round]" in text
    assert "[default: 2; x>=1]" in text
    assert "default: None" not in text
    assert "default: False" not in text


def test_two_options_name_the_workers() -> None:
    assert where.name == "where-it-runs"
    assert said(where) == "nowhere said\n"
    assert said(where, "--workers", "3") == "local 3\n"
    assert said(where, "--workers", "0").startswith("in_process")
    assert "--cluster" in said(where, "--help")
