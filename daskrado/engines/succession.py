"""Which engine of a data set comes after which: the next one is let in once the first cannot answer any more."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from daskrado.errors import UsageError
from daskrado.ledger.answer_journal import Journal, sync_folder
from daskrado.ledger.ledger import LedgerEntry, State
from daskrado.privacy.relations import Relation


def engine_path(ledger: Path, dataset: str, relation: Relation) -> Path:
    """Where the one engine of a data set and relation lives: beside the ledger that pays for it."""
    return ledger.with_name(f"{ledger.name}.engines") / f"{dataset}.{relation}.jsonl"


def state_path(path: Path) -> Path:
    """Where an engine's mechanism keeps public state of its own."""
    return path.with_suffix(".instances")


def swallowed(notes: Sequence[Mapping[str, Any]]) -> int:
    """How many queries were paid for and lost their answers to a crash."""
    done = sum(int(note.get("done", len(note["answers"]))) for note in notes if "answers" in note)
    return max(0, queries_asked(notes) - done)


def queries_asked(notes: Sequence[Mapping[str, Any]]) -> int:
    """How many queries were paid for."""
    return sum(int(note.get("asked", 0)) for note in notes)


def make_way(path: Path, entries: Sequence[LedgerEntry], fingerprint: str, facts: Mapping[str, Any]) -> None:
    """Refuse a second engine with other settings while the first can answer; else keep that under another name.

    ``entries`` are the ledger's for the data set, ``fingerprint`` is that of its present lake. The next engine is
    charged for itself, so this is no question of privacy: it spares the owner a second debit by mistake.
    """
    if not path.exists():
        return
    try:
        known = json.loads(path.read_bytes().split(b"\n", 1)[0])["facts"]
    except (ValueError, KeyError, TypeError):
        return  # Journal says what is wrong with the file
    if known == facts:
        return
    with Journal(path, known) as journal:  # locked: nobody answers from it meanwhile
        if not (_over(journal.notes, state_path(path)) or _orphaned(journal.notes, entries, fingerprint)):
            different = sorted(k for k in {*known, *facts} if known.get(k) != facts.get(k))
            dataset, relation = path.stem.rsplit(".", 1)
            raise UsageError(
                f"data set {dataset!r} already has an engine under {relation} with another {', '.join(different)}; "
                "a second one on the same data and budget is refused: ask that one, or wait until it has given its "
                f"last answer ({path})"
            )
        number = 1
        while (kept := path.with_suffix(f".{number}.done")).exists():
            number += 1
        path.rename(kept)
        if state_path(path).exists():
            state_path(path).rename(kept.with_suffix(".instances"))
        sync_folder(path.parent)


def _over(notes: Sequence[Mapping[str, Any]], state: Path) -> bool:
    """Whether an engine cannot answer any more, or a crash took answers that it would have to give again."""
    if not notes or any("finished" in note for note in notes) or swallowed(notes):
        return True  # without a note it was never paid for
    asked = queries_asked(notes)
    terms = next((note["terms"] for note in notes if "terms" in note), None)
    if terms is None:
        return False
    if terms["instances"] is None:
        return bool(asked >= terms["queries"])
    if not state.exists():
        return asked > 0  # such an engine is not opened again
    opened = sum(line.startswith(b'{"open"') for line in state.read_bytes().splitlines())
    return bool(asked >= terms["queries"] or opened >= terms["instances"])


def _orphaned(notes: Sequence[Mapping[str, Any]], entries: Sequence[LedgerEntry], fingerprint: str) -> bool:
    """Whether what pays for an engine was given back, or was for another lake."""
    grants = [note["grants"][1] for note in notes if note.get("grants", [None])[0] == "answers"]
    entry = next((entry for entry in entries if grants and entry.id == grants[-1]), None)
    return entry is not None and (entry.state is State.VOID or entry.fingerprint not in (None, fingerprint))
