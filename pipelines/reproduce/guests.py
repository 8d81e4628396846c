"""Jobs on a scheduler that others use too: drivers killed at random moments, workers that come and go, jobs at once.

A real scheduler and workers, drivers in processes of their own. Moments are drawn from a public seed, over the whole
time that a driver of the kind takes. After each death workers and scheduler are searched for whatever
the driver left: rows, keys, sums, tasks, promises, plugins, scratch files.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from long_lived import NO_SPILLING, SharedCluster, wait_until_clean

import daskrado
from daskrado.lake.make import make_lake
from daskrado.ledger.ledger import Ledger

DATASET = "ward"
PATIENT = {"relation": "add_remove", "unit": "one patient"}
BUDGET = {"epsilon": 0.01, "delta": 1e-9}
KINDS: dict[str, dict[str, Any]] = {
    "iterative": {"learner": {"kind": "gradient", "steps": 100}, "budget": BUDGET, "protect": PATIENT},
    "rados": {
        "kind": "rados",
        "sets": [{"name": "h", "kind": "hadamard", "count": 64, "protect": PATIENT, "budget": BUDGET}],
    },
    "teachers": {
        "kind": "teachers",
        "budget": {"epsilon": 0.3, "delta": 1e-8},
        "teachers": {"count": 600, "learner": {"kind": "moments"}},
        "answers": {"queries": 30},
        "student": {"learner": {"kind": "moments"}},
        "queries": "queries",
        "protect": PATIENT,
    },
}
LIMIT = (50.0, 1e-2)
MOST_DEATHS = 3  # distributed.scheduler.allowed-failures


def prepare(folder: Path, rows: int) -> None:
    """A lake, public queries, a table as text, and a pipeline of each kind."""
    make_lake(folder / "lake", rows=rows, features=12, partitions=20, seed=7)
    make_lake(folder / "queries", rows=30, features=12, partitions=1, seed=9)
    (folder / "table.csv").write_text("a,b\n" + "1,x\n2,y\n" * (rows // 2))
    common = {"dataset": DATASET, "lake": "lake", "domain": "lake.yaml", "output": "out"}
    for name, keys in KINDS.items():
        extra = {"rows": rows} if name == "iterative" else {}
        (folder / f"{name}.yaml").write_text(yaml.safe_dump(common | keys | extra))
    Ledger.open(folder / "ledger.sqlite").set_limit(DATASET, None, *LIMIT)


class Ward:
    """Drivers of a ward's jobs, on one cluster."""

    def __init__(self, folder: Path, cluster: SharedCluster) -> None:
        self.folder = folder
        self.cluster = cluster
        self.ledger = Ledger.open(folder / "ledger.sqlite", create=False)
        self.looker = cluster.client()
        self._made = 0

    def start(self, kind: str) -> subprocess.Popen[str]:
        """A driver, as a user starts it."""
        self._made += 1
        out = ["--out", str(self.folder / f"out-{self._made}"), "--cluster", self.cluster.address]
        ledger = ["--ledger", str(self.folder / "ledger.sqlite")]
        words = ["run", str(self.folder / f"{kind}.yaml"), *out, *ledger]
        if kind == "ingest":
            words = ["ingest", str(self.folder / "table.csv"), *out]
        program = [sys.executable, "-m", "daskrado", *words]
        return subprocess.Popen(program, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    def whole(self, *kinds: str) -> list[float]:
        """Run drivers at once to their ends; the seconds that each took."""
        begun, drivers = time.monotonic(), [self.start(kind) for kind in kinds]
        ends, failed = [0.0] * len(drivers), list[str]()

        def wait(number: int) -> None:
            told = drivers[number].communicate()[1]
            ends[number] = time.monotonic() - begun
            if drivers[number].returncode != 0:
                failed.append(told)

        threads = [threading.Thread(target=wait, args=[number]) for number in range(len(drivers))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if failed:
            raise RuntimeError(failed[0])
        return ends


def deaths(ward: Ward, number: int, seed: int) -> dict[str, Any]:
    """Kill drivers of each kind by SIGKILL and SIGTERM; how they ended, and after how many seconds all is gone."""
    draw, kinds = random.Random(seed), [*KINDS]
    takes = {kind: ward.whole(kind)[0] for kind in kinds}
    clean, ends, lines = [], Counter[str](), Counter[str]()
    for at in range(number):
        kind, blow = kinds[at % len(kinds)], (signal.SIGKILL, signal.SIGTERM)[at // len(kinds) % 2]
        driver = ward.start(kind)
        threading.Event().wait(draw.uniform(0, takes[kind]))
        driver.send_signal(blow)
        _, told = driver.communicate()
        died = time.monotonic()
        wait_until_clean(ward.looker)
        clean.append(time.monotonic() - died)
        ends[f"{blow.name} {driver.returncode}"] += 1
        lines[str(len(told.strip().splitlines()))] += 1
    after = [ward.whole(kind)[0] for kind in kinds]
    states = Counter(str(entry.state) for entry in ward.ledger.entries(DATASET))
    return {
        "drivers_killed": number,
        "ends": dict(sorted(ends.items())),
        "lines_on_stderr": dict(sorted(lines.items())),
        "seconds_until_nothing_is_left": {"median": _round(statistics.median(clean)), "most": _round(max(clean))},
        "jobs_run_afterwards": len(after),
        "ledger_states": dict(states),
    }


@contextmanager
def coming_and_going(cluster: SharedCluster, draw: random.Random) -> Iterator[Counter[str]]:
    """Workers join and are killed at random moments; the two that began stay.

    At most MOST_DEATHS a job: Dask gives a task up that was on more workers than that when they died.
    """
    over, seen, guests = threading.Event(), Counter[str](), list[Any]()

    def churn() -> None:
        while not over.wait(draw.uniform(0, 1.5)):
            if len(guests) < 2 and draw.random() < 0.6:
                guests.append(cluster.worker())
                seen["joined"] += 1
            elif guests and seen["in this job"] < MOST_DEATHS:
                guests.pop(draw.randrange(len(guests))).kill()
                seen["killed"] += 1
                seen["in this job"] += 1

    thread = threading.Thread(target=churn)
    thread.start()
    try:
        yield seen
    finally:
        over.set()
        thread.join()
        for guest in guests:
            guest.kill()


def guests(ward: Ward, number: int, seed: int) -> dict[str, Any]:
    """Jobs while workers come and go: an exact fit for its bits, a private one for its charge."""
    lake, domain, ledger = ward.folder / "lake", ward.folder / "lake.yaml", ward.folder / "ledger.sqlite"

    def fit(**how: Any) -> Any:
        return daskrado.fit(lake, domain, dataset=DATASET, ledger=ledger, **how)

    exact: dict[str, Any] = {"private": False, "learner": {"kind": "erm", "regularisation": 0.01}}
    wanted, same = fit(workers=0, **exact).model.weights, 0
    before = len(ward.ledger.entries(DATASET))
    with coming_and_going(ward.cluster, random.Random(seed)) as seen:
        for _ in range(number):
            seen["in this job"] = 0
            same += np.array_equal(fit(cluster=ward.cluster.address, **exact).model.weights, wanted)
            seen["in this job"] = 0
            fit(cluster=ward.cluster.address, **BUDGET, learner={"kind": "moments"})
    new = ward.ledger.entries(DATASET)[before:]
    return {
        "jobs": number,
        "workers_that_joined": seen["joined"],
        "workers_killed": seen["killed"],
        "same_bits": same,
        "charges": len(new),
        "charges_published": sum(str(entry.state) == "published" for entry in new),
    }


def at_once(ward: Ward) -> dict[str, Any]:
    """Two jobs and four at once against the same ones one after another."""
    found = {}
    for kinds in (["iterative"] * 2, ["iterative", "rados", "teachers", "ingest"]):
        alone = [ward.whole(kind)[0] for kind in kinds]
        together = ward.whole(*kinds)
        found[f"{len(kinds)}_jobs"] = {
            "one_after_the_other_seconds": _round(sum(alone)),
            "at_once_seconds": _round(max(together)),
            "ratio": _round(max(together) / sum(alone)),
            "ends_at_seconds": [_round(end) for end in together],
        }
    wait_until_clean(ward.looker)
    return found


def _round(value: float) -> float:
    return round(value, 2)


def main() -> None:
    """Run the three parts and print what was found."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--deaths", type=int, default=30, help="drivers that are killed")
    parser.add_argument("--jobs", type=int, default=30, help="jobs while workers come and go")
    parser.add_argument("--rows", type=int, default=40_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    cluster = SharedCluster(**NO_SPILLING)
    with tempfile.TemporaryDirectory() as folder:
        try:
            cluster.worker()
            cluster.worker()
            prepare(Path(folder), options.rows)
            os.environ["DASKRADO_LEDGER"] = str(Path(folder) / "ledger.sqlite")
            ward = Ward(Path(folder), cluster)
            parts = {
                "killed": deaths(ward, options.deaths, options.seed),
                "workers": guests(ward, options.jobs, options.seed),
                "at_once": at_once(ward),
            }
        finally:
            cluster.close()
    print(json.dumps(parts) if options.json else yaml.safe_dump(parts, sort_keys=False))


if __name__ == "__main__":
    main()
