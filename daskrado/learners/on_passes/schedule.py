"""The public schedule of the noisy gradient: loss, steps, noise and sizes of weights, before a row is read.

Rows lie in the unit ball (x / R) and weights are u = R w. The learner does what stands here and draws no other noise,
so whoever simulates a schedule on made-up rows sees the law of the weights.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from daskrado.losses.margin import HuberLogistic, Loss
from daskrado.privacy.perturbation import PublicFacts
from daskrado.privacy.relations import Relation
from daskrado.statistics.second_moments import MOST_FEATURES

STEPS, MOMENTUM = 40, 0.75
MOMENTS_SHARE = 0.05  # of mu^2: from 0.02 to 0.1 nothing changes (pipelines/reproduce/gradient_rule.py --descent)
HUBER_NOISE = 0.002
"""Noise over signal from which on the loss is Huber's alone; below, a share sqrt(ratio / HUBER_NOISE) of it is."""
CORNER = 1.0
USUAL_NOISE, USUAL_INDICATORS, USUAL_NUMBERS, LEAST_WEIGHT = 1.4e-4, 4.0, 4.4, 2.0
"""Where one coordinate of the mean gradient has the noise USUAL_NOISE over a whole run, weights of indicators are
taken to be about USUAL_INDICATORS in size, of numbers USUAL_NUMBERS sqrt(k) if k features of a row are not 0: they
share its length. Less noise lets weights grow, by its powers 1/3 and 0.6; none is taken to be below LEAST_WEIGHT.
Chosen with HUBER_NOISE, on every table but Adult (pipelines/reproduce/gradient_rule.py --descent)."""


NUMBER_LENGTH = 0.3
"""Of those sizes where the label is a number: predictions stay within [-1, 1], and margins do not. On abalone, wine
and diabetes130 0.3 was better than 1, or as good, for corners of Huber's loss from 0.25 to 1."""


@dataclass(frozen=True)
class Schedule:
    """What a run does. Noise is a standard deviation, in rows of length 1.

    ``moments_noise`` is on the sum of each squared feature; products of two features, where ``pairs`` says that they
    are summed too, have 1 / sqrt(2) of it. ``noise`` is on each coordinate of each of ``count`` sums of gradients.
    ``ratio`` is |noise| over the largest gradient, all steps together. ``indicators`` and ``numbers`` are sizes that
    weights are taken to have, times R; that of plain numbers is for one feature in a row, and grows as their root.
    """

    loss: Loss
    rows: int
    count: int
    momentum: float
    pairs: bool
    moments_noise: float
    noise: float
    ratio: float
    numbers: float
    indicators: float

    @property
    def curvature(self) -> float:
        """The largest of the loss."""
        return self.loss.smoothness or 1.0

    @property
    def drag(self) -> float:
        """Precision of a weight that is expected to be 1 in size: with it, noise ends where the expected size is.

        A direction without curvature moves by 1 / drag times momentum's 1 / (1 - m) in each of T steps, together
        1 / (noise of the mean gradient over the run): the noise that it gathers is as large as the weight.
        """
        return self.noise * math.sqrt(self.count) / (self.rows * (1 - self.momentum))


def schedule(
    facts: PublicFacts, loss: Loss | None, steps: int, noises: tuple[float, float], length: float
) -> Schedule:
    """The rule: from the noise on moments and gradients, and the number of rows."""
    moments_noise, noise = noises
    each = noise / (math.sqrt(steps) * facts.rows)
    ratio = each * math.sqrt(facts.width)
    indicators = max(LEAST_WEIGHT, USUAL_INDICATORS * (USUAL_NOISE / each) ** (1 / 3))
    numbers = USUAL_NUMBERS * (USUAL_NOISE / each) ** 0.6
    loss = loss or HuberLogistic(min(1.0, math.sqrt(ratio / HUBER_NOISE)), CORNER)
    pairs = facts.width <= MOST_FEATURES
    length *= NUMBER_LENGTH if loss.target == "number" else 1.0
    sizes = length * numbers, length * indicators
    return Schedule(loss, facts.rows, steps, MOMENTUM, pairs, moments_noise, noise, ratio, *sizes)


def noises(facts: PublicFacts, mu: float, steps: int, moments: float, slopes: float) -> tuple[float, float]:
    """The noise on second moments and on each sum of gradients that together cost mu; ``moments`` and ``slopes`` are
    how far one unit moves each of them.

    *Sensitivity*. With A = 1 / s^2 of the moments' noise s and B = T / t^2 of the gradients' t, T + 1 Gaussians cost
    A |change of moments|^2 + (T / t^2) |change of a gradient|^2 (Dong, Roth and Su 2022; fully adaptive, as the
    change depends on public iterates: Smith and Thakurta 2022). Added up, that is A moments^2 + B slopes^2, and
    moments get MOMENTS_SHARE of it. Where a row is replaced it is less: rows x and z of length 1 with c = |x.z| move
    moments by sqrt(2 - 2 c^2) and a gradient by at most sqrt(2 + 2 c). A (2 - 2 c^2) + B (2 + 2 c) is at most 4 B,
    at c = 1, wherever B >= 2 A: moments with A = B / 2 cost nothing. The same holds for units of k rows, weighted or
    not, with k^2: let P be the mean of w x x' over the rows of the unit and g that of w s x, |s| <= 1. Then
    P - g g' is positive, so the product of P and the other unit's P' is at least (g.g')^2, while |P| <= 1; c is the
    largest |g.g'| of all steps. What rounding adds to sums of weighted rows is added on.
    """
    if facts.relation is Relation.REPLACE_ONE and facts.width <= MOST_FEATURES:
        rounding = max(0.0, moments**2 - 2 * facts.rows_per_unit**2)
        far = math.sqrt(slopes**2 + rounding / 2) / mu
        return math.sqrt(2.0) * far, math.sqrt(steps) * far
    share = MOMENTS_SHARE if moments else 0.0  # labels alone are secret: moments are public
    each = slopes * math.sqrt(steps / (1 - share)) / mu
    return (moments / (mu * math.sqrt(share)) if share else 0.0), each
