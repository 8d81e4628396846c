"""The job, the run, and the one forward path that every kind takes.

A kind of job is one small file: its keys, what it costs (``charges``), what it does (``work``). Everything else
comes from here: the plan, the account, the manifest, the report, resuming, the command line and the Python entry.
"""

from __future__ import annotations

import contextlib
from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, TypeVar

import numpy as np
from pydantic import Field, PrivateAttr, StrictBool, field_validator, model_validator

from daskrado.cluster import ClusterConfig, connect
from daskrado.jobs.report import Section
from daskrado.jobs.result import Result
from daskrado.lake.collect import Passes, Progress, collect, open_passes
from daskrado.lake.scan import Lake, open_lake
from daskrado.lake.seeds import SignatureKey
from daskrado.ledger.account import Account
from daskrado.ledger.charging import Clock
from daskrado.ledger.config import LedgerConfig
from daskrado.ledger.ledger import Grant
from daskrado.ledger.opening import open_account
from daskrado.models.linear import LinearModel
from daskrado.privacy.accountant import Event
from daskrado.privacy.mechanisms import Mechanism, OneShot
from daskrado.privacy.protect import Budget, NotPrivate, Privacy, Private, Protect
from daskrado.privacy.relations import Relation
from daskrado.privacy.release import Release
from daskrado.privacy.statement import DOMAIN_IS_PUBLIC, PrivacyStatement
from daskrado.statistics.base import Statistic, Summary
from daskrado.table.domain import BooleanColumn, Domain
from daskrado.table.lattice import Lattice
from daskrado.table.yaml_file import Frozen

T = TypeVar("T")
Line = tuple[str, str]
Address = tuple[str, ...]


@dataclass(frozen=True)
class Charge:
    """What a job asks of the ledger, from public facts alone.

    ``role`` names the charge and its draw within the run; ``room`` is the number of bytes that the draw needs on
    disk. Charges of disjoint ``part`` values count once; ``blocks`` are the blocks of the lake that are read.
    """

    role: str
    event: Event
    statement: PrivacyStatement
    room: int = 0
    part: str = ""
    blocks: tuple[str, ...] = ()

    @classmethod
    def of_mechanism(cls, role: str, mechanism: OneShot, private: Private, assumptions: Sequence[str] = ()) -> Charge:
        """The charge of one calibrated mechanism."""
        statement = PrivacyStatement.of(
            mechanism.event,
            private.protect,
            private.budget,
            mechanism=mechanism.name,
            theorem=mechanism.theorem,
            assumptions=(*assumptions, *mechanism.assumptions),
        )
        return cls(role, mechanism.event, statement, 16 * mechanism.target.statistic.size)

    @property
    def relation(self) -> Relation:
        """Who is protected."""
        assert self.statement.relation is not None
        return self.statement.relation


@dataclass(frozen=True)
class Outcome:
    """What a job found. All of it is released or public.

    ``sections`` are made when the report is drawn, after ``files`` and the manifest are on disk. A ``model`` brings
    its file, its section and its lines with it.
    """

    value: Any
    statement: PrivacyStatement
    model: LinearModel | None = None
    release: Any = None
    facts: Mapping[str, Any] = field(default_factory=dict)
    lines: Sequence[str] = ()
    made: Sequence[Line] = ()
    sections: Callable[[], Iterable[Section]] = tuple
    files: Mapping[str, Callable[[Path], None]] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    title: str = ""  # of the report, where the job itself cannot say it


