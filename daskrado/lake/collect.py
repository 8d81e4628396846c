"""The only map and tree reduction: partitions become partial sums, partial sums become one exact Summary."""

from __future__ import annotations

import contextlib
import copy
import secrets
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from daskrado.errors import DataError, UsageError
from daskrado.lake.asking import workers_of
from daskrado.lake.crew import Crew, Progress, crew_of, read_run
from daskrado.lake.dealing import is_delayed
from daskrado.lake.failures import refuse
from daskrado.lake.holdout import Part
from daskrado.lake.partial import CHUNK_ROWS, FAN_IN, Job, Partial, Share
from daskrado.lake.row_store import RowStore, disk_room, row_bytes
from daskrado.lake.scan import Lake, open_lake
from daskrado.lake.seeds import SignatureKey
from daskrado.lake.sheaf import gather
from daskrado.lake.units import Keys, Units
from daskrado.statistics.base import Additive, Rows, Statistic, Summary
from daskrado.statistics.bounded import bounded, finished, in_flight
from daskrado.table.domain import Domain
from daskrado.table.inner_loops import REPAID_CELLS
from daskrado.table.label import TARGETS
from daskrado.table.lattice import Lattice

if TYPE_CHECKING:
    from distributed import Client

__all__ = ["CHUNK_ROWS", "FAN_IN", "Partial", "Passes", "Progress", "Share", "collect", "open_passes"]

COMPILER_NEEDS = (
    1 << 30
)  # of a worker's memory the compiler of inner loops takes an eighth of this: smaller ones go without


def collect(
    statistic: Statistic,
    lake: Lake,
    domain: Domain,
    lattice: Lattice,
    *,
    key: SignatureKey | None = None,
    client: Client | None = None,
    progress: Progress | None = None,
    strict: bool = False,
    secret_rows: bool = False,
    units: Units | None = None,
    part: Part | None = None,
    class_weights: tuple[int, int] | None = None,
) -> Summary:
    """Sum a statistic over a lake, exactly.

    In this process without a ``client``, else by tasks on its workers. The result has the same bits either way. Tasks
    are pure and draw no noise, so that a retried or doubled one changes nothing. Unusable rows count as nothing; if
    ``strict``, they raise a DataError that names files and columns.
    """
    with open_passes(
        lake,
        domain,
        lattice,
        seeded=statistic.needs_seeds,
        placed=statistic.needs_place,
        key=key,
        client=client,
        memory=0,
        strict=strict,
        secret_rows=secret_rows,
        units=units,
        part=part,
        class_weights=class_weights,
    ) as passes:
        return passes.sum(statistic, progress=progress)


class Passes:
    """Sums over one lake, one after another; see :func:`open_passes`."""

    def __init__(
        self,
        lake: Lake,
        job: Job,
        key: SignatureKey,
        store: RowStore,
        client: Client | None,
        crew: Crew | None,
        secret_rows: bool,
        units: Units | None,
    ) -> None:
        self.lake = lake
        self._rows = None if secret_rows else lake.rows  # what a grid may be judged by
        self.lattice = job.lattice
        self.domain = job.domain
        self.done = 0
        self._job = job
        self._key = key
        self._store = store
        self._client = client
        self._crew = crew
        self._units = units
        self._bound = units.bound if units is not None else None if job.class_weights is None else 1

    def sum(self, statistic: Additive, *, share: Share | None = None, progress: Progress | None = None) -> Summary:
        """One pass: sum a statistic over the lake, or over one share of its rows.

        Where units are protected, the sum is that of the statistic bounded for them.
        """
        target = self.domain.label.target if self._job.against is None else "sides"
        if target not in statistic.targets and statistic.label_use != "none":
            raise UsageError(f"{statistic.name} is not meant for a label that is {TARGETS[target]}")
        if self._bound is not None and isinstance(statistic, Statistic):
            statistic = bounded(statistic, self._bound, self.lattice)
        if isinstance(statistic, Statistic):
            self.lattice.guard(self._rows, statistic.largest_per_row(self.lattice))
        statistic.check_rows(self.lake.rows)
        if statistic.noises_rows and self._key.public:
            raise UsageError(f"statistic {statistic.name} draws noise on rows: its key must be secret, drop the seed")
        if statistic.noises_rows and self._units is not None and not self._units.sampled:
            raise UsageError(f"statistic {statistic.name} draws noise on rows: units are bounded by how: sample")
        weighted = self._bound is not None and not statistic.noises_rows
        flight = in_flight(statistic) if weighted else statistic
        job = replace(self._job, statistic=flight, share=share)
        report = progress or silent
        if not self.lake.partitions:  # a lake without rows, whose number is secret
            total = Partial(flight.zero(), 0)
        elif self._crew is None:
            total = _here(job, self.lake, Keys(self._key.key_bytes(), self._units), report, self._store)
        else:
            total = self._crew.sum(job, report)
        if total.problems:
            refuse(total.problems)
        if total.rows != self.lake.rows:
            raise DataError("the lake changed while it was read: another number of rows than in its footers")
        self.done += 1
        vector = finished(statistic, total.vector) if weighted else total.vector
        return Summary(statistic, self.lattice, vector, total.rows)

    def under(self, domain: Domain, lattice: Lattice, *, keep: bool = True) -> Passes:
        """Passes over the same rows under another Domain of the same features; ``keep``: also for later passes."""
        found = copy.copy(self)
        found.domain, found.lattice = domain, lattice
        form = f"{domain.digest()} {lattice.norm_bound!r} {lattice.bits}"
        found._job = replace(self._job, domain=domain, lattice=lattice, form=form, keep=keep)
        return found

    def against(self, one: int) -> Passes:
        """Passes over the same rows with a label of two sides: one of several classes, by its number, or the rest."""
        found = copy.copy(self)
        found._job = replace(self._job, against=one)
        return found

    def over_another(self, source: Any) -> contextlib.AbstractContextManager[Passes]:
        """Passes over another, public lake of the same Domain, on the same workers."""
        key = SignatureKey.from_seed(1)
        return open_passes(
            open_lake(source, self.domain, strict=True),
            self.domain,
            self.lattice,
            seeded=True,
            by_record=False,
            key=key,
            client=self._client,
            strict=True,
        )


