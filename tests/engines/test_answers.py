"""The three answer mechanisms: exact laws over all votes, whole conversations enumerated, published figures met."""

import itertools
import math
from collections.abc import Sequence
from fractions import Fraction
from functools import cache
from statistics import NormalDist

import numpy as np
import pytest

from daskrado.audit.votes import neighbouring_votes
from daskrado.engines.answers import REFUSED, Answering, GaussianVotes, SparseVotes, Stability, Terms, answering
from daskrado.errors import UsageError
from daskrado.privacy.accountant import gaussian_sigma
from daskrado.privacy.vote_laws import gaussian_above, laplace_above, least
from daskrado.statistics.votes import distance, leaders


@cache
def laplace_mass(scale: float, reach: int) -> dict[int, float]:
    """The discrete Laplace law summed directly: no closed form of the code under test."""
    weights = {k: math.exp(-abs(k) / scale) for k in range(-reach, reach + 1)}
    total = math.fsum(weights.values())
    return {k: w / total for k, w in weights.items()}


def stick(one: dict[object, float], two: dict[object, float], epsilon: float) -> float:
    return math.fsum(max(0.0, p - math.exp(epsilon) * two.get(o, 0.0)) for o, p in one.items())


# --- tails ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("scale", [0.3, 1.0, 4.7])
def test_laplace_tail_is_the_sum_of_the_law(scale: float) -> None:
    law = laplace_mass(scale, 400)
    for w in range(-12, 13):
        assert laplace_above(scale, w) == pytest.approx(math.fsum(p for k, p in law.items() if k > w), rel=1e-10)


@pytest.mark.parametrize("scale", [0.7, 4.0, 6.0, 40.0])
def test_gaussian_tail_is_the_sum_of_the_law(scale: float) -> None:
    reach = int(12 * scale) + 30
    weights = {k: math.exp(-0.5 * (k / scale) ** 2) for k in range(-reach, reach + 1)}
    total = math.fsum(weights.values())
    for w in range(-15, 16):
        direct = math.fsum(p for k, p in weights.items() if k > w) / total
        assert gaussian_above(scale, w) == pytest.approx(direct, abs=0.011 / scale**2 * (scale >= 5) + 1e-14)


def test_least_finds_the_first_good_integer() -> None:
    assert [least(lambda n, a=a: n >= a) for a in (0, 1, 2, 37, 64)] == [0, 1, 2, 37, 64]
    assert least(lambda n: False, 100) is None


# --- stability -----------------------------------------------------------------------------------------------------


def stability_law(mechanism: Stability, counts: np.ndarray) -> dict[object, float]:
    apart = int(distance(counts, mechanism.terms.changed)[0])
    heard = math.fsum(p for k, p in laplace_mass(mechanism.scale, 300).items() if apart + k > mechanism.threshold)
    return {int(leaders(counts)[0]): heard, REFUSED: 1 - heard}


@pytest.mark.parametrize(("classes", "changed", "teachers"), [(2, 1, 9), (2, 1, 10), (2, 2, 9), (3, 1, 6)])
@pytest.mark.parametrize(("epsilon", "delta"), [(1.0, 0.01), (0.3, 1e-4)])
def test_one_stable_answer_costs_what_it_says(
    epsilon: float, delta: float, classes: int, changed: int, teachers: int
) -> None:
    mechanism = Stability(Terms(epsilon, delta, 1, changed=changed))
    assert float(mechanism.epsilon_0) <= epsilon
    worst = max(
        stick(stability_law(mechanism, a), stability_law(mechanism, b), epsilon)
        for a, b in neighbouring_votes(teachers, classes, changed)
    )
    assert worst <= delta
    assert worst > 0  # some pair flips: a law that never answers would pass the line above


def test_many_stable_answers_compose_to_the_budget() -> None:
    # Three answers, every assignment of neighbouring pairs of a small set, the product law enumerated.
    terms = Terms(2.0, 0.05, 3)
    mechanism = Stability(terms)
    pairs = list(neighbouring_votes(5))
    laws = [(stability_law(mechanism, a), stability_law(mechanism, b)) for a, b in pairs]
    worst = 0.0
    for chosen in itertools.combinations_with_replacement(laws, 3):
        one = product([c[0] for c in chosen])
        two = product([c[1] for c in chosen])
        worst = max(worst, stick(one, two, terms.epsilon))
    assert 0 < worst <= terms.delta


