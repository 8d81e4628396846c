"""The command line as a new user meets it: the six commands, and one clear line for every mistake."""

from __future__ import annotations

import contextlib
import gc
import json
import os
import socket
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import dask
import duckdb
import pandas as pd
import pyarrow.parquet as pq
import pytest
import yaml
from command_line import Shell

from daskrado.cli.main import COMMANDS, main
from daskrado.models.linear import LinearModel
from daskrado.table.domain import Domain

Clinic = Callable[..., tuple[Path, Domain]]


def content(clinic: Clinic, **changes: Any) -> dict[str, Any]:
    path, _ = clinic(3000, 3)
    return {
        "dataset": "clinic",
        "lake": str(path),
        "domain": f"{path}.yaml",
        "output": "runs/x",
        "protect": {"relation": "add_remove", "unit": "one patient"},
        "budget": {"epsilon": 1.0, "delta": 1e-6},
        "ledger": {"first_limit": {"epsilon": 5, "delta": 1e-5}},
        "cluster": {"kind": "in_process"},
        **changes,
    }


def save(value: dict[str, Any], name: str = "p.yaml") -> str:
    Path(name).write_text(yaml.safe_dump(value))
    return name


def test_a_first_session(shell: Shell, own_ledger: Path) -> None:
    assert shell("make-lake", "data/clinic", "--rows", 5000, "--features", 12, "--partitions", 3, "--seed", 7) == 0
    assert len(list(Path("data/clinic").glob("*.parquet"))) == 3
    assert shell("init", "data/clinic", "--label", "readmitted", "--positive", "yes", "--negative", "no") == 0
    shell.fails(2, "domain.yaml: still open (...): columns.", "plan", "pipeline.yaml")
    pipeline = save(
        {
            "dataset": "clinic",
            "lake": "data/clinic",
            "domain": "data/clinic.yaml",
            "output": "runs/quickstart",
            "protect": {"relation": "add_remove", "unit": "one patient"},
            "budget": {"epsilon": 1.0, "delta": 1e-6},
            "ledger": {"first_limit": {"epsilon": 5, "delta": 1e-5}},
        }
    )
    assert shell("plan", pipeline) == 0
    assert "epsilon = 1, delta = 1e-06" in shell.out
    assert "this run would set epsilon 5" in shell.out
    assert not own_ledger.exists()
    assert shell("run", pipeline) == 0
    assert "largest weights" in shell.out
    assert shell("plan", pipeline) == 0
    assert "% of the budget of clinic (5, 1e-5)" in shell.out
    assert shell("predict", "runs/quickstart/model.json", "data/clinic", "--out", "scored", "--keep", "site") == 0
    scored = pd.concat([pd.read_parquet(p) for p in sorted(Path("scored").glob("*.parquet"))], ignore_index=True)
    assert list(scored.columns) == ["site", "margin", "predicted"]
    lake = pd.concat([pd.read_parquet(p) for p in sorted(Path("data/clinic").glob("*.parquet"))], ignore_index=True)
    model = LinearModel.load("runs/quickstart/model.json")
    assert scored["margin"].to_numpy() == pytest.approx(model.margins(lake), abs=1e-12)
    assert (scored["predicted"] == model.predict(lake)).all()
    assert shell("sql", "runs/quickstart/model.json", "--table", "clinic") == 0
    assert shell.out.startswith("-- Differentially private for one row (")
    assert shell.out.splitlines()[1].startswith("SELECT ")
    assert shell("ledger", "show") == 0
    assert "clinic (5, 1e-5) under add_remove for one row: " in shell.out
    assert "1 published" in shell.out
    assert shell("ledger", "show", "--json") == 0
    assert json.loads(shell.out)["entries"][0]["state"] == "published"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"colour": 1}, "p.yaml: colour: unknown key"),
        ({"budget": {"epsilon": 0, "delta": 1e-6}}, "budget.epsilon: input should be greater than or equal to 0.0"),
        (
            {"budget": {"epsilon": 1e-300}},
            "p.yaml: budget.epsilon: input should be greater than or equal to 0.000000001",
        ),
        ({"budget": {"epsilon": -1}}, "budget.epsilon"),
        ({"budget": {"epsilon": float("nan")}}, "budget.epsilon"),
        ({"budget": {"epsilon": 1000.0}}, "budget.epsilon: input should be less than or equal to 50 (got 1000.0)"),
        ({"budget": {"epsilon": 1, "delta": -1e-6}}, "budget.delta"),
        ({"budget": {"epsilon": 1, "delta": 0.5}}, "budget.delta: input should be less than or equal to 0.1"),
        (
            {"budget": {"epsilon": 1, "delta": 1e-320}},
            "p.yaml: budget.delta: must be 0, or from 1e-300 to 0.1, got 1e-320",
        ),
        ({"budget": {"epsilon": "one"}}, "budget.epsilon: input should be a valid number"),
        ({"budget": {"epsilon": 1, "detla": 1e-6}}, "budget.detla: unknown key"),
        ({"budget": None}, "protect and budget are missing"),
        ({"private": False}, "drop protect and budget"),
        ({"private": 0}, "private: input should be a valid boolean"),
        ({"private": "n"}, "private: input should be a valid boolean"),
        ({"budget": {"epsilon": True}}, "epsilon must be a number, got True"),
        ({"ledger": {"first_limit": {"epsilon": 5}}}, "first_limit needs a delta above 0"),
        ({"lake": [3]}, "p.yaml: lake: must be an address or a list of addresses, got list of int"),
        ({"lake": []}, "p.yaml: lake: must be an address or a list of addresses, got no address"),
        ({"protect": {"relation": "swap", "unit": "x"}}, "protect.relation: input should be 'add_remove'"),
        ({"protect": {"relation": "add_remove", "unit": "x", "rows_per_unit": 0}}, "protect.rows_per_unit"),
        ({"dataset": "a b"}, "dataset"),
        ({"domain": "no.yaml"}, "no.yaml: cannot be read"),
        ({"lake": 3}, "lake: must be an address"),
        ({"mechanism": "cauchy"}, "mechanism 'cauchy' is unknown; allowed: gaussian, l2_gamma, laplace"),
        ({"mechanism": "gaussian", "budget": {"epsilon": 1}}, "p.yaml: file: gaussian noise needs delta above 0"),
        ({"learner": {"kind": "magic"}}, "learner"),
        ({"learner": {"kind": "radoboost"}, "statistic": {"kind": "moments"}}, "needs one of the statistics"),
        (
            {"learner": {"kind": "moments", "ridge": -1}},
            "p.yaml: learner.regularisation: input should be",
        ),
        ({"learner": {"kind": "moments", "rigde": 1}}, "p.yaml: learner.rigde: unknown key"),
        (
            {"learner": {"kind": "radoboost"}, "statistic": {"kind": "hadamard_rados", "count": 100}},
            "p.yaml: statistic: the count of Hadamard rados must be a power of two",
        ),
        (
            {"learner": {"kind": "radoboost"}, "statistic": {"kind": "balanced_rados", "count": 3}},
            "p.yaml: statistic: balanced rados need an even count, got 3",
        ),
        (
            {
                "learner": {"kind": "radoboost"},
                "statistic": {"kind": "hadamard_rados", "count": 8, "bucket_zero": True},
            },
            "bucket_zero is for baselines",
        ),
        ({"cluster": {"kind": "scheduler"}}, "needs either address or scheduler_file"),
        ({"cluster": {"workers": 0}}, "cluster.workers"),
        ({"kind": "dance"}, "kind 'dance' is unknown"),
    ],
)
def test_mistakes_in_a_pipeline_are_one_line(shell: Shell, clinic: Clinic, changes: Any, message: str) -> None:
    shell.fails(2, message, "run", save(content(clinic, **changes)))
    assert not Path("runs").exists()


