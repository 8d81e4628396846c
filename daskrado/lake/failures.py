"""What went wrong with rows or on workers, as one line of ours that holds neither a value nor a count of rows."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, NoReturn

from daskrado.errors import ClusterError, DaskradoError, DataError

if TYPE_CHECKING:
    from distributed import Client

RETRIES = 3
LOST = "the scheduler was lost while it worked on the lake"


def refuse(problems: Sequence[str]) -> NoReturn:
    """Unusable rows, by the first places where they are: the number of places would tell of rows too."""
    raise DataError("; ".join(problems[:3]) + (" (and others)" if len(problems) > 3 else ""))


def failure(future: Any) -> DaskradoError:
    """Why a task has no result, by its kind only: the text of an unforeseen error might quote a row."""
    from distributed import KilledWorker
    from distributed.scheduler import NoWorkerError

    if future.status != "error":
        return ClusterError(LOST)
    error = future.exception()
    if isinstance(error, DaskradoError):
        return error
    if isinstance(error, NoWorkerError):
        found = ClusterError(
            "no worker could take a task for too long: they are gone, or paused because their memory is full "
            "(memory_limit)"
        )
    elif isinstance(error, KilledWorker):
        found = ClusterError(
            "workers died again and again at the same task; if they ran out of memory, give them more "
            "(memory_limit) or write the lake with smaller row groups (daskrado ingest --group-rows)"
        )
    else:
        found = ClusterError(f"a task failed {RETRIES + 1} times with {type(error).__name__}; see it with --debug")
    found.__cause__ = error
    return found


@contextlib.contextmanager
def given_up(client: Client, futures: Sequence[Any]) -> Iterator[None]:
    """A block that waits for tasks: whatever ends it early cancels them, and a lost scheduler is reported."""
    from concurrent.futures import CancelledError

    from distributed.comm import CommClosedError

    try:
        yield
    except (CancelledError, CommClosedError) as error:
        raise ClusterError(LOST) from error
    except BaseException:
        with contextlib.suppress(Exception):
            client.cancel(futures, force=True)
        raise


def results(client: Client, futures: Sequence[Any]) -> Iterator[Any]:
    """The results of tasks, as they come."""
    from distributed import as_completed

    with given_up(client, futures):
        for future in as_completed(futures, loop=client.loop):  # never the process's default client
            if future.status != "finished":
                raise failure(future)
            yield future.result()
