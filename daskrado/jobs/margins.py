"""kind: margins. The distribution of models' margins over a lake, its graph, and what it bounds."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, model_validator

from daskrado.bounds.margins import Bound, MarginDistribution
from daskrado.errors import UsageError
from daskrado.jobs.base import Address, Charge, Line, Outcome, PrivateJob, Run, calibrated
from daskrado.jobs.report import Section, draw
from daskrado.lake.collect import Passes, Progress
from daskrado.learners.on_passes.adaboost import AdaBoost
from daskrado.learners.on_release.radoboost import RadoBoost
from daskrado.models.linear import LinearModel
from daskrado.privacy.mechanisms import OneShot
from daskrado.privacy.release import Release, release_without_privacy
from daskrado.statistics.base import Summary
from daskrado.statistics.margins import MarginHistogram, whole_votes
from daskrado.statistics.rados import HadamardRados
from daskrado.table.lattice import Lattice
from daskrado.table.yaml_file import Frozen, write_text

ROLE = "margins"
TOLD = (-0.2, -0.1, 0.0, 0.1, 0.2)  # margins that a table says the share below of
Weights = Mapping[str, NDArray[np.float64]]  # of each model, by its name


class Boosting(Frozen):
    """Train the boosters whose margins are shown; reads rows without noise, so only for ``private: false``."""

    learners: tuple[Literal["adaboost", "radoboost"], ...] = ("adaboost", "radoboost")
    rounds: tuple[int, ...] = (5, 100, 1000)
    rados: int = Field(default=1024, ge=2, le=1 << 16, description="a power of two")

    def train(self, passes: Passes, width: int, progress: Progress | None) -> Weights:
        """AdaBoost on the rows and RadoBoost on Hadamard rados of them, after each number of rounds."""
        rados = cache(lambda: release_without_privacy(passes.sum(HadamardRados(width, self.rados))))
        fit: dict[str, Callable[[int], tuple[NDArray[np.float64], Any]]] = {
            "adaboost": lambda rounds: AdaBoost(rounds=rounds, keep="last").fit(passes.sum, width, progress),
            "radoboost": lambda rounds: RadoBoost(rounds=rounds, keep="last").fit(rados()),
        }
        return {
            f"{name}, {rounds:,} rounds": fit[name](rounds)[0] for name in self.learners for rounds in self.rounds
        }


@dataclass(frozen=True)
class ModelBounds:
    """What a model's margins on the rows bound its true error by."""

    model: str
    training_error: float
    theta: float
    margin_bound: Bound
    breiman_bound: Bound

    def lines(self) -> tuple[str, ...]:
        """For a terminal."""
        return (
            f"{self.model}: error {self.training_error:.4f} on these rows",
            f"  true error at most {self.margin_bound}, at theta {self.theta:g}",
            f"  Breiman's bound {self.breiman_bound}",
        )

    def row(self) -> tuple[str, ...]:
        """For a table."""
        bound = f"{self.margin_bound} at theta {self.theta:g}"
        return self.model, f"{self.training_error:.4f}", bound, str(self.breiman_bound)


@dataclass(frozen=True)
class Margins:
    """Released margin distributions. ``shares[model][j]`` is the share of examples with margin below edge j."""

    names: tuple[str, ...]
    edges: NDArray[np.float64]
    shares: NDArray[np.float64]
    examples: int
    noise_std: float
    bounds: tuple[ModelBounds, ...]

    def save(self, path: Path) -> None:
        """Write the distributions as JSON."""
        shares = zip(self.names, self.shares, strict=True)
        content = {
            "edges": [round(float(edge), 9) for edge in self.edges],
            "shares": {name: [round(float(s), 9) for s in share] for name, share in shares},
        }
        write_text(path, json.dumps(content, allow_nan=False) + "\n")

    def plot(self) -> str:
        """The margin distribution graph: the share of examples with margin at most theta, against theta."""
        styles, colours = (":", "--", "-", "-."), ("#2b6cb0", "#c05621", "#2f855a", "#805ad5")
        families = [name.split(",")[0] for name in self.names]
        colour_of = {family: colours[k % len(colours)] for k, family in enumerate(dict.fromkeys(families))}

        def paint(axes: Any) -> None:
            for k, (family, share) in enumerate(zip(families, self.shares, strict=True)):
                style = styles[families[:k].count(family) % len(styles)]
                colour = colour_of[family]
                axes.plot(self.edges, share, style, color=colour, linewidth=1.4, label=self.names[k])
            axes.axvline(0, color="#2d3748", linewidth=0.6)

        return draw(paint, "theta", "share of examples with margin at most theta", legend="", height=4.2)


