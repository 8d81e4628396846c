"""Faults against real processes, files and disks: each ends in the right answer or in one clear line."""

from __future__ import annotations

import contextlib
import json
import multiprocessing
import os
import random
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any

import dask
import fsspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml
from distributed.utils import get_mp_context
from fsspec.implementations.local import LocalFileSystem

import daskrado
import daskrado.jobs.run
from daskrado.cluster import ClusterConfig, connect
from daskrado.errors import ClusterError, DataError
from daskrado.jobs.load import resume
from daskrado.lake.make import make_lake
from daskrado.lake.scan import open_lake
from daskrado.lake.score import score
from daskrado.ledger.ledger import Ledger
from daskrado.models.linear import LinearModel
from daskrado.table.domain import Domain
from daskrado.table.yaml_file import parse

pytestmark = pytest.mark.slow

Clinic = Callable[..., tuple[Path, Domain]]


def fit(lake: Path, domain: Domain, **options: Any) -> daskrado.Result:
    given = {"dataset": "clinic", "epsilon": 1.0, "delta": 1e-6, "first_limit": (50.0, 1e-5), **options}
    return daskrado.fit(lake, domain, **given)


def states(ledger: Path) -> list[str]:
    return [str(entry.state) for entry in Ledger.open(ledger, create=False).entries()]


class Observed:
    """The exact sums that runs collected, noted on their way to the mechanism."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.sums: list[Any] = []
        genuine = daskrado.jobs.run.collect

        def noting(*positional: Any, **named: Any) -> Any:
            summary = genuine(*positional, **named)
            self.sums.append(summary.vector)
            return summary

        monkeypatch.setattr(daskrado.jobs.run, "collect", noting)


@pytest.fixture
def observed(monkeypatch: pytest.MonkeyPatch) -> Observed:
    return Observed(monkeypatch)


@pytest.fixture(scope="module")
def nannies() -> Iterator[Any]:
    """Three workers as ``--workers 3`` starts them, each looked after by its nanny; forked, to be back the sooner."""
    with dask.config.set({"distributed.worker.multiprocessing-method": "forkserver"}):
        get_mp_context().set_forkserver_preload(["distributed", "daskrado.lake.collect"])
        with connect(ClusterConfig(kind="local", workers=3)) as client:
            yield client


def live_pids(client: Any, count: int) -> list[int]:
    """The processes of the workers, once there are ``count`` of them."""
    client.wait_for_workers(count, timeout=600)
    return sorted(client.run(os.getpid, on_error="ignore").values())


@pytest.mark.cluster
def test_workers_killed_at_random_moments_change_no_bit_and_cost_one_charge(
    clinic: Clinic, own_ledger: Path, observed: Observed, nannies: Any
) -> None:
    path, domain = clinic(9000, 30)
    fit(path, domain, workers=0)
    there = ClusterConfig(kind="scheduler", address=nannies.scheduler.address)
    moments, killed = random.Random(20), []

    def kill(pid: int) -> None:
        os.kill(pid, signal.SIGKILL)
        killed.append(pid)

    for _ in range(20):
        victim = threading.Timer(moments.uniform(0.0, 0.2), kill, [moments.choice(live_pids(nannies, 2))])
        victim.start()
        fit(path, domain, cluster=there)
        victim.join()
    assert len({*killed}) == 20
    assert len(observed.sums) == 21
    assert all(np.array_equal(observed.sums[0], found) for found in observed.sums)
    assert states(own_ledger) == ["published"] * 21
    assert len(live_pids(nannies, 3)) == 3  # every nanny has brought its worker back


@pytest.mark.cluster
def test_a_worker_that_hangs_is_given_up(clinic: Clinic, own_ledger: Path, observed: Observed) -> None:
    path, domain = clinic(60_000, 30)
    fit(path, domain, workers=0)
    with connect(ClusterConfig(kind="local", workers=2, worker_ttl=5.0)) as client:  # heartbeats come every 0.5 s
        assert client is not None
        alive = [client.submit(os.getpid).result()]

        def hang(done: int, total: int) -> None:
            if alive:
                os.kill(alive.pop(), signal.SIGSTOP)

        there = ClusterConfig(kind="scheduler", address=client.scheduler.address)
        fit(path, domain, cluster=there, progress=hang)
    assert np.array_equal(*observed.sums)
    assert states(own_ledger) == ["published", "published"]


class StuckFiles(LocalFileSystem):
    """A disk on which a worker's read never ends: of a file beside which a trap lies, once or for ever."""

    protocol = "stuck"

    @classmethod
    def _strip_protocol(cls, path: str) -> str:
        return path.removeprefix("stuck://")

    def _open(self, path: str, mode: str = "rb", **options: Any) -> Any:
        for_ever, once = (Path(path).with_suffix(f".{kind}") for kind in ("forever", "once"))
        with contextlib.suppress(FileNotFoundError):
            if multiprocessing.parent_process() is not None:  # this process reads footers, and is spared
                if not for_ever.exists():
                    once.unlink()
                threading.Event().wait()
        return super()._open(path, mode, **options)


