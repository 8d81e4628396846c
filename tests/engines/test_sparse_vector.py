"""The sparse-vector engine against its exact law, its tails by convolution, and crashes of real processes."""

import itertools
import math
import pickle
import signal
import subprocess
import sys
from collections import Counter
from fractions import Fraction

import mpmath
import numpy as np
import pytest
from published_text import numbers_in
from scipy import stats

from daskrado.engines.sparse_vector import Engine, SparseVector
from daskrado.errors import LedgerError, UsageError
from daskrado.ledger.journal import Journal
from daskrado.privacy.accountant import PureEvent, compose


def steps(*values: int) -> np.ndarray:
    return np.array(values, dtype=np.int64)


def exact_law(
    plan: SparseVector, values, threshold: int, rare: str, reach: int = 200
) -> dict[tuple[bool, ...], float]:
    """P(answers) of one instance on these values, summed over the threshold's noise."""
    p_t, p_q = math.exp(-1 / plan.threshold_scale), math.exp(-1 / plan.query_scale)

    def above(gap: int) -> float:  # P(query noise > gap)
        return p_q ** (gap + 1) / (1 + p_q) if gap >= 0 else 1 - p_q ** (-gap) / (1 + p_q)

    law: Counter[tuple[bool, ...]] = Counter()
    for shift in range(-reach, reach + 1):
        weight = (1 - p_t) / (1 + p_t) * p_t ** abs(shift)
        prefix = 1.0
        common = rare == "below"
        for i, value in enumerate(values):
            up = above(threshold + shift - value)
            rare_chance = up if rare == "above" else 1 - up
            law[(common,) * i + (not common,)] += weight * prefix * rare_chance
            prefix *= 1 - rare_chance
        law[(common,) * len(values)] += weight * prefix
    return dict(law)


@pytest.mark.parametrize("rare", ["above", "below"])
@pytest.mark.parametrize("sensitivity", [1, 2])
def test_no_neighbour_changes_any_answer_by_more_than_epsilon(rare, sensitivity):
    """All neighbours of several value vectors, every sequence of answers, by the exact law."""
    plan = SparseVector(Fraction(1), 1, sensitivity)
    worst = 0.0
    for values in ([0, 0, 0], [3, -2, 1]):
        base = exact_law(plan, values, 1, rare)
        moves = range(-sensitivity, sensitivity + 1)
        for move in itertools.product(moves, repeat=3):
            other = exact_law(plan, [v + m for v, m in zip(values, move, strict=True)], 1, rare)
            worst = max(worst, *(abs(math.log(base[k] / other[k])) for k in base))
    assert 0.5 < worst <= 1.0


@pytest.mark.parametrize(("factor", "cost"), [("1", 1.0), ("1.65", 1.65)])
def test_the_bound_is_attained_so_noise_for_one_crossing_would_break_it(factor, cost):
    """Common values pull one way, the rare one the other. Query noise s / epsilon_q (not 2 s) is the plan of 1.65."""
    plan = SparseVector(Fraction(factor), 1)
    answers = (False,) * 10 + (True,)
    base = exact_law(plan, [0] * 10 + [1], 0, "above")[answers]
    other = exact_law(plan, [1] * 10 + [0], 0, "above")[answers]
    assert 0.998 * cost < math.log(base / other) <= cost


def sequences(plan, values, threshold, rare, runs) -> Counter:
    seen: Counter[tuple[bool, ...]] = Counter()
    for _ in range(runs):
        seen[tuple(Engine(plan, threshold, rare).ask(steps(*values)).tolist())] += 1
    return seen


@pytest.mark.parametrize("rare", ["above", "below"])
def test_the_engine_follows_the_exact_law_and_no_other_scale(rare):
    values, runs = [2, 0, 3], 2000
    plan = SparseVector(Fraction(1), 1)
    seen = sequences(plan, values, 1, rare, runs)

    def p_value(factor: float) -> float:
        law = exact_law(SparseVector(Fraction(factor), 1), values, 1, rare)
        keys = sorted(law)
        observed = [seen[k] for k in keys]
        assert sum(observed) == runs
        return float(stats.chisquare(observed, [law[k] * runs for k in keys], sum_check=False).pvalue)

    assert p_value(1.0) > 1e-6
    assert p_value(4.0) < 1e-9
    assert p_value(0.25) < 1e-9


def test_each_instance_draws_a_fresh_threshold():
    """Two events in a row: with one shared threshold the second would be near certain after a first above it."""
    plan = SparseVector(Fraction(1), 2, share=Fraction(1, 50))  # the threshold carries nearly all the noise
    runs, both = 1500, 0
    for _ in range(runs):
        both += bool(Engine(plan, 40, "above").ask(steps(0, 0)).all())
    single = exact_law(plan, [0], 40, "above")[(True,)]
    assert both / runs < single**2 + 6 * math.sqrt(single**2 / runs)
    assert single > 1.7 * single**2  # a shared threshold would give nearly ``single``


