"""Private multiplicative weights: cost, sensitivity by exhaustion, the noise's law, halting, restart, accuracy."""

from __future__ import annotations

import itertools
import math
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from published_text import numbers_in
from scipy import stats

from daskrado.engines.queries import PrivateQueries, WeightsPlan
from daskrado.errors import UsageError
from daskrado.ledger.journal import Journal
from daskrado.privacy.accountant import PureEvent, compose, exact_epsilon
from daskrado.privacy.relations import Relation
from daskrado.statistics.base import Summary
from daskrado.statistics.bounded import Bounded, unit_weights
from daskrado.statistics.counts import Histogram
from daskrado.statistics.universe import MAX_CELLS, Axis, Universe
from daskrado.table.lattice import Lattice

UNIVERSE = Universe(
    (Axis("a", ("x", "y", "z"), 0), Axis("b", ("false", "true"), 3, signed=True), Axis("label", ("no", "yes"), None))
)


def plan(**changes: Any) -> WeightsPlan:
    facts = {"universe": UNIVERSE, "relation": Relation.REPLACE_ONE, "epsilon": 1.0, "delta": 1e-6, "updates": 5}
    return WeightsPlan(**(facts | changes))


def summary(counts: Any, universe: Universe = UNIVERSE) -> Summary:
    vector = np.asarray(counts, dtype=np.int64)
    return Summary(Histogram(4, universe), Lattice(1.0), vector, int(vector.sum()))


SKEWED = [9000, 10, 20, 500, 3000, 40, 100, 7, 1500, 900, 60, 5]


@pytest.mark.parametrize("delta", [0.0, 1e-6])
@pytest.mark.parametrize("relation", [Relation.REPLACE_ONE, Relation.ADD_REMOVE])
def test_all_that_is_drawn_costs_no_more_than_the_budget_and_uses_it(delta: float, relation: Relation) -> None:
    made = plan(delta=delta, relation=relation, updates=20).calibrated()
    pure = [event for event in made.events if isinstance(event, PureEvent)]
    assert len(pure) == len(made.events) == 40 + (relation is Relation.ADD_REMOVE)
    assert 0.99 < float(compose(made.events, delta).epsilon) <= 1.0
    # what an update draws is what was charged for it
    finder, answer = pure[-40].epsilon, pure[-1].epsilon
    assert 1 / made.finder.threshold_scale + 2 / made.finder.query_scale <= float(finder) * (1 + 1e-12)
    assert 1 / made.answer_scale <= float(answer) * (1 + 1e-12)


@pytest.mark.parametrize("updates", [1, 2, 3, 4, 5, 6])
@pytest.mark.parametrize(("epsilon", "delta"), [(0.5, 1e-6), (1.0, 1e-6), (1.0, 1e-5), (2.0, 1e-6)])
def test_what_the_ledger_is_charged_is_within_the_budget(updates: int, epsilon: float, delta: float) -> None:
    event = plan(updates=updates, epsilon=epsilon, delta=delta).calibrated().event
    assert 0.99 * epsilon < compose([event], delta).epsilon <= exact_epsilon(epsilon)


def test_no_neighbour_moves_a_query_by_more_than_one_row() -> None:
    """Every replacement of one row, every conjunction of one value per column: exhaustive."""
    options = [[None, *axis.values] for axis in UNIVERSE.axes]
    base = np.array(SKEWED).reshape(UNIVERSE.shape)
    worst = 0
    for values in itertools.product(*options):
        cells = UNIVERSE.cells({a.name: v for a, v in zip(UNIVERSE.axes, values, strict=True) if v is not None})
        for before, after in itertools.permutations(range(UNIVERSE.size), 2):
            other = base.copy().ravel()
            other[before] -= 1
            other[after] += 1
            worst = max(worst, abs(int(base[cells].sum()) - int(other.reshape(UNIVERSE.shape)[cells].sum())))
    assert worst == 1