@pytest.fixture
def stuck_lake(tmp_path: Path) -> tuple[Path, Domain]:
    fsspec.register_implementation("stuck", StuckFiles, clobber=True)
    domain = Domain.load(make_lake(tmp_path / "lake", rows=6000, features=12, partitions=6, seed=1))
    return tmp_path / "lake", domain


@pytest.mark.cluster
@pytest.mark.parametrize("trap", ["once", "forever"])
def test_a_task_that_hangs_while_its_worker_lives_is_tried_elsewhere(
    own_ledger: Path, observed: Observed, nannies: Any, stuck_lake: tuple[Path, Domain], trap: str
) -> None:
    """Heartbeats go on. Stuck once: the right answer, to the bit. Stuck for ever: one line that names the file."""
    path, domain = stuck_lake
    fit(path, domain, workers=0)
    live_pids(nannies, 3)
    there = ClusterConfig(kind="scheduler", address=nannies.scheduler.address, task_timeout=5)  # a task takes 0.02 s
    address, last = f"stuck://{path}", path / "part-00005.parquet"
    last.with_suffix(f".{trap}").touch()
    if trap == "once":
        fit(address, domain, cluster=there)
        assert np.array_equal(*observed.sums)
        assert states(own_ledger) == ["published", "published"]
    else:
        with pytest.raises(ClusterError) as caught:
            fit(address, domain, cluster=there)
        assert str(last) in str(caught.value)
        assert "took more than 5 s on 2 workers" in str(caught.value)
        assert states(own_ledger) == ["published", "void"]


def written(file: Path) -> bool:
    """Whether a scheduler has written the whole of its file."""
    with contextlib.suppress(OSError, ValueError):
        return "address" in json.loads(file.read_text())
    return False


@pytest.mark.cluster
def test_a_lost_scheduler_is_one_clear_error_and_no_charge(clinic: Clinic, own_ledger: Path, tmp_path: Path) -> None:
    path, domain = clinic(60_000, 30)
    file = tmp_path / "scheduler.json"
    start = [sys.executable, "-m", "dask"]
    options: Any = {"env": os.environ, "stderr": subprocess.DEVNULL, "stdout": subprocess.DEVNULL}
    where = ["--scheduler-file", str(file), "--no-dashboard"]
    scheduler = subprocess.Popen([*start, "scheduler", *where, "--host", "127.0.0.1", "--port", "0"], **options)
    worker = subprocess.Popen([*start, "worker", *where, "--nthreads", "1", "--no-nanny"], **options)
    try:
        while not written(file):
            assert scheduler.poll() is None
        cluster = ClusterConfig(
            kind="scheduler", scheduler_file=str(file), connect_timeout=10
        )  # and as long to come back
        with pytest.raises(ClusterError, match="the scheduler was lost"):
            fit(path, domain, cluster=cluster, output=tmp_path / "out", progress=lambda *_: scheduler.kill())
    finally:
        for process in (scheduler, worker):
            process.kill()
            process.wait()
    assert states(own_ledger) == ["void"]
    assert not [p for p in tmp_path.iterdir() if "out" in p.name]