def test_mistakes_on_the_command_line_are_one_line(shell: Shell, clinic: Clinic) -> None:
    pipeline = save(content(clinic))
    shell.fails(2, "none.yaml: cannot be read", "run", "none.yaml")
    shell.fails(2, "No such command 'rnu'", "rnu")
    shell.fails(2, "No such option", "run", pipeline, "--fast")
    shell.fails(2, "give --workers or --cluster, not both", "run", pipeline, "--workers", 2, "--cluster", "x.yaml")
    for workers in (-1, 5000):
        shell.fails(2, "--workers must be from 0 (in this process) to 1024", "run", pipeline, "--workers", workers)
    for key, cluster in (
        ("memory_limit", {"memory_limit": "lots"}),
        ("slurm.memory", {"slurm": {"memory": "4 elephants"}}),
    ):
        wrong = save({"kind": "local", **cluster}, "c.yaml")
        shell.fails(2, f"c.yaml: {key}: must be a size such as 2GiB", "run", pipeline, "--cluster", wrong)
    small = save({"kind": "local", "memory_limit": "50MB"}, "c.yaml")
    shell.fails(2, "c.yaml: memory_limit: a worker needs at least 150MB", "run", pipeline, "--cluster", small)
    shell.fails(2, "--rows must be between 1 and 1,000,000,000,000, got 0", "make-lake", "l", "--rows", 0)
    shell.fails(2, "--rows must be between 1 and", "make-lake", "l", "--rows", 99999999999999999999)
    Path("l.yaml").write_text("mine")
    shell.fails(2, "l.yaml: exists; choose another or pass --overwrite", "make-lake", "l", "--rows", 30)
    assert (Path("l.yaml").read_text(), Path("l").exists()) == ("mine", False)
    shell.fails(2, "--partitions 9 is more than --rows 3", "make-lake", "l", "--rows", 3, "--partitions", 9)
    shell.fails(2, "epsilon must be", "ledger", "limit", "d", "--relation", "add_remove", "--epsilon", "-1")
    shell.fails(2, "epsilon must be", "ledger", "limit", "d", "--relation", "add_remove", "--epsilon", "nan")
    shell.fails(2, "relation", "ledger", "limit", "d", "--relation", "nearby", "--epsilon", "1")
    shell.fails(1, "no ledger at", "ledger", "show", "--ledger", "none.sqlite")
    assert not Path("none.sqlite").exists()


