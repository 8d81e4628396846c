"""Room for rows on workers that many jobs share: promised by the scheduler, and given back with the client."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

from daskrado.errors import ClusterError
from daskrado.lake.asking import ask, ask_each
from daskrado.lake.row_store import RowStore, disk_room

if TYPE_CHECKING:
    from distributed import Client

SHARE = 0.5  # of a worker's memory limit, for kept rows of all jobs together
FULL = 0.65  # of a worker's memory limit: above it a job keeps no more rows there, whatever it was promised


class WorkerStore(RowStore):
    """Rows kept on one worker, as the value of an ordinary Dask future: released when its client ends.

    It travels and is spilled without its rows: they never leave the worker's memory or its scratch files, which lie
    in its local directory, and a copy fills itself from the lake again. Dask sees the size that was promised, so that
    tasks go where the rows are.
    """

    def __sizeof__(self) -> int:
        return max(64, self.limit)

    def __reduce__(self) -> Any:
        return WorkerStore, (self.limit, self.scratch, self.folder)

    def room(self, size: int) -> bool:
        """Set ``size`` bytes aside if they were promised and the worker has them."""
        return self.limit > 0 and _spare(size) and super().room(size)

    def disk(self, size: int) -> bool:
        """Set ``size`` bytes of scratch files aside if the worker's local directory has room for them."""
        from distributed import get_worker

        self.folder = get_worker().local_directory
        return self.scratch > 0 and disk_room(self.folder) >= size and super().disk(size)


def _spare(size: int) -> bool:
    """Whether this worker has room for ``size`` bytes now: it may have taken over what another one was promised."""
    from distributed import get_worker

    worker = get_worker()
    limit = worker.memory_manager.memory_limit
    return not limit or worker.monitor.get_process_memory() + size <= FULL * limit


def promised(client: Client, ticket: str, wanted: int) -> dict[str, int]:
    """Bytes for kept rows on each worker that takes tasks: at most ``wanted`` together, none where there is no room.

    About equal shares: what the worker with the least room cannot take is shared out over the others.

    A worker gives half of its memory limit to kept rows of all jobs, less what living clients were promised or hold
    there, and less what its process uses for other things. Promises end with :func:`give_back` or with the client.
    """
    found: dict[str, int] = ask(client, client.run_on_scheduler, _granter(client.id, ticket, wanted, SHARE))
    return found


def give_back(client: Client, ticket: str) -> None:
    """End the promises of one session; those of a client that is gone end by themselves."""
    with contextlib.suppress(Exception):
        ask(client, client.run_on_scheduler, _returner(client.id, ticket), seconds=5)


def refuse_spilling(client: Client) -> None:
    """Refuse workers that write their data to disk when memory is short, for work that keeps plain rows as data."""
    answers = ask_each(client, _spills)
    spilling = [address for address, spills in answers.items() if spills]
    silent = [address for address, spills in answers.items() if spills is None]
    if silent:
        raise ClusterError(
            f"worker {silent[0]} does not answer, so that whether it writes rows to disk in the clear is not known: "
            "restart it, or take it from the cluster"
        )
    if spilling:
        raise ClusterError(
            f"worker {spilling[0]} spills data to disk, and rows would lie there in the clear: start workers with "
            "DASK_DISTRIBUTED__WORKER__MEMORY__TARGET=False and DASK_DISTRIBUTED__WORKER__MEMORY__SPILL=False"
        )


def _spills(dask_worker: Any) -> bool:
    manager = dask_worker.memory_manager
    return bool(manager.memory_limit and (manager.memory_target_fraction or manager.memory_spill_fraction))


# Functions inside functions travel by value: a scheduler need not have this version of the package to answer.


def _granter(client: str, ticket: str, wanted: int, share: float) -> Any:
    def grant(dask_scheduler: Any) -> dict[str, int]:
        register = dask_scheduler.extensions.setdefault("daskrado", {})
        for gone in set(register) - set(dask_scheduler.clients):
            del register[gone]
        mine = register.setdefault(client, {"jobs": {}, "promises": {}})["promises"]
        mine.pop(ticket, None)
        free = {}
        for worker in dask_scheduler.running:
            known = [p.get(worker.address, 0) for entry in register.values() for p in entry["promises"].values()]
            memory = worker.memory
            used = max(sum(known), memory.managed) + max(0, memory.process - memory.managed)
            limit = worker.memory_limit or 2 * worker.metrics.get("memory", 0) + (2 << 30)
            free[worker.address] = max(0, int(share * limit) - used)
        given, left = {}, wanted
        for number, (address, size) in enumerate(sorted(free.items(), key=lambda found: found[1])):
            given[address] = min(size, left // (len(free) - number))
            left -= given[address]
        mine[ticket] = given
        return given

    return grant


def _returner(client: str, ticket: str) -> Any:
    def give(dask_scheduler: Any) -> None:
        entry = dask_scheduler.extensions.get("daskrado", {}).get(client)
        if entry is not None:
            entry["promises"].pop(ticket, None)

    return give