@pytest.mark.cluster
def test_a_worker_out_of_memory_is_one_clear_error_and_no_charge(own_ledger: Path, tmp_path: Path) -> None:
    names = [f"x{i:03d}" for i in range(150)]
    column = pa.array(np.zeros(1_200_000))  # one row group: small on disk, 1.4 GB in a worker
    table = pa.table({**dict.fromkeys(names, column), "y": pa.array(np.zeros(len(column), dtype=bool))})
    (tmp_path / "lake").mkdir()
    pq.write_table(table, tmp_path / "lake" / "part.parquet", row_group_size=len(column))
    domain = parse(
        Domain,
        {
            "label": {"column": "y", "positive": True, "negative": False},
            "norm_bound": 1.0,
            "columns": {name: {"kind": "numeric", "lower": -1, "upper": 1} for name in names},
        },
        "test",
    )
    cluster = ClusterConfig(kind="local", workers=1, memory_limit="350MB")
    with pytest.raises(ClusterError) as caught:
        fit(tmp_path / "lake", domain, cluster=cluster)
    assert "ran out of memory" in str(caught.value)
    assert "\n" not in str(caught.value)
    assert states(own_ledger) == ["void"]


@pytest.mark.parametrize("what", ["vanishes", "grows", "is overwritten"])
def test_a_file_that_changes_during_a_run_is_named_and_nothing_is_charged(
    own_ledger: Path, tmp_path: Path, what: str
) -> None:
    domain = Domain.load(make_lake(tmp_path / "lake", rows=3000, features=12, partitions=3, seed=1))
    last = tmp_path / "lake" / "part-00002.parquet"
    os.utime(last, (10**9, 10**9))  # written long ago, so that any clock of a file system shows the change

    def change(done: int, total: int) -> None:
        if done != 1:
            return
        if what == "vanishes":
            last.unlink()
        elif what == "grows":
            with last.open("ab") as file:
                file.write(b"more")
        else:
            last.write_bytes(last.read_bytes())

    with pytest.raises(DataError, match=r"part-00002\.parquet: changed or vanished"):
        fit(tmp_path / "lake", domain, workers=0, output=tmp_path / "out", progress=change)
    assert states(own_ledger) == ["void"]
    assert list(own_ledger.with_name(own_ledger.name + ".runs").iterdir()) == []  # nothing to resume
    assert not [p for p in tmp_path.iterdir() if "out" in p.name]


def test_a_file_overwritten_while_it_is_being_read_is_noticed(tmp_path: Path) -> None:
    domain = Domain.load(make_lake(tmp_path / "lake", rows=3000, features=12, partitions=1, seed=1))
    os.utime(tmp_path / "lake" / "part-00000.parquet", (10**9, 10**9))
    (partition,) = open_lake(tmp_path / "lake", domain).partitions
    tables = partition.tables(["age"])
    next(tables)
    other = tmp_path / "lake" / "part-00000.parquet"
    other.write_bytes(other.read_bytes())
    with pytest.raises(DataError, match="changed or vanished"):
        next(tables)


