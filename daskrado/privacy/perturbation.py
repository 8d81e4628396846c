"""Calibration of output and objective perturbation, from public facts alone.

With J(w) = (1/n) sum loss(y w.x) + (ridge/2) |w|^2, rows of norm at most R, |slope| <= L and curvature <= c.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from daskrado.errors import UsageError
from daskrado.losses.margin import Loss
from daskrado.privacy.accountant import gaussian_delta
from daskrado.privacy.relations import Relation


@dataclass(frozen=True)
class PublicFacts:
    """What a learner may know before it reads a row. ``rows`` is public, or a public stand-in under add/remove.

    ``lattice_bits`` is the grid on which rows will be summed; None leaves it to a public rule. Where units are
    bounded, as ``by_unit`` says, ``rows`` is their number and ``rows_per_unit`` what each counts for; ``spread`` says
    that this is over any number of its rows.
    """

    rows: int
    width: int
    norm_bound: float
    relation: Relation
    epsilon: float
    delta: float = 0.0
    rows_per_unit: int = 1
    lattice_bits: int | None = None
    spread: bool = False
    by_unit: bool = False
    weighted: bool = False  # rows count for at most 1, and sums of them are rounded once more
    numbers: int = 0  # plain numbers that a learner may centre and scale
    sites: int = 1  # that each add a share of the noise, of which ``honest`` are enough
    honest: int = 1

    @property
    def surplus(self) -> float:
        """How much more noise there is than the guarantee needs, where every site adds its share."""
        return math.sqrt(self.sites / self.honest)


def reach(loss: Loss, facts: PublicFacts) -> float:
    """The farthest that one protected unit moves the sum of slope(y w.x) y x, at any w.

    *Sensitivity*: a row's term is at most L R long, so it is L R under add/remove and 2 L R when a row is replaced or
    a feature flipped. A flipped label moves it by |slope(z) + slope(-z)| R, which is a R for a loss with odd
    coefficient a. A unit of k rows moves it k times as far.
    """
    if loss.lipschitz is None:
        raise UsageError(
            f"loss {loss.name} has no bound on its slope, so one row can move the minimiser without limit; "
            "private learners need a loss that has: logistic, huber, smooth_hinge"
        )
    per_row = loss.lipschitz if facts.relation is Relation.ADD_REMOVE else 2 * loss.lipschitz
    if facts.relation is Relation.LABEL_FLIP and loss.odd is not None:
        per_row = min(per_row, abs(loss.odd))
    return per_row * facts.norm_bound * facts.rows_per_unit


def output_scale(loss: Loss, ridge: float, facts: PublicFacts, epsilon: float, tolerance: float) -> float:
    """Scale of the L2-gamma noise on a minimiser that is known up to |grad J| <= tolerance.

    *Sensitivity*: J is ridge-strongly convex, so two minimisers are at most |change of grad J| / ridge <=
    reach / (n ridge) apart, and each approximate one is within tolerance / ridge of its own:
    s = reach / (n ridge) + 2 tolerance / ridge, scale = s / epsilon.

    *Reference*: Chaudhuri, Monteleoni and Sarwate (2011), algorithm 1, for any norm bound.
    """
    check_ridge(ridge)
    return (reach(loss, facts) / facts.rows + 2 * tolerance) / ridge / epsilon


@dataclass(frozen=True)
class ObjectiveNoise:
    """Noise b on the objective, J(w) + b.w/n + (extra/2) |w|^2. ``scale`` is of one coordinate if Gaussian."""

    kind: str
    scale: float
    extra: float
    slack: float

    def expected_norm(self, width: int) -> float:
        """E |b| (Gaussian: the square root of E |b|^2)."""
        return self.scale * (width if self.kind == "gamma" else math.sqrt(width))

    def rarely_above(self, width: int) -> float:
        """A length that |b| exceeds with probability at most exp(-40), by Chernoff's bound on its law."""
        far = width + math.sqrt(80 * width) + 40 if self.kind == "gamma" else math.sqrt(width) + math.sqrt(80)
        return self.scale * far


