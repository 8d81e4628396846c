"""Guests on a cluster: clients that others opened, jobs that can be seen, ends that are seen."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import json
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import dask
import numpy as np
import psutil
import pytest
from click.testing import CliRunner
from distributed import Client
from distributed.utils import All
from long_lived import NO_SPILLING, SharedCluster, left_behind, until, wait_until_clean

import daskrado
from daskrado.cli.main import cli
from daskrado.cluster import ClusterConfig, cluster_config, connect
from daskrado.cluster.jobs import jobs_on
from daskrado.errors import ClusterError, UsageError
from daskrado.lake.asking import ask, ask_each
from daskrado.lake.collect import collect, open_passes
from daskrado.lake.label import labelled
from daskrado.lake.make import make_lake
from daskrado.lake.room import refuse_spilling
from daskrado.lake.scan import open_lake
from daskrado.lake.watch import Watch
from daskrado.ledger.ledger import Ledger
from daskrado.statistics import MeanOperator
from daskrado.table.domain import Domain
from daskrado.table.lattice import Lattice

pytestmark = pytest.mark.cluster

Clinic = Callable[..., tuple[Path, Domain]]
LONG = 600.0  # seconds: for a test that hangs


def weights(clinic: Clinic, **where: Any) -> np.ndarray:
    path, domain = clinic(3000, 7)
    return np.asarray(daskrado.fit(path, domain, dataset="clinic", private=False, **where).model.weights)


class ClusterObject:
    """All that a cluster object needs, whoever made it."""

    def __init__(self, address: str) -> None:
        self.scheduler_address = address
        self.given: list[Client] = []

    def get_client(self) -> Client:
        self.given.append(Client(self.scheduler_address, set_as_default=False))
        return self.given[-1]


def changes(client: Client) -> int:
    return int(client.run_on_scheduler(lambda dask_scheduler: dask_scheduler.transition_counter))


def test_clients_and_cluster_objects_are_used_and_those_of_others_stay_open(
    clinic: Clinic, shared_cluster: SharedCluster
) -> None:
    here = weights(clinic, workers=0)
    with shared_cluster.client() as client:
        before = changes(client)
        assert np.array_equal(weights(clinic, cluster=client), here)
        assert changes(client) > before
        assert client.status == "running"
        cluster = ClusterObject(shared_cluster.address)
        assert np.array_equal(weights(clinic, cluster=cluster), here)
        assert [given.status for given in cluster.given] == ["closed"]  # it was opened for the job
        path, _ = clinic(3000, 7)
        keys = {"kind": "adaboost", "dataset": "c", "lake": str(path), "domain": f"{path}.yaml", "output": "out"}
        job = {**keys, "private": False, "rounds": 2, "cluster": client}
        assert daskrado.run(job, write=False).run
        assert daskrado.run({**job, "cluster": {}}, write=False, cluster=client).run
        wait_until_clean(client)
    with pytest.raises(ClusterError, match="the client has no scheduler: it is closed"):
        weights(clinic, cluster=client)
    with pytest.raises(UsageError, match="a Dask client or a cluster object, got list"):
        weights(clinic, cluster=[1])


def test_the_active_client_does_the_work(clinic: Clinic, shared_cluster: SharedCluster) -> None:
    here = weights(clinic, workers=0)
    with Client(shared_cluster.address) as client:
        before = changes(client)
        assert np.array_equal(weights(clinic), here)
        wait_until_clean(client)  # the last tasks are forgotten a little later
        used = changes(client)
        assert used > before
        weights(clinic, workers=0)
        assert changes(client) == used
        assert client.status == "running"


def test_a_running_event_loop_is_no_obstacle(clinic: Clinic, shared_cluster: SharedCluster) -> None:
    here = weights(clinic, workers=0)

    async def notebook() -> None:
        assert np.array_equal(weights(clinic, cluster=shared_cluster.address), here)
        with shared_cluster.client() as client:
            assert np.array_equal(weights(clinic, cluster=client), here)
        async with Client(shared_cluster.address, asynchronous=True, set_as_default=False) as client:
            with pytest.raises(UsageError, match=r"asyncio\.to_thread"):
                weights(clinic, cluster=client)
            assert np.array_equal(await asyncio.to_thread(weights, clinic, cluster=client), here)

    asyncio.run(notebook())


def test_a_task_may_run_a_job_on_its_own_cluster(clinic: Clinic, shared_cluster: SharedCluster) -> None:
    here, (path, _) = weights(clinic, workers=0), clinic(3000, 7)

    def inside(lake: str) -> Any:
        import daskrado

        return daskrado.fit(lake, f"{lake}.yaml", dataset="clinic", private=False).model.weights

    with shared_cluster.client() as client:
        assert np.array_equal(client.submit(inside, str(path), pure=False).result(timeout=LONG), here)


def test_jobs_are_seen_by_name(clinic: Clinic, shared_cluster: SharedCluster) -> None:
    path, domain = clinic(3000, 7)
    seen: list[Any] = []
    with shared_cluster.client() as looker:

        def look(done: int, total: int) -> None:
            if not seen:
                seen.append(jobs_on(looker))
                seen.append(CliRunner().invoke(cli, ["cluster", "status", shared_cluster.address, "--json"]).output)
                seen.append(CliRunner().invoke(cli, ["cluster", "status", shared_cluster.address]).output)
                seen.append(
                    looker.run_on_scheduler(
                        lambda dask_scheduler: [
                            (str(task.key), task.annotations)
                            for task in dask_scheduler.tasks.values()
                            if task.annotations
                        ]
                    )
                )

        cluster = cluster_config(cluster=shared_cluster.address, priority=3)
        result = daskrado.fit(path, domain, dataset="ward7", private=False, cluster=cluster, progress=look)
        (job,), told, line, tasks = seen
        assert (job["kind"], job["dataset"], job["run"]) == ("learn", "ward7", result.run)
        assert [one["run"] for one in json.loads(told)["jobs"]] == [result.run]
        assert line.startswith(f"learn ward7 {result.run} by ")
        label = {"kind": "learn", "dataset": "ward7", "run": result.run}
        for key, annotations in tasks:
            assert f"-learn-ward7-{result.run}-" in key
            assert annotations["daskrado"] == label
            assert annotations["priority"] == 3
        assert tasks
        assert jobs_on(looker) == []


def test_resources_and_priority_as_a_user_gives_them(clinic: Clinic, tmp_path: Path, own_ledger: Path) -> None:
    """Tasks run on the one worker that offers what is asked for; where none does, one line, and no charge."""
    path, _ = clinic(3000, 7)
    budget = "budget: {epsilon: 1, delta: 1.0e-6}, ledger: {first_limit: {epsilon: 5, delta: 1.0e-5}}"
    protect = "protect: {relation: add_remove, unit: one patient}, rows: 3000, learner: {kind: gradient, steps: 3}"
    (tmp_path / "p.yaml").write_text(
        f"{{dataset: c, lake: {path}, domain: {path}.yaml, output: o, {protect}, {budget}}}"
    )
    cluster = SharedCluster(**NO_SPILLING)
    try:
        cluster.worker()
        cluster.worker("--resources", "GPU=1", "--name", "special")
        file = tmp_path / "c.yaml"
        file.write_text(f"{{kind: scheduler, address: '{cluster.address}', no_workers_timeout: 20}}")
        words = ["run", str(tmp_path / "p.yaml"), "--priority", "3", "--cluster"]
        with cluster.client() as looker:
            looker.get_task_stream(count=1)
            done = CliRunner().invoke(
                cli, [*words, cluster.address, "--resources", "GPU=1", "--out", str(tmp_path / "a")]
            )
            assert done.exit_code == 0, done.output
            ran = looker.get_task_stream(count=1000)
            (where,) = [w["name"] for w in looker.scheduler_info()["workers"].values() if w["resources"]]
            assert where == "special"
            ours = [task for task in ran if "-learn-c-" in str(task["key"])]
            (only,) = {task["worker"] for task in ours}
            assert looker.scheduler_info()["workers"][only]["name"] == "special"
        with pytest.raises(ClusterError, match=r"no worker offers TPU=2 within 20 s \(resources\)"):
            CliRunner().invoke(
                cli,
                [*words, str(file), "--resources", "TPU=2", "--out", str(tmp_path / "b")],
                standalone_mode=False,
                catch_exceptions=False,
            )
    finally:
        cluster.close()
    assert [entry.state for entry in Ledger.open(own_ledger, create=False).entries()] == ["published"]


def test_a_job_whose_workers_all_left_says_which_it_needs(shared_cluster: SharedCluster) -> None:
    """Two workers take tasks, and none of them offers what this job asked for when it began."""
    settings = {"daskrado.resources": {"GPU": 1.0}, "daskrado.no-workers-timeout": 20}
    with shared_cluster.client() as client, dask.config.set(settings), Watch(client, "daskrado", str) as watch:
        watch.follow([client.submit(int, key="daskrado-1", pure=False, resources={"GPU": 1})])
        with pytest.raises(ClusterError, match=r"^no worker that offers GPU=1 took tasks for 20 s \(resources\)$"):
            watch.next()


@pytest.mark.parametrize("another_comes", [False, True])
def test_the_only_worker_with_a_resource_may_leave_in_mid_run(clinic: Clinic, another_comes: bool) -> None:
    """Rows are kept there. Another that offers the same goes on, with the same bits; else one line.

    Dask's scheduler fails over a task that has both a home which may be left and a resource, and keeps it for ever.
    """
    path, domain = clinic(60_000, 30)
    statistic, lattice = MeanOperator(domain.width), Lattice(domain.norm_bound)
    cluster, special = SharedCluster(**NO_SPILLING), ("--resources", "GPU=1")
    try:
        cluster.worker()
        first = cluster.worker(*special)
        patience = LONG if another_comes else 4
        where = ClusterConfig(
            kind="scheduler", address=cluster.address, resources={"GPU": 1}, no_workers_timeout=patience
        )
        with (
            connect(where) as client,
            open_passes(open_lake(path, domain), domain, lattice, client=client) as passes,
        ):
            whole = passes.sum(statistic).vector
            first.kill()
            if another_comes:
                cluster.worker(*special)
                assert np.array_equal(passes.sum(statistic).vector, whole)
            else:
                with pytest.raises(ClusterError, match=r"^no worker that offers GPU=1 took tasks for 4 s"):
                    passes.sum(statistic)
        with cluster.client() as looker:
            assert [line for level, line in looker.get_scheduler_logs() if level == "ERROR"] == []
            wait_until_clean(looker)
    finally:
        cluster.close()


def test_other_versions_are_refused_in_one_line(clinic: Clinic, shared_cluster: SharedCluster) -> None:
    def pretend(version: str, dask_worker: Any = None) -> None:
        import daskrado

        daskrado.__version__ = version

    with shared_cluster.client() as client:
        first, *_ = client.scheduler_info()["workers"]
        client.run(pretend, "0.0.7", workers=[first])
        try:
            with pytest.raises(ClusterError, match=f"worker {first} runs daskrado 0.0.7, this job "):
                weights(clinic, cluster=shared_cluster.address)
        finally:
            client.run(pretend, daskrado.__version__, workers=[first])


def test_a_report_of_tasks_is_for_what_is_not_private(clinic: Clinic, tmp_path: Path) -> None:
    path, domain = clinic(3000, 7)
    where = ClusterConfig(kind="local", workers=1, performance_report=str(tmp_path / "page.html"))
    with pytest.raises(UsageError, match="depends on private rows"):
        daskrado.fit(path, domain, dataset="clinic", epsilon=1.0, delta=1e-6, cluster=where)


def test_sigterm_ends_a_run_as_ctrl_c_does(tmp_path: Path, own_ledger: Path, shared_cluster: SharedCluster) -> None:
    make_lake(tmp_path / "lake", rows=40_000, features=12, partitions=20, seed=7)
    (tmp_path / "p.yaml").write_text(
        "{dataset: c, lake: lake, domain: lake.yaml, output: out, learner: {kind: gradient, steps: 500}, rows: 40000,"
        " protect: {relation: add_remove, unit: one patient}, budget: {epsilon: 1, delta: 1.0e-6},"
        " ledger: {first_limit: {epsilon: 5, delta: 1.0e-5}}}"
    )
    words = ["run", str(tmp_path / "p.yaml"), "--cluster", shared_cluster.address, "--out", str(tmp_path / "out")]
    program = [sys.executable, "-c", "from daskrado.cli.main import main; main()", *words]
    driver = subprocess.Popen(program, env=os.environ, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    with shared_cluster.client() as looker:
        until(lambda: any("partial" in found for found in left_behind(looker)), LONG, "the job never began")
        driver.send_signal(signal.SIGTERM)
        _, told = driver.communicate(timeout=LONG)
        wait_until_clean(looker)
    (line,) = told.strip().splitlines()
    assert line.startswith("daskrado: error: terminated; ")
    assert driver.returncode == 143
    (entry,) = Ledger.open(own_ledger, create=False).entries()
    assert entry.state == ("spent" if "resume" in line else "void")


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        ("frozen", "the scheduler did not answer for 4 s"),
        ("no worker", "there was no worker for 4 s"),
        ("paused", r"all 1 worker\(s\) were paused for 4 s"),
    ],
)
def test_ends_that_nobody_else_sees_are_one_line_and_no_charge(
    clinic: Clinic, own_ledger: Path, fault: str, message: str
) -> None:
    path, domain = clinic(60_000, 30)
    cluster = SharedCluster(**NO_SPILLING)
    try:
        worker = cluster.worker()
        where = ClusterConfig(kind="scheduler", address=cluster.address, no_workers_timeout=4)
        done: list[int] = []

        def pause(dask_worker: Any) -> None:
            from distributed.core import Status

            dask_worker.memory_manager.memory_pause_fraction = False  # or it would go on by itself
            dask_worker.status = Status.paused

        def strike(parts: int, total: int) -> None:
            done.append(parts)
            if len(done) > 1:
                return
            if fault == "frozen":
                os.kill(cluster.scheduler.pid, signal.SIGSTOP)
            elif fault == "no worker":
                worker.kill()
            else:
                with cluster.client() as other:
                    other.run(pause)

        with pytest.raises(ClusterError, match=message):
            daskrado.fit(
                path,
                domain,
                dataset="clinic",
                epsilon=1.0,
                delta=1e-6,
                first_limit=(5.0, 1e-5),
                cluster=where,
                progress=strike,
            )
    finally:
        cluster.close()
    assert [entry.state for entry in Ledger.open(own_ledger, create=False).entries()] == ["void"]


def test_a_frozen_worker_holds_no_new_job_up() -> None:
    cluster = SharedCluster(**NO_SPILLING)
    try:
        frozen, _ = cluster.worker(), cluster.worker()
        where = ClusterConfig(kind="scheduler", address=cluster.address, no_workers_timeout=12)
        os.kill(frozen.pid, signal.SIGSTOP)
        with connect(where) as client:
            assert client is not None
            until(
                lambda: sorted(ask_each(client, int).values(), key=str) == [0, None],
                600,
                "the worker that runs answers, the frozen one does not",
            )
            with pytest.raises(ClusterError, match="does not answer, so that whether it writes rows to disk"):
                refuse_spilling(client)
    finally:
        os.kill(frozen.pid, signal.SIGCONT)
        cluster.close()


def test_an_adaptive_cluster_without_workers_starts_one(clinic: Clinic, own_ledger: Path) -> None:
    from distributed import LocalCluster

    path, domain = clinic(600, 3)
    with LocalCluster(n_workers=0, processes=False, threads_per_worker=1, dashboard_address=":0") as cluster:
        cluster.adapt(minimum=0, maximum=1)
        result = daskrado.fit(path, domain, dataset="clinic", private=False, learner="mean", cluster=cluster)
    assert result.model.weights.any()


def test_local_workers_share_out_the_machine() -> None:
    import psutil

    with connect(ClusterConfig(kind="local", workers=2)) as client, labelled("a", "b", "c"):
        assert client is not None
        limits = [worker["memory_limit"] for worker in client.scheduler_info()["workers"].values()]
    assert len(limits) == 2
    assert len({*limits}) == 1
    assert 2 * limits[0] < psutil.virtual_memory().total
    assert sum(limits) > 0.2 * psutil.virtual_memory().available


def test_long_steps_have_their_true_names(clinic: Clinic) -> None:
    path, domain = clinic(3000, 7)
    shown: list[Any] = []

    def progress(done: int, total: int) -> None:
        shown.append((done, total))

    progress.stage = shown.append  # type: ignore[attr-defined]
    learner = {"kind": "gradient", "steps": 5}
    given: Any = {"dataset": "clinic", "epsilon": 1.0, "delta": 1e-6, "first_limit": (5.0, 1e-5), "rows": 3000}
    daskrado.fit(path, domain, learner=learner, workers=0, progress=progress, **given)
    at = shown.index("descent step")
    assert shown[at + 1 : at + 6] == [(step, 5) for step in range(1, 6)]


class Wire:
    """A way to a scheduler that can be cut: connections through it are dropped at once, new ones are let in."""

    def __init__(self, address: str) -> None:
        host, port = address.removeprefix("tcp://").split(":")
        self.there = (host, int(port))
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"tcp://127.0.0.1:{self.listener.getsockname()[1]}"
        self.ends: list[socket.socket] = []
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                near, _ = self.listener.accept()
                far = socket.create_connection(self.there)
                self.ends += [near, far]
                for source, target in ((near, far), (far, near)):
                    threading.Thread(target=self._copy, args=(source, target), daemon=True).start()

    def _copy(self, source: socket.socket, target: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while block := source.recv(1 << 16):
                target.sendall(block)
        for end in (source, target):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def cut(self) -> None:
        ends, self.ends = self.ends, []
        for end in ends:
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
            end.close()


def test_a_connection_that_breaks_and_comes_back_changes_no_bit(
    clinic: Clinic, own_ledger: Path, shared_cluster: SharedCluster
) -> None:
    path, domain = clinic(60_000, 30)
    lattice, statistic = Lattice(domain.norm_bound), MeanOperator(domain.width)
    lake, wire, cuts = open_lake(path, domain), Wire(shared_cluster.address), list[int]()

    def cut(done: int, total: int) -> None:
        if len(cuts) < 2:
            cuts.append(done)
            wire.cut()

    try:
        with connect(wire.address) as client:
            found = collect(statistic, lake, domain, lattice, client=client, progress=cut)
    finally:
        wire.cut()
        wire.listener.close()
    assert len(cuts) == 2
    assert np.array_equal(found.vector, collect(statistic, lake, domain, lattice).vector)


def test_what_a_lost_worker_leaves_under_way_is_not_told_on_stderr(
    shared_cluster: SharedCluster, caplog: pytest.LogCaptureFixture
) -> None:
    """Dask gives up a question and leaves a task of it behind, which fails when nobody awaits it any more."""
    given_up, ended = threading.Event(), threading.Event()
    release: list[asyncio.Event] = []

    async def connection() -> None:
        try:
            await release[0].wait()
            raise OSError("Timed out trying to connect to a worker")
        finally:
            ended.set()

    async def question() -> None:
        release.append(asyncio.Event())
        try:
            await All([connection()])
        except asyncio.CancelledError:
            given_up.set()
            raise

    with shared_cluster.client() as client:
        with pytest.raises(ClusterError, match=r"did not answer for 0\.5 s"):
            ask(client, question, seconds=0.5)
        assert given_up.wait(LONG)
        client.loop.add_callback(release[0].set)
        assert ended.wait(LONG)
        client.sync(asyncio.sleep, 0)
        gc.collect()
    assert not [record for record in caplog.records if record.name == "asyncio"]


def test_a_local_worker_that_is_killed_while_it_starts_is_started_again(tmp_path: Path, own_ledger: Path) -> None:
    """At first sight; had it begun to work, its nanny would bring it back."""
    make_lake(tmp_path / "lake", rows=4_000, features=12, partitions=4, seed=7)
    (tmp_path / "p.yaml").write_text(
        "{dataset: c, lake: lake, domain: lake.yaml, output: out, learner: moments, protect: {relation: add_remove,"
        " unit: one patient}, budget: {epsilon: 1, delta: 1.0e-6},"
        " ledger: {first_limit: {epsilon: 5, delta: 1.0e-5}}}"
    )
    words = ["run", str(tmp_path / "p.yaml"), "--workers", "2", "--out", str(tmp_path / "out")]
    program = [sys.executable, "-c", "from daskrado.cli.main import main; main()", *words]
    driver = subprocess.Popen(program, env=os.environ, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def starting() -> list[psutil.Process]:
        with contextlib.suppress(psutil.Error):
            children = psutil.Process(driver.pid).children(recursive=True)
            return [child for child in children if any("spawn_main" in word for word in child.cmdline())]
        return []

    until(starting, LONG, "no worker was started")[0].kill()
    _, told = driver.communicate(timeout=LONG)
    assert (driver.returncode, told) == (0, "")
    assert [entry.state for entry in Ledger.open(own_ledger, create=False).entries()] == ["published"]


def test_a_guest_that_is_killed_while_it_starts_changes_no_bit(clinic: Clinic, shared_cluster: SharedCluster) -> None:
    expected = weights(clinic, workers=0)
    shared_cluster.worker(ready=False).kill()
    assert np.array_equal(weights(clinic, cluster=shared_cluster.address), expected)
