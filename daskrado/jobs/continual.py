"""kind: continual. A model every night of all rows so far, under one charge; each night reads only what is new.

A pipeline of kind ``learn`` with the key ``continual`` is of this kind.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, Self, cast

from pydantic import Field, model_validator

from daskrado.engines.nights import Nights
from daskrado.engines.succession import engine_folder
from daskrado.errors import DataError, LedgerError, UsageError
from daskrado.jobs.base import Charge, Line, Outcome, Run
from daskrado.jobs.chosen_blocks import narrowed
from daskrado.jobs.learn import ROLE, LearnJob
from daskrado.jobs.learn_outcome import learn_outcome
from daskrado.jobs.plots import DOWN, FAINT, INK, UP, draw
from daskrado.jobs.section import Section
from daskrado.lake.blocks import block_names, shown_blocks
from daskrado.lake.scan import Lake
from daskrado.learners.base import ReleaseLearner
from daskrado.ledger.journal import Journal
from daskrado.ledger.journal_folder import InUseError
from daskrado.ledger.ledger import State
from daskrado.ledger.lines import different
from daskrado.models.linear import LinearModel
from daskrado.privacy.continual import ContinualGaussian, Night, PrefixSums
from daskrado.privacy.mechanisms import Target
from daskrado.privacy.relations import Relation
from daskrado.privacy.release import Release
from daskrado.statistics.base import Statistic
from daskrado.statistics.bounded import bounded, target_of
from daskrado.table.lattice import MOST_ROWS
from daskrado.table.yaml_file import Frozen


class Continual(Frozen):
    """For how many nights one charge pays: runs that read something new, which may be several blocks."""

    horizon: int = Field(ge=2, le=3650)


class ContinualJob(LearnJob):
    """A model of all blocks so far, from the sums of this night and what was released of those before."""

    name: ClassVar[str] = "continual"
    reserves: ClassVar[bool] = False  # a horizon goes on under the grant of its first night
    pays_by_block: ClassVar[bool] = False
    continual: Continual

    @model_validator(mode="after")
    def _check_continual(self) -> Self:
        statistic = self.chosen_statistic
        if not self.private or self.asked.budget.delta == 0 or self.mechanism not in (None, "gaussian"):
            raise ValueError("continual release has Gaussian noise: give protect and budget with a delta above 0")
        if statistic is None or statistic.needs_seeds:
            raise ValueError(
                f"continual release needs a learner on plain sums, such as moments; {self.learner.name} has none"
            )
        protect = self.asked.protect
        if self._people and (protect.how != "spread" or protect.relation is Relation.REPLACE_ONE):
            raise ValueError(
                f"{protect.unit} may have rows on several nights: continual counts people by how: spread, not "
                f"under replace_one, where rows may move to other nights; got how: {protect.how}, {protect.relation}"
            )
        if self.blocks is None:
            raise ValueError("continual reads each block once: name their column, blocks: {column: day}")
        if self.blocks.last is not None or self.blocks.end is not None:
            raise ValueError("continual reads every block that is new: drop blocks.last and blocks.to")
        return self

    @property
    def _people(self) -> bool:
        """Whether units may have rows on several nights."""
        return self.asked.protect.column is not None and self.asked.protect.within is None

    def _default_bits(self) -> int:
        """Room for any number of rows: those of later nights are not known."""
        return self._summed.bits_for(MOST_ROWS)

    @property
    def _summed(self) -> Statistic:
        assert self.chosen_statistic is not None
        return self.chosen_statistic

    @cached_property
    def sums(self) -> PrefixSums:
        """The matrix of the horizon."""
        return PrefixSums(self.continual.horizon)

    def noise(self) -> ContinualGaussian:
        """The mechanism of all nights, calibrated anew: each draws the noise of one.

        A person counts as one row on each of at most ``bound`` nights, or as more on fewer: what the sums of each of
        those nights move by, and are rounded by, adds up to at most ``bound`` times that of one row.
        """
        protect, budget = self.asked.protect, self.asked.budget
        target = target_of(self._summed, self.lattice, protect)
        if self._people:
            once = bounded(self._summed, 1, self.lattice)
            target = Target(once, self.lattice, protect.relation, protect.rows_per_unit)
        return ContinualGaussian(target, budget.epsilon, budget.delta, self.sums)

    @property
    def assumptions(self) -> tuple[str, ...]:
        assert self.blocks is not None
        others = [line for line in super().assumptions if line != self.blocks.assumption]
        column, protect = self.blocks.column, self.asked.protect
        if self._people:
            others[0] = (
                f"{protect.unit} counts as at most {protect.rows_per_unit} row(s) over all nights, on the first that "
                f"have any of its rows; what a night has read of {column!r} stays in the lake as it is"
            )
        return (
            *others,
            f"which values of {column!r} there are is public; a row that is replaced keeps its value",
            "the key of all noise (by AES-256), which is kept beside the ledger, stays as secret as the rows",
        )

    def charges(self) -> tuple[Charge, ...]:
        chosen = self.noise()
        how = (self.asked, chosen.name, chosen.theorem, self.assumptions)
        return (Charge.of(ROLE, chosen.event, *how),)

    def plan(self) -> Iterator[Line]:
        horizon, statistic = self.continual.horizon, self._summed
        yield "statistic", f"{statistic.name}, {statistic.size:,} integers on a 2^-{self.lattice.bits} grid"
        yield "learner", self.learner.name
        ids = f", and {self.asked.protect.column!r} of those before" if self._people else ""
        yield "continual", f"{horizon} nights on one charge; each reads the blocks that are new{ids}"
        tree = max(self.sums.tree_error(night) for night in range(1, horizon + 1))
        yield (
            "error",
            f"noise on the sums of the last night, against one release alone: {self.sums.error(horizon):.2f} times "
            f"(a fresh run each night {self.sums.fresh_error:.2f}, a binary tree up to {tree:.2f})",
        )

    def scan(self, sites: int = 1) -> Lake:
        lake = super().scan(sites)
        self.lattice.guard(None, self._summed.largest_per_row(self.lattice))
        return lake

    def settings(self) -> dict[str, Any]:
        """By which the journal of a horizon is known again."""
        assert self.blocks is not None
        found = {
            "horizon": self.continual.horizon,
            "budget": self.asked.budget.model_dump(mode="json"),
            "protect": self.asked.protect.model_dump(mode="json"),
            "domain": self.domain.digest(),
            "statistic": repr(self._summed),
            "lattice": [self.lattice.norm_bound, self.lattice.bits],
            "blocks": self.blocks.column,
        }
        return cast("dict[str, Any]", json.loads(json.dumps(found)))

    def work(self, run: Run) -> Outcome:
        """Draw the next night, if there is something new, and learn from all that was released so far."""
        assert self.blocks is not None
        with self._journal(run) as journal:
            nights = self._nights(run, journal)
            new = nights.new(self.blocks.values or ())
            if new:
                self._draw(run, journal, nights, new)
            values, std = self.noise().estimate(nights.kept) if nights.kept else ({}, {})
        statement = run.charges[ROLE].statement
        if not nights.kept:
            raise LedgerError(
                "continual: every night so far was cut off as its noise was drawn; noise is never drawn twice for "
                "one grant, so the charge stays; wait for a new block"
            )
        released = Release(self._summed.plain, self.lattice, values, std, statement)
        with run.clock("learn"):
            learned = cast(ReleaseLearner, self.learner).fit_columns(released, self.domain).in_units(self.domain)
        model = LinearModel(self.domain, learned.weights, statement, self.learner.name, learned.details, learned.bars)
        return self._outcome(learn_outcome(self, model, released), nights, new)

    @contextlib.contextmanager
    def _journal(self, run: Run) -> Iterator[Journal]:
        """The journal of the horizon; one whose nights are all over is wiped once the next one is paid for."""
        ledger, settings = run.account.ledger, self.settings()
        folder = engine_folder(ledger.path, f"{self.dataset}~continual", self.asked.protect.relation)
        if (folder / "run.json").exists():
            self._wipe_if_over(folder, run)
        with run.account.engine_journal(folder, {"settings": settings}) as journal:
            known = journal.content["settings"]
            if known != settings:
                raise UsageError(
                    f"data set {self.dataset!r} has a continual release with another "
                    f"{', '.join(different(known, settings))}; go on with that one, or remove {folder} to end it "
                    "(its charge stays, and the next is charged for itself)"
                )
            yield journal

    def _wipe_if_over(self, folder: Path, run: Run) -> None:
        try:
            journal = Journal.take(folder)
        except InUseError:
            raise UsageError(f"{folder}: another process is at work on this continual release") from None
        with journal:
            entry = None if ROLE not in journal.paid else run.account.entry(journal.paid[ROLE][0])
            drawn = set() if entry is None else run.account.ledger.draws(entry.id)
            void = entry is not None and entry.state is State.VOID
            over = self._is_over(journal, drawn)
            if over and not void:
                run.reserve()
            if over or void:
                journal.forget()

    def _is_over(self, journal: Journal, drawn: set[str]) -> bool:
        """Whether all nights are drawn and there is something new, which only the next horizon can read."""
        assert self.blocks is not None
        over = len(drawn) >= journal.content["settings"]["horizon"]
        return over and bool(Nights(journal, drawn).new(self.blocks.values or ()))

    def _nights(self, run: Run, journal: Journal) -> Nights:
        """The nights so far, on the charge that they had."""
        if ROLE not in journal.paid:
            return Nights(journal, ())
        number, payer = journal.paid[ROLE]
        entry, charge = run.account.entry(number), run.charges[ROLE]
        wanted = (payer, self.dataset, charge.debit.whose, charge.event)
        if entry is None or (entry.run, entry.dataset, entry.whose, entry.event) != wanted:
            raise LedgerError(
                f"{journal.folder}: the ledger {run.account.ledger.address} has no charge that fits this journal; "
                "put the ledger back that it was made with"
            )
        run.grants[ROLE] = run.account.adopt(ROLE, entry)
        run.paid_earlier = entry.run != run.account.run
        return Nights(journal, run.account.ledger.draws(number))

    def _draw(self, run: Run, journal: Journal, nights: Nights, new: list[str]) -> None:
        run.job = narrowed(self, new)
        if self._people and nights.blocks:
            run.earlier = self._earlier(nights).scan()
            run.account.ledger.close_blocks(self.dataset, run.earlier.reading, run.account.run)  # refuses any change
        if ROLE in journal.paid:
            run.account.ledger.close_blocks(self.dataset, run.lake.reading, run.account.run)
        else:
            if ROLE not in run.grants:
                run.reserve()
            Nights(journal, run.account.ledger.draws(run.grants[ROLE].entry))  # none, or this journal is not the one
            journal.granted(ROLE, run.grants[ROLE])
        grant = run.account.outlives(run.grants[ROLE])
        with run.clock("collect"):
            summary = run.collect(self._summed, self.lattice)
        mechanism, key = self.noise(), nights.key()
        earlier = mechanism.exact(
            key, nights.kept
        )  # ahead of the draw: a crash between counting and keeping loses it

        def count(name: str, place: str) -> None:
            run.account.count(grant, name, place=place)

        def release(night: int, name: str) -> Night:
            return mechanism.release(key, name, night, summary.vector, earlier)

        nights.draw(new, self._summed.size, count, release)

    def _earlier(self, nights: Nights) -> Self:
        """The job on the blocks of all nights so far, each of which must be there: people count once over all."""
        assert self.blocks is not None
        there = block_names(self.lake, self.blocks.column)
        for night, own in nights.blocks.items():
            if gone := [block for block in own if block not in there]:
                raise DataError(
                    f"block {self.blocks.column}={gone[0]} of data set {self.dataset!r} was read on night {night}, "
                    f"and is gone: {self.asked.protect.unit} counts once over all nights, so its rows are needed; "
                    "put it back"
                )
        return narrowed(self, [block for own in nights.blocks.values() for block in own])

    def _outcome(self, found: Outcome, nights: Nights, new: list[str]) -> Outcome:
        """What is said of a model, and of the nights behind it."""
        horizon, last = self.continual.horizon, nights.last
        read = [block for night in nights.kept for block in nights.blocks[night]]
        facts = {"night": last, "horizon": horizon, "blocks": len(read), "lost": [*nights.lost]}
        assert self.blocks is not None
        here = {"column": self.blocks.column, "read": new, "left_out": []}
        notes = [f"night {last} of {horizon}: read {shown_blocks(new)}"]
        if not new:
            notes = [f"no block is new since night {last} of {horizon}: the same sums, nothing was read or drawn"]
        for night, own in nights.lost.items():
            notes.append(
                f"night {night} ({shown_blocks(own)}) was cut off as its noise was drawn: its rows are in no model"
            )
        return replace(
            found,
            facts={**found.facts, "continual": facts, "blocks": here},
            notes=(*found.notes, *notes),
            made=[*found.made, ("continual", f"{len(read)} blocks on {len(nights.kept)} nights of {horizon}")],
            sections=lambda: [*found.sections(), self._section(last)],
        )

    def _section(self, last: int) -> Section:
        """The noise on the sums, night by night, of this and of the two other ways."""
        sums, horizon = self.sums, self.continual.horizon
        nights = range(1, horizon + 1)[:: max(1, horizon // 100)]

        def paint(axes: Any) -> None:
            axes.plot(nights, [sums.fresh_error] * len(nights), color=FAINT, label="a fresh run every night")
            axes.plot(nights, [sums.tree_error(n) for n in nights], color=DOWN, label="a binary tree")
            axes.plot(nights, [sums.error(n) for n in nights], color=UP, label="this release")
            axes.axvline(last, color=INK, linestyle=":", label="this night")
            axes.set_ylim(bottom=0)
            axes.legend(loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=4, fontsize=9, frameon=False)

        def errors(night: int) -> list[str]:
            return [f"{error:.2f}" for error in (sums.error(night), sums.tree_error(night), sums.fresh_error)]

        return Section(
            "Continual release",
            text="Noise on the sums of all nights so far, as a multiple of what one release with all the budget has.",
            rows=[(str(night), *errors(night)) for night in sorted({1, last, horizon // 2, horizon})],
            header=("night", "this release", "a binary tree", "a fresh run every night"),
            plot=draw(paint, "night", "noise", alt="Noise by night: this release, a binary tree, fresh runs"),
        )