class Job(Frozen):
    """A validated pipeline of some kind: which lake, as what data set, where to, on which workers.

    A subclass adds its own keys and says ``charges`` and ``work``.
    """

    name: ClassVar[str]
    addresses: ClassVar[tuple[Address, ...]] = ()  # keys beside the lake's that hold addresses the job reads
    reserves: ClassVar[bool] = True  # False where an engine reserves by itself, through the same account
    prefix: ClassVar[str] = ""  # of manifest and report; "_" hides them from readers of an output that is all Parquet

    dataset: str = Field(pattern=r"^[A-Za-z0-9._-]{1,100}$")
    lake: Any = Field(repr=False)
    domain: Domain = Field(repr=False)
    output: str
    cluster: ClusterConfig = ClusterConfig()
    ledger: LedgerConfig = LedgerConfig()
    _notes: tuple[str, ...] = PrivateAttr(())

    @field_validator("domain", mode="before")
    @classmethod
    def _read_domain(cls, value: Any) -> Any:
        return Domain.load(value) if isinstance(value, str | Path) else value

    @field_validator("lake")
    @classmethod
    def _check_lake(cls, value: Any) -> Any:
        """Refuse what cannot be a lake's address, list of addresses or frame."""
        address = isinstance(value, str | Path) and str(value)
        parts = value if isinstance(value, list | tuple) else ()
        listed = parts and all(isinstance(part, str | Path) and str(part) for part in parts)
        if address or listed or hasattr(value, "columns"):
            return value
        # Never what it holds: that may be rows.
        items = sorted({type(v).__name__ for v in value}) if isinstance(value, list | tuple) else []
        given = f"{type(value).__name__} of {', '.join(items)}" if items else type(value).__name__
        empty = value is None or (isinstance(value, str | list | tuple | dict) and not value)
        raise ValueError(f"must be an address or a list of addresses, got {'no address' if empty else given}")

    @model_validator(mode="after")
    def _check_feature(self) -> Job:
        """For every kind that says whom it protects."""
        protect = getattr(self, "protect", None)
        if isinstance(protect, Protect) and protect.feature is not None:
            check_protected_feature(self.domain, protect.feature, "protect.feature")
        return self

    @abstractmethod
    def work(self, run: Run) -> Outcome:
        """Read, draw through the run, learn; everything that leaves is in the outcome."""

    def charges(self) -> tuple[Charge, ...]:
        """What the job costs, from public facts alone."""
        return ()

    def plan(self) -> Iterator[Line]:
        """Lines of a plan beside those on data set, guarantee, cost and budget: (name, text)."""
        yield from ()

    @property
    def title(self) -> str:
        """The headline of the report."""
        return f"{self.dataset}: {self.name}"

    @property
    def privacy(self) -> Privacy:
        """Who is protected, or that nobody is."""
        return NotPrivate()

    @property
    def rows_public(self) -> bool:
        """Whether the number of rows is public (always, without privacy)."""
        return self.privacy.rows_public

    @property
    def statement(self) -> PrivacyStatement:
        """What a plan says of the guarantee where nothing is charged."""
        return PrivacyStatement.none()

    @property
    def can_be_remembered(self) -> bool:
        """Whether a journal can hold the job: False if a part of it exists in this process only."""
        return True

    def scan(self) -> Lake:
        """Open the lake from its footers, and refuse what they show to be unusable."""
        return open_lake(self.lake, self.domain)

    def inputs(self) -> Mapping[str, str]:
        """Digests of what the job reads beside the lake, by name; a resumed run refuses others than it began with."""
        return {}

    def needs_rows(self, account: Account) -> bool:
        """Whether rows must be read: a resumed run may have kept all that was drawn from them."""
        del account
        return True

    def public_options(self) -> dict[str, Any]:
        """The job's keys for the manifest: no address, no Domain, no place of this machine."""
        hidden = {"dataset", "lake", "domain", "output", "cluster", "ledger"}
        content = self.model_dump(mode="json", exclude=hidden, exclude_none=True)
        for *path, last in self.addresses:
            holder: Any = content
            for key in path:
                holder = holder.get(key) if isinstance(holder, dict) else None
            if isinstance(holder, dict):
                holder.pop(last, None)
        return content

    def with_changes(self, *, cluster: ClusterConfig | None = None, output: str | None = None) -> Job:
        """The same job on other workers or with another output folder."""
        changes: dict[str, Any] = {}
        if cluster is not None:
            changes["cluster"] = cluster
        if output is not None:
            changes["output"] = output
        return self.model_copy(update=changes)


