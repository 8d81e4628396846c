"""From public features and a mean operator to a published model: what all label jobs share."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from daskrado.bounds.label_noise import LabelNoiseBounds, label_noise_bounds
from daskrado.errors import DataError
from daskrado.jobs.labels.config import Whose
from daskrado.lake.collect import Passes, Progress
from daskrado.lake.scan import Lake, open_lake
from daskrado.learners.on_passes.linear_odd import Fit
from daskrado.losses.linear_odd import EvenPart
from daskrado.losses.margin import Loss
from daskrado.models.linear import LinearModel
from daskrado.privacy.accountant import Event, compose
from daskrado.privacy.mechanisms import Mechanism, Target, mechanism
from daskrado.privacy.relations import Relation
from daskrado.privacy.statement import PrivacyStatement
from daskrado.statistics.base import Groups, Statistic
from daskrado.statistics.features import FeatureFacts
from daskrado.statistics.label_means import LabelMeans
from daskrado.table.domain import Domain
from daskrado.table.lattice import Lattice

Vector = NDArray[np.float64]
SPHERICAL = (
    "delta 0 holds for the L2-gamma law itself: the sampler computes it in double precision from uniform numbers of "
    "53 bits, so its length is at most 37.5 times dimension times scale and lengths of the far tail lie on a grid"
)


@dataclass(frozen=True)
class Measured:
    """Public facts about the features: largest norms in grid steps, and sums by group in shares of the norm bound."""

    l1_steps: int
    square_steps: int
    sums: NDArray[np.float64]
    rows: Vector
    squares: Vector | None

    @property
    def total_rows(self) -> int:
        """All rows."""
        return int(self.rows.sum())


def open_features(source: Any, domain: Domain, *columns: str, ids: bool = False) -> Lake:
    """A lake whose label column is not looked at; ``columns`` must be there too."""
    lake = open_lake(source, domain, label=False, ids=ids)
    for name in columns:
        if name not in lake.schema.names:
            raise DataError(f"the lake has no column {name!r}; it has {', '.join(lake.schema.names[:20])}")
    return lake


def measure(
    passes: Passes, groups: Groups | None = None, *, squares: bool = False, progress: Progress | None = None
) -> Measured:
    """One label-free pass: norms, sums and counts."""
    statistic = FeatureFacts(passes.domain.width, groups, squares)
    part = statistic.split(passes.sum(statistic, progress=progress).vector)
    bits = passes.lattice.bits
    if not part["largest"][0]:  # noise for them would have the scale 0: refused before anything is spent
        raise DataError(
            f"every row is zero in all {passes.domain.width} features on a grid of {bits} bits: nothing to learn from"
        )
    return Measured(
        int(part["largest"][0]),
        int(part["largest"][1]),
        np.ldexp(part["sum"].astype(np.float64), -bits),
        part["count"].astype(np.float64),
        np.ldexp(part["squares"].astype(np.float64), -2 * bits) if squares else None,
    )


def label_means(measured: Measured, width: int, lattice: Lattice, groups: Groups | None, missing: bool) -> LabelMeans:
    """The statistic to be released, with the bounds of these features."""
    return LabelMeans(width, measured.l1_steps, measured.square_steps, lattice.bits, groups, missing)


def loosest_means(width: int, lattice: Lattice, groups: Groups | None = None) -> LabelMeans:
    """The statistic with the bounds that hold for any features of the Domain: for plans, before a row is read."""
    square = 1 << (2 * lattice.bits)
    return LabelMeans(width, math.isqrt(width * square), square, lattice.bits, groups)


def label_mechanism(
    name: str,
    statistic: Statistic,
    lattice: Lattice,
    rows_per_unit: int,
    epsilon: float,
    delta: float,
    granted: Event | None = None,
) -> Mechanism:
    """The mechanism for a statistic of labels, within the event that was reserved before its bounds were measured."""
    return mechanism(name, Target(statistic, lattice, Relation.LABEL_FLIP, rows_per_unit), epsilon, delta, granted)


def label_statement(
    chosen: Mechanism, unit: str, rows_per_unit: int, delta: float, assumptions: tuple[str, ...] = ()
) -> PrivacyStatement:
    """Label privacy by central noise."""
    total = compose([chosen.event], delta)
    return PrivacyStatement(
        private=True,
        relation=Relation.LABEL_FLIP,
        unit=unit,
        rows_per_unit=rows_per_unit,
        epsilon=float(total.epsilon),
        delta=delta,
        mechanism=chosen.name,
        theorem=chosen.theorem,
        accountant=total.method,
        assumptions=(
            "all features, which rows have a label, and the number of rows are public",
            f"a protected unit ({unit}) has at most {rows_per_unit} row(s) in the lake",
            *((SPHERICAL,) if chosen.name == "l2_gamma" else ()),
            *assumptions,
        ),
    )


def at_the_source(epsilon: float, whose: Whose) -> PrivacyStatement:
    """Label privacy by randomised response before the labels arrived.

    Sensitivity
        Each of a unit's rows has a report of its own, so that all of them together cost epsilon times their number.
    """
    rows = whose.rows_per_unit
    return PrivacyStatement(
        private=True,
        relation=Relation.LABEL_FLIP,
        unit=whose.unit,
        rows_per_unit=rows,
        epsilon=epsilon * rows,
        delta=0.0,
        mechanism="randomised response at the source",
        theorem="randomised response (Warner 1965)" + (", group privacy" if rows > 1 else ""),
        accountant="local: one report for each label" + (f", {rows} for a unit" if rows > 1 else ""),
        assumptions=(
            "all features and the number of rows are public",
            f"each label was randomised once, at its source, with epsilon {epsilon:g}, before it reached the lake",
            f"a protected unit ({whose.unit}) has at most {rows} row(s) in the lake",
        ),
    )


@dataclass(frozen=True)
class NoiseFacts:
    """The noise behind a mean operator of shares of the norm bound.

    ``dimension`` numbers of this ``scale`` were drawn; the estimate's noise is no longer than theirs, by
    Cauchy-Schwarz where an estimate weighs several groups. ``std`` is that of one coordinate of the estimate.
    """

    kind: str
    dimension: int
    scale: float
    std: float


def noise_facts(chosen: Mechanism, rows: int, stretch: float = 1.0) -> NoiseFacts:
    """For a mean over ``rows`` rows that its estimator stretches (by a flip rate's 1 / (1 - p+ - p-), say)."""
    dimension = next(block.size for block in chosen.target.statistic.blocks if block.name == "mean")
    std = chosen.noise_std()["mean"] / chosen.target.lattice.norm_bound
    return NoiseFacts(chosen.name, dimension, chosen.scale * stretch / rows, std * stretch / rows)


@dataclass(frozen=True)
class Learned:
    """A model and how it came from a mean operator; all of it publishable."""

    model: LinearModel
    mean: Vector
    fit: Fit
    bounds: LabelNoiseBounds | None
    noise: NoiseFacts | None
    rows: int
    extras: dict[str, Any] = field(default_factory=dict)


def finish(
    domain: Domain,
    loss: Loss,
    strength: float,
    mean: Vector,
    fit: Fit,
    rows: int,
    statement: PrivacyStatement,
    *,
    noise: NoiseFacts | None = None,
    extras: dict[str, Any] | None = None,
) -> Learned:
    """The model in the units of the features, with the bounds that hold for the noise, if there was any."""
    coefficient = EvenPart(loss).coefficient
    bounds = None
    if noise is not None:
        bounds = label_noise_bounds(
            noise.kind,
            noise.dimension,
            noise.scale,
            coefficient=coefficient,
            norm=float(np.linalg.norm(fit.weights)),
            strength=strength,
        )
    details = {
        "loss": loss.name,
        "strength": strength,
        "passes": fit.passes,
        "gradient_norm": fit.gradient_norm,
        **({"risk_gap_bound": bounds.risk_gap, "weight_gap_bound": bounds.weight_gap} if bounds else {}),
    }
    model = LinearModel(domain, fit.weights / domain.norm_bound, statement, "mean_operator", details)
    return Learned(model, mean, fit, bounds, noise, rows, extras or {})
