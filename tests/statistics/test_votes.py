"""The distance to instability: sensitivity 1 and 0 at both sides of a flip, over all votes; the paper's has 2."""

import pickle

import numpy as np
import pytest

from daskrado.audit.votes import neighbouring_votes
from daskrado.errors import UsageError
from daskrado.statistics.votes import Votes, distance, leaders, margins, published_distance


@pytest.mark.parametrize(
    ("teachers", "classes", "changed"),
    [*((k, 2, 1) for k in range(1, 40)), *((k, 2, 2) for k in (7, 12)), (9, 2, 3), (7, 3, 1), (6, 3, 2), (5, 4, 1)],
)
def test_distance_moves_by_one_and_is_zero_where_labels_flip(teachers: int, classes: int, changed: int) -> None:
    for one, two in neighbouring_votes(teachers, classes, changed):
        a, b = int(distance(one, changed)[0]), int(distance(two, changed)[0])
        assert abs(a - b) <= 1
        if leaders(one)[0] != leaders(two)[0]:
            assert a == b == 0


@pytest.mark.parametrize("teachers", [6, 7, 20])
def test_distance_is_the_number_of_defections_that_change_nothing(teachers: int) -> None:
    # By brute force: j teachers defect to the runner-up; ties may go either way.
    for first in range(teachers + 1):
        counts = np.array([[first, teachers - first]], dtype=np.int64)
        lead, rest = max(counts[0]), min(counts[0])
        harmless = sum(1 for j in range(1, teachers + 1) if lead - j > rest + j)
        assert distance(counts)[0] == harmless


def test_the_published_distance_has_sensitivity_two_and_flips_at_one() -> None:
    moves = {abs(int(published_distance(a)[0] - published_distance(b)[0])) for a, b in neighbouring_votes(10)}
    assert max(moves) == 2
    flips = {
        (int(published_distance(a)[0]), int(published_distance(b)[0]))
        for a, b in neighbouring_votes(10)
        if leaders(a)[0] != leaders(b)[0]
    }
    assert (1, 0) in flips or (0, 1) in flips


def test_ties_go_to_the_class_declared_first() -> None:
    counts = np.array([[3, 3], [2, 4], [1, 5]], dtype=np.int64)
    assert leaders(counts).tolist() == [0, 1, 1]
    assert margins(counts).tolist() == [0, 2, 4]


def test_votes_show_no_number_and_refuse_to_be_written() -> None:
    votes = Votes(np.array([[41, 59]], dtype=np.int64))
    assert "41" not in repr(votes)
    assert "59" not in repr(votes)
    with pytest.raises(TypeError, match="never written"):
        pickle.dumps(votes)
    with pytest.raises(UsageError, match="int64"):
        Votes(np.array([[1.0, 2.0]]))  # type: ignore[arg-type]
