"""What jobs on labels share: features are public, and labels act through one noisy sum or through proportions."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Annotated, Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from pydantic import AfterValidator, AliasChoices, Field, field_validator, model_validator

from daskrado.bounds.label_noise import LabelNoiseBounds, label_noise_bounds
from daskrado.errors import about_the_key
from daskrado.jobs.base import Charge, Line, Outcome, PrivateJob, Run, calibrated
from daskrado.jobs.report import Section, bars
from daskrado.learners.on_passes.linear_odd import Fit
from daskrado.losses.linear_odd import EvenPart, OddLoss
from daskrado.losses.margin import PACKAGE, Loss
from daskrado.models.error_bars import LEVEL, ErrorBars
from daskrado.models.linear import LinearModel
from daskrado.privacy.gamma import coordinate_reach
from daskrado.privacy.mechanisms import Mechanism, OneShot, default_mechanism, mechanism_kind
from daskrado.privacy.protect import Private
from daskrado.privacy.relations import Relation
from daskrado.privacy.release import Release, release_without_privacy
from daskrado.privacy.statement import PrivacyStatement
from daskrado.registry import make, options
from daskrado.statistics.base import Statistic, Summary
from daskrado.statistics.even_risk import MAX_BITS
from daskrado.table.domain import Domain
from daskrado.table.lattice import Lattice

Vector = NDArray[np.float64]
ROLE = "labels"
DEFAULT_REGULARISATION = 1e-3
FEATURES_ARE_PUBLIC = "all features, which rows have a label, and the number of rows are public"


def _known_mechanism(name: str) -> str:
    with about_the_key():
        return mechanism_kind(name).name


MechanismName = Annotated[str, AfterValidator(_known_mechanism)]


def check_delta(name: str, delta: float) -> None:
    """Refuse a delta that a mechanism has no use for, and none where it needs one."""
    needs = mechanism_kind(name).needs_delta
    if needs and not delta > 0:
        raise ValueError(f"mechanism {name} needs a delta above 0: give one, or use laplace for a pure guarantee")
    if delta > 0 and not needs:
        raise ValueError(f"mechanism {name} is pure and has no use for delta {delta:g}: drop it, or use gaussian")


class LabelLearningJob(PrivateJob):
    """The keys that jobs on labels have in common. They protect labels: the relation is label_flip and no other."""

    without_privacy: ClassVar[str] = "a baseline"
    counts_units: ClassVar[bool] = True

    mechanism: MechanismName | None = Field(default=None, validation_alias=AliasChoices("mechanism", "noise"))
    loss: OddLoss = Field(default="logistic", validate_default=True)
    regularisation: float = Field(
        default=DEFAULT_REGULARISATION,
        gt=0,
        validation_alias=AliasChoices("regularisation", "strength"),
        description="the factor of |w|^2 in the objective",
    )
    lattice_bits: int = Field(default=20, ge=4, le=MAX_BITS)

    @field_validator("protect", mode="before")
    @classmethod
    def _protect_labels(cls, content: Any) -> Any:
        if not isinstance(content, Mapping):
            return content
        relation = content.get("relation", Relation.LABEL_FLIP)
        if relation != Relation.LABEL_FLIP:
            raise ValueError(f"relation must be label_flip, or left out, in jobs on labels (got {relation!r})")
        return {**content, "relation": relation}

    @model_validator(mode="after")
    def _check_privacy(self) -> LabelLearningJob:
        if self.private and self.spends:
            super()._check_privacy()  # type: ignore[operator]  # pydantic gives the plain method back
            delta = self.asked.budget.delta
            check_delta(self.mechanism or default_mechanism(delta), delta)
            return self
        why = "nothing is released with noise here" if self.private else "private: false protects nobody"
        for key in ("budget", "mechanism") if self.private else ("budget", "mechanism", "protect"):
            if getattr(self, key) is not None:
                raise ValueError(f"{why}: drop {key}")
        return self

    @property
    @abstractmethod
    def spends(self) -> bool:
        """Whether a private job releases something with noise."""

    @property
    @abstractmethod
    def loosest(self) -> Statistic:
        """The statistic of labels that is released, with bounds that hold before a row is read."""

    @property
    def exposes(self) -> bool:
        """With proportions that are given: exact sums of features make the model."""
        return not (isinstance(self.privacy, Private) or self.statement.private)

    @property
    def lattice(self) -> Lattice:
        """The grid of the rows."""
        return Lattice(self.domain.norm_bound, self.lattice_bits)

    @property
    def can_be_remembered(self) -> bool:
        """A loss that exists in Python only cannot be written down."""
        try:
            return make(Loss, (PACKAGE,), options(self.loss)) == self.loss
        except ValueError:
            return False

    def charges(self) -> tuple[Charge, ...]:
        """One, for the loosest statistic; noise is calibrated within it once the features are measured."""
        if not isinstance(self.privacy, Private):
            return ()
        return (label_charge(calibrated(self.asked, self.loosest, self.lattice, self.mechanism), self.asked),)

    def release(
        self, run: Run, statistic: Statistic, gather: Callable[[], Summary]
    ) -> tuple[Release, Mechanism | None]:
        """Collect the labels' statistic and add noise, once; exact where the job is not private."""
        if not isinstance(self.privacy, Private):
            return release_without_privacy(gather()), None
        chosen = calibrated(self.asked, statistic, self.lattice, self.mechanism, run.grants[ROLE].event)
        return run.release(ROLE, chosen, gather), chosen

    def plan(self) -> Iterator[Line]:
        yield "loss", f"{self.loss.name}, regularisation {self.regularisation:g}"
        if isinstance(self.privacy, Private):
            block = self.loosest.blocks[0].name
            chosen = calibrated(self.asked, self.loosest, self.lattice, self.mechanism)
            shorter = "at most, less where rows are short" if block == "mean" else "in labels"
            yield "noise", f"{block}: standard deviation {chosen.noise_std()[block]:.4g} on the sum ({shorter})"


