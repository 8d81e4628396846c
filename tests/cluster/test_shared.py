"""A cluster that several people share: jobs at once, drivers that die, workers that come and go."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from long_lived import NO_SPILLING, SharedCluster, left_behind, until, wait_until_clean

import daskrado.jobs.run
from daskrado.lake.collect import collect, open_passes
from daskrado.lake.make import make_lake
from daskrado.lake.row_store import row_bytes
from daskrado.lake.scan import open_lake
from daskrado.ledger.ledger import Ledger
from daskrado.losses.margin import Logistic
from daskrado.statistics import HadamardRados, MeanOperator
from daskrado.statistics.risk import RiskSum
from daskrado.table.domain import Domain
from daskrado.table.lattice import Lattice

pytestmark = pytest.mark.cluster

Clinic = Callable[..., tuple[Path, Domain]]
LONG = 600.0  # seconds: for a test that hangs
DEATHS = 4  # of drivers and of workers; pipelines/reproduce/guests.py kills thirty
PATIENT = {"relation": "add_remove", "unit": "one patient"}
BOTH = {"epsilon": 0.5, "delta": 1e-7}
KINDS: dict[str, dict[str, Any]] = {
    "iterative": {"kind": "learn", "learner": {"kind": "gradient", "steps": 40}, "rows": 40_000, "budget": BOTH},
    "long": {"kind": "learn", "learner": {"kind": "gradient", "steps": 500}, "rows": 40_000, "budget": BOTH},
    "rados": {
        "kind": "rados",
        "sets": [{"name": "h", "kind": "hadamard", "count": 16, "protect": PATIENT, "budget": BOTH}],
    },
    "teachers": {
        "kind": "teachers",
        "budget": {"epsilon": 20.0, "delta": 1e-6},
        "teachers": {"count": 20, "learner": {"kind": "moments"}},
        "answers": {"queries": 30},
        "student": {"learner": {"kind": "moments"}},
        "queries": "queries",
    },
}


@pytest.fixture(scope="module")
def ward(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a lake, public queries, a CSV file, and a pipeline of each kind."""
    folder = tmp_path_factory.mktemp("ward")
    make_lake(folder / "lake", rows=40_000, features=12, partitions=20, seed=7)
    make_lake(folder / "queries", rows=30, features=12, partitions=1, seed=9)
    (folder / "table.csv").write_text("a,b\n" + "1,x\n2,y\n" * 1000)
    for name, keys in KINDS.items():
        common: dict[str, Any] = {
            "dataset": "ward",
            "lake": "lake",
            "domain": "lake.yaml",
            "output": str(folder / name),
        }
        if name != "rados":
            common["protect"] = PATIENT
        common["ledger"] = {"first_limit": {"epsilon": 50, "delta": 1e-4}}
        (folder / f"{name}.yaml").write_text(yaml.safe_dump(common | keys))
    return folder


@pytest.fixture
def looker(shared_cluster: SharedCluster) -> Iterator[Any]:
    with shared_cluster.client() as client:
        yield client


@pytest.fixture
def guests(shared_cluster: SharedCluster, looker: Any) -> Iterator[Callable[[], subprocess.Popen[str]]]:
    """Starts further workers; all of them are gone, and the scheduler knows it, when the test ends."""
    came: list[subprocess.Popen[str]] = []

    def come() -> subprocess.Popen[str]:
        came.append(shared_cluster.worker())
        return came[-1]

    yield come
    for guest in came:
        guest.kill()
    until(
        lambda: looker.run_on_scheduler(lambda dask_scheduler: len(dask_scheduler.workers)) == 2,
        LONG,
        "guests stayed",
    )


