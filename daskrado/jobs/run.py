"""One run of a job: the account, the grants by role, the lake, the workers, the clock."""

from __future__ import annotations

import contextlib
import secrets
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from daskrado.cluster import connect
from daskrado.errors import BudgetError, UsageError
from daskrado.jobs.outcome import Charge, asked_for
from daskrado.jobs.spending import pay
from daskrado.lake.collect import Passes, Progress, collect, open_passes
from daskrado.lake.holdout import Part
from daskrado.lake.scan import Lake, known_by
from daskrado.lake.seeds import SignatureKey
from daskrado.lake.steps import begin_step
from daskrado.lake.units import Units, check_units, units_of
from daskrado.ledger.account import Account
from daskrado.ledger.charging import Clock, mark_unprotected
from daskrado.ledger.ledger import Grant, Mark
from daskrado.ledger.records import ALL_OF_IT, Debit
from daskrado.ledger.words import Price, affordable, over_budget
from daskrado.privacy.mechanisms import Mechanism
from daskrado.privacy.protect import Protect
from daskrado.privacy.release import Release
from daskrado.statistics.base import Statistic, Summary
from daskrado.table.domain import Domain
from daskrado.table.lattice import Lattice

if TYPE_CHECKING:
    from daskrado.jobs.base import Job

T = TypeVar("T")


