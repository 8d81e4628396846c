"""What noisy counts say of a draft domain: bounds, bins, categories and nulls, in the keys of its file."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import date, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import yaml
from pydantic import TypeAdapter, ValidationError

from daskrado.errors import UsageError
from daskrado.jobs.outcome import Outcome
from daskrado.jobs.report import Section
from daskrado.privacy.release import Release
from daskrado.privacy.statement import PrivacyStatement
from daskrado.table.cells import POSITIVE, CellColumn
from daskrado.table.domain import Column, DateColumn, Domain
from daskrado.table.drafts import filled, flow, open_in
from daskrado.table.value_grid import Counts, Span, fine_edges, found_numbers, rough_span, stands_out
from daskrado.table.yaml_file import OPEN, open_keys, read_yaml, write_text

if TYPE_CHECKING:
    from daskrado.jobs.discover import DiscoverJob
    from daskrado.jobs.run import Run

_EPOCH = date(1970, 1, 1)
_COLUMN: TypeAdapter[Any] = TypeAdapter(Column)
_RUNS = 7  # lengths of runs of cells that are looked at in the second grid


@dataclass
class Discovery:
    """What was found. ``facts`` has the keys of each column, or why it is no feature; ``described`` the charge."""

    draft: Domain = field(repr=False)
    find: Mapping[str, Mapping[str, Any]]
    numbers: tuple[str, ...]
    wholes: frozenset[str]
    facts: dict[str, dict[str, Any] | str] = field(default_factory=dict)
    nulls: dict[str, float] = field(default_factory=dict)  # shares of rows, where any stand out
    values: dict[str, dict[Any, float]] = field(default_factory=dict)  # shares of rows
    positive: float | None = None  # share of the label's positive side
    rows: float = 1.0
    described: dict[str, Any] = field(default_factory=dict)
    edges: dict[str, tuple[float, ...]] = field(default_factory=dict)

    def look_at(self, rough: Release | None, columns: tuple[CellColumn, ...]) -> dict[str, tuple[float, ...]]:
        """Read the first grid; returns the edges of the second one."""
        counts = _by_column(rough, columns)
        std = 1.0 if rough is None else rough.noise_std["cells"]
        limit = stands_out(2 * sum(map(len, counts.values())))
        weights = [len(one) for one in counts.values()]
        totals = [float(one.sum()) for one in counts.values()]
        if totals:  # each column counts all rows; the more cells, the more noise
            self.rows = max(1.0, float(np.average(totals, weights=1 / np.array(weights))))
        spans: dict[str, Span | None] = {}
        for column in columns:
            cells = counts[column.name]
            if cells[-1] > 3 * std:
                self.nulls[column.name] = float(cells[-1] / self.rows)
            if column.name in self.numbers:
                spans[column.name] = rough_span(cells[:-1], std, limit)
            elif POSITIVE in column.cells:
                self.positive = float(cells[0] / self.rows)
        for name in self.numbers:
            self.edges[name] = fine_edges(spans[name], whole=name in self.wholes)
            if spans[name] is None:
                self.facts[name] = "none of its numbers stand out from the noise"
        return self.edges

    def read_numbers(self, fine: Release | None, columns: tuple[CellColumn, ...]) -> None:
        """Read the second grid."""
        std = 1.0 if fine is None else fine.noise_std["cells"]
        limit = stands_out(sum(len(self.edges[column.name]) for column in columns) * _RUNS)
        for column in columns:
            name = column.name
            if name in self.facts:
                continue
            cells = _by_column(fine, columns)[name][1:-2]  # not those beyond the span, nor nulls
            whole = name in self.wholes
            rows = self.rows * (1 - self.nulls.get(name, 0.0))
            found = found_numbers(cells, self.edges[name], std, limit, rows, whole=whole)
            if found is None:
                self.facts[name] = "as far as the noise shows it has one value"
                continue
            dated = isinstance(self.draft.columns[name], DateColumn)
            known = {"lower": found.lower, "upper": found.upper, "bins": list(found.bins)}
            shown = {key: _written(value, whole=whole, dated=dated) for key, value in known.items()}
            facts = {key: shown[key] for key in open_in(self.find[name])}
            if "bins" in facts:
                facts["bins"] = facts["bins"] or None
            plain = not {"bins", "transform"} & self.find[name].keys() or facts.get("bins", 0) is None
            if found.skewed and not dated and plain and {"lower", "upper"} <= set(facts):
                facts["transform"] = "log1p"
            self._fill(name, facts, _written(found.median, whole=whole, dated=dated))
            self.facts[name] = self._fitting(name, facts)

    def _fill(self, name: str, facts: dict[str, Any], value: Any) -> None:
        """Replace nulls, so that none makes its row count as nothing; those that stand out have a feature."""
        if "nulls" not in self.find[name]:
            facts["nulls"] = {"fill": value} | ({} if name in self.nulls else {"flag": False})

    def _fitting(self, name: str, facts: dict[str, Any]) -> dict[str, Any] | str:
        """The facts, unless they contradict what the draft says."""
        try:
            _COLUMN.validate_python({**self.find[name], **facts})
        except ValidationError:
            return "what was found does not fit the keys that the draft gives"
        return facts

    def read_values(self, told: Mapping[str, Mapping[Any, float]], std: float) -> None:
        """Read the categories that were told."""
        for name, found in told.items():
            null = found.get(None, 0.0)
            self.values[name] = {value: count / self.rows for value, count in found.items() if value is not None}
            if null > 3 * std:
                self.nulls[name] = null / self.rows
            if name not in self.draft.columns:
                continue  # the label: its owner says what is positive
            if not self.values[name]:
                self.facts[name] = "none of its values is frequent enough to be told"
                continue
            rest = self.rows * (1 - sum(self.values[name].values())) - null
            if len(self.values[name]) == 1 and null <= 3 * std and rest <= 4 * std:
                self.facts[name] = "as far as the noise shows it has one value"
                continue
            # A category that is called other is in the catch-all, which has that name.
            named = [value for value in self.values[name] if value != "other"]
            if not named:
                self.facts[name] = "its only frequent value is called other, as the catch-all is"
                continue
            facts: dict[str, Any] = {"values": named}
            self._fill(name, facts, max(self.values[name], key=self.values[name].__getitem__))
            self.facts[name] = self._fitting(name, facts)

    def read_booleans(self) -> None:
        """Nulls of booleans."""
        for name, column in self.find.items():
            if not open_in(column):
                facts: dict[str, Any] = {}
                self._fill(name, facts, False)
                self.facts[name] = facts
        self.facts = {name: self.facts[name] for name in self.draft.columns if name in self.facts}

    def content(self) -> dict[str, Any]:
        """The domain with all that was found, as its file says it; the label's sides may still be open."""
        drafted = self.draft.model_dump(mode="json", exclude={"norm_bound"})
        columns = {}
        for name, column in drafted["columns"].items():
            facts = self.facts.get(name, {})
            if not isinstance(facts, str):
                columns[name] = {**self.find.get(name, column), **facts}
        label = drafted["label"]
        if label["column"] in self.find:
            label = {"column": label["column"], "positive": OPEN, "negative": OPEN}
        kept = {key: value for key, value in drafted.items() if value is not None}
        return kept | {"label": label, "columns": columns, "described": self.described}

    def save(self, path: Path) -> None:
        """Write the domain."""
        lines = [f"{flow(key)}: {flow(value)}" for key, value in self.content().items() if key != "columns"]
        lines += ["columns:", *(f"  {flow(n)}: {flow(column)}" for n, column in self.content()["columns"].items())]
        write_text(path, "\n".join(lines) + "\n")

    def lines(self) -> Iterator[str]:
        """One for each column."""
        for name, facts in self.facts.items():
            yield f"{name}: {self._line(name, facts)}"
        label = self.draft.label.column
        if label in self.values:
            yield f"{label} (label): {self._shares(label)}; say which are positive"
        elif self.positive is not None:
            yield f"{label} (label): {_percent(self.positive)} positive"

    def _line(self, name: str, facts: Mapping[str, Any] | str) -> str:
        if isinstance(facts, str):
            return f"no feature: {facts}"
        parts = []
        if {"lower", "upper"} & facts.keys():
            known = {**self.find[name], **facts}
            parts.append(f"{known['lower']} to {known['upper']}" + (", log1p" if "transform" in facts else ""))
        if facts.get("bins"):
            parts.append(f"{len(facts['bins']) + 1} bins")
        if name in self.values:
            parts.append(self._shares(name))
        parts.append(f"nulls {_percent(self.nulls[name])}" if name in self.nulls else "no nulls stand out")
        return "; ".join(parts)

    def _shares(self, name: str) -> str:
        found = [f"{value} {_percent(share)}" for value, share in self.values[name].items()]
        more = f" and {len(found) - 6} more" if len(found) > 6 else ""
        return (", ".join(found[:6]) + more) or "no value is frequent enough to be told"