class PrivateJob(Job):
    """A job with the keys ``protect`` and ``budget``; without protection it must say ``private: false``."""

    without_privacy: ClassVar[str] = "exact figures"  # what ``private: false`` gives

    private: StrictBool = True
    protect: Protect | None = None
    budget: Budget | None = None

    @model_validator(mode="after")
    def _check_privacy(self) -> PrivateJob:
        given = self.protect is not None, self.budget is not None
        if not self.private and any(given):
            raise ValueError("private: false protects nobody: drop protect and budget, or drop private: false")
        if self.private and not all(given):
            raise ValueError(
                f"protect and budget are missing; for {self.without_privacy} without protection say private: false"
            )
        return self

    @property
    def assumptions(self) -> tuple[str, ...]:
        """What every statement of the job takes for granted."""
        assert self.protect is not None
        feature = self.protect.feature
        named = f"only the value of {feature!r} is protected; all other columns are taken as public"
        return (self.protect.owned, DOMAIN_IS_PUBLIC, *([named] if feature is not None else []))

    @property
    def privacy(self) -> Privacy:
        """As the keys say."""
        if self.protect is None or self.budget is None:
            return NotPrivate()
        return Private(self.protect, self.budget)


def check_protected_feature(domain: Domain, feature: str, where: str, *, numbers: bool = False) -> None:
    """Refuse a column whose change under feature_flip would reach further than one encoded feature.

    Sensitivities under feature_flip are derived for one +-1 feature, whose flip leaves the row's norm, and so its
    clipping, as it was. A column that may be null has a second feature, and a kernel mixes all columns. With
    ``numbers`` a single numeric column will do too, for a statistic that bounds its reach by itself.
    """
    column = domain.columns.get(feature)
    if column is None:
        raise ValueError(f"{where} {feature!r} is not a column of the domain")
    if domain.kernel is not None:
        raise ValueError(f"{where} {feature!r}: a kernel mixes every column into every feature; use replace_one")
    if column.feature_names(feature) != [feature]:
        raise ValueError(f"{where} {feature!r} is one-hot; only single columns can be protected by name")
    if not isinstance(column, BooleanColumn) and not numbers:
        raise ValueError(f"{where} {feature!r} is {column.kind}, not boolean")
    if column.fill is not None:
        raise ValueError(f"{where} {feature!r} may be null, which would show in a second column; use replace_one")