def started(ward: Path, name: str, cluster: SharedCluster, out: Path) -> subprocess.Popen[str]:
    """A driver as a process of its own."""
    words = ["run", str(ward / f"{name}.yaml"), "--cluster", cluster.address, "--out", str(out)]
    if name == "ingest":
        words = ["ingest", str(ward / "table.csv"), "--out", str(out)]
    program = [sys.executable, "-c", "from daskrado.cli.main import main; main()", *words]
    return subprocess.Popen(program, env=os.environ, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


@pytest.mark.parametrize("names", [["iterative"] * 2, ["iterative", "rados", "teachers", "ingest"]])
def test_jobs_at_once_all_finish_and_leave_nothing(
    names: list[str], ward: Path, tmp_path: Path, shared_cluster: SharedCluster, looker: Any
) -> None:
    drivers = [started(ward, name, shared_cluster, tmp_path / str(i)) for i, name in enumerate(names)]
    ends = [(*driver.communicate(timeout=LONG), driver.returncode) for driver in drivers]
    assert [(err, code) for _, err, code in ends] == [("", 0)] * len(names)
    wait_until_clean(looker)


@pytest.mark.parametrize("number", range(DEATHS))
def test_a_killed_driver_leaves_neither_rows_nor_keys(
    number: int, ward: Path, tmp_path: Path, shared_cluster: SharedCluster, looker: Any
) -> None:
    """By SIGKILL and SIGTERM; rows in memory and, where another client was promised all of it, in scratch files.

    The next driver is the next job: it gets as far as rows on the workers.
    """
    from daskrado.lake.room import give_back, promised

    if in_scratch_files := number % 4 >= 2:
        promised(looker, "all", 10**12)
    driver = started(ward, "long", shared_cluster, tmp_path / "out")
    kept = "scratch file" if in_scratch_files else "data daskrado-rows"
    until(lambda: any(kept in found for found in left_behind(looker)), LONG, "the job never kept a row")
    threading.Event().wait(random.Random(number).uniform(0, 0.2))
    blow = (signal.SIGKILL, signal.SIGTERM)[number % 2]
    driver.send_signal(blow)
    _, told = driver.communicate(timeout=LONG)
    assert driver.returncode == (-signal.SIGKILL if blow == signal.SIGKILL else 128 + signal.SIGTERM), told
    died = time.monotonic()
    give_back(looker, "all")
    wait_until_clean(looker)
    print(f"clean after {time.monotonic() - died:.2f} s")


def test_workers_that_come_and_go_change_no_bit_and_cost_one_charge(
    ward: Path, own_ledger: Path, shared_cluster: SharedCluster, guests: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    sums: list[Any] = []
    genuine = daskrado.jobs.run.collect
    monkeypatch.setattr(daskrado.jobs.run, "collect", lambda *a, **k: sums.append(genuine(*a, **k)) or sums[-1])
    lake, domain = ward / "lake", Domain.load(ward / "lake.yaml")

    def fit(**where: Any) -> None:
        daskrado.fit(lake, domain, dataset="ward", first_limit=(50.0, 1e-4), **BOTH, **where)

    fit(workers=0)
    moments = random.Random(4)
    for _ in range(DEATHS):
        guest = guests()
        leaves = threading.Timer(moments.uniform(0.0, 0.6), guest.kill)
        leaves.start()
        fit(cluster=shared_cluster.address)
        leaves.join()
    assert all(np.array_equal(sums[0].vector, found.vector) for found in sums[1:])
    assert [entry.state for entry in Ledger.open(own_ledger, create=False).entries()] == ["published"] * (DEATHS + 1)


def test_kept_rows_of_a_lost_worker_are_read_again(ward: Path, looker: Any, guests: Any) -> None:
    lake, domain = open_lake(ward / "lake", domain := Domain.load(ward / "lake.yaml")), domain
    weights, lattice = np.linspace(-1, 1, domain.width), Lattice(domain.norm_bound)
    risk = RiskSum(domain.width, Logistic(), weights, lattice, lake.rows)
    guest = guests()
    with open_passes(lake, domain, Lattice(domain.norm_bound)) as here:
        expected = here.sum(risk).vector
    with open_passes(lake, domain, Lattice(domain.norm_bound), client=looker) as passes:
        assert np.array_equal(passes.sum(risk).vector, expected)
        held = looker.run(lambda dask_worker: sum("rows" in str(key) for key in dask_worker.data))
        assert sorted(held.values()) == [1, 1, 1]
        guest.kill()
        for _ in range(3):
            assert np.array_equal(passes.sum(risk).vector, expected)
    wait_until_clean(looker)


def test_room_is_shared_out_over_living_clients(shared_cluster: SharedCluster, looker: Any) -> None:
    """Half of a worker's limit of 1 GB, less what its process uses; a second job gets what the first one left."""
    from daskrado.lake.room import give_back, promised

    with shared_cluster.client() as other:
        first = promised(looker, "a", 10**12)
        assert len(first) == 2
        assert all(0 < size < 5 * 10**8 for size in first.values())
        assert sum(promised(other, "b", 10**12).values()) < 0.2 * sum(first.values())
        give_back(looker, "a")
        assert sum(promised(other, "b", 10**12).values()) > 0.8 * sum(first.values())
    until(
        lambda: sum(promised(looker, "c", 10**12).values()) > 0.8 * sum(first.values()),
        LONG,
        "a dead client's promise",
    )
    small = promised(looker, "c", 1000)
    assert 900 <= sum(small.values()) <= 1000
    give_back(looker, "c")


def test_a_job_without_room_takes_no_memory(ward: Path, shared_cluster: SharedCluster, looker: Any) -> None:
    from daskrado.lake.room import give_back, promised

    domain = Domain.load(ward / "lake.yaml")
    lake = open_lake(ward / "lake", domain)
    assert lake.rows * row_bytes(domain) > 0
    with shared_cluster.client() as hoarder:
        promised(hoarder, "all", 10**12)
        with open_passes(lake, domain, Lattice(domain.norm_bound), client=looker) as passes:
            found = [passes.sum(MeanOperator(domain.width)).vector for _ in range(2)]
            assert passes._crew is not None
            stores = looker.gather([piece.store for piece in passes._crew._kept or ()])
            assert stores
            assert all(store.limit == 0 for store in stores)  # scratch files alone
        give_back(hoarder, "all")
    with open_passes(lake, domain, Lattice(domain.norm_bound)) as here:
        expected = here.sum(MeanOperator(domain.width)).vector
    assert np.array_equal(found[0], expected)
    assert np.array_equal(found[1], expected)


def test_no_secret_passes_through_the_scheduler(ward: Path, shared_cluster: SharedCluster, looker: Any) -> None:
    """The scheduler's memory is searched for the key while the workers have it."""
    from daskrado.lake.seeds import SignatureKey

    domain = Domain.load(ward / "lake.yaml")
    lake = open_lake(ward / "lake", domain, ids=True)
    key = SignatureKey.secret()
    seen: list[bool] = []

    def find(there: Path) -> bool:
        needle = key.key_bytes()
        for line in (there / "maps").read_text().splitlines():
            span, mode, *_ = line.split()
            if not mode.startswith("rw"):
                continue
            low, high = (int(edge, 16) for edge in span.split("-"))
            with (there / "mem").open("rb", buffering=0) as memory:
                memory.seek(low)
                try:
                    if needle in memory.read(high - low):
                        return True
                except OSError:
                    continue
        return False

    def look(done: int, total: int) -> None:
        if not seen:
            seen.append(find(Path(f"/proc/{shared_cluster.scheduler.pid}")))
            pids = looker.run(os.getpid)
            seen.append(any(find(Path(f"/proc/{pid}")) for pid in pids.values()))

    with open_passes(lake, domain, Lattice(domain.norm_bound), seeded=True, key=key, client=looker) as passes:
        passes.sum(HadamardRados(domain.width, 16), progress=look)
    assert seen == [False, True]


def test_teachers_take_the_memory_that_the_scheduler_grants(
    ward: Path, shared_cluster: SharedCluster, looker: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same votes, in waves of a quarter where another client was promised everything; promises end with them."""
    from daskrado.lake import ensemble
    from daskrado.lake.room import give_back, promised
    from daskrado.lake.shards import Sharding
    from daskrado.lake.teachers import Course
    from daskrado.learners.black_box import LeastSquares

    domain = Domain.load(ward / "lake.yaml")
    lake = open_lake(ward / "lake", domain, ids=True)
    course = Course(domain, ("no", "yes"), Sharding(32), LeastSquares())
    monkeypatch.setattr(ensemble, "WAVE_BYTES", ensemble._encoded(course, lake.rows) // 2)  # all rows in one wave
    seen: list[tuple[int, int]] = []
    genuine = ensemble.waves

    def waves(course: Course, rows: int, room: int) -> list[list[int]]:
        granted = looker.run_on_scheduler(
            lambda dask_scheduler: sum(
                size
                for client, entry in dask_scheduler.extensions["daskrado"].items()
                for promise in entry["promises"].values()
                for size in promise.values()
            )
        )
        seen.append((len(genuine(course, rows, room)), granted))
        return genuine(course, rows, room)

    def hoard(dask_scheduler: Any, client: str = looker.id) -> None:
        promise = dict.fromkeys(dask_scheduler.workers, 10**12)
        dask_scheduler.extensions["daskrado"][client]["promises"]["all"] = promise

    monkeypatch.setattr(ensemble, "waves", waves)
    promised(looker, "all", 0)
    found = []
    with shared_cluster.client() as job:
        for taken in (False, True):
            if taken:
                looker.run_on_scheduler(hoard)
            with ensemble.train(course, lake, client=job) as teachers:
                found.append(teachers.votes(np.zeros((3, domain.width))).counts)
            give_back(looker, "all")
        wait_until_clean(looker)
    assert [number for number, _ in seen] == [1, 4]
    rows = 2 * 8 * (domain.width + 3) * lake.rows  # in pieces and joined
    assert rows <= seen[0][1] <= rows + 4
    assert np.array_equal(*found)


def test_a_worker_keeps_no_secret_in_its_log(ward: Path) -> None:
    """Dask logs a transfer that fails with its traceback, and keeps the record for as long as the worker lives."""

    def fail_to_send(dask_worker: Any) -> str:
        import logging

        from daskrado.lake.crew import Secret

        def send(secret: Any) -> None:
            raise OSError(f"the other end of {secret} is gone")

        try:
            send(Secret(b"key"))
        except OSError:
            logging.getLogger("distributed.worker").exception("failed during get data of %s", Secret(b"key"))
        return str(dask_worker.get_logs()[0][1])

    domain = Domain.load(ward / "lake.yaml")
    cluster = SharedCluster(**NO_SPILLING)
    try:
        cluster.worker()
        with cluster.client() as client:
            client.run(fail_to_send)
            assert [found for found in left_behind(client) if found.endswith("object Secret")]  # as it was
            client.run(lambda dask_worker: dask_worker._deque_handler.clear())
            collect(MeanOperator(domain.width), open_lake(ward / "lake", domain), domain, Lattice(3.0), client=client)
            (text,) = client.run(fail_to_send).values()
            assert "failed during get data of <secret>" in text
            assert "OSError: the other end of <secret> is gone" in text
            wait_until_clean(client)
    finally:
        cluster.close()
