"""Errors a user can act on: each is one clear line, and its class decides the exit code."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator
from typing import ParamSpec

P = ParamSpec("P")


def in_one_line(text: str) -> str:
    """A text with a space for each character that would break or hide a line: names may hold anything.

    >>> in_one_line("one row\\nclinic: nothing spent\\x1b[2K")
    'one row clinic: nothing spent [2K'
    """
    return text if text.isprintable() else "".join(c if c.isprintable() else " " for c in text)


def single_lines(function: Callable[P, Iterator[str]]) -> Callable[P, Iterator[str]]:
    """Each line that a function yields as one line, whatever names it holds."""

    @functools.wraps(function)
    def lines(*args: P.args, **kwargs: P.kwargs) -> Iterator[str]:
        return map(in_one_line, function(*args, **kwargs))

    return lines


class DaskradoError(Exception):
    """Base of every error that daskrado raises on purpose."""

    exit_code = 1


class UsageError(DaskradoError):
    """The request itself is wrong: a key, a type, a value, an existing output folder."""

    exit_code = 2


class DataError(DaskradoError):
    """The lake cannot be used as it is. Messages name files and columns, never a value from a row."""


class LedgerError(DaskradoError):
    """The ledger file cannot be read or written, or an entry is used against its rules."""


class NoLedgerError(LedgerError):
    """There is no ledger at an address."""


class BudgetError(LedgerError):
    """The budget does not cover the request; nothing was debited."""


class MessageError(DaskradoError):
    """A message from another party is refused: unknown signer, changed bytes, another request, another version."""


class ClusterError(DaskradoError):
    """The cluster could not be reached or was lost."""


class PublishError(DaskradoError):
    """The artefacts could not be written, after everything else was done."""


@contextlib.contextmanager
def about_the_key(said: str = "") -> Iterator[None]:
    """Let a file's reader (pydantic) take a UsageError for a mistake in the key that it was reading."""
    try:
        yield
    except UsageError as error:
        raise ValueError(f"{said}{error}") from error