def test_it_stops_at_the_last_rare_answer_not_after_it():
    plan = SparseVector(Fraction(50), 3)
    engine = Engine(plan, 1000, "above")
    answers = engine.ask(steps(0, 10**6, 0, 10**6, 0, 10**6, 0, 10**6))
    assert answers.tolist() == [False, True, False, True, False, True]
    assert engine.halted
    assert engine.used == 3
    with pytest.raises(UsageError, match="halted"):
        engine.ask(steps(0))


def test_common_answers_are_free():
    engine = Engine(SparseVector(Fraction(1), 1), 10**6, "above")
    assert not engine.ask(np.zeros(5000, dtype=np.int64)).any()
    assert engine.used == 1
    assert not engine.halted
    below = Engine(SparseVector(Fraction(1), 1), -(10**6), "below")
    assert below.ask(np.zeros(500, dtype=np.int64)).all()
    assert below.used == 1


# Cost and tails


@pytest.mark.parametrize("share", ["0.35", "1/3", "0.333333", "0.7"])
@pytest.mark.parametrize("epsilon", ["1", "0.2"])
def test_crossing_is_the_convolution_of_the_two_noises(share, epsilon):
    plan = SparseVector(Fraction(epsilon), 1, share=Fraction(share))
    reach = 700
    k = np.arange(-reach, reach + 1)
    laws = []
    for scale in (plan.query_scale, plan.threshold_scale):
        q = math.exp(-1 / scale)
        laws.append((1 - q) / (1 + q) * q ** np.abs(k))
    total = np.convolve(*laws)
    for margin in (-20, -1, 0, 1, 7, 40, 150):
        expected = total[2 * reach + margin + 1 :].sum()
        assert plan.crossing(margin) == pytest.approx(expected, rel=1e-5, abs=1e-15)


def test_crossing_at_large_scales_is_the_continuous_formula():
    plan = SparseVector(Fraction(1, 1000), 1)
    b_q, b_t, w = mpmath.mpf(2000) / 0.65, mpmath.mpf(1000) / 0.35, mpmath.mpf(40_000)
    expected = (b_q**2 * mpmath.exp(-w / b_q) - b_t**2 * mpmath.exp(-w / b_t)) / (2 * (b_q**2 - b_t**2))
    assert plan.crossing(40_000) == pytest.approx(float(expected), rel=1e-2)


def test_least_margin_is_least():
    plan = SparseVector(Fraction("0.3"), 10)
    for probability in (0.4, 1e-3, 1e-9):
        margin = plan.least_margin(probability)
        assert plan.crossing(margin) <= probability < plan.crossing(margin - 1)


def test_the_budget_is_met_by_optimal_composition_and_tight():
    plan = SparseVector.for_budget(1, "5e-7", 50)
    instances = [PureEvent(plan.epsilon)] * plan.instances
    total = compose(instances, "5e-7")
    assert total.method == "optimal"
    assert 0.999 < total.epsilon <= 1
    assert plan.epsilon > Fraction(1, 50)
    pure = SparseVector.for_budget(1, 0, 50)
    assert pure.epsilon == pytest.approx(Fraction(1, 50), rel=1e-5)
    assert compose([PureEvent(pure.epsilon)] * pure.instances, 0).epsilon <= 1


def test_margins_of_the_privacy_brief():
    """1,000 questions, 50 refusals, (1, 1e-6), correct with probability 0.99: a vote margin of about 5,059."""
    plan = SparseVector.for_budget(1, "5e-7", 50)
    threshold = plan.least_margin(5e-7 / 1000)
    distance = threshold + plan.least_margin(0.01)  # P(a value this far above counts as below) <= 1 %
    assert 2 * (distance + 1) == pytest.approx(5059, rel=0.02)


# The journal


def test_answers_and_payments_survive_a_restart(tmp_path):
    path, plan = tmp_path / "kept", SparseVector(Fraction(50), 3)
    with Journal.open(path, {}) as journal, Engine(plan, 1000, "above", journal) as engine:
        first = engine.ask(steps(0, 0, 10**6, 0))
        assert engine.used == 2
    with Journal.open(path, {}) as journal, Engine(plan, 1000, "above", journal) as engine:
        assert engine.answered.tolist() == first.tolist()
        assert engine.used == 2  # the interrupted instance stays paid
        assert engine.ask(steps(10**6)).tolist() == [True]
        assert engine.halted
    with Journal.open(path, {}) as journal, Engine(plan, 1000, "above", journal) as engine:
        assert engine.halted
        with pytest.raises(UsageError, match="halted"):
            engine.ask(steps(0))