def product(laws: Sequence[dict[object, float]]) -> dict[object, float]:
    return {
        tuple(o for o, _ in outcome): math.prod(p for _, p in outcome)
        for outcome in itertools.product(*[law.items() for law in laws])
    }


# --- sparse vector: whole conversations ----------------------------------------------------------------------------


def conversation(
    mechanism: SparseVotes, distances: Sequence[int], labels: Sequence[int]
) -> dict[tuple[int | None, ...], float]:
    """The exact law of all answers of one conversation: sum over thresholds, product over queries."""
    plan, reach = mechanism.plan, 120
    threshold_law = laplace_mass(plan.threshold_scale, reach)
    query_law = laplace_mass(plan.query_scale, 3 * reach)
    values = np.array(sorted(query_law))
    tails = np.concatenate([np.cumsum([query_law[k] for k in values][::-1])[::-1], [0.0]])

    def above(w: int) -> float:  # P(query noise > w)
        return float(tails[min(max(w + 1 - values[0], 0), len(tails) - 1)])

    # state: (answers so far, instances used) -> {noisy threshold: mass}; a threshold None is drawn at the next query
    states: dict[tuple[tuple[int | None, ...], int], dict[int | None, float]] = {((), 0): {None: 1.0}}
    for d, label in zip(distances, labels, strict=True):
        following: dict[tuple[tuple[int | None, ...], int], dict[int | None, float]] = {}
        for (said, used), masses in states.items():
            if None in masses:
                if used == plan.instances:  # halted
                    into = following.setdefault((said, used), {})
                    into[None] = into.get(None, 0.0) + masses[None]
                    continue
                used += 1
                masses = {mechanism.threshold + k: masses[None] * p for k, p in threshold_law.items()}
            for t, mass in masses.items():
                heard = above(t - d)
                kept = following.setdefault(((*said, label), used), {})
                kept[t] = kept.get(t, 0.0) + mass * heard
                ended = following.setdefault(((*said, None), used), {})
                ended[None] = ended.get(None, 0.0) + mass * (1 - heard)
        states = following
    law: dict[tuple[int | None, ...], float] = {}
    for (said, _), masses in states.items():
        law[said] = law.get(said, 0.0) + math.fsum(masses.values())
    return law


# Per query: distances on the two sides, and labels (equal, or flipped at 0 and 0).
STEPS = [((0, 0), (0, 1)), ((0, 1), (1, 1)), ((3, 2), (1, 1)), ((8, 9), (1, 1))]


@pytest.mark.parametrize("terms", [Terms(1.5, 0.05, 4, 1), Terms(3.0, 0.05, 4, 2), Terms(1.0, 0.02, 4, 2)])
def test_every_short_conversation_costs_at_most_the_budget(terms: Terms) -> None:
    mechanism = SparseVotes(terms)
    worst = 0.0
    for steps in itertools.product(STEPS, repeat=3):
        one = conversation(mechanism, [d[0] for d, _ in steps], [y[0] for _, y in steps])
        two = conversation(mechanism, [d[1] for d, _ in steps], [y[1] for _, y in steps])
        assert math.fsum(one.values()) == pytest.approx(1, abs=1e-9)
        worst = max(worst, stick(one, two, terms.epsilon), stick(two, one, terms.epsilon))
    assert 0 < worst <= terms.delta