@pytest.mark.slow
def test_existing_output_is_refused_until_overwrite(shell: Shell, clinic: Clinic) -> None:
    pipeline = save(content(clinic))
    assert shell("run", pipeline) == 0
    shell.fails(2, "runs/x: the output folder exists", "run", pipeline)
    assert shell("run", pipeline, "--overwrite") == 0
    Path("runs/x/ledger.sqlite").write_bytes(b"SQLite format 3" + bytes(99))
    shell.fails(2, "runs/x: was not written by this command (it holds ledger.sqlite)", "run", pipeline, "--overwrite")
    assert shell("run", pipeline, "--output", "runs/y") == 0
    assert sorted(p.name for p in Path("runs").iterdir()) == ["x", "y"]


def test_ledgers_that_cannot_be_used_are_named(shell: Shell, clinic: Clinic) -> None:
    Path("junk.sqlite").write_bytes(b"this is not a database at all" * 50)
    shell.fails(1, "junk.sqlite", "run", save(content(clinic)), "--ledger", "junk.sqlite")
    with sqlite3.connect("other.sqlite") as other:
        other.execute("CREATE TABLE t (x)")
    other.close()
    shell.fails(1, "other.sqlite", "run", save(content(clinic)), "--ledger", "other.sqlite")
    shell.fails(1, "missing/l.sqlite", "run", save(content(clinic)), "--ledger", "missing/l.sqlite")
    assert not Path("runs").exists()


