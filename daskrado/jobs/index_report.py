"""One page over all runs of a folder: what each is, costs and found, and how models of one domain differ."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from daskrado.errors import UsageError
from daskrado.jobs.plots import bars
from daskrado.jobs.published import MANIFESTS, Published, published_below
from daskrado.jobs.report import render_page
from daskrado.jobs.section import Section
from daskrado.ledger.words import percent
from daskrado.models.linear import LinearModel
from daskrado.table.yaml_file import write_text

_FEATURES = 20
_MODELS = 6  # that are compared in one table
HEADER = ("run", "kind", "data set", "guarantee", "attacker right, of 100", "share of the budget", "result")


def row(one: Published, top: Path) -> tuple[str, ...]:
    """One run in the table of all."""
    share = "" if one.share is None else percent(one.share)
    figures, learner = one.figures, one.content.get("job", {}).get("learner", {})
    result = ", ".join(f"{name} {figures[name]}" for name in ("error", "area under the ROC curve") if name in figures)
    kind = str(one.content.get("kind", ""))
    kind += f" ({learner['kind']})" if isinstance(learner, dict) and "kind" in learner else ""
    return (name_of(one, top), kind, str(one.content.get("dataset", "")), one.guarantee, one.guess, share, result)


def name_of(one: Published, top: Path) -> str:
    """A run's folder, as seen from the index."""
    return one.folder.relative_to(top).as_posix() if one.folder != top else one.folder.name


@dataclass(frozen=True)
class Index:
    """A page over runs: where it lies, the runs, and what is wrong with others."""

    page: Path
    runs: list[Published]
    problems: list[str]

    @property
    def table(self) -> list[dict[str, str]]:
        """One mapping for each run: its row of the page."""
        top = self.page.parent
        return [dict(zip(HEADER, row(one, top), strict=True)) for one in self.runs]


def report(folder: str | Path) -> Index:
    """Write ``folder``/index.html, a page over all published runs in it; of a single run, its own page.

    Runs are found by their manifests, up to three folders down. Reads no row and no ledger.
    """
    folder = Path(folder).expanduser()
    if any((folder / name).is_file() for name in MANIFESTS):
        one = Published.load(folder)
        if one.report is None:
            raise UsageError(f"{folder}: its report was not drawn; daskrado show {folder} shows the run")
        return Index(one.report, [one], [])
    found, problems = published_below(folder)
    if not found:
        raise UsageError(f"{folder}: holds no published run; a run's output folder has a manifest.json")
    page = folder / "index.html"
    write_text(page, index_page(found, problems, folder))
    return Index(page, list(found), list(problems))


def index_page(found: Sequence[Published], problems: Sequence[str], top: Path) -> str:
    """The page. Links are relative, so that a folder of runs can be moved or handed over as it is."""
    links = {name_of(one, top): one.report.relative_to(top).as_posix() for one in found if one.report is not None}
    header = [*HEADER] if any(one.figures for one in found) else [*HEADER[:-1]]
    rows = [row(one, top)[: len(header)] for one in found]
    sections = [Section("All runs", header=header, rows=rows), *_budgets(found, top), *_compared(found, top)]
    own = [problem.removeprefix(f"{top}/") for problem in problems]  # no place of this machine
    notes = [*own, *(f"{name_of(one, top)}: {problem}" for one in found for problem in one.changed)]
    if notes:
        sections.append(Section("Problems", rows=[("problem", note) for note in notes]))
    return render_page(f"{top.resolve().name}: {len(found)} runs", "all published runs", {}, sections, links)


def _budgets(found: Sequence[Published], top: Path) -> Iterator[Section]:
    """What the runs took, for each data set."""
    for dataset in dict.fromkeys(str(one.content.get("dataset")) for one in found):
        taken = {name_of(one, top): one.share for one in found if one.share and one.content["dataset"] == dataset}
        if taken:
            yield Section(
                f"Budget of {dataset}",
                text="Shares as the runs' manifests state them; daskrado ledger show has those that are not here.",
                header=("run", "share of the budget"),
                rows=[(name, percent(share)) for name, share in sorted(taken.items(), key=lambda pair: -pair[1])],
                plot=bars({name: 100 * share for name, share in taken.items()}, "% of the budget"),
                folded=True,
            )


def _compared(found: Sequence[Published], top: Path) -> Iterator[Section]:
    """Models of one domain beside each other: where they point, whatever their scale."""
    alike: dict[str, dict[str, LinearModel]] = {}
    for one in found:
        if (model := one.model) is not None:
            alike.setdefault(model.domain.digest(), {})[name_of(one, top)] = model
    for models in alike.values():
        names = list(models)[:_MODELS]
        if len(names) < 2:
            continue
        first = models[names[0]]
        features = [name for name in first.weight_names if not name.endswith("intercept")]
        at = [first.weight_names.index(name) for name in features]
        unit = np.array([_unit(models[name].weights.ravel()[at]) for name in names])
        order = np.argsort(-np.abs(unit).max(axis=0))[:_FEATURES]
        left = f" The first {_MODELS} of {len(models)} models." if len(models) > _MODELS else ""
        cells = [(features[place], *(f"{value:+.3f}" for value in unit[:, place])) for place in order]
        cosines = [("cosine with the first", *(f"{float(one @ unit[0]):+.3f}" for one in unit))]
        yield Section(
            f"Models compared: {', '.join(names)}",
            text="Weights scaled to length 1 without the intercept, so that models of several learners compare: the "
            f"{len(order)} largest of {len(features)}.{left}",
            header=("feature", *names),
            rows=[*cosines, *cells],
        )


def _unit(weights: Any) -> Any:
    return weights / max(float(np.linalg.norm(weights)), 1e-300)
