"""A scheduler that is already there: its address, its certificates, its first worker."""

from __future__ import annotations

import contextlib
import json
import logging
import secrets
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from daskrado.cluster.config import ClusterConfig
from daskrado.errors import ClusterError, UsageError

if TYPE_CHECKING:
    from distributed import Client

_CHATTY = tuple(
    f"distributed.{part}"
    for part in ("nanny", "scheduler", "worker", "core", "comm", "comm.tcp", "client", "batched")
)


@contextlib.contextmanager
def scheduler_at(config: ClusterConfig, *, workers: bool = True) -> Iterator[Client]:
    """A client of the scheduler at an address, or at the one in a scheduler file."""
    if (config.address is None) == (config.scheduler_file is None):
        raise UsageError("a cluster of kind scheduler needs either address or scheduler_file")
    where = config.address or config.scheduler_file
    address = config.address or _address_in(str(config.scheduler_file))
    _check_address(address, f"scheduler {where}")
    secure = address.startswith("tls://")
    if (config.require_encryption or config.encrypted) and not secure:
        raise UsageError(f"scheduler {where}: {address} is not encrypted, and encryption is required (tls://)")
    if secure and not config.encrypted:
        raise UsageError(
            f"scheduler {where}: {address} wants a certificate: "
            "give tls_ca_file, tls_client_cert and tls_client_key in a cluster file"
        )
    with quiet(), _opened(address, f"scheduler {where}", config) as client:
        if workers:
            wait_for_workers(client, config, f"scheduler {where}")
        yield client


@contextlib.contextmanager
def _opened(address: str, where: str, config: ClusterConfig) -> Iterator[Client]:
    from distributed import Client
    from distributed.utils import LoopRunner

    security = security_of(config)
    try:
        # A connection first: a client that fails in its making would be collected with a traceback, after 40 s.
        LoopRunner(asynchronous=False).run_sync(_greet, address, security, config.connect_timeout)
        client = Client(address, security=security, timeout=config.connect_timeout, set_as_default=False)
    except (OSError, TimeoutError) as error:
        refused = " or the certificate was refused" if security else ""
        raise ClusterError(f"{where}: not reachable within {config.connect_timeout:g} s{refused}") from error
    except Exception as error:
        raise ClusterError(f"{where}: what answers there is no Dask scheduler") from error
    try:
        yield client
    finally:
        client.close()


def security_of(config: ClusterConfig) -> Any:
    """Dask's form of the certificates, if there are any."""
    if not config.encrypted:
        return None
    from distributed import Security

    nodes = {
        f"tls_{role}_{part}": getattr(config, f"tls_client_{part}")
        for role in ("client", "scheduler", "worker")
        for part in ("cert", "key")
    }
    return Security(tls_ca_file=config.tls_ca_file, require_encryption=True, **nodes)


def _check_address(address: str, where: str) -> None:
    from distributed.comm import get_address_host_port

    try:
        host, port = get_address_host_port(address, strict=True)
    except ValueError:
        host, port = "", 0
    if not host or not 1 <= port <= 65535:
        raise UsageError(f"{where}: the address of a scheduler is tcp://HOST:PORT or tls://HOST:PORT, got {address}")


async def _greet(address: str, security: Any, timeout: float) -> None:
    """Connect as Dask does and hang up."""
    import asyncio

    from distributed import Security
    from distributed.comm import connect as call

    arguments = (security or Security()).get_connection_args("client")
    async with asyncio.timeout(timeout):  # somebody may pick up and say nothing
        (await call(address, timeout=timeout, **arguments)).abort()


def wait_for_workers(client: Client, config: ClusterConfig, where: str) -> None:
    """Wait for the first worker, so long as the configuration says; an adaptive cluster starts one for a task."""
    try:
        knock = client.submit(bool, key=f"daskrado-knock-{secrets.token_hex(8)}", pure=False)
        client.wait_for_workers(1, timeout=config.no_workers_timeout)
        knock.release()
    except TimeoutError as error:
        raise ClusterError(f"{where}: no worker joined within {config.no_workers_timeout:g} s") from error


def _address_in(scheduler_file: str) -> str:
    if not Path(scheduler_file).exists():
        raise ClusterError(f"scheduler file {scheduler_file}: no such file")
    try:
        return str(json.loads(Path(scheduler_file).read_text(encoding="utf-8"))["address"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ClusterError(f"scheduler file {scheduler_file}: holds no address of a scheduler") from error


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Silence tracebacks of the libraries; ClusterError reports lost workers."""
    loggers = [logging.getLogger(name) for name in ("distributed", "tornado", "asyncio", *_CHATTY)]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)