def label_charge(chosen: OneShot, private: Private) -> Charge:
    """Label privacy by central noise."""
    return Charge.of_mechanism(ROLE, chosen, private, (private.protect.owned, FEATURES_ARE_PUBLIC))


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

    @classmethod
    def of(cls, chosen: Mechanism, rows: float, stretch: float = 1.0) -> NoiseFacts:
        """For a mean over ``rows`` rows that its estimator stretches (by a flip rate's 1 / (1 - p+ - p-), say)."""
        dimension = next(block.size for block in chosen.target.statistic.blocks if block.name == "mean")
        std = chosen.noise_std()["mean"] / chosen.target.lattice.norm_bound
        return cls(chosen.name, dimension, chosen.scale * stretch / rows, std * stretch / rows)


@dataclass(frozen=True)
class MeanOperatorFit:
    """A mean operator, what was learned from it, and the noise on it; all of it publishable."""

    mean: Vector
    fit: Fit
    noise: NoiseFacts | None = None
    bounds: LabelNoiseBounds | None = None


def label_outcome(
    domain: Domain,
    found: MeanOperatorFit,
    loss: Loss,
    regularisation: float,
    statement: PrivacyStatement,
    *,
    rows: float,
    facts: Mapping[str, Any],
    sections: Callable[[], Iterable[Section]] = tuple,
    **more: Any,
) -> Outcome:
    """The model in the units of the features, and what is said and shown of it; ``more`` is for the outcome."""
    fit, noise, details = found.fit, found.noise, {"loss": loss.name, "strength": regularisation}
    details |= {"passes": fit.passes, "gradient_norm": fit.gradient_norm}
    if noise is not None:
        coefficient, norm = EvenPart(loss).coefficient, float(np.linalg.norm(fit.weights))
        bounds = label_noise_bounds(**vars(noise), coefficient=coefficient, norm=norm, strength=regularisation)
        found = replace(found, bounds=bounds)
        details |= {"risk_gap_bound": bounds.risk_gap, "weight_gap_bound": bounds.weight_gap}
    weights, known = fit.weights / domain.norm_bound, _error_bars(domain, found)
    return Outcome(
        found,
        statement,
        LinearModel(domain, weights, statement, "mean_operator", details, known),
        facts={
            "mean_operator": found.mean.tolist(),
            "noise": None if noise is None else vars(noise),
            "bounds": None if found.bounds is None else vars(found.bounds),
            "fit": details,
            **facts,
        },
        lines=[*_lines(found), f"{round(rows):,} rows, {fit.passes} passes"],
        sections=lambda: [*_sections(domain, found), *sections()],
        **more,
    )


def _error_bars(domain: Domain, found: MeanOperatorFit) -> ErrorBars | None:
    """How far the noise on the mean operator moves each weight, to first order; no less than its law asks for."""
    if found.noise is None:
        return None
    dimension = len(found.mean)
    far = coordinate_reach(dimension, LEVEL) / math.sqrt(dimension + 1) * found.noise.std
    return ErrorBars.of_noise(found.fit.weights / domain.norm_bound, far * found.fit.response / domain.norm_bound)


def _lines(found: MeanOperatorFit) -> Iterator[str]:
    """How much of the mean operator stands out of its noise, and what that noise can do."""
    if found.noise is None or found.bounds is None:
        return
    strong, bounds = int((np.abs(found.mean) > 2 * found.noise.std).sum()), found.bounds
    yield f"mean operator: {strong} of {len(found.mean)} entries stand out of the noise (2 standard deviations)"
    yield (
        f"with probability {1 - bounds.failure:g} the noise moves the risk by at most {bounds.risk_gap:.4g} "
        f"and the weights, times the norm bound, by at most {bounds.weight_gap:.4g}"
    )


def _sections(domain: Domain, found: MeanOperatorFit) -> Iterator[Section]:
    """The mean operator against its noise, and what the noise can do."""
    noise, bounds, length = found.noise, found.bounds, float(np.linalg.norm(found.mean))
    shown = dict(zip(domain.feature_names, found.mean.tolist(), strict=True))
    plot = bars(shown, "mean operator, in shares of the norm bound", noise=0.0 if noise is None else noise.std)
    header, table = ("feature", "mean operator"), [(name, f"{value:.6g}") for name, value in shown.items()]
    if noise is None or bounds is None:
        text = f"Length {length:.4g}; no central noise was added."
        yield Section("Mean operator", text=text, plot=plot, folded=True, detail=True, header=header, rows=table)
        return
    alone = noise.std * float(np.sqrt(len(shown)))
    text = f"The released mean operator has length {length:.4g}; noise alone would have length about {alone:.4g}."
    title = "Mean operator against noise"
    yield Section(title, text=text, plot=plot, folded=True, detail=True, header=header, rows=table)
    law = f"{noise.kind}, scale {noise.scale:.4g}, standard deviation {noise.std:.4g} for each coordinate"
    theorem = "theorem 10 of Patrini, Nielsen and Nock 2015, corrected"
    moved = f"move by at most {bounds.weight_gap:.4g} (their theorem 6, with its constant)"
    rows = [
        ("noise", law),
        ("probability", f"{100 * (1 - bounds.failure):g} %"),
        ("length of the noise", f"at most {bounds.length:.4g}"),
        ("risk", f"moves by at most {bounds.risk_gap:.4g} ({theorem})"),
        ("weights times the norm bound", moved),
    ]
    text = "Bounds from the public scale of the noise alone; they hold together, with the probability given."
    yield Section("What the noise can do", text=text, rows=rows, detail=True)
