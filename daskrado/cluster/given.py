"""Clients that others opened: used, never closed."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from daskrado.cluster.config import ClusterConfig
from daskrado.cluster.reached import wait_for_workers
from daskrado.errors import ClusterError, UsageError

if TYPE_CHECKING:
    from distributed import Client


def active_client() -> Any:
    """The client that Dask's own libraries would use here, a mark for "inside a task", or None.

    Nothing is imported for it: a process that has no client has not imported distributed either, as a rule.
    """
    distributed = sys.modules.get("distributed")
    if distributed is None:
        return None
    with contextlib.suppress(ValueError):
        distributed.get_worker()
        return InsideTask()
    with contextlib.suppress(ValueError):
        return distributed.default_client()
    return None


class InsideTask:
    """Stands for the client of the worker whose task this is."""


@contextlib.contextmanager
def borrowed(given: Any, config: ClusterConfig) -> Iterator[Client]:
    """The client itself, one that a cluster object gives, or the one of the worker whose task this is."""
    if isinstance(given, InsideTask):
        from distributed import worker_client

        with worker_client() as client:  # other tasks may take this one's place while it waits
            yield client
        return
    if callable(getattr(given, "submit", None)):
        _usable(given)
        wait_for_workers(given, config, "the client")
        yield given
        return
    with given.get_client() as client:
        _usable(client)
        wait_for_workers(client, config, "the cluster")
        yield client


def _usable(client: Client) -> None:
    if client.asynchronous:
        raise UsageError(
            "an asynchronous client cannot be waited for in its own event loop: "
            "await asyncio.to_thread(daskrado.fit, ...), or give a client made with asynchronous=False"
        )
    if client.status != "running":
        raise ClusterError(f"the client has no scheduler: it is {client.status}")
