"""What is said and shown of a learned model."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np

from daskrado.jobs.base import Line, Outcome
from daskrado.jobs.report import Section, bars
from daskrado.learners.on_passes.iterative import Learned
from daskrado.models.linear import LinearModel
from daskrado.privacy.release import Release
from daskrado.statistics.base import Headline
from daskrado.table.domain import Domain

if TYPE_CHECKING:
    from daskrado.jobs.learn import LearnJob


LOOSE = 1.05  # times the longest row: from there on a norm bound only adds noise


def loose_norm(domain: Domain) -> Iterator[Line]:
    """A warning for a plan where the norm bound is far above what a row can reach."""
    longest = domain.largest_norm
    if domain.norm_bound > LOOSE * longest:
        yield (
            "warning",
            f"norm_bound {domain.norm_bound:g} is above {longest:.4g}, the longest that a row can be: noise is "
            f"{domain.norm_bound / longest:.2g} times what it need be; leave it out, or give at most that",
        )


def headline_of(released: Release | Learned) -> Headline:
    """Released values to set against the noise on them, as the statistic itself says."""
    if isinstance(released, Learned):
        return Headline("weights", released.weights.ravel(), released.noise_std.get("weights", 0.0))
    return released.statistic.headline(released.values, released.noise_std)


def learn_outcome(job: LearnJob, model: LinearModel, released: Release | Learned) -> Outcome:
    """What is said and shown of a learned model; a study's combined model says the same."""
    shown = headline_of(released)
    lines = []
    if model.statement.private and shown.std:
        strong = int((abs(shown.values) > 2 * shown.std).sum())
        stands = f"{strong} of {len(shown.values)} entries stand out of the noise"
        lines.append(f"{shown.what}: {stands} (above 2 standard deviations)")
    statistic = job.chosen_statistic
    grid = f"on a 2^-{job.lattice.bits} grid of the norm bound {job.lattice.norm_bound:g}"
    summed = "the learner's own" if statistic is None else f"{statistic.name}, {statistic.size:,} integers {grid}"
    return Outcome(
        model,
        model.statement,
        model,
        released,
        facts={
            "lattice": {"norm_bound": job.lattice.norm_bound, "bits": job.lattice.bits},
            "noise_std": released.noise_std,
            "features": job.domain.width,
        },
        lines=lines,
        made=[("statistic", summed), ("learner", model.learner)],
        sections=lambda: [_noise_section(job, shown, released)],
    )


def _noise_section(job: LearnJob, shown: Headline, released: Release | Learned) -> Section:
    title = "Noise against signal"
    if isinstance(released, Learned):
        return Section(title, rows=list(job.forecast()), detail=True)
    names = job.domain.feature_names
    named = names if len(names) == len(shown.values) else tuple(map(str, range(len(shown.values))))
    plot = bars(dict(zip(named, shown.values.tolist(), strict=True)), f"released {shown.what}", noise=shown.std)
    if not released.statement.private:
        return Section(
            title,
            text="No noise was added.",
            plot=plot,
            header=("feature", f"released {shown.what}"),
            rows=[(name, f"{value:.6g}") for name, value in zip(named, shown.values.tolist(), strict=True)],
            folded=True,
            detail=True,
        )
    length, alone = float(np.linalg.norm(shown.values)), shown.std * math.sqrt(len(shown.values))
    return Section(
        title,
        text=f"The released {shown.what} has length {length:.4g}; noise alone would have length about {alone:.4g}.",
        header=("released", "entries", "noise, standard deviation", "moves an entry"),
        rows=[
            (block, f"{entries:,}", f"{std:.4g}", rows if std else "public: no noise needed")
            for block, entries, std, rows in job.noise_rows(released.noise_std)
        ],
        plot=plot,
        detail=True,
    )
