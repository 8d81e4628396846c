"""The job, the run, and the one forward path that every kind takes.

A kind of job is one small file: its keys, what it costs (``charges``), what it does (``work``). Everything else
comes from here: the plan, the account, the manifest, the report, resuming, the command line and the Python entry.
"""

from __future__ import annotations

import contextlib
import os
from abc import abstractmethod
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, ClassVar, Self, TypedDict, Unpack

from pydantic import Field, PrivateAttr, StrictBool, field_validator, model_validator

from daskrado.cluster import ClusterConfig, cluster_config, is_cluster
from daskrado.errors import UsageError, about_the_key
from daskrado.jobs.card import Card
from daskrado.jobs.chosen_blocks import block_line, payable, with_exact_blocks
from daskrado.jobs.outcome import Charge, Line, Outcome, Result, calibrated
from daskrado.jobs.run import Run
from daskrado.jobs.spending import active
from daskrado.lake.blocks import Blocks, PartOfLake
from daskrado.lake.collect import Progress
from daskrado.lake.label import labelled
from daskrado.lake.scan import Lake, open_lake
from daskrado.lake.snapshots import table_address, table_keys
from daskrado.ledger.account import Account
from daskrado.ledger.config import LedgerConfig
from daskrado.ledger.opening import open_account
from daskrado.ledger.records import Mark
from daskrado.privacy.protect import Budget, NotPrivate, Privacy, Private, Protect, check_protected_feature
from daskrado.privacy.relations import Relation
from daskrado.privacy.statement import PrivacyStatement, about_domain
from daskrado.table.arrow_arrays import as_table, is_stream
from daskrado.table.domain import Domain
from daskrado.table.label import TARGETS, Target
from daskrado.table.yaml_file import Frozen

__all__ = ["Address", "Charge", "Job", "Line", "Outcome", "PrivateJob", "Run", "calibrated", "opened", "perform"]
Address = tuple[str, ...]