class Run:
    """One run of a job: its account, its grants by role, its lake, its clock."""

    def __init__(self, job: Job, charges: Sequence[Charge], account: Account, progress: Progress | None) -> None:
        self.job = job
        self.account = account
        self.charges = {charge.role: charge for charge in charges}
        if len(self.charges) < len(charges):
            raise ValueError(f"kind {job.name} has two charges of one role: {', '.join(c.role for c in charges)}")
        self.charged_elsewhere = False  # True where the charges are debited from other parties' ledgers
        self.grants: dict[str, Grant] = {}
        self.paid_earlier = False  # True where an earlier run was charged for all that this one draws
        self.earlier: Lake | None = None  # rows that earlier nights counted, where people count once over all of them
        self.progress = progress
        self.clock = Clock(getattr(progress, "stage", None))
        self._stack = contextlib.ExitStack()
        self._units: dict[tuple[str, int, str | None], Units | None] = {}

    def __repr__(self) -> str:
        return f"<Run {self.account.run} of {self.job.name}>"

    @cached_property
    def lake(self) -> Lake:
        """The lake as its footers show it; a resumed run refuses another one than it began with."""
        with self.clock("scan"):
            lake = self.job.scan()
        self.account.same_lake(self.job.lake, lake)
        self.account.remember_rows(lake.rows if self.job.rows_public else None)
        if lake.table is not None:
            self.account.remember_table(lake.table)
        return lake

    @property
    def rows(self) -> int | None:
        """The number of rows, where it is public."""
        if not self.job.rows_public:
            return None
        return self.lake.rows if "lake" in self.__dict__ else self.account.known_rows

    @property
    def unprotected(self) -> bool:
        """Whether anything is published without protection, here or elsewhere."""
        return self.job.exposes or not (self.charges or self.job.protects or self.job.protected_elsewhere)

    def mark(self, ledger: str | Path | None, mark: Mark) -> None:
        """Mark what is published without protection, on every data set that the lake's files belong to."""
        own, lake = (self.job.ledger, self.job.dataset, self.account.run, mark), known_by(self.job.lake)
        self.account.notes += mark_unprotected(ledger, *own, lake)

    @property
    def table(self) -> dict[str, Any] | None:
        """Which version of which table was read, where the lake is one."""
        known = "lake" in self.__dict__ and self.lake.table
        return known.facts if known else self.account.known_table

    def check_public(self, lakes: Mapping[str, Any]) -> None:
        """Refuse private rows where public ones are meant: files that the ledger knows, or of the run's own lake.

        ``lakes`` are addresses or frames by the key that names them. A copy of a frame is not known again.
        """
        if not (lakes and self.charges):
            return
        _, own = known_by(self.job.lake)
        for key, source in lakes.items():
            fingerprint, files = known_by(source)
            known = self.account.ledger.owners(fingerprint, files)
            if source is self.job.lake or own.keys() & files.keys():
                known.append(self.job.dataset)
            if known:
                raise UsageError(f"{key}: these rows are private, as data set {known[0]!r}; give public rows")
            self.account.ledger.expose(files, Mark.FEATURES, run=self.account.run)

    def reserve(self) -> None:
        """Debit the ledger for every charge, before a row is read."""
        if not self.charges:
            return
        mark = None
        if self.job.needs_rows(self.account):
            mark = self.lake.fingerprint
            for protect in self.job.whose:
                check_units(self.lake, protect, self.job.domain.id)
            self.client  # noqa: B018 - workers that cannot be reached cost nothing, not even a voided entry
        for what, digest in self.job.inputs().items():
            self.account.unchanged(what, digest)
        first = next(iter(self.charges.values()))
        self.account.first_limit(self.job.ledger, self.job.dataset, first.debit.for_limit)
        together = self._together()
        if not self.account.resumed:
            pay(self.job.dataset, list(self.charges.values()))
        if together is not None:
            room = sum(charge.room for charge in self.charges.values())
            self.grants = dict.fromkeys(
                self.charges, self.account.reserve_debit(together, self.job.dataset, mark, room)
            )
            return
        for role, charge in self.charges.items():
            self.grants[role] = charge.reserve(self.account, self.job.dataset, mark)

    def _together(self) -> Debit | None:
        """Refuse several charges that do not fit together, in the words of a plan, before the first is debited.

        Where they fit as one only, that one; a run that was cut off goes on as it began.
        """
        debits = [charge.debit for charge in self.charges.values()]
        if len(debits) == 1:
            return None
        if self.account.resumed:
            return Debit.together(debits) if self.account.debited(ALL_OF_IT) else None
        prices, payable = affordable(partial(self.account.ledger.priced, self.job.dataset), debits)
        if (refused := over_budget(prices, payable)) is not None:
            raise BudgetError(refused)
        return payable[0] if len(payable) == 1 else None

    @cached_property
    def client(self) -> Any:
        """The workers that the job names, until the run ends; None where this process does the work."""
        return self._stack.enter_context(connect(self.job.cluster, self.lake.size))

    def units(self, protect: Protect | None) -> Units | None:
        """What each row counts for, where units are protected that may own several."""
        if protect is None or protect.column is None:
            return None
        which = (f"{protect.column}/{protect.within}", protect.rows_per_unit, protect.how)
        if which not in self._units:
            how = {"client": self.client, "report": self.progress, "earlier": self.earlier}
            begin_step(self.progress, "stretch of units")
            with self.clock("units"):
                # Which rows are kept must not change when a run is resumed, whose noise on them may be repeated.
                key = (
                    self.account.row_key("units").key_bytes() if protect.how == "sample" else secrets.token_bytes(32)
                )
                found = units_of(self.lake, protect, key, self.job.domain.id, **how)
            self._units[which] = found
        return self._units[which]

    def counted(self, protect: Protect | None) -> int:
        """How many rows take part: those that are kept of units, where they are sampled; else all."""
        units = self.units(protect)
        if units is None or not units.sampled:
            return self.lake.rows
        return sum(int(np.count_nonzero(weights)) for _, weights in units.of_lake(self.lake))

    @property
    def _whose(self) -> Protect | None:
        """Whom all that the job reads is for; None where its parts differ."""
        return getattr(self.job, "protect", None)

    def close(self) -> None:
        """Disconnect from the workers."""
        self._stack.close()

    def collect(
        self,
        statistic: Statistic,
        lattice: Lattice,
        *,
        key: SignatureKey | None = None,
        domain: Domain | None = None,
        protect: Protect | None = None,
        part: Part | None = None,
        class_weights: tuple[int, int] | None = None,
    ) -> Summary:
        """Sum a statistic over the lake, exactly; ``domain`` reads the rows in another way than the job's.

        ``protect`` says whose units are bounded, where that is not the job's own key; ``part`` which of them count.
        """
        return collect(
            statistic,
            self.lake,
            domain or self.job.domain,
            lattice,
            key=key,
            client=self.client,
            progress=self.progress,
            strict=not self.job.protects,
            secret_rows=not self.job.rows_public,
            units=self.units(protect or self._whose),
            part=part,
            class_weights=class_weights,
        )

    def passes(self, lattice: Lattice, **seeds: Any) -> contextlib.AbstractContextManager[Passes]:
        """Repeated sums over the lake; ``seeds`` are the keywords of ``open_passes`` on seeds and places."""
        return open_passes(
            self.lake,
            self.job.domain,
            lattice,
            client=self.client,
            strict=not self.job.protects,
            secret_rows=not self.job.rows_public,
            units=self.units(self._whose),
            **seeds,
        )

    def release(self, role: str, mechanism: Mechanism, gather: Callable[[], Summary]) -> Release:
        """Collect a statistic, spend the grant of a role and add noise, once; or the release that was kept."""
        return self.account.release(role, self.grants[role], mechanism, self.charges[role].statement, gather)

    def draw(
        self, role: str, gather: Callable[[], T], perturb: Callable[[T], Mapping[str, np.ndarray]]
    ) -> Mapping[str, np.ndarray]:
        """What ``perturb`` draws from ``gather()`` under the grant of a role, once; or what was kept."""
        return self.account.draw(role, self.grants[role], gather, lambda private: dict(perturb(private)))

    @property
    def asked(self) -> str:
        """What the run asks for, in words."""
        return asked_for([*self.charges.values()])

    def prices(self) -> list[Price]:
        """What the run took from each budget that it touches, and how that stands."""
        grants = list(dict.fromkeys(self.grants.values()))
        return self.account.ledger.paid(grants) if grants else []