def test_no_unit_moves_a_query_or_the_total_by_more_than_its_bound() -> None:
    """Every unit of one or two rows, and pairs of cells for forty, in or out of every conjunction: exhaustive."""
    options = [[None, *axis.values] for axis in UNIVERSE.axes]
    base = np.array(SKEWED) * 16384 + np.arange(len(SKEWED)) * 1365  # any fractions of rows are there already
    for bound, worst in ((1, 0), (3, 0)):
        for owned, cells in itertools.product((1, 2, 40), itertools.product(range(UNIVERSE.size), repeat=2)):
            weights = unit_weights(np.full(owned, owned), bound)
            mine = np.bincount(np.array([*cells] * owned)[:owned], weights, minlength=UNIVERSE.size).astype(np.int64)
            for values in itertools.product(*options):
                where = {a.name: v for a, v in zip(UNIVERSE.axes, values, strict=True) if v is not None}
                chosen = UNIVERSE.cells(where)
                with_unit, without = ((base + more).reshape(UNIVERSE.shape)[chosen].sum() for more in (mine, 0))
                worst = max(worst, abs((int(with_unit) >> 14) - (int(without) >> 14)))
        assert worst == bound


def test_a_histogram_of_rows_is_no_answer_to_a_plan_of_units() -> None:
    with pytest.raises(ValueError, match="counts rows and the plan units"):
        PrivateQueries(plan(units=True).calibrated(), summary(SKEWED))
    counted = Summary(Bounded(4, Histogram(4, UNIVERSE), 1, 20), Lattice(1.0), np.array(SKEWED) << 14, 10**6)
    with pytest.raises(ValueError, match="counts rows and the plan units"):
        PrivateQueries(plan().calibrated(), counted)
    engine = PrivateQueries(plan(units=True, epsilon=50.0).calibrated(), counted)
    assert engine.rows == pytest.approx(sum(SKEWED), abs=30)  # not the rows that they own


def test_an_updates_answer_has_the_charged_noise_and_no_less() -> None:
    made = plan(updates=1, threshold=1).calibrated()
    truth, draws = 9530, []
    for _ in range(1500):
        with PrivateQueries(made, summary(SKEWED)) as engine:
            answer = engine.ask({"a": "x"})
            if not answer.lazy:
                draws.append(int(answer.count) - truth)
    assert len(draws) > 1400

    def p_value(scale: float) -> float:
        q = math.exp(-1 / scale)
        edges = np.arange(-4, 5) * round(made.answer_scale / 2)
        cdf = [q ** (-k) / (1 + q) if k < 0 else 1 - q ** (k + 1) / (1 + q) for k in edges.tolist()]
        seen = np.bincount(np.searchsorted(edges, draws), minlength=len(edges) + 1)
        return float(stats.chisquare(seen, np.diff([0.0, *cdf, 1.0]) * len(draws), sum_check=False).pvalue)

    assert p_value(made.answer_scale) > 1e-6
    assert p_value(made.answer_scale * 2 / 3) < 1e-9
    assert p_value(made.answer_scale * 3 / 2) < 1e-9


def test_only_updates_count_and_lazy_rounds_are_free() -> None:
    uniform = [1000] * 12
    made = plan(updates=2, queries=500).calibrated()
    with PrivateQueries(made, summary(uniform)) as engine:
        answers = [engine.ask({"a": "x"}) for _ in range(100)]
        assert engine.asked == 100
        assert sum(not a.lazy for a in answers) == engine.updates <= 2
    lazy = [a.count for a in answers if a.lazy]
    assert np.allclose(lazy[:5], 4000, atol=made.answer_std * 5)