def discovered(
    job: DiscoverJob,
    run: Run,
    found: Discovery,
    fine: Release | None,
    told: Mapping[str, Mapping[Any, float]],
    statement: PrivacyStatement,
) -> Outcome:
    """The outcome of a run, all of it from releases."""
    found.read_values(told, job.values_of(job.mus["values"]).std if told else 0.0)
    found.read_numbers(fine, job.grid(found.edges, more=False)[1])
    found.read_booleans()
    found.described = {
        "run": run.account.run,
        "dataset": job.dataset,
        "epsilon": statement.epsilon,
        "delta": statement.delta,
        "rows": _two_digits(found.rows),
    }
    names = [name for name, facts in found.facts.items() if not isinstance(facts, str)]
    return Outcome(
        found,
        statement,
        facts={"described": found.described},
        lines=list(found.lines()),
        made=[("found", f"{len(names)} of {len(found.facts)} columns as features")],
        sections=lambda: [_section(found)],
        files={"domain.yaml": found.save, "found.json": lambda path: _save(found, path)},
    )


def _save(found: Discovery, path: Path) -> None:
    content = {"columns": found.facts, "nulls": found.nulls, "described": found.described}
    content["values"] = {name: [[v, share] for v, share in shares.items()] for name, shares in found.values.items()}
    write_text(path, json.dumps(content, indent=1, default=str) + "\n")