@pytest.mark.parametrize("probe", [None, 4, 9, 14])
def test_slips_are_bounded_by_refusals_not_by_queries(probe: int | None) -> None:
    """Who probes the threshold before every unstable query slips with probability at most T times the tail.

    The slip itself is computed, by the law of conversations, for far more queries than refusals.
    """
    terms = Terms(2.0, 0.05, 40, 2)
    mechanism = SparseVotes(terms)
    plan = mechanism.plan
    reach = 200
    thresholds = laplace_mass(plan.threshold_scale, reach)
    noise = laplace_mass(plan.query_scale, 3 * reach)
    keys = sorted(noise)
    tail = np.concatenate([np.cumsum([noise[k] for k in keys][::-1])[::-1], [0.0]])

    def above(w: int) -> float:
        return float(tail[min(max(w + 1 - keys[0], 0), len(tail) - 1)])

    slip = 0.0
    # mass over (instances used, noisy threshold), where no slip has happened yet
    fresh = {0: 1.0}
    live: dict[tuple[int, int], float] = {}
    for number in range(terms.queries):
        d = 0 if probe is None or number % 2 else probe
        for used, mass in fresh.items():
            if used < plan.instances:
                for k, p in thresholds.items():
                    key = (used + 1, mechanism.threshold + k)
                    live[key] = live.get(key, 0.0) + mass * p
        fresh = {used: mass for used, mass in fresh.items() if used == plan.instances}
        following: dict[tuple[int, int], float] = {}
        for (used, t), mass in live.items():
            heard = above(t - d)
            fresh[used] = fresh.get(used, 0.0) + mass * (1 - heard)
            if d == 0:
                slip += mass * heard
            else:
                following[used, t] = mass * heard
        live = following
    assert 0 < slip <= terms.refusals * plan.crossing(mechanism.threshold) * (1 + 1e-9)
    assert slip <= terms.delta / 2


def test_the_engine_stops_at_the_last_refusal() -> None:
    mechanism = SparseVotes(Terms(1.0, 1e-6, 100, 3))
    unsure = np.array([[10, 10]] * 20, dtype=np.int64)
    assert mechanism.release(unsure).tolist() == [REFUSED] * 3
    assert mechanism.halted
    with pytest.raises(UsageError, match="halted"):
        mechanism.release(unsure)


def test_as_published_is_charged_for_what_it_really_costs() -> None:
    mechanism = SparseVotes(Terms(1.0, 1e-6, 1000, 50, published=True))
    scale = math.sqrt(32 * 50 * math.log(2e6))
    assert mechanism.plan.threshold_scale == pytest.approx(scale)
    assert mechanism.plan.query_scale == pytest.approx(2 * scale)
    assert mechanism.plan.instances == 51
    assert float(mechanism.plan.epsilon) == pytest.approx(4 / scale)  # not 2 / lambda
    with pytest.raises(UsageError, match="constants as_published"):
        SparseVotes(Terms(10.0, 1e-6, 1000, 1000, published=True))


# --- published figures ---------------------------------------------------------------------------------------------

TABLE = [  # queries, refusals, the paper's constants, repaired sparse vector (union over queries), exact Gaussian
    (100, 10, 3178, 1553, 197),
    (1_000, 50, 7806, 5059, 622),
    (10_000, 50, 8507, 5487, 1966),
    (100_000, 50, 9209, 5914, 6216),
    (1_000_000, 50, 9911, 6340, 19656),
]