def test_it_halts_at_the_last_update_and_says_so() -> None:
    made = plan(updates=2, threshold=1).calibrated()
    with PrivateQueries(made, summary(SKEWED)) as engine:
        for value in itertools.cycle("xyz"):
            if engine.halted:
                break
            engine.ask({"a": value, "b": "true"})
        assert engine.updates == 2
        with pytest.raises(UsageError, match="halted after 2 updates"):
            engine.ask({"a": "x"})
        assert engine.estimate({"a": "x"}).lazy
        assert engine.estimate({}).fraction == pytest.approx(1)


def test_answers_come_close_where_the_histogram_is_learned() -> None:
    """A strong budget: after the one-way counts and the pairs were asked, each cell of the pair is near its truth."""
    made = plan(epsilon=20.0, updates=40, queries=60).calibrated()
    truth = np.array(SKEWED).reshape(UNIVERSE.shape)
    pairs = [{"a": a, "b": b} for a in "xyz" for b in ("false", "true")]
    with PrivateQueries(made, summary(SKEWED)) as engine:
        for query in [{"a": v} for v in "xyz"] + pairs:
            engine.ask(query)
        errors = [abs(engine.estimate(q).count - truth[UNIVERSE.cells(q)].sum()) for q in pairs]
        assert max(errors) < made.accuracy() + 10 * made.answer_std
        assert engine.synthetic.sum() == pytest.approx(truth.sum())
        assert engine.synthetic.shape == UNIVERSE.shape


def test_a_secret_number_of_rows_is_noised_once(tmp_path: Path) -> None:
    made = plan(relation=Relation.ADD_REMOVE).calibrated()
    with Journal.open(tmp_path / "j", {}) as journal, PrivateQueries(made, summary(SKEWED), journal) as engine:
        first = engine.rows
    with Journal.open(tmp_path / "j", {}) as journal, PrivateQueries(made, summary(SKEWED), journal) as engine:
        assert engine.rows == first
    others = {PrivateQueries(made, summary(SKEWED)).rows for _ in range(20)}
    assert len(others) > 5


def test_a_restart_goes_on_from_the_same_public_histogram(tmp_path: Path) -> None:
    made = plan(updates=4, threshold=1).calibrated()
    with Journal.open(tmp_path / "j", {}) as journal, PrivateQueries(made, summary(SKEWED), journal) as engine:
        while engine.updates < 2:
            engine.ask({"a": "x", "label": ["no"]})
            engine.ask({"b": "true"})
        before, used = engine.synthetic, engine._engine.used
    with Journal.open(tmp_path / "j", {}) as journal, PrivateQueries(made, summary(SKEWED), journal) as engine:
        assert np.array_equal(engine.synthetic, before)
        assert engine._engine.used == used
    assert "9530" not in numbers_in((tmp_path / "j" / "answers.jsonl").read_text())


def test_it_shows_and_writes_nothing_private() -> None:
    engine = PrivateQueries(plan().calibrated(), summary(SKEWED))
    assert "9000" not in repr(engine)
    with pytest.raises(TypeError, match="never written"):
        pickle.dumps(engine)
    engine.close()
    with pytest.raises(UsageError, match="closed"):
        engine.ask({})


def test_bad_input_is_named() -> None:
    with pytest.raises(UsageError, match=r"b = 'maybe' is outside the universe; allowed: false, true"):
        UNIVERSE.cells({"b": "maybe"})
    with pytest.raises(UsageError, match="'c' is outside the universe; it has a, b, label"):
        UNIVERSE.cells({"c": 1})
    with pytest.raises(UsageError, match="lists no value"):
        UNIVERSE.cells({"a": []})
    with pytest.raises(UsageError, match="nothing in this universe is protected"):
        plan(universe=Universe(UNIVERSE.axes[:2]), relation=Relation.LABEL_FLIP)
    for changes in ({"updates": 0}, {"epsilon": 0}, {"threshold": 0}, {"rows_per_unit": 0}, {"delta": 1}):
        with pytest.raises(UsageError):
            plan(**changes)
    assert MAX_CELLS >= 10**6
