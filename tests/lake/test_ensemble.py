"""Teachers: disjoint shards, one record reaches one teacher, the same votes wherever and however the rows lie."""

import os
import signal
import sys
import threading
from pathlib import Path
from typing import Any

import dask.dataframe as dd
import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from distributed import Client

from daskrado.cluster import ClusterConfig, connect
from daskrado.errors import DataError, UsageError
from daskrado.lake import ensemble
from daskrado.lake.ensemble import rows_aside, train, waves
from daskrado.lake.scan import open_lake
from daskrado.lake.shards import ASIDE, Sharding, encode_queries
from daskrado.lake.silence import Silence
from daskrado.lake.teachers import ERROR_UNIT, Course
from daskrado.learners.black_box import BlackBox, LeastSquares
from daskrado.registry import make
from daskrado.table.domain import Domain
from daskrado.table.yaml_file import parse

ROWS, TEACHERS = 900, 30
CLASSES = ("no", "yes")


def make_domain(**changes: Any) -> Domain:
    content = {
        "label": {"column": "y", "positive": "yes", "negative": "no"},
        "id": "record",
        "norm_bound": 2.0,
        "columns": {f"x{i}": {"kind": "numeric", "lower": -3, "upper": 3} for i in range(3)},
        **changes,
    }
    return parse(Domain, content, "domain")


@pytest.fixture(scope="module")
def frame() -> pd.DataFrame:
    draw = np.random.default_rng(11)
    x = draw.normal(size=(ROWS, 3))
    y = np.where(x @ np.array([1.0, -2.0, 0.5]) + 0.3 * draw.normal(size=ROWS) > 0, "yes", "no")
    return pd.DataFrame({"record": np.arange(ROWS) * 7 + 5, **{f"x{i}": x[:, i] for i in range(3)}, "y": y})


@pytest.fixture
def client(two_workers: Client) -> Client:
    return two_workers


@pytest.fixture(scope="module")
def queries(frame: pd.DataFrame) -> np.ndarray:
    return encode_queries(make_domain(), pa.Table.from_pandas(frame.head(60), preserve_index=False))


def write(folder: Path, frame: pd.DataFrame, parts: int) -> str:
    folder.mkdir()
    for number, rows in enumerate(np.array_split(np.arange(len(frame)), parts)):
        pq.write_table(
            pa.Table.from_pandas(frame.iloc[rows], preserve_index=False), folder / f"part-{number:03d}.parquet"
        )
    return str(folder)


def course(domain: Domain | None = None, *, kind: str = "moments", **sharding: Any) -> Course:
    chosen = domain or make_domain()
    settings = {"count": TEACHERS, "seed": 3, **sharding}
    return Course(chosen, CLASSES, Sharding(**settings), make(BlackBox, ("daskrado.learners",), kind))


def count(source: Any, queries: np.ndarray, plan: Course | None = None, client: Client | None = None) -> np.ndarray:
    plan = plan or course()
    lake = open_lake(source, plan.domain, ids=plan.sharding.by_id)
    with train(plan, lake, client=client) as teachers:
        return teachers.votes(queries).counts


# --- shards --------------------


def test_every_record_lies_in_exactly_one_shard_whatever_it_holds() -> None:
    ids = np.arange(10_000, dtype=np.uint64)
    plan = Sharding(50, seed=1)
    shard = plan.assign(plan.order(ids, 0, len(ids)))
    assert shard.min() >= 0
    assert shard.max() < 50
    # One number per record: shards partition the records. The sizes are those of a fair assignment.
    sizes = np.bincount(shard, minlength=50)
    assert sizes.sum() == len(ids)
    assert ((sizes - 200) ** 2 / 200).sum() < 49 + 5 * np.sqrt(2 * 49)
    # Position and company do not matter.
    shuffled = np.random.default_rng(0).permutation(ids)
    assert (plan.assign(plan.order(shuffled, 777, len(ids))) == shard[shuffled.astype(int)]).all()
    other = Sharding(50, seed=2)
    assert (other.assign(other.order(ids, 0, len(ids))) != shard).mean() > 0.9


