"""kind: margins. The distribution of models' margins over a lake, its graph, and what it bounds."""

from __future__ import annotations

import hashlib
import math
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import NormalDist
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, model_validator

from daskrado.bounds.margins import Bound, breiman_bound, margin_bound
from daskrado.cluster import connect
from daskrado.errors import UsageError
from daskrado.jobs.measure.base import ROLE, MeasurePipeline, plan_head, reserved, statement_of
from daskrado.jobs.measure.margins_report import MarginsResult, margin_lines, write_margins
from daskrado.jobs.pipeline_job import PipelineJob
from daskrado.lake.collect import Passes, Progress, open_passes
from daskrado.lake.scan import Lake, open_lake
from daskrado.learners.on_passes.adaboost import AdaBoost
from daskrado.learners.on_release.radoboost import RadoBoost
from daskrado.ledger.account import Account
from daskrado.ledger.charging import Clock
from daskrado.ledger.ledger import Ledger
from daskrado.ledger.opening import open_account
from daskrado.models.linear import LinearModel
from daskrado.privacy.accountant import Event
from daskrado.privacy.mechanisms import Mechanism, Target, mechanism
from daskrado.privacy.release import Release, release_without_privacy
from daskrado.statistics.margins import MarginHistogram, whole_votes
from daskrado.statistics.rados import HadamardRados
from daskrado.table.lattice import Lattice
from daskrado.table.yaml_file import Frozen


class Boosting(Frozen):
    """Train the boosters whose margins are shown; reads rows without noise, so only for ``private: false``."""

    learners: tuple[Literal["adaboost", "radoboost"], ...] = ("adaboost", "radoboost")
    rounds: tuple[int, ...] = (5, 100, 1000)
    rados: int = Field(default=1024, ge=2, le=1 << 16, description="a power of two")


class MarginsPipeline(MeasurePipeline):
    """``models`` are published model files of this domain, or ``boost`` trains some."""

    models: tuple[str, ...] = ()
    boost: Boosting | None = None
    bins: int = Field(default=200, ge=2, le=10_000, multiple_of=2)
    thetas: tuple[float, ...] = (0.05, 0.1, 0.2, 0.5)
    confidence: float = Field(default=0.95, gt=0, lt=1)

    @model_validator(mode="after")
    def _check_models(self) -> MarginsPipeline:
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

    def chosen(self, statistic: MarginHistogram) -> Mechanism | None:
        """The mechanism, calibrated for the histograms."""
        if self.protect is None or self.budget is None:
            return None
        target = Target(statistic, self.lattice, self.protect.relation, self.protect.rows_per_unit)
        name = "gaussian" if self.budget.delta > 0 else "laplace"
        return mechanism(name, target, self.budget.epsilon, self.budget.delta)

    def load_models(self) -> dict[str, NDArray[np.float64]]:
        """The weights of the model files, all for this pipeline's domain."""
        found = {}
        for name, path in zip(_short_names(self.models), self.models, strict=True):
            model = LinearModel.load(path)
            if model.domain.feature_names != self.domain.feature_names:
                raise UsageError(f"models: {path} was learned for another domain than the pipeline's")
            found[name] = model.weights
        return found

    def statistic(self, weights: Sequence[NDArray[np.float64]]) -> MarginHistogram:
        """The histograms of some models."""
        domain = self.domain
        bounds = [min(1.0, domain.norm_bound)] * domain.width
        if domain.intercept:
            bounds[-1] = min(domain.intercept, domain.norm_bound)
        votes = tuple(whole_votes(theta, bounds, domain.norm_bound) for theta in weights)
        return MarginHistogram(domain.width, votes, self.lattice.bits, self.bins)


def _short_names(paths: Sequence[str]) -> list[str]:
    """The last parts of each path, at least two and as many as tell the files apart."""
    parts = [Path(os.path.realpath(path)).parts for path in paths]
    for path in paths:
        if parts.count(Path(os.path.realpath(path)).parts) > 1:
            raise UsageError(f"models: {path} is listed twice")
    depth = 2
    while len({part[-depth:] for part in parts}) < len(parts):
        depth += 1
    return ["/".join(part[-depth:]) for part in parts]


def run_margins(
    pipeline: MarginsPipeline,
    *,
    overwrite: bool = False,
    ledger_path: str | Path | None = None,
    progress: Progress | None = None,
    write: bool = True,
    account: Account | None = None,
) -> MarginsResult:
    """Measure margins: exactly, or noised and charged where the lake is private."""
    with open_account(
        "margins",
        pipeline,
        overwrite=overwrite,
        ledger_path=ledger_path,
        write=write,
        private=pipeline.private,
        account=account,
    ) as account:
        result = _run(pipeline, account, progress)
        if write:
            with account.publish(pipeline.output) as folder:
                write_margins(result, pipeline, chosen_event(pipeline, len(result.names)), folder)
    return result


