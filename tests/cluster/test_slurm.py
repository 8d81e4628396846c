"""SLURM itself, on one node: munged, slurmctld and slurmd of the distribution, as processes of this test."""

from __future__ import annotations

import getpass
import os
import secrets
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import numpy as np
import pytest
import yaml

import daskrado
from daskrado.ledger.ledger import Ledger
from daskrado.models.linear import LinearModel
from daskrado.table.domain import Domain

Clinic = Callable[..., tuple[Path, Domain]]
NEEDED = ("munged", "slurmctld", "slurmd", "sbatch", "sinfo")

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.skipif(
        any(shutil.which(name, path=f"{os.environ['PATH']}:/usr/sbin") is None for name in NEEDED),
        reason="SLURM is not installed (Debian: apt-get install munge slurmctld slurmd slurm-client)",
    ),
]

CONFIGURATION = """\
ClusterName=test
SlurmctldHost={host}
SlurmUser={user}
SlurmdUser={user}
SlurmctldPort={controller}
SlurmdPort={daemon}
AuthType=auth/munge
AuthInfo=socket={folder}/munge.sock
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
MpiDefault=none
ReturnToService=2
NodeName={host} NodeAddr=127.0.0.1 CPUs={cpus} RealMemory=4000 State=UNKNOWN
PartitionName=normal Nodes={host} Default=YES MaxTime=60 State=UP
"""


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextmanager
def daemon(*command: str, environment: dict[str, str]) -> Iterator[None]:
    process = subprocess.Popen(
        command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True
    )
    try:
        yield
    finally:
        process.terminate()
        try:
            process.wait(timeout=15)
        except subprocess.TimeoutExpired:
            process.kill()


@pytest.fixture(scope="module")
def slurm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """The environment in which SLURM's commands find a controller of our own; skipped where it does not come up."""
    folder = tmp_path_factory.mktemp("slurm")
    folder.chmod(0o755)
    for name in ("state", "spool"):
        (folder / name).mkdir()
    (folder / "munge.key").write_bytes(secrets.token_bytes(1024))
    (folder / "munge.key").chmod(0o600)
    configuration = folder / "slurm.conf"
    names = {"host": socket.gethostname().split(".")[0], "user": getpass.getuser(), "folder": str(folder)}
    configuration.write_text(
        CONFIGURATION.format(controller=free_port(), daemon=free_port(), cpus=os.cpu_count(), **names)
    )
    path = f"{os.environ['PATH']}:/usr/sbin"
    environment = {**os.environ, "PATH": path, "SLURM_CONF": str(configuration)}
    munge = [f"--{what}-file={folder}/munge.{what}" for what in ("key", "pid", "log", "seed")]
    with ExitStack() as stack:
        stack.enter_context(
            daemon(
                "munged", "--foreground", "--force", *munge, f"--socket={folder}/munge.sock", environment=environment
            )
        )
        until(lambda: (folder / "munge.sock").exists(), "munged did not open its socket")
        stack.enter_context(daemon("slurmctld", "-D", environment=environment))
        stack.enter_context(daemon("slurmd", "-D", "-N", names["host"], environment=environment))
        until(lambda: "idle" in sinfo(environment), "no SLURM node became idle")
        yield environment


def sinfo(environment: dict[str, str]) -> str:
    done = subprocess.run(["sinfo", "-h", "-o", "%T"], env=environment, capture_output=True, text=True, timeout=30)
    return done.stdout


def until(ready: Callable[[], bool], reason: str) -> None:
    deadline = time.monotonic() + 30
    while not ready():
        if time.monotonic() > deadline:
            pytest.skip(f"{reason} within 30 s on this machine")
        time.sleep(0.1)


def test_a_private_run_on_slurm(
    clinic: Clinic, slurm: dict[str, str], tmp_path: Path, own_ledger: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, domain = clinic(3000, 7)
    cluster = tmp_path / "slurm.yaml"
    limits = {"cores": 1, "processes": 1, "memory": "1GiB", "walltime": "00:10:00", "queue": "normal"}
    cluster.write_text(
        yaml.safe_dump(
            {
                "kind": "slurm",
                "workers": 2,
                "no_workers_timeout": 60,
                "slurm": {**limits, "log_directory": str(tmp_path), "interface": "lo"},
            }
        )
    )
    content = {"dataset": "clinic", "lake": str(path), "domain": f"{path}.yaml"}
    baseline = {**content, "output": str(tmp_path / "baseline"), "private": False}
    private = {
        **content,
        "output": str(tmp_path / "private"),
        "protect": {"relation": "add_remove", "unit": "one patient"},
        "budget": {"epsilon": 1.0, "delta": 1e-6},
        "ledger": {"first_limit": {"epsilon": 5, "delta": 1e-5}},
    }
    for name, pipeline in (("baseline", baseline), ("private", private)):
        (tmp_path / f"{name}.yaml").write_text(yaml.safe_dump(pipeline))
        words = ["run", str(tmp_path / f"{name}.yaml"), "--cluster", str(cluster)]
        done = subprocess.run(
            [sys.executable, "-c", "from daskrado.cli.main import main; main()", *words],
            env={**slurm, "DASKRADO_LEDGER": str(own_ledger)},
            capture_output=True,
            text=True,
            timeout=600,
        )
        assert done.returncode == 0, done.stderr
    here = daskrado.fit(path, domain, dataset="clinic", private=False, workers=0).model.weights
    assert np.array_equal(LinearModel.load(tmp_path / "baseline" / "model.json").weights, here)
    assert [str(entry.state) for entry in Ledger.open(own_ledger).entries()] == ["published"]
    jobs = subprocess.run(
        ["scontrol", "show", "jobs", "-o"], env=slurm, capture_output=True, text=True, check=True
    ).stdout.splitlines()
    assert len(jobs) == 4  # two runs of two jobs, and none is left behind
    assert not [job for job in jobs if "JobState=RUNNING" in job or "JobState=PENDING" in job]