class Job(Frozen):
    """A validated pipeline of some kind: which lake, as what data set, where to, on which workers.

    A subclass adds its own keys and says ``charges`` and ``work``.
    """

    name: ClassVar[str]
    addresses: ClassVar[tuple[Address, ...]] = ()  # keys beside the lake's that hold addresses the job reads
    common_addresses: ClassVar[tuple[Address, ...]] = (
        ("ledger", "path"),
        *(("cluster", key) for key in ("scheduler_file", "tls_ca_file", "tls_client_cert", "tls_client_key")),
    )
    protected_elsewhere: ClassVar[bool] = (
        False  # True where ``statement`` is another party's or the source's guarantee
    )
    counts_units: ClassVar[bool] = False  # True where all that is released is a sum that units can be bounded in
    weighs_units: ClassVar[bool] = True  # False where a unit is in one part, whatever it owns
    reserves: ClassVar[bool] = True  # False where an engine reserves by itself, through the same account
    pays_by_block: ClassVar[bool] = True  # False where one charge is for each block, those to come included
    targets: ClassVar[tuple[Target, ...]] = ("sides",)  # kinds of label that it can do with
    title: ClassVar[str] = "{job.dataset}: {job.name}"  # of the report
    prefix: ClassVar[str] = ""  # of manifest and report; "_" hides them from readers of an output that is all Parquet

    dataset: str = Field(pattern=r"^[A-Za-z0-9._-]{1,100}$")
    lake: Any = Field(repr=False)
    domain: Domain = Field(repr=False)
    blocks: Blocks | None = None
    output: str
    cluster: ClusterConfig = ClusterConfig()
    ledger: LedgerConfig = LedgerConfig()
    card: Card | None = None
    _notes: tuple[str, ...] = PrivateAttr(())

    @field_validator("output")
    @classmethod
    def _of_home(cls, value: str) -> str:
        return os.path.expanduser(value)

    @field_validator("cluster", mode="before")
    @classmethod
    def _take_client(cls, value: Any) -> Any:
        """A Dask client, or a cluster object that gives one, is a cluster, too."""
        return ClusterConfig.of(value) if is_cluster(value) else value

    @field_validator("domain", mode="before")
    @classmethod
    def _read_domain(cls, value: Any) -> Any:
        with about_the_key():
            return Domain.load(value) if isinstance(value, str | Path) else value

    @field_validator("lake")
    @classmethod
    def _check_lake(cls, value: Any) -> Any:
        """Refuse what cannot be a lake's address, list of addresses, table or frame."""
        if isinstance(value, dict) and value:
            try:
                return table_keys(*table_address(value))
            except UsageError as error:
                raise ValueError(str(error).removeprefix("lake: ")) from error
        address = isinstance(value, str | Path) and str(value)
        parts = value if isinstance(value, list | tuple) else ()
        listed = parts and all(isinstance(part, str | Path) and str(part) for part in parts)
        frame = any(hasattr(type(value), name) for name in ("columns", "to_table", "__arrow_c_stream__"))
        if address or listed or frame:
            with about_the_key():
                return as_table(value) if is_stream(value) else value  # a run asks for its columns, then reads it
        # Never what it holds: that may be rows.
        items = sorted({type(v).__name__ for v in value}) if isinstance(value, list | tuple) else []
        given = f"{type(value).__name__} of {', '.join(items)}" if items else type(value).__name__
        empty = value is None or (isinstance(value, str | list | tuple | dict) and not value)
        raise ValueError(f"must be an address or a list of addresses, got {'no address' if empty else given}")

    @model_validator(mode="after")
    def _check_feature(self) -> Job:
        """For every kind that says whom it protects, and which labels it takes."""
        if (target := self.domain.label.target) not in self.targets:
            raise ValueError(
                f"domain: label {self.domain.label.column!r} is {TARGETS[target]}; kind {self.name} needs two sides: "
                "positive and negative, or a threshold"
            )
        protect = getattr(self, "protect", None)
        if target != "sides" and isinstance(protect, Protect) and protect.relation is Relation.LABEL_FLIP:
            raise ValueError(
                "protect.relation: label_flip is for labels of two sides: take replace_one or add_remove"
            )
        if isinstance(protect, Protect) and not self.counts_units:
            protect.refuse_units(f"kind {self.name}")
        for own in self.whose:
            if own.within is not None and self.blocks is not None and own.within != self.blocks.column:
                raise ValueError(
                    f"protect.unit.within {own.within!r} is not blocks.column {self.blocks.column!r}: such a unit "
                    "may have rows in several blocks; leave one of them out, or name the same column"
                )
        if isinstance(protect, Protect) and protect.feature is not None:
            check_protected_feature(self.domain, protect.feature, "protect.feature")
        return self

    @property
    def whose(self) -> tuple[Protect, ...]:
        """Everybody whom the job protects."""
        protect = getattr(self, "protect", None)
        return (protect,) if isinstance(protect, Protect) else ()

    @abstractmethod
    def work(self, run: Run) -> Outcome:
        """Read, draw through the run, learn; everything that leaves is in the outcome."""

    def after(self, result: Result) -> Result:
        """What is left to do once all is published; the result with what there is to say of it."""
        return result

    def charges(self) -> tuple[Charge, ...]:
        """What the job costs, from public facts alone."""
        return ()

    def plan(self) -> Iterator[Line]:
        """Lines of a plan beside those on data set, guarantee, cost and budget: (name, text)."""
        yield from ()

    @property
    def privacy(self) -> Privacy:
        """Who is protected, or that nobody is."""
        return NotPrivate()

    @property
    def protects(self) -> bool:
        """Whether anybody is protected: then no value of a row stops a run or shows in what it says."""
        return isinstance(self.privacy, Private) or self.statement.private

    @property
    def exposes(self) -> bool:
        """Whether a part of what it publishes protects nobody, whatever is charged for the rest."""
        return False

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
        return open_lake(self.source, self.domain, strict=not self.protects, empty=not self.rows_public)

    @property
    def source(self) -> Any:
        """What is read: the lake, or those blocks of it that are chosen."""
        chosen = self.blocks
        return self.lake if chosen is None else PartOfLake(self.lake, chosen.column, chosen.chosen(self.lake))

    def inputs(self) -> Mapping[str, str]:
        """Digests of what the job reads beside the lake, by name; a resumed run refuses others than it began with."""
        return {}

    def public_lakes(self) -> Mapping[str, Any]:
        """Addresses of rows that the job takes for public, by key: a lake that the ledger knows is refused there."""
        return {}

    def needs_rows(self, account: Account) -> bool:
        """Whether rows must be read: a resumed run may have kept all that was drawn from them."""
        del account
        return True

    def public_options(self) -> dict[str, Any]:
        """The job's keys for the manifest: no address, no Domain, no place of this machine."""
        hidden = {"dataset", "lake", "domain", "output", "cluster", "ledger"}
        hidden |= {address[0] for address in self.addresses if len(address) == 1}  # also a model that is no file
        content = self.model_dump(mode="json", exclude=hidden, exclude_none=True)
        for *path, last in self.addresses:
            holder: Any = content
            for key in path:
                holder = holder.get(key) if isinstance(holder, dict) else None
            if isinstance(holder, dict):
                holder.pop(last, None)
        return content

    def with_changes(self, *, cluster: Any = None, output: str | None = None) -> Self:
        """The same job on other workers or with another output folder."""
        changes = {"cluster": None if cluster is None else cluster_config(cluster=cluster), "output": output}
        return self.model_copy(update={key: value for key, value in changes.items() if value is not None})


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
    def asked(self) -> Private:
        """Who is protected, and at what price, in a job that is private."""
        assert isinstance(self.privacy, Private)
        return self.privacy

    @property
    def protects(self) -> bool:
        """Unless the job says otherwise."""
        return self.private

    @property
    def assumptions(self) -> tuple[str, ...]:
        """What every statement of the job takes for granted."""
        feature = self.asked.protect.feature
        named = f"only the value of {feature!r} is protected; all other columns are taken as public"
        protect = self.asked.protect
        blocks = [] if self.blocks is None else [self.blocks.assumption]
        if self.blocks is not None and protect.column is not None and protect.within is None:
            blocks.append(
                f"{protect.unit} may have rows in several blocks, and loses what all runs that read any of them cost "
                "together: only a limit for the whole data set holds that"
            )
        known = about_domain(self.domain)
        return (self.asked.protect.owned, known, *([named] if feature is not None else []), *blocks)

    @property
    def privacy(self) -> Privacy:
        if self.protect is None or self.budget is None:
            return NotPrivate()
        return Private(self.protect, self.budget)


