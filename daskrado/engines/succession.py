"""Which engine of a data set comes after which: a new one may open only when the previous one is exhausted."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import accumulate
from pathlib import Path
from typing import Any

from daskrado.engines.answers import INSTANCES
from daskrado.engines.sparse_vector import instance_name
from daskrado.errors import LedgerError, UsageError
from daskrado.ledger.journal import Journal
from daskrado.ledger.journal_folder import OLDER, InUseError
from daskrado.ledger.ledger import Ledger, State
from daskrado.ledger.lines import different
from daskrado.privacy.relations import Relation

ANSWERS = "answers"  # the lines of a journal that keep what a vote engine was asked and has answered
Notes = Sequence[Mapping[str, Any]]


def engine_folder(ledger: Path, dataset: str, relation: Relation) -> Path:
    """Where the one engine of a data set and relation lives: beside the ledger that pays for it."""
    return ledger.with_name(f"{ledger.name}.engines") / f"{dataset}.{relation}"


def swallowed(notes: Notes) -> int:
    """How many queries were paid for and lost their answers to a crash."""
    done = sum(int(note.get("done", len(note["answers"]))) for note in notes if "answers" in note)
    return max(0, queries_asked(notes) - done)


def queries_asked(notes: Notes) -> int:
    """How many queries were paid for."""
    return sum(int(note.get("asked", 0)) for note in notes)


def batch_name(asked: int) -> str:
    """A batch of queries as the ledger counts it: by the number of queries before it."""
    return f"{ANSWERS}@{asked:08d}"


def batches(notes: Notes) -> set[str]:
    """The names of the batches that a journal knows."""
    sizes = [int(note["asked"]) for note in notes if "asked" in note]
    return {batch_name(after - size) for after, size in zip(accumulate(sizes), sizes, strict=True) if size > 0}


def unknown_draws(journal: Journal, ledger: Ledger) -> set[str]:
    """What the ledger counted for an engine and its journal does not know: it is an older copy, and draws nothing."""
    if ANSWERS not in journal.grants:
        return set()
    notes = journal.lines(ANSWERS, {}).entries
    thresholds = {instance_name(INSTANCES, number) for number in range(1, _thresholds(journal) + 1)}
    return ledger.draws(journal.grants[ANSWERS]) - batches(notes) - thresholds


def move_exhausted(folder: Path, ledger: Ledger, fingerprint: str | None, settings: Mapping[str, Any]) -> None:
    """Refuse a second engine with other settings while the first can answer; else move that one to another name.

    ``fingerprint`` is that of the data set's present lake. The next engine is charged for itself, so this is no
    question of privacy: it spares the owner a second debit by mistake.
    """
    older = folder.with_name(f"{folder.name}.jsonl")
    if older.exists():
        raise LedgerError(f"{older}: is an engine of an older version: {OLDER}")
    if not (folder / "run.json").exists():
        return
    try:
        journal = Journal.take(folder)  # locked: nobody answers from it meanwhile
    except InUseError:
        raise UsageError(f"{folder}: another process is answering from this journal") from None
    with journal:
        known = journal.content["settings"]
        if known == settings:
            return
        over = _is_exhausted(journal) or unknown_draws(journal, ledger)
        if not (over or _is_orphaned(journal, ledger, fingerprint)):
            dataset, relation = folder.name.rsplit(".", 1)
            raise UsageError(
                f"data set {dataset!r} already has an engine under {relation} with another "
                f"{', '.join(different(known, settings))}; a second one on the same data and budget is refused: ask "
                f"that one, or wait until it has given its last answer ({folder})"
            )
        number = 1
        while (kept := folder.with_name(f"{folder.name}.{number}.done")).exists():
            number += 1
        journal.move(kept)


def _is_exhausted(journal: Journal) -> bool:
    """Whether an engine cannot answer any more, or a crash took answers that it would have to give again."""
    notes: Notes = journal.lines(ANSWERS, {}).entries
    if not journal.grants or any("finished" in note for note in notes) or swallowed(notes):
        return True  # without a grant it was never paid for
    asked = queries_asked(notes)
    terms = next((note["terms"] for note in notes if "terms" in note), None)
    if terms is None:
        return False
    if terms["instances"] is None:
        return bool(asked >= terms["queries"])
    if not journal.has_lines(INSTANCES):
        return asked > 0  # such an engine is not opened again
    return bool(asked >= terms["queries"] or _thresholds(journal) >= terms["instances"])


def _thresholds(journal: Journal) -> int:
    """How many thresholds a sparse vector has drawn."""
    if not journal.has_lines(INSTANCES):
        return 0
    lines = journal.place(f"{INSTANCES}.jsonl").read_bytes().splitlines()
    return sum(line.startswith(b'{"open"') - line.startswith(b'{"unopened"') for line in lines)


def _is_orphaned(journal: Journal, ledger: Ledger, fingerprint: str | None) -> bool:
    """Whether what pays for an engine was voided, or was for another lake."""
    paid = journal.grants.get(ANSWERS)
    entry = None if paid is None else ledger.entry(paid)
    if entry is None:
        return False
    return entry.state is State.VOID or entry.fingerprint not in (None, ledger.keyed(fingerprint))