class Run:
    """One run of a job: its account, its grants by role, its lake, its clock."""

    def __init__(self, job: Job, charges: Sequence[Charge], account: Account, progress: Progress | None) -> None:
        self.job = job
        self.account = account
        self.charges = {charge.role: charge for charge in charges}
        self.grants: dict[str, Grant] = {}
        self.progress = progress
        self.clock = Clock(getattr(progress, "stage", None))
        self._stack = contextlib.ExitStack()

    def __repr__(self) -> str:
        return f"<Run {self.account.run} of {self.job.name}>"

    @cached_property
    def lake(self) -> Lake:
        """The lake as its footers show it; a resumed run refuses another one than it began with."""
        with self.clock("scan"):
            lake = self.job.scan()
        self.account.same_lake(self.job.lake, lake)
        self.account.remember_rows(lake.rows if self.job.rows_public else None)
        return lake

    @property
    def rows(self) -> int | None:
        """The number of rows, where it is public."""
        if not self.job.rows_public:
            return None
        return self.lake.rows if "lake" in self.__dict__ else self.account.known_rows

    def reserve(self) -> None:
        """Debit the ledger for every charge, before a row is read."""
        if not self.charges:
            return
        fingerprint = None
        if self.job.needs_rows(self.account):
            fingerprint = self.lake.fingerprint
            self.client  # noqa: B018 - workers that cannot be reached cost nothing, not even a voided entry
        for what, digest in self.job.inputs().items():
            self.account.unchanged(what, digest)
        relations = dict.fromkeys(charge.relation for charge in self.charges.values())
        self.account.first_limit(self.job.ledger, self.job.dataset, *relations)
        for role, charge in self.charges.items():
            self.grants[role] = self.account.reserve(
                role,
                self.job.dataset,
                charge.relation,
                charge.event,
                theorem=charge.statement.theorem,
                fingerprint=fingerprint,
                room=charge.room,
            )

    @cached_property
    def client(self) -> Any:
        """The workers that the job names, until the run ends; None where this process does the work."""
        return self._stack.enter_context(connect(self.job.cluster, self.lake.size))

    def close(self) -> None:
        """Disconnect from the workers."""
        self._stack.close()

    def collect(self, statistic: Statistic, lattice: Lattice, *, key: SignatureKey | None = None) -> Summary:
        """Sum a statistic over the lake, exactly."""
        return collect(
            statistic, self.lake, self.job.domain, lattice, key=key, client=self.client, progress=self.progress
        )

    def passes(
        self,
        lattice: Lattice,
        *,
        seeded: bool = False,
        by_record: bool | None = None,
        placed: bool = False,
        key: SignatureKey | None = None,
    ) -> contextlib.AbstractContextManager[Passes]:
        """Repeated sums over the lake."""
        return open_passes(
            self.lake,
            self.job.domain,
            lattice,
            seeded=seeded,
            by_record=by_record,
            placed=placed,
            key=key,
            client=self.client,
        )

    def release(self, role: str, mechanism: Mechanism, gather: Callable[[], Summary]) -> Release:
        """Collect a statistic, spend the grant of a role and add noise, once; or the release that was kept."""
        return self.account.release(role, self.grants[role], mechanism, self.charges[role].statement, gather)

    def draw(
        self, role: str, gather: Callable[[], T], perturb: Callable[[T], Mapping[str, np.ndarray]]
    ) -> Mapping[str, np.ndarray]:
        """What ``perturb`` draws from ``gather()`` under the grant of a role, once; or what was kept."""

        def paid(private: T) -> dict[str, np.ndarray]:
            self.account.spend(self.grants[role])
            return dict(perturb(private))

        return self.account.draw(role, self.grants[role], gather, paid)

    def budgets(self) -> list[dict[str, Any]]:
        """The state of the budget under each relation that was charged."""
        return list({grant.relation: self.account.budget(grant) for grant in self.grants.values()}.values())


@contextlib.contextmanager
def opened(
    job: Job,
    *,
    overwrite: bool = False,
    ledger: str | Path | None = None,
    write: bool = True,
    progress: Progress | None = None,
    account: Account | None = None,
) -> Iterator[Run]:
    """A run with its account open and its charges reserved; whatever fails before a draw voids them."""
    charges = job.charges()
    with open_account(
        job.name,
        job,
        overwrite=overwrite,
        ledger_path=ledger,
        write=write,
        private=bool(charges),
        remembered=job.can_be_remembered,
        account=account,
    ) as opened_account:
        run = Run(job, charges, opened_account, progress)
        opened_account.notes += job._notes
        with contextlib.closing(run):
            if job.reserves:
                run.reserve()
            yield run


def perform(
    job: Job,
    *,
    overwrite: bool = False,
    ledger: str | Path | None = None,
    write: bool = True,
    progress: Progress | None = None,
    account: Account | None = None,
) -> Result:
    """The one forward path: charges, account, reserve, work, publish.

    The ledger is debited before any row is read, noise is drawn once, the rest is post-processing. A killed process
    leaves its grants charged, and :func:`daskrado.resume` finishes what it had begun with the ``account`` it had.
    """
    from daskrado.jobs.publish import publish

    with opened(job, overwrite=overwrite, ledger=ledger, write=write, progress=progress, account=account) as run:
        result = publish(run, job.work(run), write=write)
        if not write:
            run.account.done()  # nothing that was kept on disk is needed any more
        return result
