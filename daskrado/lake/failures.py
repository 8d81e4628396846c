"""What went wrong with rows or on workers, as one line of ours that holds neither a value nor a count of rows."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NoReturn

from daskrado.errors import ClusterError, DaskradoError, DataError
from daskrado.lake.asking import Interrupted, ask, ask_workers

if TYPE_CHECKING:
    from distributed import Client

RETRIES = 3


def refuse(problems: Sequence[str]) -> NoReturn:
    """Unusable rows, by the first places where they are: the number of places would tell of rows too."""
    raise DataError("; ".join(problems[:3]) + (" (and others)" if len(problems) > 3 else ""))


def failure(future: Any) -> DaskradoError:
    """Why a task has no result."""
    return explained(future.exception()) if future.status == "error" else Interrupted()


def explained(error: BaseException) -> DaskradoError:
    """A task's error as one of ours, by its kind only: the text of an unforeseen one might quote a row."""
    from distributed import KilledWorker
    from distributed.comm import CommClosedError
    from distributed.scheduler import NoWorkerError

    if isinstance(error, CommClosedError):
        return Interrupted()
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


def gathered(client: Client, futures: Any) -> Any:
    """The results of tasks that ended, straight from their workers; a worker that died since is seen as such."""
    try:
        return ask_workers(client, client.gather, futures, direct=True)
    except DaskradoError:
        raise
    except Exception as error:
        raise explained(error) from error


def give_up(client: Client, futures: Sequence[Any]) -> None:
    """Cancel tasks that nobody waits for any more; a scheduler that does not answer is not waited for."""
    with contextlib.suppress(Exception):
        ask(client, client.cancel, futures, force=True, seconds=5)
