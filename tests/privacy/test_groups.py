"""Group factors against exact mechanisms on enumerated lakes."""

from __future__ import annotations

import itertools
import math
from fractions import Fraction

import pytest

from daskrado.errors import UsageError
from daskrado.privacy.accountant import ApproximateEvent, Event, GaussianEvent, PureEvent, ZcdpEvent
from daskrado.privacy.groups import ProtectedUnit, charged_as, steps
from daskrado.privacy.relations import Relation

Row = tuple[str, int, int]  # owner, feature, label

ROWS = [(owner, feature, label) for owner in "ab" for feature in (0, 1) for label in (0, 1)]


def lakes(most: int) -> list[tuple[Row, ...]]:
    """All multisets of at most so many rows."""
    return [lake for size in range(most + 1) for lake in itertools.combinations_with_replacement(ROWS, size)]


def without(lake: tuple[Row, ...], row: Row) -> tuple[Row, ...]:
    left = list(lake)
    left.remove(row)
    return tuple(left)


def normal(rows: list[Row] | tuple[Row, ...]) -> tuple[Row, ...]:
    return tuple(sorted(rows))


def neighbours(lake: tuple[Row, ...], whose: ProtectedUnit, most: int) -> set[tuple[Row, ...]]:
    """Every lake within one change of one row, or of one unit's rows."""
    found: set[tuple[Row, ...]] = set()
    if whose.column is None:
        removed = {normal(without(lake, row)) for row in lake}
        added = {normal([*lake, row]) for row in ROWS} if len(lake) < most else set()
        changed = {normal([*without(lake, row), new]) for row in lake for new in ROWS if new[0] == row[0]}
        flipped = {normal([*without(lake, row), (row[0], row[1], 1 - row[2])]) for row in lake}
        feature = {normal([*without(lake, row), (row[0], 1 - row[1], row[2])]) for row in lake}
        return {
            Relation.ADD_REMOVE: removed | added,
            Relation.REPLACE_ONE: changed,
            Relation.LABEL_FLIP: flipped,
            Relation.FEATURE_FLIP: feature,
        }[whose.relation]
    for unit in "ab":
        own, others = [row for row in lake if row[0] == unit], [row for row in lake if row[0] != unit]
        sets = [rows for rows in lakes(most - len(others)) if all(row[0] == unit for row in rows)]
        match whose.relation:
            case Relation.ADD_REMOVE:
                found |= {normal(others)} if own else {normal([*others, *rows]) for rows in sets}
            case Relation.REPLACE_ONE:
                found |= {normal([*others, *rows]) for rows in sets if own and rows}
            case _:
                at = 2 if whose.relation is Relation.LABEL_FLIP else 1
                for flips in itertools.product((0, 1), repeat=len(own)):
                    new = [
                        tuple(v ^ flip if i == at else v for i, v in enumerate(row))
                        for row, flip in zip(own, flips, strict=True)
                    ]
                    found.add(normal([*others, *new]))  # type: ignore[list-item]
    return found


def distances(start: tuple[Row, ...], whose: ProtectedUnit, most: int) -> dict[tuple[Row, ...], int]:
    """How many changes lead to each lake that can be reached, by breadth-first search."""
    known, border, step = {start: 0}, {start}, 0
    while border:
        step += 1
        border = {lake for old in border for lake in neighbours(old, whose, most)} - known.keys()
        known |= dict.fromkeys(border, step)
    return known


def kinds(column: str | None) -> list[ProtectedUnit]:
    owns = {"column": column, "owns": 2} if column else {}
    return [
        ProtectedUnit(relation, "x", feature="f" if relation is Relation.FEATURE_FLIP else None, **owns)  # type: ignore[arg-type]
        for relation in Relation
    ]


ALL = [*kinds(None), *kinds("owner")]


@pytest.mark.slow
@pytest.mark.parametrize("entry", ALL, ids=str)
def test_steps_are_the_diameter_of_the_graph_of_small_lakes(entry: ProtectedUnit) -> None:
    """Over all lakes of two rows: what ``steps`` says is enough, and is needed for some pair."""
    most = 2
    small = lakes(most)
    reach = {lake: distances(normal(lake), entry, most + 1) for lake in map(normal, small)}
    for limit in ALL:
        pairs = [(lake, other) for lake in reach for other in neighbours(lake, limit, most) if other != lake]
        far = [reach[lake].get(other) for lake, other in pairs]
        claimed = steps(entry, limit)
        worst = None if None in far else max(number for number in far if number is not None)
        if claimed is None:
            assert worst is None, (limit, "is implied")
        else:
            assert worst is not None, (limit, "is not implied")
            assert worst <= claimed
            exact = not (entry.column and limit.column is None and limit.relation is Relation.ADD_REMOVE)
            assert not exact or worst == claimed, (limit, worst, claimed)


