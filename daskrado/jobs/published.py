"""What was published: folders of runs, read back from their manifests. Nothing here touches a row or a ledger."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from daskrado.errors import UsageError, single_lines
from daskrado.jobs.card import Card
from daskrado.jobs.person_report import of_hundred
from daskrado.jobs.publish import weight_lines
from daskrado.jobs.report import figures_of
from daskrado.ledger.words import amount, more_runs, percent, short
from daskrado.models.linear import LinearModel
from daskrado.privacy.events import event_from_json
from daskrado.privacy.statement import PrivacyStatement
from daskrado.privacy.tradeoff import best_guess

MANIFESTS = ("manifest.json", "_manifest.json")
_DEEP = 3  # folders below the one that is given


@dataclass(frozen=True)
class Published:
    """One run as its folder holds it."""

    folder: Path
    content: dict[str, Any]

    @classmethod
    def load(cls, path: str | Path) -> Published:
        """From a run's folder, or from a file in it."""
        folder = Path(path) if Path(path).is_dir() else Path(path).parent
        for name in MANIFESTS:
            if (folder / name).is_file():
                return cls(folder, _manifest(folder / name))
        hint = "" if folder.is_dir() else " (there is no such folder)"
        raise UsageError(
            f"{path}: holds no manifest.json{hint}; give the output folder of a run, such as runs/quickstart"
        )

    @property
    def statement(self) -> PrivacyStatement | None:
        """What it protects; None in a manifest of another form."""
        try:
            return PrivacyStatement.model_validate(self.content.get("statement"))
        except ValidationError:
            return None

    @property
    def ledger_heads(self) -> set[str]:
        """The heads of the ledgers that paid for it, as they were then."""
        return {str(own["ledger_head"]) for own in self.content.get("budget", []) if "ledger_head" in own}

    @property
    def guarantee(self) -> str:
        """Its guarantee in a few words."""
        statement = self.statement
        if statement is None:
            return str(self.content.get("privacy_in_words", "unknown"))
        sets = [one.get("privacy", {}).get("private") for one in self.content.get("facts", {}).get("sets", [])]
        if not statement.private and any(sets):
            return f"{sum(map(bool, sets))} of {len(sets)} sets private, the others NOT PRIVATE"
        if not statement.private:
            return "NOT PRIVATE"
        return f"{amount(statement.epsilon or 0, statement.delta or 0)}, {statement.relation}"

    @property
    def guess(self) -> str:
        """How often an attacker is right, of 100; empty where nobody is protected or events are not known."""
        statement, charges = self.statement, self.content.get("charges", [])
        if statement is None or not statement.private or not charges:
            return ""
        parts = {charge.get("part", "") for charge in charges} - {""} or {""}
        told = [
            [event_from_json(charge["event"]) for charge in charges if charge.get("part", "") in ("", part)]
            for part in parts
        ]
        return of_hundred(max(best_guess(events) for events in told if events))

    @property
    def share(self) -> float | None:
        """What it took of the budget that it took most of."""
        return max((float(one["share"]) for one in self.content.get("budget", [])), default=None)

    @property
    def model(self) -> LinearModel | None:
        """The model, where the run published a single one that can still be read."""
        path = self.folder / "model.json"
        try:
            return LinearModel.load(path) if path.is_file() else None
        except UsageError:
            return None

    @property
    def card(self) -> Card | None:
        """What its owner says of it."""
        try:
            return Card.model_validate(self.content["job"]["card"])
        except (KeyError, TypeError, ValidationError):
            return None

    @property
    def figures(self) -> dict[str, str]:
        """Its private evaluation, if it has one, in words."""
        return figures_of(self.content.get("facts", {}))

    @property
    def changed(self) -> list[str]:
        """Files that are missing, or are not those that the manifest has digests of."""
        found = []
        for entry in self.content.get("files", []):
            path = self.folder / entry["name"]
            if not path.is_file():
                found.append(f"{entry['name']} is missing")
                continue
            with path.open("rb") as file:
                if hashlib.file_digest(file, "sha256").hexdigest() != entry["sha256"]:
                    found.append(f"{entry['name']} is not the file that was published")
        return found

    @property
    def report(self) -> Path | None:
        """Its page, if that was drawn."""
        found = [self.folder / f"{prefix}report.html" for prefix in ("", "_")]
        return next((path for path in found if path.is_file()), None)

    def to_json(self) -> dict[str, Any]:
        """The manifest, and what is read beside it."""
        model = self.model
        bars = None if model is None else model.error_bars.to_json(model.weight_names)
        weights = (
            None if model is None else dict(zip(model.weight_names, model.weights.ravel().tolist(), strict=True))
        )
        beside = {"attacker_right_of_100": self.guess or None, "changed_files": self.changed}
        return {
            "folder": str(self.folder),
            **beside,
            "weights": weights,
            "error_bars": bars,
            "manifest": self.content,
        }

    @single_lines
    def lines(self) -> Iterator[str]:
        """One run for a terminal."""
        content = self.content
        yield f"{self.folder}: {content.get('kind')} run {content.get('run')} of data set {content.get('dataset')}"
        yield str(content.get("privacy_in_words", ""))
        if self.guess:
            yield f"for one person: an attacker is right in at most {self.guess} of 100 cases, a coin in 50"
        for one in content.get("budget", []):
            limit = f"({one['limit_epsilon']:g}, {short(one['limit_delta'])})"
            block = f" block {one['block']} of" if one.get("block") else ""
            whom = "" if one.get("unit", "one row") == "one row" else f" for {one['unit']}"
            more = f", {more_runs(one['more_runs'], 'like it')}" if "more_runs" in one else ""
            share = percent(Fraction(one["share"]))
            yield (
                f"budget: {share} of{block} {one['dataset']} {limit} under {one['relation']}{whom}; "
                f"{percent(Fraction(one['left']))} was left{more}"
            )
        yield from (f"{key}: {value}" for key, value in (self.card.rows() if self.card else ()))
        yield from (f"{name}: {figure}" for name, figure in self.figures.items())
        if (model := self.model) is not None:
            yield f"largest weights, by {model.learner}:"
            yield from weight_lines(model)
        yield f"files: {', '.join(entry['name'] for entry in content.get('files', [])) or 'none'}"
        yield from (f"WARNING: {problem}" for problem in self.changed)
        yield from (f"note: {note}" for note in content.get("notes", []))


def _manifest(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UsageError(f"{path}: cannot be read as a manifest ({type(error).__name__})") from error
    if not isinstance(content, dict) or "run" not in content:
        raise UsageError(f"{path}: is not the manifest of a run")
    return content


def published_below(folder: str | Path) -> tuple[list[Published], list[str]]:
    """All runs in a folder and in those below it, by name; and what could not be read."""
    top = Path(folder)
    if not top.is_dir():
        raise UsageError(f"{folder}: is no folder; give one that holds runs, such as runs/")
    found, problems = [], []
    for depth in range(_DEEP + 1):
        for name in MANIFESTS:
            for path in sorted(top.glob("/".join(["*"] * depth + [name]))):
                if any(part.startswith(".") for part in path.relative_to(top).parts):
                    continue  # a run that is being published
                try:
                    found.append(Published(path.parent, _manifest(path)))
                except UsageError as error:
                    problems.append(str(error))
    return sorted(found, key=lambda one: one.folder.as_posix()), problems
