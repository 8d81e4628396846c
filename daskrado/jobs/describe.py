"""kind: describe. How much of each column is null, unknown, beyond its bounds or unusable: noisy shares, charged."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

import numpy as np
from pydantic import model_validator

from daskrado.jobs.base import Charge, Line, Outcome, PrivateJob, Run, calibrated
from daskrado.jobs.report import Section, draw
from daskrado.lake.scan import Lake, open_lake
from daskrado.privacy.mechanisms import OneShot
from daskrado.privacy.relations import Relation
from daskrado.privacy.release import Release, release_without_privacy
from daskrado.statistics.base import Summary
from daskrado.statistics.column_cells import ColumnCells
from daskrado.table.cells import describing
from daskrado.table.label import Target
from daskrado.table.lattice import Lattice
from daskrado.table.yaml_file import write_text

if TYPE_CHECKING:
    from matplotlib.axes import Axes

ROLE = "shares"
ROW = "the whole row"


@dataclass(frozen=True)
class Share:
    """The share of rows in one cell of a column; ``std`` is that of the noise on it."""

    column: str
    cell: str
    value: float
    std: float

    @property
    def text(self) -> str:
        """In percent."""
        return f"{100 * self.value:.3g} % ± {100 * self.std:.2g} %" if self.std else f"{100 * self.value:.3g} %"


@dataclass(frozen=True)
class Description:
    """Released shares by column and cell."""

    shares: tuple[Share, ...]

    def by_column(self) -> dict[str, list[Share]]:
        """The shares of each column, in the Domain's order, then of whole rows."""
        found: dict[str, list[Share]] = {}
        for share in self.shares:
            found.setdefault(share.column, []).append(share)
        return found

    def save(self, path: Path) -> None:
        """Write the shares as JSON."""
        content = {
            column: {share.cell: {"share": share.value, "noise_std": share.std} for share in shares}
            for column, shares in self.by_column().items()
        }
        write_text(path, json.dumps(content, indent=1, allow_nan=False) + "\n")

    def lines(self) -> Iterator[str]:
        """One for each column."""
        for column, shares in self.by_column().items():
            yield f"{column}: {', '.join(f'{share.cell} {share.text}' for share in shares)}"

    def section(self) -> Section:
        """The shares, drawn with two standard deviations of noise, and listed."""
        shown = [share for share in self.shares if share.cell not in ("inside", "declared", "usable")][::-1]

        def paint(axes: Axes) -> None:
            at, values = range(len(shown)), [share.value for share in shown]
            axes.barh(at, values, color="#2b6cb0", height=0.7)
            error = [2 * share.std for share in shown]
            axes.errorbar(values, at, xerr=error, fmt="none", color="#2d3748", capsize=2)
            names = [f"{share.column}: {share.cell}".replace("$", r"\$") for share in shown]
            axes.set_yticks(at, names)

        return Section(
            "Shares of rows",
            text="Bars show two standard deviations of noise. A share may fall below 0: it is as it was drawn.",
            header=("column", "cell", "share"),
            rows=[(share.column, share.cell, share.text) for share in self.shares],
            plot=draw(paint, "share of rows", height=0.9 + 0.22 * len(shown)),
        )


class DescribeJob(PrivateJob):
    """One statistic over all columns of the domain; nothing but lake, domain, protection and budget to say."""

    name: ClassVar[str] = "describe"
    targets: ClassVar[tuple[Target, ...]] = ("sides", "number", "classes")
    counts_units: ClassVar[bool] = True
    title: ClassVar[str] = "{job.dataset}: what its columns hold"

    @model_validator(mode="after")
    def _check_relation(self) -> DescribeJob:
        if self.protect is not None and self.protect.relation not in (Relation.ADD_REMOVE, Relation.REPLACE_ONE):
            raise ValueError(f"describe protects whole rows: add_remove or replace_one, not {self.protect.relation}")
        return self

    def scan(self) -> Lake:
        """Every value has its cell: none is refused, even where nobody is protected."""
        return open_lake(self.source, self.domain, empty=not self.rows_public)

    @property
    def statistic(self) -> ColumnCells:
        """The cells of every column."""
        domain, columns = describing(self.domain)
        return ColumnCells(domain.width, columns)

    @property
    def lattice(self) -> Lattice:
        """The grid of the describing Domain's rows: counts do not depend on it."""
        return Lattice(describing(self.domain)[0].norm_bound)

    def calibrated(self) -> OneShot | None:
        """The mechanism for the counts; None where nobody is protected."""
        return calibrated(self.asked, self.statistic, self.lattice) if self.private else None

    def charges(self) -> tuple[Charge, ...]:
        """One, for all columns together."""
        chosen = self.calibrated()
        return () if chosen is None else (Charge.of_mechanism(ROLE, chosen, self.asked, self.assumptions),)

    def plan(self) -> Iterator[Line]:
        """Columns and noise."""
        yield "describes", f"{len(self.statistic.columns)} columns, the label among them, and whole rows"
        chosen = self.calibrated()
        if chosen is not None:
            yield "noise", f"standard deviation {chosen.noise_std()['cells']:.4g} rows on each count"

    def work(self, run: Run) -> Outcome:
        """Count once, add noise once, divide."""

        def gather() -> Summary:
            with run.clock("count"):
                return run.collect(self.statistic, self.lattice, domain=describing(self.domain)[0])

        chosen = self.calibrated()
        released = release_without_privacy(gather()) if chosen is None else run.release(ROLE, chosen, gather)
        found = self._described(released, run.rows)
        return Outcome(
            found,
            released.statement,
            release=released,
            facts={"noise_std": released.noise_std},
            lines=list(found.lines()),
            made=[("counted", f"{self.statistic.size} cells of {len(self.statistic.columns)} columns")],
            sections=lambda: [found.section()],
            files={"shares.json": found.save},
        )

    def _described(self, released: Release, rows: int | None) -> Description:
        """Shares; where the number of rows is secret, the mean of the columns' own totals stands for it."""
        columns = self.statistic.columns
        names = [(column.name, cell) for column in columns for cell in column.cells]
        names += [(ROW, "usable"), (ROW, "unusable")]
        counts, std = released.values["cells"], released.noise_std["cells"]
        total = float(np.sum(counts)) / (len(columns) + 1) if rows is None else float(rows)
        total = max(total, 1.0)
        pairs = zip(names, counts.tolist(), strict=True)
        return Description(tuple(Share(*name, count / total, std / total) for name, count in pairs))