def test_shards_by_position_are_dealt_evenly() -> None:
    plan = Sharding(7, by_id=False)
    shard = plan.assign(plan.order(None, 3, 70))
    assert np.bincount(shard).tolist() == [10] * 7


def test_rows_kept_aside_are_in_no_shard_and_of_the_asked_share() -> None:
    plan = Sharding(20, aside=0.3)
    order = plan.order(np.arange(20_000, dtype=np.uint64), 0, 20_000)
    shard = plan.assign(order)
    assert abs((shard == ASIDE).mean() - 0.3) < 4.5 * np.sqrt(0.21 / 20_000)
    kept = shard[shard != ASIDE]
    assert (kept == Sharding(20).assign(order)[shard != ASIDE]).all()


@pytest.mark.parametrize(
    ("settings", "message"), [({"count": 0}, "teachers.count"), ({"count": 5, "aside": 1.0}, "aside")]
)
def test_bad_shardings_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        Sharding(**settings)


# --- one record, one teacher --------------------


@pytest.mark.parametrize("victim", [0, 1, 450, ROWS - 1])
def test_removing_a_record_changes_one_teacher(frame: pd.DataFrame, queries: np.ndarray, victim: int) -> None:
    before = count(frame, queries)
    after = count(frame.drop(index=victim), queries)
    assert np.abs(before - after).sum(axis=1).max() <= 2  # one teacher, one vote each way
    assert before.sum(axis=1).tolist() == [TEACHERS] * len(queries)


def test_replacing_a_row_in_its_place_changes_one_teacher_dealt_by_position(
    frame: pd.DataFrame, queries: np.ndarray
) -> None:
    plan = course(make_domain(id=None), by_id=False)
    before = count(frame, queries, plan)
    worst = 0
    for victim in (0, 333, ROWS - 1):
        other = frame.copy()
        other.loc[victim, ["x0", "x1", "x2", "y"]] = [3.0, 3.0, -3.0, "no" if frame.y[victim] == "yes" else "yes"]
        worst = max(worst, int(np.abs(before - count(other, queries, plan)).sum(axis=1).max()))
    assert 0 < worst <= 2


