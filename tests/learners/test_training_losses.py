"""Which losses learners on passes take, by name and options, and what they refuse before a row is read."""

import pytest

from daskrado.errors import UsageError
from daskrado.learners.base import Learner
from daskrado.losses.linear_odd import AbsoluteOdd, Matsushita
from daskrado.losses.margin import Huber, Logistic, SmoothHinge, Square
from daskrado.privacy.perturbation import PublicFacts
from daskrado.privacy.relations import Relation
from daskrado.registry import make

FACTS = PublicFacts(100_000, 5, 1.0, Relation.REPLACE_ONE, 1.0, 1e-6)
PRIVATE = ("output_perturbation", "objective_perturbation", "gradient")


def learner(kind, **options):
    return make(Learner, ("daskrado.learners",), {"kind": kind, **options})


@pytest.mark.parametrize("kind", ["erm", *PRIVATE])
def test_losses_by_name_and_by_options(kind):
    cases = {"logistic": Logistic(), "smooth_hinge": SmoothHinge(0.5), "matsushita": Matsushita()}
    for name, loss in cases.items():
        assert learner(kind, loss=name).loss == learner(kind, loss={"kind": name}).loss == loss
    assert (
        learner(kind, loss="huber", h=0.25).loss
        == learner(kind, loss={"kind": "huber", "h": 0.25}).loss
        == Huber(0.25)
    )
    assert learner("erm", loss="square").loss == Square()


@pytest.mark.parametrize("kind", PRIVATE)
def test_private_learners_refuse_a_slope_without_bound(kind):
    for loss in ("square", {"kind": "proper", "generator": "logistic"}):
        with pytest.raises((ValueError, UsageError), match="no bound on its slope"):
            learner(kind, loss=loss).guarantee(FACTS)
    for loss in ("logistic", "huber", "smooth_hinge", "matsushita", "unhinged"):
        assert learner(kind, loss=loss).guarantee(FACTS).event is not None


def test_objective_perturbation_refuses_a_corner():
    """A sharp corner has no curvature to bound; rounded, it has."""
    with pytest.raises(UsageError, match="no bound on its curvature"):
        learner("objective_perturbation", loss="absolute").guarantee(FACTS)
    rounded = {"kind": "absolute", "rho": 0.5, "rounding": 0.5}
    assert learner("objective_perturbation", loss=rounded).loss == AbsoluteOdd(0.5, 0.5)
    assert learner("objective_perturbation", loss=rounded).guarantee(FACTS).event is not None


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"loss": "hinge"}, r"loss: kind must be one of 'absolute', 'huber', 'huber_logistic', .* \(got 'hinge'\)"),
        ({"loss": "logistic", "h": 0.5}, r"loss\.h: unknown key; logistic takes none"),
        ({"loss": {"kind": "huber"}, "h": 0.5}, "h: unknown key"),
        ({"loss": {"kind": "huber", "h": 0}}, "h must be between 1e-6 and 1e6"),
    ],
)
def test_mistakes_are_named(options, why):
    with pytest.raises(ValueError, match=why) as caught:
        learner("erm", **options)
    assert "\n" not in str(caught.value)