@contextlib.contextmanager
def open_passes(
    lake: Lake,
    domain: Domain,
    lattice: Lattice,
    *,
    seeded: bool = False,
    by_record: bool | None = None,
    by_unit: bool = False,
    placed: bool = False,
    key: SignatureKey | None = None,
    client: Client | None = None,
    memory: int | None = None,
    strict: bool = False,
    secret_rows: bool = False,
    units: Units | None = None,
    part: Part | None = None,
    class_weights: tuple[int, int] | None = None,
) -> Iterator[Passes]:
    """Repeated sums over one lake. Encoded partitions are kept: in memory, else in scratch files, else read again.

    ``memory`` is the number of bytes for rows in each process, and no more is kept than that. By default this process
    takes 40 % of what the machine has left, and workers give what the scheduler grants: half of their limit, over all
    jobs; beyond that rows go to scratch files without a name, up to half of what the disk has left.
    ``by_record`` gives rows their seeds by record id, by default wherever the Domain has one; ``by_unit`` gives all
    rows of a unit one seed. ``placed`` tells rows their place in the lake. ``strict`` refuses unusable rows, which
    else count as nothing. ``secret_rows``: nothing that is said or refused may depend on the number of rows.
    ``units`` says what rows count for where people own several; ``part`` lets all other rows count as nothing.
    ``class_weights`` is what rows of the negative and the positive label count for.
    """
    client = None if lake.in_memory or not lake.partitions else client
    statistic = _Nothing(domain.width)
    records = seeded and domain.id is not None if by_record is None else by_record
    compiled = lake.rows * domain.width >= REPAID_CELLS and _least_limit(client) >= COMPILER_NEEDS
    job = Job(statistic, domain, lattice, records, seeded=seeded, by_unit=by_unit, compiled=compiled, strict=strict)
    job = replace(job, part=part, class_weights=class_weights, rows=lake.rows if placed else None)
    secret = key or SignatureKey.secret()
    if client is None:
        folder = tempfile.gettempdir()
        store = RowStore(_memory(), disk_room(folder), folder) if memory is None else RowStore(memory)
        yield Passes(lake, job, secret, store, None, None, secret_rows, units)
    else:
        keys = Keys(secret.key_bytes() if seeded or placed else b"", units)
        with crew_of(
            client,
            lake,
            secrets.token_hex(8),
            keys,
            row_bytes(domain, weighted=units is not None or class_weights is not None),
            memory,
        ) as crew:
            yield Passes(lake, job, secret, RowStore(0), client, crew, secret_rows, units)


class _Nothing(Additive):
    """The placeholder of a session that has not been asked for a sum yet."""

    name = "nothing"
    size = 0

    def zero(self) -> NDArray[Any]:
        """Nothing."""
        return np.zeros(0)

    def partial(self, rows: Rows) -> NDArray[Any]:
        """Nothing of any rows."""
        del rows
        return np.zeros(0)


def silent(done: int, total: int) -> None:
    """No progress wanted."""
    del done, total


def _here(job: Job, lake: Lake, keys: Keys, report: Progress, store: RowStore) -> Partial:
    """The same tree of merges as on a cluster, so that float sums have the same bits too."""

    def parts() -> Iterator[tuple[int, Partial]]:
        first, total = 0, len(lake.partitions)
        for place, partition in enumerate(lake.partitions):
            content = partition.content.compute() if is_delayed(partition) else None
            yield from read_run(job, [partition], keys, place, first, content, store)
            first += partition.rows
            report(place + 1, total)

    return gather(job, parts(), len(lake.partitions)).root()


def _memory() -> int:
    """Bytes for kept rows in this process: 40 % of the machine's free memory."""
    import psutil

    return int(0.4 * psutil.virtual_memory().available)


def _least_limit(client: Client | None) -> int:
    """Bytes that the smallest worker may have."""
    if client is None:
        return COMPILER_NEEDS
    return min(
        (worker["memory"] for worker in workers_of(client).values() if worker["memory"]), default=COMPILER_NEEDS
    )
