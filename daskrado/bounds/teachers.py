"""How many teachers, queries and refusals: what public facts say about private answers before anything is spent."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import numpy as np

from daskrado.engines.answers import Answering, Terms, answering
from daskrado.errors import UsageError
from daskrado.privacy.vote_laws import least
from daskrado.registry import kinds

CONFIDENCE = 0.99  # with which a query of the needed margin is answered rightly
HOPELESS = 0.9  # a plan under which unanimous teachers are heard less often than this is refused
MOST_COMPARED = 10_000  # refusals up to which a sparse vector is calibrated for the sake of comparison


def published_teachers(queries: int, refusals: int, epsilon: float, delta: float, beta: float = 0.05) -> int:
    """k = 34 sqrt(2) lambda ln(4 m T / min(delta, beta / 2)), rounded up;

    lambda = sqrt(32 T ln(2 / delta)) / epsilon.

    Reference
        Bassily, Thakkar and Thakurta (2018), algorithm 2. Privacy holds for any k: k is a matter of accuracy.
    """
    scale = math.sqrt(32 * refusals * math.log(2 / delta)) / epsilon
    return math.ceil(34 * math.sqrt(2) * scale * math.log(4 * queries * refusals / min(delta, beta / 2)))


def theorem_refusals(error: float, queries: int, beta: float = 0.05) -> int:
    """T = 3 (e m + sqrt(e m ln(m / beta) / 2)), rounded up, for teachers of error e = gamma + alpha.

    Teachers that err on at most B queries each disagree by more than a third on at most 3 B of them.

    Reference
        Bassily, Thakkar and Thakurta (2018), theorem 3.2 and lemma 3.3.
    """
    if not (0 <= error <= 1 and 0 < beta < 1):
        raise UsageError(f"an error rate lies in [0, 1] and beta in (0, 1), got {error} and {beta}")
    mistakes = error * queries
    needed = 3 * (mistakes + math.sqrt(mistakes * math.log(queries / beta) / 2))
    return min(queries, max(1, math.ceil(needed)))


@dataclass(frozen=True)
class Forecast:
    """What to expect of one mechanism; probabilities assume teachers that err independently."""

    name: str
    margin: int  # votes between the two classes for an answer that is right with probability CONFIDENCE
    teachers: int  # that give this margin at the assumed agreement
    unanimous: float  # probability that teachers who all agree are heard
    answered: float  # expected share of queries that get an answer
    right: float  # expected share of queries that get the answer of most teachers' class


def forecast(mechanism: Answering, teachers: int, agreement: float) -> Forecast:
    """Exact sums over the binomial law of the votes of ``teachers`` that each are right with chance ``agreement``."""
    from scipy.special import gammaln, xlog1py, xlogy

    if not 0.5 < agreement <= 1:
        raise UsageError(
            f"agreement is the share of teachers with the same answer, above 1/2 and at most 1, got {agreement}"
        )
    margin = mechanism.needed_margin(CONFIDENCE)
    assert margin is not None
    spread = math.sqrt(teachers * agreement * (1 - agreement))
    low = max(0, math.floor(teachers * agreement - 9 * spread - 1))
    high = min(teachers, math.ceil(teachers * agreement + 9 * spread + 1))
    votes = np.arange(low, high + 1)
    logs = gammaln(teachers + 1) - gammaln(votes + 1) - gammaln(teachers - votes + 1)
    chances = np.exp(logs + xlogy(votes, agreement) + xlog1py(teachers - votes, -agreement))
    differences = (2 * votes - teachers).tolist()
    if not mechanism.refuses:
        answered = 1.0
        right = float(chances @ np.array([mechanism.chance(d) for d in differences]))
    else:
        heard = np.array([mechanism.chance(abs(d)) for d in differences])
        answered = float(chances @ heard)
        right = float(chances @ (heard * (np.array(differences) > 0)))
    return Forecast(
        mechanism.name,
        margin,
        math.ceil(margin / (2 * agreement - 1)),
        mechanism.chance(teachers),
        answered,
        right,
    )


def compare(terms: Terms, teachers: int, agreement: float) -> list[Forecast]:
    """The mechanisms under the same terms, the best first; the sparse vector only up to MOST_COMPARED refusals."""
    known = sorted(kinds(Answering).values(), key=lambda kind: kind.name)
    quick = [kind for kind in known if not kind.counts_refusals or terms.refusals <= MOST_COMPARED]
    found = [forecast(kind(replace(terms, published=False)), teachers, agreement) for kind in quick]
    return sorted(found, key=lambda one: (-one.right, one.teachers))


def what_would_work(name: str, terms: Terms, teachers: int, agreement: float) -> str:
    """For a hopeless plan: the teachers, the queries or the epsilon that would make it hopeful, all else equal."""
    mechanism = answering(name, terms)
    margin = mechanism.needed_margin(CONFIDENCE)
    assert margin is not None
    instead = [f"{math.ceil(margin / (2 * agreement - 1)):,} teachers at {agreement:.0%} agreement"]
    votes = max(1, math.floor(teachers * (2 * agreement - 1)))

    def enough(changed: Terms) -> bool:
        return answering(name, changed).chance(votes) >= CONFIDENCE

    def fewer(queries: int) -> Terms:
        return replace(terms, queries=queries, refusals=min(terms.refusals, queries))

    if (most := largest(lambda m: enough(fewer(m)), terms.queries)) is not None:
        instead.append(f"at most {most:,} queries")
    if mechanism.counts_refusals and (
        (most := largest(lambda t: enough(replace(terms, refusals=t)), terms.refusals)) is not None
    ):
        instead.append(f"at most {most:,} refusals")
    tenths = least(lambda e: e > 0 and enough(replace(terms, epsilon=e / 10)), 500)
    if tenths is not None:
        instead.append(f"epsilon {tenths / 10:g}")
    return ", or ".join(instead)


def largest(good: Callable[[int], bool], most: int) -> int | None:
    """The largest integer in 1..most that is good, where small ones are; None if 1 is not."""
    bad = least(lambda n: n > 0 and not good(n), most)
    return most if bad is None else (bad - 1 or None)


def refuse_if_hopeless(mechanism: Answering, teachers: int, agreement: float) -> None:
    """Refuse terms under which even unanimous teachers would rarely be heard, with the numbers that would work."""
    if (heard := mechanism.chance(teachers)) < HOPELESS:
        raise UsageError(
            f"hopeless plan: {teachers:,} teachers who all agree would be heard with probability {heard:.3g} "
            f"({mechanism.name}, {mechanism.terms.queries:,} queries, epsilon {mechanism.terms.epsilon:g}); it would "
            f"work with {what_would_work(mechanism.name, mechanism.terms, teachers, agreement)}"
        )


def rows_per_teacher(rows: int, teachers: int, features: int) -> str:
    """What a shard holds, against the number of features it has to learn about."""
    each = rows / teachers
    return f"{each:,.1f} rows per teacher for {features} features ({each / features:.2g} rows per feature)"


def forecast_lines(
    terms: Terms, teachers: int, agreement: float, chosen: Forecast | None = None
) -> Iterator[tuple[str, str]]:
    """The mechanisms side by side under the same terms, and which to use: lines of a plan, as (name, text)."""
    found = compare(terms, teachers, agreement)
    yield (
        "prospects",
        f"if {agreement:.0%} of {teachers:,} teachers agree, {terms.queries:,} queries, {terms.refusals} refusals:",
    )
    yield "", f"{'mechanism':<15}{'vote margin':>12}{'teachers':>10}{'unanimous':>11}{'answered':>10}{'right':>8}"
    rows: list[tuple[str, Forecast]] = [(one.name, one) for one in found]
    mine = None if chosen is None else "as_published" if terms.published else chosen.name
    if chosen is not None and mine is not None and mine not in dict(rows):
        rows.append((mine, chosen))
    for name, one in rows:
        figures = f"{one.margin:>12,}{one.teachers:>10,}{one.unanimous:>11.3f}{one.answered:>10.3f}{one.right:>8.3f}"
        yield "", f"{name:<15}{figures}{' <- chosen' if name == mine else ''}"
    if terms.refusals > MOST_COMPARED:
        yield "", f"sparse_vector is compared up to {MOST_COMPARED:,} refusals"
    prescribed = published_teachers(terms.queries, terms.refusals, terms.epsilon, terms.delta)
    yield "", f"the paper's constants prescribe {prescribed:,} teachers"
    yield "best", f"{found[0].name}: {found[0].right:.1%} of the queries get the teachers' answer"