def _slack(loss: Loss, ridge: float, facts: PublicFacts, budget: float, tight: bool) -> tuple[float, float]:
    """(slack, extra ridge): how much of epsilon the change of volume b -> w can take.

    *Proof*: the densities of the minimiser on two neighbours differ by the density of b and by det(A + E)/det(A),
    A the Hessian of the perturbed objective, E the change of n times its data part. E = P - N with P and N positive
    semi-definite, each a sum of k matrices c x x' of norm at most c R^2. So det(A + E) <= det(A + P) <=
    det(A) (1 + c R^2 / (n (ridge + extra)))^k, by the monotony of the determinant and the inequality of means: the
    slack is k log(1 + c R^2 / (n (ridge + extra))). Where a unit's k is spread over more rows, the rank of P is known
    only to be at most d; its trace is the same, and the slack is d log(1 + (k / d) c R^2 / (n (ridge + extra))). That
    is the tight form. Chaudhuri et al. bound the two parts apart and get twice as much; under add/remove only one of
    P and N is there, and a flipped label leaves the curvature of a loss with an odd coefficient as it is: no slack.
    """
    if loss.smoothness is None:
        raise UsageError(f"loss {loss.name} has no bound on its curvature, which objective perturbation needs")
    if facts.relation is Relation.LABEL_FLIP and loss.odd is not None:
        return 0.0, 0.0
    rank = facts.width if facts.spread else facts.rows_per_unit
    times = rank * (1 if tight or facts.relation is Relation.ADD_REMOVE else 2)
    curve = loss.smoothness * facts.norm_bound**2 / facts.rows * (facts.rows_per_unit / rank)
    slack = times * math.log1p(curve / ridge)
    if slack <= budget / 2:
        return slack, 0.0
    return budget / 2, curve / math.expm1(budget / (2 * times)) - ridge


def objective_gamma(
    loss: Loss, ridge: float, facts: PublicFacts, epsilon: float, *, tight: bool = False
) -> ObjectiveNoise:
    """Pure objective perturbation: b has density prop. to exp(-|b| / scale), scale = reach / (epsilon - slack).

    If the slack would take more than half of epsilon, the ridge is raised until it takes just half. The rule depends
    on public facts only and is continuous where the two cases meet.

    *Sensitivity*: the noise that leads to a given minimiser changes by at most ``reach`` between neighbours, so its
    density by at most exp(epsilon - slack); the slack (see ``_slack``) covers the change of volume. The loss must
    have a curvature, up to finitely many kinks of the slope: then w -> b(w) is a Lipschitz bijection and the
    change of variables holds almost everywhere.

    *Reference*: Chaudhuri, Monteleoni and Sarwate (2011), algorithm 2; their branch keeps an epsilon' just above 0,
    where the noise is without bound.
    """
    check_ridge(ridge)
    slack, extra = _slack(loss, ridge, facts, epsilon, tight)
    return ObjectiveNoise("gamma", reach(loss, facts) / (epsilon - slack), extra, slack)


def objective_gaussian(
    loss: Loss, ridge: float, facts: PublicFacts, epsilon: float, delta: float, *, tight: bool = False
) -> ObjectiveNoise:
    """(epsilon, delta) objective perturbation: b has independent normal coordinates of standard deviation sigma.

    *Sensitivity*: let h be the change of the noise that leads to w, so that the privacy loss at w is at most
    (2 b.h + |h|^2) / (2 sigma^2) + slack. h depends on w, hence on b, but only through slopes: h = s x1 - s' x2 with
    s, s' in [0, L], since the slope of every bounded loss here keeps its sign, and x1, x2 fixed with norm at most R.
    The loss is convex in (s, s'), so at most its largest value at the corners (0 or L, 0 or L), where h is fixed and
    the loss is that of a Gaussian mechanism with mu = |h| / sigma. So
    delta(epsilon) <= sum over the corners of gaussian_delta(epsilon - slack, |h| / sigma):
    one corner of length L R under add/remove, two of L R and one of 2 L R when a row is replaced, one of a R (or
    2 L R) when a label is flipped. The corner h = 0 has loss 0 and adds nothing.

    *Reference*: Kifer, Smith and Thakurta (2012); Redberg, Koskela and Wang (2023), whose bound for one changed row
    has a factor 2 in place of the sign argument above.
    """
    check_ridge(ridge)
    if facts.rows_per_unit != 1 or facts.spread:
        raise UsageError(
            f"gaussian objective perturbation takes one row per unit, got {facts.rows_per_unit}: use noise gamma"
        )
    slack, extra = _slack(loss, ridge, facts, epsilon, tight)
    far = reach(loss, facts)
    pair = facts.relation in (Relation.REPLACE_ONE, Relation.FEATURE_FLIP)
    corners = (far, far / 2, far / 2) if pair else (far,)

    def total(sigma: float) -> float:
        return math.fsum(gaussian_delta(epsilon - slack, corner / sigma) for corner in corners)

    return ObjectiveNoise("gaussian", _least(total, delta, far), extra, slack)


def _least(curve: Callable[[float], float], level: float, unit: float) -> float:
    """The least sigma at which a falling curve is at most ``level``, rounded up."""
    low = high = unit
    while curve(high) > level:
        high *= 2
    while curve(low) <= level:
        low /= 2
    while high > low * (1 + 1e-12):
        middle = (low + high) / 2
        low, high = (low, middle) if curve(middle) <= level else (middle, high)
    return high * (1 + 1e-9)


def check_ridge(ridge: float) -> None:
    """A private minimiser needs strong convexity."""
    if not ridge > 0:
        raise UsageError(
            f"regularisation must be above 0 for a private fit, got {ridge:g}: one row moves the minimiser by up to "
            "norm_bound / (rows * regularisation), so that no finite noise would hide it"
        )