class MarginsJob(PrivateJob):
    """``models`` are published model files of this domain, or ``boost`` trains some."""

    name: ClassVar[str] = "margins"
    addresses: ClassVar[tuple[Address, ...]] = (("models",),)
    counts_units: ClassVar[bool] = True

    models: tuple[str, ...] = ()
    boost: Boosting | None = None
    bins: int = Field(default=200, ge=2, le=10_000, multiple_of=2)
    thetas: tuple[float, ...] = (0.05, 0.1, 0.2, 0.5)
    confidence: float = Field(default=0.95, gt=0, lt=1)

    @model_validator(mode="after")
    def _check_models(self) -> MarginsJob:
        if bool(self.models) == (self.boost is not None):
            raise ValueError("give either models (files) or boost, not both and not neither")
        if self.boost is not None and self.private:
            raise ValueError("boost reads rows without noise: on private data give models, or say private: false")
        if not self.thetas or not all(0 < theta <= 1 for theta in self.thetas):
            raise ValueError(f"thetas must lie above 0 and at most 1, got {list(self.thetas)}")
        return self

    @property
    def lattice(self) -> Lattice:
        """The grid of the rows."""
        return Lattice(self.domain.norm_bound, 20)

    @property
    def counted(self) -> int | None:
        """What one unit counts for at most, where units are examples; None where rows are."""
        return None if self.protect is None else self.protect.bound

    @cached_property
    def weights(self) -> Weights:
        """The weights of the model files, read once, all for this job's domain."""
        found = {}
        for name, path in zip(_short_names(self.models), self.models, strict=True):
            model = LinearModel.load(path)
            if model.domain.feature_names != self.domain.feature_names:
                raise UsageError(f"models: {path} was learned for another domain than the pipeline's")
            if not model.domain.encodes_like(self.domain):
                raise UsageError(
                    f"models: {path} scales numbers, or clips rows, in another way than the pipeline's domain: learn "
                    "it with learner.centre: false, or give the model's own domain"
                )
            found[name] = model.weights
        return found

    def statistic(self, weights: Iterable[NDArray[np.float64]]) -> MarginHistogram:
        """The histograms of some models."""
        domain = self.domain
        bounds = [min(1.0, domain.norm_bound)] * domain.width
        if domain.intercept:
            bounds[-1] = min(domain.intercept, domain.norm_bound)
        votes = tuple(whole_votes(theta, bounds, domain.norm_bound) for theta in weights)
        return MarginHistogram(domain.width, votes, self.lattice.bits, self.bins)

    @property
    def _planned(self) -> OneShot | None:
        """The mechanism for histograms of as many models: their weights change neither its noise nor its cost."""
        shape = self.statistic([np.zeros(self.domain.width)] * max(1, len(self.models)))
        return calibrated(self.asked, shape, self.lattice) if self.private else None

    def charges(self) -> tuple[Charge, ...]:
        planned = self._planned
        return () if planned is None else (Charge.of_mechanism(ROLE, planned, self.asked, self.assumptions),)

    def inputs(self) -> dict[str, str]:
        digest = hashlib.sha256(b"".join(weights.tobytes() for weights in self.weights.values()))
        return {"the models": digest.hexdigest()}

    def plan(self) -> Iterator[Line]:
        yield "margins", f"{self.bins} bins in [-1, 1] for each model"
        if (planned := self._planned) is not None:
            yield "noise", f"standard deviation {planned.noise_std()['margins']:.4g} rows on each bin"

    def work(self, run: Run) -> Outcome:
        """Count the margins of the given models, or of those that are trained here, and bound their errors."""
        if self.private:
            models = self.weights
            chosen = calibrated(self.asked, self.statistic(models.values()), self.lattice)
            released = run.release(ROLE, chosen, lambda: self._gathered(run)[1])
        else:
            models, summary = self._gathered(run)
            released = release_without_privacy(summary)
        return self._outcome(self._measured(tuple(models), released, run.rows), released)

    def _gathered(self, run: Run) -> tuple[Weights, Summary]:
        """The models and the histograms of their margins."""
        boosts = self.boost is not None
        with run.passes(self.lattice, seeded=boosts, by_record=False, placed=boosts) as passes:
            models = self.weights
            if self.boost is not None:
                with run.clock("boost"):
                    models = self.boost.train(passes, self.domain.width, run.progress)
            with run.clock("margins"):
                return models, passes.sum(self.statistic(models.values()), progress=run.progress)

    def _measured(self, names: tuple[str, ...], released: Release, rows: int | None) -> Margins:
        """Shares and bounds; where the number of rows is secret, the histograms' own total stands for it.

        Units that count as w <= k rows each are worth (sum w)^2 / sum w^2 >= (sum w) / k independent examples.
        """
        units = 1 if self.counted is None else self.counted
        counts, std = released.values["margins"] / units, released.noise_std["margins"] / units
        known = rows if self.counted is None else None
        examples = max(1, round(float(counts.sum(axis=1).mean()))) if known is None else known
        found = [MarginDistribution(row, examples, std) for row in counts]
        bounds = tuple(self._bounds(name, one) for name, one in zip(names, found, strict=True))
        return Margins(names, found[0].edges, np.array([one.shares for one in found]), examples, std, bounds)

    def _bounds(self, model: str, found: MarginDistribution) -> ModelBounds:
        hypotheses, failure = 2 * self.domain.width, 1 - self.confidence
        best, theta = found.best_margin_bound(self.thetas, hypotheses, failure)
        return ModelBounds(model, found.error, theta, best, found.breiman_bound(hypotheses, failure))

    def _outcome(self, found: Margins, released: Release) -> Outcome:
        return Outcome(
            found,
            released.statement,
            release=released,
            facts={"noise_std": found.noise_std, "bounds": [vars(one) for one in found.bounds]},
            lines=[line for one in found.bounds for line in one.lines()],
            made=[("margins", f"{self.bins} bins in [-1, 1] for each of {len(found.names)} models")],
            sections=lambda: self._sections(found),
            files={"margins.json": found.save},
            title=f"{self.dataset}: margins of {len(found.names)} models",
        )

    def _sections(self, found: Margins) -> list[Section]:
        who = "rows" if self.counted is None else "units"
        return [
            Section(
                "Margin distribution",
                text="Normalised margins of the rows of the lake; below 0 the prediction is wrong.",
                plot=found.plot(),
                header=("model", *(f"margin at most {theta:g}" for theta in TOLD)),
                rows=[
                    (name, *(f"{np.interp(theta, found.edges, share):.4f}" for theta in TOLD))
                    for name, share in zip(found.names, found.shares, strict=True)
                ],
            ),
            Section(
                "Bounds on the true error",
                text=f"Holds with probability {self.confidence:g} if the {who} were drawn independently; |H| = "
                f"{2 * self.domain.width} (each feature and its negation).",
                header=("model", "error on these rows", "Schapire, Freund, Bartlett and Lee", "Breiman"),
                rows=[one.row() for one in found.bounds],
            ),
        ]


def _short_names(paths: Sequence[str]) -> list[str]:
    """The last parts of each path, at least two and as many as tell the files apart."""
    parts = [Path(os.path.realpath(path)).parts for path in paths]
    for path, part in zip(paths, parts, strict=True):
        if parts.count(part) > 1:
            raise UsageError(f"models: {path} is listed twice")
    depth = 2
    while len({part[-depth:] for part in parts}) < len(parts):
        depth += 1
    return ["/".join(part[-depth:]) for part in parts]