class Namespace:
    """Runs the command line where some folder is a small disk or a read-only mount that nobody else sees."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        alone = ["unshare", "--mount"] if os.geteuid() == 0 else ["unshare", "--user", "--map-root-user", "--mount"]
        self.alone = alone
        tried = subprocess.run([*alone, "mount", "-t", "tmpfs", "none", str(folder)], capture_output=True)
        if tried.returncode:
            pytest.skip("this machine lets nobody mount a file system of their own")

    def __call__(self, mount: str, *words: str) -> subprocess.CompletedProcess[str]:
        command = f'set -e; {mount}; exec "$@"'
        program = [sys.executable, "-c", "from daskrado.cli.main import main; main()", *words]
        return subprocess.run(
            [*self.alone, "sh", "-c", command, "sh", *program],
            env=os.environ,
            capture_output=True,
            text=True,
            timeout=600,
        )


@pytest.fixture
def pipeline(clinic: Clinic, tmp_path: Path) -> str:
    path, _ = clinic(3000, 3)
    (tmp_path / "disk").mkdir()
    content = {
        "dataset": "clinic",
        "lake": str(path),
        "domain": f"{path}.yaml",
        "output": str(tmp_path / "disk" / "out"),
        "protect": {"relation": "add_remove", "unit": "one patient"},
        "budget": {"epsilon": 1.0, "delta": 1e-6},
        "ledger": {"first_limit": {"epsilon": 5, "delta": 1e-5}},
    }
    (tmp_path / "p.yaml").write_text(yaml.safe_dump(content))
    return str(tmp_path / "p.yaml")


def test_a_full_disk_loses_nothing_that_was_paid_for(pipeline: str, tmp_path: Path, own_ledger: Path) -> None:
    disk = tmp_path / "disk"
    small = f"mount -t tmpfs -o size=8k none {disk}"  # no room for the model and its manifest
    done = Namespace(disk)(small, "run", pipeline)
    assert done.returncode == 1
    (line,) = done.stderr.strip().splitlines()
    assert "No space left on device; what was drawn is kept: daskrado run --resume " in line
    assert states(own_ledger) == ["spent"]
    assert list(disk.iterdir()) == []
    resume(line.split()[-1])  # outside that name space there is room
    assert sorted(p.name for p in (disk / "out").iterdir()) == ["manifest.json", "model.json", "report.html"]
    assert states(own_ledger) == ["published"]


def test_a_report_that_finds_no_room_is_a_note(pipeline: str, tmp_path: Path, own_ledger: Path) -> None:
    disk = tmp_path / "disk"
    done = Namespace(disk)(f"mount -t tmpfs -o size=64k none {disk}", "run", pipeline)
    assert done.returncode == 0, done.stderr
    assert "report.html could not be drawn (OSError)" in done.stdout
    assert done.stdout.strip().endswith(f"written to {disk}/out: model.json, manifest.json")
    assert states(own_ledger) == ["published"]


@pytest.mark.parametrize("workers", ["0", "1"])
def test_scores_that_find_no_room_are_named(clinic: Clinic, tmp_path: Path, workers: str) -> None:
    path, domain = clinic(3000, 3)
    fit(path, domain, private=False, epsilon=None, first_limit=None, output=tmp_path / "m")
    disk = tmp_path / "disk"
    disk.mkdir()
    words = ("predict", f"{tmp_path}/m/model.json", str(path), "--out", f"{disk}/out", "--workers", workers)
    done = Namespace(disk)(f"mount -t tmpfs -o size=8k none {disk}", *words)
    assert done.returncode == 1
    (line,) = done.stderr.strip().splitlines()
    assert re.search(r"disk/out/part-0000\d.parquet: cannot be written \(No space left on device\)$", line), line


class Greedy(LinearModel):
    """A model that takes 1 GB and never ends: its worker is killed first, on machines of any speed."""

    def margins(self, table: Any) -> Any:
        """Take memory and wait for ever."""
        taken = np.ones(1 << 27)
        threading.Event().wait()
        return taken


@pytest.mark.cluster
def test_predicting_on_workers_without_memory_is_one_clear_error(clinic: Clinic, tmp_path: Path) -> None:
    path, domain = clinic(3000, 3)
    model = fit(path, domain, private=False, epsilon=None, first_limit=None).model
    greedy = Greedy(**{field.name: getattr(model, field.name) for field in fields(model) if field.init})
    starved = ClusterConfig(kind="local", workers=1, memory_limit="350MB")
    with connect(starved) as client, pytest.raises(ClusterError, match="memory_limit"):
        score(greedy, path, tmp_path / "out", client=client)
    assert list(tmp_path.glob("*out*")) == []


def test_a_ledger_on_a_full_disk_debits_nothing(pipeline: str, tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    fill = f"cp {tmp_path}/l.sqlite {disk}; cat /dev/zero > {disk}/z 2> /dev/null || true"
    full = f"mount -t tmpfs -o size=256k none {disk}; {fill}"
    Ledger.open(tmp_path / "l.sqlite")
    done = Namespace(disk)(full, "run", pipeline, "--output", str(tmp_path / "o"), "--ledger", f"{disk}/l.sqlite")
    assert done.returncode == 1, done.stderr
    (line,) = done.stderr.strip().splitlines()
    assert re.match(r"daskrado: error: .*(nothing was debited|disk is full)", line)
    assert not (tmp_path / "o").exists()


def test_a_ledger_on_a_read_only_mount_is_named(pipeline: str, tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    Ledger.open(disk / "l.sqlite").set_limit("clinic", "add_remove", 5, "1e-5")
    before = (disk / "l.sqlite").read_bytes()
    frozen = f"mount --bind {disk} {disk}; mount -o remount,ro,bind {disk}"
    words = ("run", pipeline, "--output", str(tmp_path / "o"), "--ledger", f"{disk}/l.sqlite")
    done = Namespace(disk)(frozen, *words)
    assert done.returncode == 1
    (line,) = done.stderr.strip().splitlines()
    assert f"{disk}/l.sqlite" in line
    assert "writ" in line or "read-only" in line.lower()
    assert (disk / "l.sqlite").read_bytes() == before
    assert not (tmp_path / "o").exists()