def test_refused_budgets_name_what_is_left(shell: Shell, clinic: Clinic) -> None:
    assert shell("ledger", "limit", "clinic", "--relation", "add_remove", "--epsilon", "0.5", "--delta", "1e-6") == 0
    shell.fails(1, "nothing was debited", "run", save(content(clinic)))
    assert "0.5" in shell.err
    shell("ledger", "show", "--json")
    assert json.loads(shell.out)["entries"] == []


@pytest.mark.slow
def test_a_scheduler_that_is_not_there_is_given_up_after_the_stated_time(shell: Shell, clinic: Clinic) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # bound, not listening: nobody answers here
        address = f"tcp://127.0.0.1:{taken.getsockname()[1]}"
        cluster = {"kind": "scheduler", "address": address, "connect_timeout": 1.0}
        start = time.monotonic()
        with dask.config.set({"distributed.comm.timeouts.connect": "3000s"}):  # Dask's own patience is another matter
            shell.fails(
                1, f"scheduler {address}: not reachable within 1 s", "run", save(content(clinic, cluster=cluster))
            )
        assert time.monotonic() - start < 1000
    assert shell("ledger", "show", "--json") == 0
    assert json.loads(shell.out)["entries"] == []


@pytest.mark.parametrize(
    "address", ["tcp://127.0.0.1", "tcp://", "tcp://:8786", "tcp://h:99999", "http://127.0.0.1:80", "foo://bar:1"]
)
def test_a_mistyped_scheduler_address_is_one_line_at_once(shell: Shell, clinic: Clinic, address: str) -> None:
    shell.fails(2, f"HOST:PORT or tls://HOST:PORT, got {address}", "run", save(content(clinic)), "--cluster", address)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("answer", "patience", "message"),
    [
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", 300.0, "what answers there is no Dask scheduler"),
        (b"", 1.0, "not reachable within 1 s"),
    ],
)
def test_a_port_of_something_else_is_one_line(
    shell: Shell, clinic: Clinic, answer: bytes, patience: float, message: str
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            caller, _ = server.accept()
            callers.append(caller)  # open until the test is done
            caller.sendall(answer)

        callers: list[socket.socket] = []
        thread = threading.Thread(target=serve)
        thread.start()
        address = f"tcp://127.0.0.1:{server.getsockname()[1]}"
        cluster = {"kind": "scheduler", "address": address, "connect_timeout": patience}
        shell.fails(1, f"scheduler {address}: {message}", "run", save(content(clinic, cluster=cluster)))
        thread.join()
        callers[0].close()
    gc.collect()
    assert shell.capsys.readouterr().err == ""


@pytest.mark.cluster
def test_run_and_predict_on_a_scheduler_that_is_already_there(shell: Shell, clinic: Clinic, two_workers: Any) -> None:
    address = two_workers.scheduler.address
    # A process of its own has no default client, as the one that this session's workers belong to.
    shell.monkeypatch.setattr("distributed.client.default_client", None)
    pipeline = save(content(clinic, private=False, protect=None, budget=None))
    assert shell("run", pipeline, "--cluster", address) == 0
    assert "NOT PRIVATE" in shell.out
    here = LinearModel.load("runs/x/model.json")
    assert shell("run", pipeline, "--overwrite", "--workers", 0) == 0
    assert (LinearModel.load("runs/x/model.json").weights == here.weights).all()
    path, _ = clinic(3000, 3)
    assert shell("predict", "runs/x/model.json", path, "--out", "there", "--cluster", address) == 0
    assert shell("predict", "runs/x/model.json", path, "--out", "here") == 0
    for name in ("part-00000.parquet", "part-00002.parquet"):
        pd.testing.assert_frame_equal(pd.read_parquet(f"there/{name}"), pd.read_parquet(f"here/{name}"))


def test_predict_refuses_bad_input_and_leaves_nothing(shell: Shell, clinic: Clinic) -> None:
    path, _ = clinic(3000, 3)
    assert shell("run", save(content(clinic))) == 0
    shell.fails(2, "--keep colour", "predict", "runs/x/model.json", path, "--out", "s", "--keep", "colour")
    shell.fails(2, "none.json: cannot be read", "predict", "none.json", path, "--out", "s")
    bad = pd.read_parquet(path / "part-00000.parquet").assign(bmi=float("inf"))
    Path("bad").mkdir()
    bad.to_parquet("bad/part.parquet")
    shell.fails(1, "part.parquet: column 'bmi': NaN or infinite", "predict", "runs/x/model.json", "bad", "--out", "s")
    assert not [p.name for p in Path().iterdir() if p.name.strip(".").startswith("s.") or p.name == "s"]


def contents(folder: str = ".") -> list[str]:
    return sorted(str(p) for p in Path(folder).rglob("*") if p.is_file())


@pytest.mark.slow
def test_overwriting_replaces_only_what_the_same_command_wrote(shell: Shell, clinic: Clinic) -> None:
    pipeline = save(content(clinic, private=False, protect=None, budget=None))
    assert shell("run", pipeline) == shell("run", pipeline, "--output", "runs/y") == 0
    Path("t.csv").write_text("a,b\n1,2\n")
    assert shell("ingest", "t.csv", "--out", "ingested") == 0
    assert shell("make-lake", "made", "--rows", 300, "--partitions", 2) == 0
    assert shell("predict", "runs/x/model.json", "made", "--out", "scored") == 0
    Path("runs/z/.git").mkdir(parents=True)
    Path("runs/z/model.json").write_bytes(Path("runs/x/model.json").read_bytes())
    before = contents()
    run, predict = ("run", pipeline, "--overwrite", "--output"), ("predict", "runs/x/model.json", "made", "--out")
    shell.fails(2, "the output folder's name has more than 220 bytes", *run, "x" * 221)
    for target in (".", "runs", "ingested", "made", "scored", "runs/z"):
        shell.fails(2, "not overwritten", *run, target)
    for target in (".", "runs", "runs/x", "ingested"):
        shell.fails(2, f"{target}: w", *predict, target, "--overwrite")
        shell.fails(2, "not overwritten", "make-lake", target, "--rows", 300, "--overwrite")
        if target != "ingested":
            shell.fails(2, "not overwritten", "ingest", "t.csv", "--out", target, "--overwrite")
            shell.fails(
                2, "not overwritten", "ingest", "t.csv", "--out", Path(target).absolute().as_uri(), "--overwrite"
            )
    shell.fails(2, "not overwritten", "make-lake", "scored", "--rows", 300, "--overwrite")
    for target in ("made", "made/scored"):
        shell.fails(2, f"{target}: would hold or lie inside what is read (made)", *predict, target, "--overwrite")
    shell.fails(2, "inside what is read", "run", save(content(clinic, lake="made"), "q.yaml"), "--output", "made/out")
    shell.monkeypatch.chdir("runs/x")
    shell.fails(2, "holds the current folder", "run", "../../p.yaml", "--overwrite", "--output", ".")
    shell.monkeypatch.chdir("../..")
    Path("q.yaml").unlink()
    assert contents() == before
    for words in (
        (*run, "runs/x"),
        (*predict, "scored", "--overwrite"),
        ("ingest", "t.csv", "--out", "ingested", "--by", "b", "--overwrite"),
        ("ingest", "t.csv", "--out", "ingested", "--overwrite"),
    ):
        assert shell(*words) == 0, shell.err
    assert not Path("ingested/b=2").exists()


def test_what_comes_of_a_baseline_says_that_it_is_not_private(shell: Shell, clinic: Clinic) -> None:
    path, _ = clinic(3000, 3)
    assert shell("run", save(content(clinic, private=False, protect=None, budget=None))) == 0
    assert shell("predict", "runs/x/model.json", path, "--out", "s") == 0
    for scored in Path("s").glob("*.parquet"):
        assert pq.read_schema(scored).metadata[b"privacy_in_words"].startswith(b"NOT PRIVATE")
    assert shell("sql", "runs/x/model.json") == 0
    assert shell.out.startswith("-- NOT PRIVATE")
    with duckdb.connect() as connection:
        connection.execute(f"CREATE VIEW lake AS SELECT * FROM '{path}/*.parquet'")
        assert len(connection.execute(shell.out).fetchall()) == 3000
    with contextlib.closing(sqlite3.connect(":memory:")) as connection:
        pd.read_parquet(path).head(5).to_sql("lake", connection, index=False)
        assert len(connection.execute(shell.out).fetchall()) == 5


def test_laplace_publishes_the_delta_it_was_composed_at(shell: Shell, clinic: Clinic) -> None:
    pipeline = save(content(clinic, mechanism="laplace", budget={"epsilon": 0.5, "delta": 1e-3}))
    assert shell("run", pipeline) == 0
    privacy = json.loads(Path("runs/x/manifest.json").read_text())["statement"]
    assert (privacy["epsilon"], privacy["delta"]) == (0.5, 0.0)


def test_noise_that_cannot_be_drawn_is_refused_before_anything_is_spent(shell: Shell, clinic: Clinic) -> None:
    pipeline = save(content(clinic, lattice_bits=26, budget={"epsilon": 1e-3, "delta": 1e-6}))
    shell.fails(2, "scale", "run", pipeline)
    assert shell("plan", pipeline) == 2


@pytest.mark.parametrize(
    "text",
    [
        "? [a]\n: 1\n",
        "kind: [a]\n",
        "learner: {kind: [a]}\n",
        "x: 2020-13-45\n",
        pytest.param("x: " + "[" * 3000, marks=pytest.mark.slow),
        "x: " + "9" * 5000,
    ],
)
def test_odd_yaml_is_one_line(shell: Shell, text: str) -> None:
    Path("odd.yaml").write_text(text)
    shell.fails(2, "odd.yaml", "run", "odd.yaml")


def test_without_a_command_the_help_is_shown(shell: Shell) -> None:
    assert shell() == 2
    assert "From a table to a model:" in shell.err
    assert len(shell.err.splitlines()) > 10


def test_an_unforeseen_error_is_one_line_without_its_text(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    import daskrado.jobs.load

    def fail(*given: object) -> None:
        raise ZeroDivisionError("patient 17")

    monkeypatch.setattr(daskrado.jobs.load, "load_job", fail)
    shell.fails(1, "internal error (ZeroDivisionError)", "plan", "x.yaml")
    assert "17" not in shell.err


def test_debug_shows_a_traceback(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    from daskrado.errors import UsageError

    monkeypatch.setattr(sys, "argv", ["daskrado", "--debug", "run", "none.yaml"])
    with pytest.raises(UsageError, match="cannot be read"):
        main()


def test_every_command_has_help_and_help_is_light() -> None:
    code = (
        "import sys; sys.argv = ['daskrado', '--help']\n"
        "from daskrado.cli.main import main\n"
        "try:\n    main()\nexcept SystemExit:\n    pass\n"
        "heavy = {'numpy', 'dask', 'distributed', 'pandas', 'pyarrow', 'opendp'} & set(sys.modules)\n"
        "assert not heavy, heavy\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=os.environ, check=True)
    assert all(f"  {name} " in done.stdout for name in COMMANDS)


@pytest.mark.parametrize("name", list(COMMANDS))
def test_each_command_loads_and_explains_itself(shell: Shell, name: str) -> None:
    assert shell(name, "--help") == 0
    assert "Usage: " in shell.out