def _section(found: Discovery) -> Section:
    rows = [line.split(": ", 1) for line in found.lines()]
    return Section("What the columns hold", header=("column", "found"), rows=rows)


def _by_column(release: Release | None, columns: tuple[CellColumn, ...]) -> dict[str, Counts]:
    found: dict[str, Counts] = {}
    at = 0
    for column in columns:
        assert release is not None
        found[column.name] = release.values["cells"][at : at + len(column.cells)]
        at += len(column.cells)
    return found


def _written(value: Any, *, whole: bool, dated: bool) -> Any:
    """A bound or edges as a file has them."""
    if isinstance(value, list):
        return [_written(one, whole=whole, dated=dated) for one in value]
    if dated:
        return _EPOCH + timedelta(days=int(value))
    return int(value) if whole or (value == int(value) and abs(value) < 1e15) else value


def _two_digits(rows: float) -> int:
    """Two digits: the rest is noise."""
    unit = 10 ** max(0, math.floor(math.log10(max(rows, 1.0))) - 1)
    return max(1, int(round(rows / unit) * unit))


def _percent(share: float) -> str:
    value = 100 * max(0.0, share)
    return f"{value:.0f} %" if value > 9.9 else f"{value:.2g} %"


def write_draft(draft: Path, found: Discovery) -> list[str]:
    """Write what was found into the draft, whole or not at all, and what there is to say of it."""
    where = _shown(draft)
    if all(isinstance(one, str) for one in found.facts.values()):
        asked = found.described["epsilon"]
        return [
            f"{where}: unchanged, as no column stands out from the noise: ask for more than epsilon {asked:.2g}, or "
            "write public facts there"
        ]
    kept = "what was found is in domain.yaml of the output folder"
    charge = found.described
    note = (
        f"Found in private by daskrado describe, run {charge['run']}: epsilon {charge['epsilon']:g}, "
        f"delta {charge['delta']:g} of data set {charge['dataset']}; the ledger has the charge."
    )
    try:
        if not open_keys(read_yaml(draft)):
            return [f"{where}: unchanged, as nothing in it is open (...) any more; {kept}"]
        text = filled(draft.read_text(encoding="utf-8"), found.facts, [note], f"described: {flow(charge)}\n")
        left = open_keys(yaml.safe_load(text))
        write_text(draft, text)
    except (OSError, UsageError, yaml.YAMLError) as error:
        return [f"{where}: not written ({' '.join(str(error).split())}); {kept}"]
    made = f"{where}: {sum(not isinstance(one, str) for one in found.facts.values())} columns written"
    return [made, *([f"still open (...): {', '.join(left)}"] if left else [])]


def _shown(path: Path) -> str:
    """A path as the working folder sees it, where it lies below."""
    return os.path.relpath(path) if path.is_relative_to(Path.cwd()) else str(path)
