"""The jobs on a scheduler: who works there, with how much memory, for how long; and with which version."""

from __future__ import annotations

import contextlib
import getpass
import secrets
import socket
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from daskrado import __version__
from daskrado.errors import ClusterError
from daskrado.lake.asking import ask, ask_each
from daskrado.lake.label import job_label

if TYPE_CHECKING:
    from distributed import Client


@contextlib.contextmanager
def entered(client: Client) -> Iterator[None]:
    """The job is in the scheduler's list for the length of the block, or as long as the client lives."""
    label, mark = job_label(), secrets.token_hex(4)
    about = {"kind": label.kind, "dataset": label.dataset, "run": label.run, "by": _person()}
    ask(client, client.run_on_scheduler, _enterer(client.id, mark, about))
    try:
        yield
    finally:
        with contextlib.suppress(Exception):
            ask(client, client.run_on_scheduler, _leaver(client.id, mark), seconds=5)


def jobs_on(client: Client) -> list[dict[str, Any]]:
    """The daskrado jobs on a scheduler, the oldest first: what, by whom, for how long, tasks left, memory."""
    found: list[dict[str, Any]] = ask(client, client.run_on_scheduler, _lister())
    return sorted(found, key=lambda job: -job["seconds"])


def same_version(client: Client) -> None:
    """Refuse a scheduler or a worker with another version of this package, in one line.

    A worker that does not answer, as a frozen one, holds nobody up: others do its tasks until it is back or given up.
    """
    there = {"the scheduler": ask(client, client.run_on_scheduler, _version())}
    there.update({where: version for where, version in ask_each(client, _version()).items() if version is not None})
    for where, version in there.items():
        if version != __version__:
            runs = f"runs daskrado {version}" if version else "has no daskrado"
            who = where if where == "the scheduler" else f"worker {where}"
            raise ClusterError(f"{who} {runs}, this job {__version__}: install the same version on all machines")


def _person() -> str:
    """Who runs this job, as other people on the cluster know them."""
    try:
        return f"{getpass.getuser()}@{socket.gethostname()}"
    except (KeyError, OSError):  # a user without a name, as in some containers
        return socket.gethostname()


# Functions inside functions travel by value: a scheduler may have another version of this package, or none.


def _version() -> Any:
    def version() -> str:
        try:
            import daskrado
        except ImportError:
            return ""
        return daskrado.__version__

    return version


def _enterer(client: str, mark: str, about: dict[str, str]) -> Any:
    def enter(dask_scheduler: Any) -> None:
        import time

        register = dask_scheduler.extensions.setdefault("daskrado", {})
        for gone in set(register) - set(dask_scheduler.clients):
            del register[gone]
        entry = register.setdefault(client, {"jobs": {}, "promises": {}})
        entry["jobs"][mark] = {**about, "since": time.time()}

    return enter


def _leaver(client: str, mark: str) -> Any:
    def leave(dask_scheduler: Any) -> None:
        dask_scheduler.extensions.get("daskrado", {}).get(client, {}).get("jobs", {}).pop(mark, None)

    return leave


def _lister() -> Any:
    def jobs(dask_scheduler: Any) -> list[dict[str, Any]]:
        import time

        found = []
        for client, entry in dask_scheduler.extensions.get("daskrado", {}).items():
            state = dask_scheduler.clients.get(client)
            if state is None:
                continue
            wanted = list(state.wants_what)
            held = sum(task.nbytes for task in wanted if task.state == "memory")
            left = sum(task.state not in ("memory", "erred") for task in wanted)
            promised = sum(size for one in entry["promises"].values() for size in one.values())
            for job in entry["jobs"].values():
                shown = {key: job[key] for key in ("kind", "dataset", "run", "by")}
                seconds = round(time.time() - job["since"], 1)
                found.append({**shown, "seconds": seconds, "tasks": left, "held": held, "promised": promised})
        return found

    return jobs