@pytest.mark.parametrize(("queries", "refusals", "paper", "sparse", "gaussian"), TABLE)
def test_the_margins_of_the_three_mechanisms(
    queries: int, refusals: int, paper: int, sparse: int, gaussian: int
) -> None:
    terms = Terms(1.0, 1e-6, queries, refusals)
    published = SparseVotes(Terms(1.0, 1e-6, queries, refusals, published=True))
    assert published.needed_margin() == pytest.approx(paper, abs=2)  # whole steps instead of a continuum
    ours = SparseVotes(terms)
    over_queries = ours.plan.least_margin(0.5e-6 / queries)
    margin = least(lambda g: ours.plan.crossing(over_queries - max(0, (g + 1) // 2 - 1)) >= 0.99)
    assert margin == pytest.approx(sparse, abs=2)
    analytic = NormalDist().inv_cdf(0.99) * 2 * math.sqrt(queries) * gaussian_sigma(1.0, 1e-6)
    assert math.ceil(analytic - 0.2) == gaussian
    # What is built: a union over refusals for the one, a discrete vector's zCDP for the other.
    needed, discrete = ours.needed_margin(), GaussianVotes(terms).needed_margin()
    assert needed is not None
    assert discrete is not None
    assert needed < sparse
    assert gaussian < discrete < 1.08 * gaussian


# --- gaussian ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("changed", [1, 3])
def test_gaussian_votes_are_as_concentrated_as_they_say(changed: int) -> None:
    terms = Terms(1.0, 1e-5, 20, changed=changed)
    mechanism = GaussianVotes(terms)
    reach = int(14 * mechanism.scale)
    logs = np.array([-0.5 * (k / mechanism.scale) ** 2 for k in range(-reach, reach + 1)])
    law = np.exp(logs) / np.exp(logs).sum()
    shift = 2 * changed
    p, q = law[shift:], law[:-shift]
    for order in (1.5, 2.0, 5.0):
        divergence = math.log(float((p**order * q ** (1 - order)).sum())) / (order - 1)
        assert terms.queries * divergence <= order * mechanism.rho * (1 + 1e-6)
        assert terms.queries * divergence >= order * mechanism.rho * 0.98  # no noise is wasted


@pytest.mark.parametrize(("factor", "fits"), [(1.0, True), (2 / 3, False), (3 / 2, False)])
def test_answers_follow_the_law_of_the_right_scale_only(factor: float, fits: bool) -> None:
    mechanism = GaussianVotes(Terms(2.0, 1e-3, 10))
    margin = round(mechanism.scale)
    runs = 6000
    counts = np.repeat(np.array([[0, margin]], dtype=np.int64), runs, axis=0)
    share = float((mechanism.release(counts) == 1).mean())
    expected = gaussian_above(mechanism.scale * factor, -margin)
    assert (abs(share - expected) < 4.5 * math.sqrt(expected * (1 - expected) / runs)) is fits


@pytest.mark.parametrize("name", ["gaussian", "sparse_vector", "stability"])
def test_a_clear_plurality_of_three_classes_is_answered(name: str) -> None:
    mechanism = answering(name, Terms(4.0, 1e-3, 20, 5))  # type: ignore[arg-type]
    counts = np.array([[10, 2000, 30]] * 20, dtype=np.int64)
    assert mechanism.release(counts).tolist() == [1] * 20
    assert isinstance(mechanism, Answering)


def test_three_noisy_counts_cost_what_two_do() -> None:
    # One changed vote moves the vector of counts by sqrt(2): noise s / sqrt(2) on each is the same divergence.
    mechanism = GaussianVotes(Terms(1.0, 1e-5, 7))
    per_count = mechanism.scale / math.sqrt(2)
    assert 7 * 2 / (2 * per_count**2) == pytest.approx(mechanism.rho, rel=1e-9)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"epsilon": 0}, "epsilon"),
        ({"epsilon": math.nan}, "epsilon"),
        ({"delta": 0.0}, "delta"),
        ({"queries": 0}, "answers.queries"),
        ({"refusals": 0}, "answers.refusals"),
        ({"refusals": 101}, "answers.refusals"),
        ({"changed": 0}, "at least one teacher"),
    ],
)
def test_bad_terms_are_refused(change: dict[str, float], message: str) -> None:
    content = {"epsilon": 1.0, "delta": 1e-6, "queries": 100, "refusals": 5, "changed": 1, **change}
    with pytest.raises(UsageError, match=message):
        Terms(**content)  # type: ignore[arg-type]


def test_unknown_mechanisms_and_misplaced_constants_are_refused() -> None:
    with pytest.raises(UsageError, match="allowed: gaussian, sparse_vector, stability"):
        answering("median", Terms(1.0, 1e-6, 10))  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="sparse_vector only"):
        answering("gaussian", Terms(1.0, 1e-6, 10, published=True))


def test_composition_of_stable_answers_is_the_optimal_one() -> None:
    # Against the binomial sum of Kairouz, Oh and Viswanath (2015), written out here.
    terms = Terms(1.0, 1e-6, 100)
    mechanism = Stability(terms)
    e0, d0, k = float(mechanism.epsilon_0), terms.delta / 200, 100
    total = math.fsum(
        math.comb(k, low) * max(0.0, math.exp((k - low) * e0) - math.exp(1.0 + low * e0)) / (1 + math.exp(e0)) ** k
        for low in range(k + 1)
    )
    spent = 1 - (1 - d0) ** k * (1 - total)
    assert 0.99 * terms.delta < spent <= terms.delta
    assert Fraction(mechanism.epsilon_0) > Fraction(1, 100)
