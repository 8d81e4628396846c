"""Plans for teachers: the paper's numbers, the binomial forecast against simulation, refusals of hopeless plans."""

import math

import numpy as np
import pytest

from daskrado.bounds.teachers import compare, forecast, published_teachers, refuse_if_hopeless, theorem_refusals
from daskrado.engines.answers import GaussianVotes, SparseVotes, Stability, Terms, answering
from daskrado.errors import UsageError

PRESCRIBED = {
    10: (159_963, 79_982, 26_661),
    50: (381_269, 190_635, 63_545),
    200: (803_162, 401_581, 133_861),
}


@pytest.mark.parametrize("refusals", [10, 50, 200])
def test_the_teachers_that_the_paper_prescribes(refusals: int) -> None:
    found = tuple(published_teachers(1000, refusals, epsilon, 1e-6) for epsilon in (0.5, 1.0, 3.0))
    assert found == pytest.approx(PRESCRIBED[refusals], abs=1)


def test_teachers_needed_at_ninety_percent_agreement() -> None:
    # 780 by the exact Gaussian; discrete noise in a vector costs 7 % more. 9,800 for the margin of algorithm 2.
    terms = Terms(1.0, 1e-6, 1000, 50)
    gaussian = forecast(GaussianVotes(terms), 1000, 0.9)
    assert gaussian.teachers == pytest.approx(780, rel=0.08)
    published = forecast(SparseVotes(Terms(1.0, 1e-6, 1000, 50, published=True)), 10_000, 0.9)
    assert published.teachers == pytest.approx(9800, rel=0.01)


def test_refusals_of_theorem_3_2() -> None:
    assert theorem_refusals(0.05, 1000, 0.05) == math.ceil(3 * (50 + math.sqrt(50 * math.log(20_000) / 2)))
    assert theorem_refusals(0.0, 1000) == 1
    assert theorem_refusals(0.9, 100) == 100  # never more than queries
    with pytest.raises(UsageError, match="error rate"):
        theorem_refusals(1.5, 100)


@pytest.mark.parametrize("agreement", [0.75, 0.9])
def test_forecasts_agree_with_simulated_teachers(agreement: float) -> None:
    teachers, queries = 120, 1500
    draw = np.random.default_rng(5)
    right = draw.binomial(teachers, agreement, size=queries).astype(np.int64)
    counts = np.column_stack([teachers - right, right])
    for mechanism in (GaussianVotes(Terms(4.0, 1e-3, 400)), Stability(Terms(4.0, 1e-3, 12))):
        expected = forecast(mechanism, teachers, agreement)
        labels = mechanism.release(counts)
        for share, wanted in (((labels >= 0).mean(), expected.answered), ((labels == 1).mean(), expected.right)):
            assert abs(share - wanted) <= 4.5 * math.sqrt(max(wanted * (1 - wanted), 1e-4) / queries)


def test_gaussian_is_best_for_few_queries_and_sparse_vector_for_very_many() -> None:
    assert compare(Terms(1.0, 1e-6, 1000, 50), 2000, 0.9)[0].name == "gaussian"
    assert compare(Terms(1.0, 1e-6, 1_000_000, 50), 8000, 0.95)[0].name == "sparse_vector"


def test_a_comparison_leaves_out_a_sparse_vector_with_too_many_refusals() -> None:
    found = compare(Terms(1.0, 1e-6, 4_000_000, 1_200_000), 100_000, 0.9)
    assert {one.name for one in found} == {"gaussian", "stability"}


@pytest.mark.slow
@pytest.mark.parametrize("name", ["gaussian", "sparse_vector", "stability"])
def test_a_hopeless_plan_is_refused_with_numbers_that_work(name: str) -> None:
    terms = Terms(0.1, 1e-6, 5000, 50)
    mechanism = answering(name, terms)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="hopeless plan: 100 teachers who all agree") as refused:
        refuse_if_hopeless(mechanism, 100, 0.9)
    teachers = int(str(refused.value).split("it would work with ")[1].split(" teachers")[0].replace(",", ""))
    assert mechanism.chance(math.floor(0.8 * teachers) + 1) >= 0.99  # they do work
    assert mechanism.chance(math.floor(0.8 * (teachers - 5))) < 0.99  # and not many fewer would
    refuse_if_hopeless(mechanism, teachers, 0.9)