def test_the_journal_holds_nothing_secret(tmp_path):
    path = tmp_path / "kept" / "answers.jsonl"
    plan = SparseVector(Fraction(1, 10**9), 3)
    with Journal.open(path.parent, {}) as journal, Engine(plan, 1000, "above", journal) as engine:
        engine.ask(steps(123_456, -(10**13)))  # the second is never rare, so that its threshold stays
        secret = str(abs(engine._noisy_threshold))
        assert len(secret) > 6  # noise of some 10^9 steps: no public number is like it
        assert secret not in repr(engine)
        with pytest.raises(TypeError, match="secret"):
            pickle.dumps(engine)
    text = path.read_text()
    assert not {"123456", secret} & numbers_in(text)
    assert path.stat().st_mode & 0o077 == path.parent.stat().st_mode & 0o077 == 0


def test_a_killed_process_has_paid_and_its_torn_line_is_dropped(tmp_path):
    path = tmp_path / "kept" / "answers.jsonl"
    script = f"""
import os, pathlib, signal, numpy as np
from fractions import Fraction
from daskrado.engines import sparse_vector as sv
from daskrado.ledger.journal import Journal
journal = Journal.open(pathlib.Path({str(path.parent)!r}), {{}})
engine = sv.Engine(sv.SparseVector(Fraction(50), 5), 1000, "above", journal)
engine.ask(np.array([0, 10**6], dtype=np.int64))
append = engine._lines.append
def dying(line):  # dies with answers in hand
    append(line) if "open" in line else os.kill(os.getpid(), signal.SIGKILL)
engine._lines.append = dying
engine.ask(np.array([10**6, 10**6], dtype=np.int64))
"""
    done = subprocess.run([sys.executable, "-c", script], check=False, timeout=600)
    assert done.returncode == -signal.SIGKILL
    with path.open("a") as file:
        file.write('{"above": "01')
    plan = SparseVector(Fraction(50), 5)
    with Journal.open(path.parent, {}) as journal, Engine(plan, 1000, "above", journal) as engine:
        assert engine.answered.tolist() == [False, True]
        assert engine.used == 3  # one answered event, two that nobody saw
        engine.ask(steps(0))
        assert engine.used == 4


def test_two_processes_cannot_answer_from_one_journal(tmp_path):
    path, plan = tmp_path / "a", SparseVector(Fraction(1), 1)
    with Journal.open(path, {}), pytest.raises(LedgerError, match="another process"):
        Journal.open(path, {})
    with Journal.open(path, {}) as journal:
        engine = Engine(plan, 0, "above", journal)
    with pytest.raises(UsageError, match="closed"):
        engine.ask(steps(0))
    with pytest.raises(UsageError, match="closed"):
        Engine(plan, 0, "above", journal)


def test_a_journal_of_other_settings_or_a_damaged_one_is_refused(tmp_path):
    path, plan = tmp_path / "a" / "answers.jsonl", SparseVector(Fraction(1), 2)
    with Journal.open(path.parent, {}) as journal:
        Engine(plan, 0, "above", journal).close()
        with pytest.raises(UsageError, match="epsilon, instances differ"):
            Engine(SparseVector(Fraction(2), 3), 0, "above", journal)
        for text in ("hello\n", '{"schema": "other/1", "settings": {}}\n', path.read_text() + '{"open": 7}\n'):
            path.write_text(text)
            with pytest.raises(LedgerError, match="damaged"):
                Engine(plan, 0, "above", journal)
        with pytest.raises(UsageError, match="cannot be opened"):
            Engine(plan, 0, "above", journal, name="no/folder")


@pytest.mark.parametrize(
    "arguments",
    [
        {"epsilon": Fraction(0), "instances": 1},
        {"epsilon": Fraction(1), "instances": 0},
        {"epsilon": Fraction(1), "instances": 1, "sensitivity": 0},
        {"epsilon": Fraction(1), "instances": 1, "sensitivity": 0.5},
        {"epsilon": Fraction(1), "instances": 1, "share": Fraction(1)},
    ],
)
def test_bad_facts_are_refused(arguments):
    with pytest.raises(UsageError):
        SparseVector(**arguments)


def test_bad_questions_are_refused():
    plan = SparseVector(Fraction(1), 1)
    with pytest.raises(UsageError, match="int64"):
        Engine(plan, 0, "above").ask(np.zeros(3))
    with pytest.raises(UsageError, match="'above' or 'below'"):
        Engine(plan, 0, "sideways")
    with pytest.raises(UsageError, match="between 0 and 1/2"):
        plan.least_margin(0.5)