def test_positions_would_not_do_under_add_remove(frame: pd.DataFrame, queries: np.ndarray) -> None:
    plan = course(make_domain(id=None), by_id=False)
    shifted = count(frame, queries, plan) - count(frame.drop(index=ROWS // 2), queries, plan)
    assert np.abs(shifted).sum(axis=1).max() > 2


def test_the_sum_of_errors_moves_by_two_units_at_most(frame: pd.DataFrame) -> None:
    plan = course()

    def errors(rows: pd.DataFrame) -> int:
        with train(plan, open_lake(rows, plan.domain, ids=True)) as teachers:
            return teachers.error_units()

    before = errors(frame)
    assert 0 < before < TEACHERS * ERROR_UNIT / 2  # the teachers have learnt something
    for victim in (0, 100, 899):
        assert abs(errors(frame.drop(index=victim)) - before) <= 2 * ERROR_UNIT


# --- the same votes everywhere --------------------


def test_votes_do_not_depend_on_partitions_order_workers_or_waves(
    tmp_path: Path, frame: pd.DataFrame, queries: np.ndarray, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted = count(frame, queries)
    for parts in (1, 2, 7):
        assert (count(write(tmp_path / f"in{parts}", frame, parts), queries) == wanted).all()
    shuffled = frame.sample(frac=1, random_state=5)
    lake = write(tmp_path / "shuffled", shuffled, 5)
    assert (count(lake, queries) == wanted).all()
    assert (count(lake, queries, client=client) == wanted).all()
    monkeypatch.setattr(ensemble, "WAVE_BYTES", 8000)
    plan = course()
    assert len(waves(plan, ROWS, 8000)) > 3
    assert (count(lake, queries) == wanted).all()
    assert (count(lake, queries, client=client) == wanted).all()


@pytest.mark.slow
def test_votes_survive_the_death_of_a_worker(tmp_path: Path, frame: pd.DataFrame, queries: np.ndarray) -> None:
    plan = course()
    lake = open_lake(write(tmp_path / "lake", frame, 4), plan.domain, ids=True)
    with connect(ClusterConfig(kind="local", workers=2)) as client, train(plan, lake, client=client) as teachers:
        assert client is not None
        os.kill(next(iter(client.run(os.getpid).values())), signal.SIGKILL)
        assert (teachers.votes(queries).counts == count(frame, queries)).all()


def test_ctrl_c_while_training_leaves_the_cluster_usable(frame: pd.DataFrame, client: Client, tmp_path: Path) -> None:
    plan = course()
    lake = open_lake(write(tmp_path / "lake", frame, 3), plan.domain, ids=True)

    def interrupt(done: int, total: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt), train(plan, lake, client=client, progress=interrupt):
        raise AssertionError
    with train(plan, lake, client=client) as teachers:
        assert teachers.votes(np.zeros((1, plan.domain.width))).counts.sum() == TEACHERS


def test_a_dask_frame_is_a_lake(frame: pd.DataFrame, queries: np.ndarray, client: Client) -> None:
    wanted = count(frame, queries)
    parts = dd.from_pandas(frame, npartitions=3)
    assert (count(parts, queries) == wanted).all()
    assert (count(parts, queries, client=client) == wanted).all()


def test_progress_counts_teachers(frame: pd.DataFrame, tmp_path: Path, client: Client) -> None:
    plan = course()
    lake = open_lake(write(tmp_path / "lake", frame, 3), plan.domain, ids=True)
    here: list[tuple[int, int]] = []
    there: list[tuple[int, int]] = []
    with train(plan, lake, progress=lambda done, total: here.append((done, total))):
        pass
    with train(plan, lake, client=client, progress=lambda done, total: there.append((done, total))):
        pass
    for seen in (here, there):
        assert seen[-1] == (TEACHERS, TEACHERS)
        assert [done for done, _ in seen] == sorted({done for done, _ in seen})


def test_groups_cover_all_shards_once_and_hold_two_at_least() -> None:
    for number in (2, 3, 30, 31, 257, 10_000):
        groups = course(count=number).groups()
        assert [shard for group in groups for shard in group] == list(range(number))
        assert min(len(group) for group in groups) >= 2


# --- failures are votes, not events --------------------


class Fragile:
    """Fails to fit where it sees a large value, and predicts nonsense elsewhere."""

    def fit(self, x: np.ndarray, y: np.ndarray) -> None:
        if x[:, 0].max() > 0.9:
            raise ValueError(f"secret {x[0, 0]}")

    def predict(self, x: np.ndarray) -> np.ndarray:
        return np.array([[0.5], [7.0], [np.nan], [1.0]] * len(x))[: len(x)].ravel()


class FragileFactory:
    def make(self, domain: Domain, seed: int) -> Fragile:
        return Fragile()


def test_failed_and_empty_shards_vote_by_the_public_rule(frame: pd.DataFrame, queries: np.ndarray) -> None:
    domain = make_domain()
    plan = Course(domain, CLASSES, Sharding(8), FragileFactory())
    votes = count(frame, queries, plan)
    assert votes.sum(axis=1).tolist() == [8] * len(queries)
    # Every answer but the fourth of four is nonsense, and teachers that failed say the same: shard number mod 2.
    assert votes[0].tolist() == [4, 4]
    lonely = Course(domain, CLASSES, Sharding(500), LeastSquares())
    with train(lonely, open_lake(frame.head(1), domain, ids=True)) as teachers:
        counts = teachers.votes(queries[:1]).counts[0]
    assert sorted(counts.tolist()) in ([249, 251], [250, 250])


class Talkative:
    """Prints what it sees, by Python and beneath it, and also to a stream that it knows from before."""

    def __init__(self, stream: Any) -> None:
        self.stream = stream

    def fit(self, x: np.ndarray, y: np.ndarray) -> None:
        self.predict(x)

    def predict(self, x: np.ndarray) -> np.ndarray:
        print("secret in a print")
        print("secret in a print to errors", file=sys.stderr)
        os.write(1, b"secret beneath")
        os.write(2, b"secret beneath errors")
        self.stream.write("secret in an old stream")
        return np.zeros(len(x), dtype=np.int64)


class TalkativeFactory:
    def make(self, domain: Domain, seed: int) -> Talkative:
        return Talkative(sys.__stdout__)


def test_what_a_teacher_prints_is_not_seen(
    frame: pd.DataFrame, queries: np.ndarray, capfd: pytest.CaptureFixture[str]
) -> None:
    before = sys.stdout, sys.stderr
    print("before")
    plan = Course(make_domain(), CLASSES, Sharding(8), TalkativeFactory())
    assert count(frame, queries, plan).sum() == 8 * len(queries)
    assert (sys.stdout, sys.stderr) == before
    print("after")
    os.write(2, b"beneath, after")
    seen = capfd.readouterr()
    assert "secret" not in seen.out + seen.err
    assert seen.out == "before\nafter\n"
    assert seen.err == "beneath, after"


def test_threads_are_silent_until_the_last_one_is_done(capfd: pytest.CaptureFixture[str]) -> None:
    silence, inside, go = Silence(), threading.Barrier(2), threading.Event()

    def work() -> None:
        with silence:
            inside.wait(300)
            go.wait(300)
            os.write(1, b"secret")

    thread = threading.Thread(target=work)
    with silence:
        thread.start()
        inside.wait(300)
    os.write(1, b"secret too")  # the other one is still inside
    go.set()
    thread.join(300)
    print("heard")
    assert capfd.readouterr().out == "heard\n"


def test_a_shard_with_one_class_votes_for_it(frame: pd.DataFrame, queries: np.ndarray) -> None:
    only = frame.assign(y="yes")
    plan = course(count=4)
    assert count(only, queries[:3], plan).tolist() == [[0, 4]] * 3


def test_unusable_rows_train_nobody(tmp_path: Path, frame: pd.DataFrame, queries: np.ndarray, client: Client) -> None:
    broken = frame.copy()
    broken.loc[[3, 4], "y"] = "perhaps"
    broken.loc[5, "x1"] = np.inf
    lake = write(tmp_path / "broken", broken, 2)
    expected = count(frame.drop(index=[3, 4, 5]), queries)
    for connected in (None, client):
        assert (count(lake, queries, client=connected) == expected).all()


def test_rows_aside_are_the_same_everywhere(tmp_path: Path, frame: pd.DataFrame, client: Client) -> None:
    plan = course(aside=0.5)
    lake = open_lake(frame, plan.domain, ids=True)
    found = rows_aside(plan, lake, 100)
    here = found.x
    names = [f"x{i}" for i in range(3)]
    assert (here == encode_queries(plan.domain, pa.table(frame[names].iloc[found.position]))).all()
    assert here.shape == (100, plan.domain.width)
    other = open_lake(write(tmp_path / "aside", frame.sample(frac=1, random_state=1), 4), plan.domain, ids=True)
    assert (rows_aside(plan, other, 100, client=client).x == here).all()
    assert len(rows_aside(plan, lake, 10_000).x) == pytest.approx(450, abs=70)


def test_nothing_private_in_reprs(frame: pd.DataFrame, queries: np.ndarray) -> None:
    plan = course()
    with train(plan, open_lake(frame, plan.domain, ids=True)) as teachers:
        assert repr(teachers) == "<Ensemble of 30 teachers, private>"
        assert "private" in repr(teachers._trained[0])


def test_queries_must_fit_the_domain(frame: pd.DataFrame) -> None:
    bad = pa.Table.from_pandas(frame.head(3).assign(x1=[0.1, np.inf, 0.2]), preserve_index=False)
    with pytest.raises(DataError, match="queries: column 'x1': NaN or infinite"):
        encode_queries(make_domain(), bad)