class Opening(TypedDict, total=False):
    """Keywords of all that runs a job: see :func:`opened`."""

    overwrite: bool
    cluster: Any
    ledger: str | Path | None
    progress: Progress | None
    account: Account | None


@contextlib.contextmanager
def opened(
    job: Job,
    *,
    write: bool,
    overwrite: bool = False,
    cluster: Any = None,
    ledger: str | Path | None = None,
    progress: Progress | None = None,
    account: Account | None = None,
) -> Iterator[Run]:
    """A run with its account open and its charges reserved; whatever fails before a draw voids them.

    ``overwrite`` replaces the output folder, ``cluster`` (a file, an address, a Dask client, a cluster object or a
    ClusterConfig) the job's workers; ``ledger`` is debited in place of the job's, ``progress`` is called with
    what is done and how much there is, and ``account`` is the one that a run had which was cut off.
    """
    if cluster is not None:
        job = job.with_changes(cluster=cluster)
    if job.protects and job.cluster.performance_report is not None:
        raise UsageError(
            "a performance report shows how often and how long rows were read, which depends on private rows: drop "
            "--performance-report, or measure a run with private: false"
        )
    if not job.reserves and active(job.dataset):
        raise UsageError(f"kind {job.name} pays by itself, and a block with a budget cannot count it: run it outside")
    job = with_exact_blocks(job)
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
    ) as paying:
        paying.by_block = job.pays_by_block
        run = Run(*payable(job, charges, paying), paying, progress)
        job = run.job
        if run.unprotected:
            run.mark(ledger, Mark.NOT_PRIVATE)
        paying.notes += job._notes
        if job.blocks is not None:
            paying.notes += (f"blocks of {block_line(job, paying.left_out)}",)
        with contextlib.closing(run), labelled(job.name, job.dataset, paying.run):
            run.check_public(job.public_lakes())
            if job.reserves:
                run.reserve()
            yield run


def perform(job: Job, *, write: bool = True, **how: Unpack[Opening]) -> Result:
    """The one forward path: charges, account, reserve, work, publish.

    The ledger is debited before any row is read, noise is drawn once, the rest is post-processing. A killed process
    leaves its grants charged, and :func:`daskrado.resume` finishes what it had begun with the ``account`` it had.
    """
    from daskrado.jobs.publish import publish

    with opened(job, write=write, **how) as run:
        outcome = run.job.work(run)  # the blocks that it reads are fixed by now
        if write and outcome.model is not None and run.unprotected:
            run.mark(how.get("ledger"), Mark.MODEL)
        result = publish(run, outcome, write=write)
        if not write:
            run.account.done(run.account.returned)  # nothing that was kept on disk is needed any more
            return result
        return run.job.after(result)