@pytest.mark.parametrize("rows", [1, 2, 3, 7])
@pytest.mark.parametrize("declared", [1, 2, 3])
def test_declared_rows_go_in_groups(rows: int, declared: int) -> None:
    entry, limit = ProtectedUnit("label_flip", rows=declared), ProtectedUnit("label_flip", rows=rows)
    assert steps(entry, limit) == math.ceil(rows / declared)
    assert steps(ProtectedUnit("add_remove", rows=declared), ProtectedUnit("replace_one", rows=rows)) == math.ceil(
        2 * rows / declared
    )


def test_a_bound_on_contributions_is_no_bound_on_rows_owned() -> None:
    person = ProtectedUnit("add_remove", "patient", column="patient", bound=1)
    assert steps(ProtectedUnit("add_remove"), person) is None
    assert steps(person, person) == 1
    assert steps(person, ProtectedUnit("add_remove", "ward", column="ward")) is None
    assert steps(ProtectedUnit("feature_flip", feature="a"), ProtectedUnit("feature_flip", feature="b")) is None


def flips(epsilon: float, rows: int) -> float:
    """The largest log ratio of k randomised responses to k rows that all change: every outcome enumerated."""
    keep = math.exp(epsilon) / (1 + math.exp(epsilon))
    worst = 0.0
    for answers in itertools.product((0, 1), repeat=rows):
        one = math.prod(keep if answer else 1 - keep for answer in answers)
        other = math.prod(1 - keep if answer else keep for answer in answers)
        worst = max(worst, math.log(one / other))
    return worst


@pytest.mark.parametrize("rows", [1, 2, 3, 5])
def test_pure_groups_are_reached_by_randomised_response(rows: int) -> None:
    grown = charged_as(PureEvent(0.3), ProtectedUnit("label_flip"), ProtectedUnit("label_flip", rows=rows))
    assert isinstance(grown, PureEvent)
    assert float(grown.epsilon) == pytest.approx(flips(0.3, rows), rel=1e-12)


@pytest.mark.parametrize("times", [2, 3, 6])
def test_deltas_of_groups_are_reached_by_a_chain_of_lakes(times: int) -> None:
    """P_0 .. P_t on one event S with P_(i+1)(S) = e^eps P_i(S) + delta, exactly (epsilon, delta) step by step."""
    epsilon, delta = 0.2, 1e-3
    chance = [0.01]
    for _ in range(times):
        chance.append(math.exp(epsilon) * chance[-1] + delta)
    grown = charged_as(
        ApproximateEvent(epsilon, delta), ProtectedUnit("label_flip"), ProtectedUnit("label_flip", rows=times)
    )
    assert isinstance(grown, ApproximateEvent)
    needed = chance[-1] - math.exp(epsilon * times) * chance[0]
    assert float(grown.delta) == pytest.approx(needed, rel=1e-9)
    assert grown.delta >= Fraction(needed) * (1 - Fraction(1, 10**12))


@pytest.mark.parametrize(
    ("event", "twice"), [(GaussianEvent(0.25), GaussianEvent(0.5)), (ZcdpEvent(0.25), ZcdpEvent(1))]
)
def test_gaussian_noise_by_its_shift(event: Event, twice: Event) -> None:
    """Twice the shift of one normal draw is twice mu and four times rho."""
    grown = charged_as(event, ProtectedUnit("add_remove"), ProtectedUnit("replace_one"))
    assert type(grown) is type(twice)
    for found, exact in zip(vars_of(grown), vars_of(twice), strict=True):
        assert exact <= found <= exact * (1 + 1e-12)


def vars_of(event: Event | None) -> list[float]:
    assert isinstance(event, GaussianEvent | ZcdpEvent)
    return [event.mu if isinstance(event, GaussianEvent) else event.rho]


@pytest.mark.parametrize("event", [PureEvent(30), ApproximateEvent(12, 1e-6), GaussianEvent(30), ZcdpEvent(1000)])
def test_what_protects_nobody_is_not_charged(event: Event) -> None:
    assert charged_as(event, ProtectedUnit("add_remove"), ProtectedUnit("replace_one")) is None


@pytest.mark.parametrize(
    "fields",
    [{"rows": 0}, {"bound": 2}, {"owns": 3}, {"column": "p", "bound": 0}, {"feature": "x"}],
)
def test_nonsense_is_refused(fields: dict[str, object]) -> None:
    with pytest.raises(UsageError):
        ProtectedUnit("add_remove", **fields)  # type: ignore[arg-type]


def test_json_and_words() -> None:
    for whose in ALL:
        assert ProtectedUnit(**whose.to_json()) == whose
    assert str(ProtectedUnit("label_flip", "one row", rows=3)) == "label_flip for one row, 3 rows"
    assert str(ProtectedUnit("add_remove", "patient", column="pid")) == "add_remove for patient (all rows of one pid)"