def _run(pipeline: MarginsPipeline, account: Account, progress: Progress | None) -> MarginsResult:
    clock, given = Clock(), pipeline.load_models()
    with clock("scan"):
        lake = open_lake(pipeline.lake, pipeline.domain)

    def gather(models: dict[str, NDArray[np.float64]] | None) -> Any:
        with (
            connect(pipeline.cluster, lake.size) as client,
            open_passes(
                lake,
                pipeline.domain,
                pipeline.lattice,
                seeded=models is None,
                by_record=False,
                placed=models is None,
                client=client,
            ) as passes,
        ):
            if models is None:
                with clock("boost"):
                    models = _boosted(pipeline, passes, progress)
            with clock("margins"):
                summary = passes.sum(pipeline.statistic(list(models.values())), progress=progress)
        return models, summary

    budget: dict[str, Any] = {}
    if pipeline.private:
        statistic = pipeline.statistic(list(given.values()))
        chosen = pipeline.chosen(statistic)
        assert chosen is not None
        assert pipeline.budget is not None
        account.unchanged("the models", hashlib.sha256(b"".join(w.tobytes() for w in given.values())).hexdigest())
        statement = statement_of(
            pipeline,
            epsilon=pipeline.budget.epsilon,
            delta=pipeline.budget.delta,
            mechanism=chosen.name,
            theorem=chosen.theorem,
            accountant="one release",
        )
        grant = reserved(account, pipeline, lake, chosen.event, chosen.theorem, 16 * statistic.size)
        models = given
        released = account.release(ROLE, grant, chosen, statement, lambda: gather(given)[1])
        budget = account.budget(grant)
    else:
        models, summary = gather(given or None)
        released = release_without_privacy(summary)
    return _measured(pipeline, lake, list(models), released, account.run, budget, clock, account.notes)


def _boosted(pipeline: MarginsPipeline, passes: Passes, progress: Progress | None) -> dict[str, NDArray[np.float64]]:
    """AdaBoost on the rows and RadoBoost on Hadamard rados of them, after each number of rounds."""
    assert pipeline.boost is not None
    width, choice = pipeline.domain.width, pipeline.boost
    models = {}
    for learner in choice.learners:
        rados = release_without_privacy(passes.sum(HadamardRados(width, choice.rados)))
        for rounds in choice.rounds:
            if learner == "adaboost":
                theta, _ = AdaBoost(rounds=rounds, keep="last").fit(passes.sum, width, progress)
            else:
                theta, _ = RadoBoost(rounds=rounds, keep="last").fit(rados)
            models[f"{learner}, {rounds:,} rounds"] = theta
    return models


def _measured(
    pipeline: MarginsPipeline,
    lake: Lake,
    names: list[str],
    released: Release,
    run: str,
    budget: dict[str, Any],
    clock: Clock,
    notes: tuple[str, ...],
) -> MarginsResult:
    counts = released.values["margins"]
    std = released.noise_std["margins"]
    public = pipeline.protect is None or pipeline.protect.relation.rows_public
    examples = lake.rows if public else max(1, round(float(counts.sum(axis=1).mean())))
    edges = np.linspace(-1, 1, pipeline.bins + 1)
    running = np.cumsum(counts, axis=1) / examples
    shares = np.clip(np.maximum.accumulate(running, axis=1), 0.0, 1.0)
    shares = np.concatenate([np.zeros((len(names), 1)), shares], axis=1)
    bounds = [_bounds(pipeline, name, counts[k], shares[k], edges, examples, std) for k, name in enumerate(names)]
    return MarginsResult(run, names, edges, shares, released, examples, std, bounds, budget, clock.seconds, notes)


def _bounds(
    pipeline: MarginsPipeline,
    name: str,
    counts: NDArray[np.float64],
    shares: NDArray[np.float64],
    edges: NDArray[np.float64],
    examples: int,
    std: float,
) -> dict[str, Any]:
    """The best of the declared thetas and Breiman's bound; noise on counts is paid for with its quantile."""
    failure, tries = 1 - pipeline.confidence, len(pipeline.thetas)
    hypotheses = 2 * pipeline.domain.width
    found: list[tuple[Bound, float]] = []
    for theta in pipeline.thetas:
        # P[margin <= theta] is at most the share below the first edge above theta.
        at = int(np.searchsorted(edges, theta + 1e-9, side="right"))
        share, budgeted = float(shares[min(at, len(shares) - 1)]), failure / tries
        if std > 0:
            budgeted /= 2
            share = min(
                1.0, share + NormalDist().inv_cdf(1 - budgeted) * std * math.sqrt(at + len(counts)) / examples
            )
        found.append((margin_bound(share, theta, hypotheses, examples, budgeted), theta))
    best, theta = min(found, key=lambda pair: math.inf if pair[0].value is None else pair[0].value)
    if std > 0:
        breiman = Bound(None, "the least margin is not known exactly on private data")
    else:
        first = int(np.flatnonzero(counts)[0])
        breiman = breiman_bound(float(edges[first]), hypotheses, examples, failure)
    error = float(shares[len(shares) // 2])
    return {"model": name, "training_error": error, "theta": theta, "margin_bound": best, "breiman_bound": breiman}


def chosen_event(pipeline: MarginsPipeline, models: int) -> Event | None:
    """What the histograms of so many models cost; None where nothing is protected."""
    chosen = pipeline.chosen(pipeline.statistic([np.zeros(pipeline.domain.width)] * models))
    return None if chosen is None else chosen.event


class MarginsJob(PipelineJob[MarginsPipeline]):
    """``kind: margins`` for ``daskrado plan`` and ``daskrado run``."""

    schema = MarginsPipeline
    runner = staticmethod(run_margins)

    def plan_lines(self, ledger: Ledger | None) -> Iterator[str]:
        """Cost and noise."""
        count = len(self.pipeline.models) or 1
        chosen = self.pipeline.chosen(self.pipeline.statistic([np.zeros(self.pipeline.domain.width)] * count))
        yield from plan_head(self.pipeline, chosen_event(self.pipeline, count), ledger)
        yield f"margins     {self.pipeline.bins} bins in [-1, 1] for each model"
        if chosen is not None:
            yield f"noise       standard deviation {chosen.noise_std()['margins']:.4g} rows on each bin"

    def lines(self, result: MarginsResult) -> Iterator[str]:
        """Margins and bounds."""
        return margin_lines(result, self.pipeline)
