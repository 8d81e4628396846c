"""The report page: results first, then what it means for one person, protection, budget, and how it was made.

One frame for every kind (``page.html.j2``); a kind gives its own sections. Self-contained: no script, nothing loaded.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from fractions import Fraction
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

import daskrado
from daskrado.jobs.budget_report import budget_sections
from daskrado.jobs.glossary import Glossary
from daskrado.jobs.person_report import odds_line, person_sections
from daskrado.jobs.plots import bars as bars
from daskrado.jobs.plots import draw as draw
from daskrado.jobs.section import Section as Section
from daskrado.ledger.words import dearest, percent
from daskrado.models.error_bars import MEANING, NOISE, UNSEEN, ErrorBars
from daskrado.models.linear import LinearModel
from daskrado.privacy.statement import PrivacyStatement

if TYPE_CHECKING:
    from daskrado.jobs.outcome import Outcome, Result
    from daskrado.jobs.run import Run

_FEW, _FEW_CLASSES = 4, 12  # features, and classes, that a page shows beside the tables
_Row = tuple[str, float, float, float, float, str]
MEASURED = (  # what a report says first
    "error",
    "error of the constant guess",
    "area under the ROC curve",
    "R^2",
    "mean absolute error",
)


def render_page(
    title: str,
    subtitle: str,
    statements: Mapping[str, PrivacyStatement],
    sections: Sequence[Section],
    links: Mapping[str, str] | None = None,
) -> str:
    """The page as HTML. Sections must hold released or public facts only.

    A single statement is a banner; where there are several, each names its own part of what was published. Cells that
    are in ``links`` lead there.
    """
    import jinja2

    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("daskrado.jobs", "."), autoescape=True, undefined=jinja2.StrictUndefined
    )
    glossary = Glossary()
    return environment.get_template("page.html.j2").render(
        title=title,
        subtitle=subtitle,
        version=daskrado.__version__,
        statements=statements,
        sections=sections,
        links=links or {},
        gloss=glossary,
        glossary=lambda: glossary.listed(section.text for section in sections),
    )


def page_of(run: Run, outcome: Outcome, result: Result) -> str:
    """The report of a run: what a clinician reads and a data protection officer files."""
    job, own = run.job, [*outcome.sections()]
    sections = [
        _in_short(run, outcome, result),
        *(section for section in own if not section.detail),
        *model_sections(result.model),
        *person_sections(run, result.statement),
        *(() if outcome.parts else privacy_sections(result.statement)),
        *budget_sections(run),
        *(section for section in own if section.detail),
        _how(run, outcome, result),
    ]
    if result.notes:
        sections.append(Section("Notes", text="; ".join(result.notes)))
    subtitle = f"{job.name} run {result.run} of data set {result.dataset}"
    title = outcome.title or job.title.format(job=job)
    return render_page(title, subtitle, outcome.parts or {"": result.statement}, sections)


def _in_short(run: Run, outcome: Outcome, result: Result) -> Section:
    """What a reader must know before reading on, and the card."""
    figures = figures_of(result.facts)
    rows = [*outcome.headline, *((name, figures[name]) for name in MEASURED if name in figures)]
    if result.model is not None:
        rows.append(("model", f"{result.model.weights.size} weights by learner {result.model.learner}"))
        rows += _strongest(result.model)
    if not (run.charges or result.statement.private):
        rows.append(("protected", "nobody: these are exact figures"))
    elif result.statement.private:
        rows += [("for one person", odds_line(run, result.statement))]
    if prices := run.prices():
        price = dearest(prices)
        rows.append(("budget", f"{percent(price.share)} of it taken, {percent(max(price.left, Fraction(0)))} left"))
    return Section("In short", rows=[*rows, *(run.job.card.rows() if run.job.card else ())])


def _strongest(model: LinearModel) -> Iterator[tuple[str, str]]:
    """What speaks most for each side, or for each of a few classes, noise left out."""
    if model.domain.label.classes is not None:
        for name, own in list(_by_class(model))[:_FEW_CLASSES]:
            most = [(row[0], row[1]) for row in own if row[-1] not in (NOISE, UNSEEN) and row[0] != "intercept"]
            told = ", ".join(f"{feature} ({weight:+.3g})" for feature, weight in most[:_FEW] if weight > 0)
            if told:
                yield f"speaks for {name}", told
        return
    rows = zip(model.domain.feature_names, model.weights.tolist(), model.error_bars.marks, strict=True)
    clear = sorted(
        (weight, name) for name, weight, mark in rows if mark not in (NOISE, UNSEEN) and name != "intercept"
    )
    label = model.domain.label
    names = (
        [f"speaks for {one}" for one in label.pair]
        if label.target == "sides"
        else [f"lowers {label.column}", f"raises {label.column}"]
    )
    sides = zip(names, (clear[:_FEW], clear[: -_FEW - 1 : -1]), (-1, 1), strict=True)
    for side, found, sign in sides:
        told = ", ".join(f"{name} ({weight:+.3g})" for weight, name in found if sign * weight > 0)
        if told:
            yield side, told


def figures_of(facts: Mapping[str, Any]) -> dict[str, str]:
    """The figures of a private evaluation with their intervals, as the facts of a run hold them."""
    return {
        name: "not known: too few rows for this budget"
        if (one["low"], one["high"]) == (0, 1)
        else f"{one['value']:.4f} ({one['low']:.4f} to {one['high']:.4f})"
        for name, one in facts.get("evaluation", {}).items()
        if isinstance(one, Mapping) and {"value", "low", "high"} <= one.keys()
    }


def _how(run: Run, outcome: Outcome, result: Result) -> Section:
    job, details = run.job, {} if result.model is None else result.model.details
    made = [
        *outcome.made,
        *((key.replace("_", " "), plain(value)) for key, value in details.items()),
        ("rows", f"{result.rows:,}" if result.rows is not None else "secret under this relation"),
        ("domain", f"{job.domain.width} features, sha256 {job.domain.digest()[:16]}…"),
        ("run", result.run),
        ("made by", f"daskrado {daskrado.__version__}"),
    ]
    if result.seconds:
        made.append(("seconds", ", ".join(f"{stage} {value:g}" for stage, value in result.seconds.items())))
    return Section("How it was made", rows=made)


def plain(value: Any) -> str:
    """A detail of a model as text."""
    return f"{value:g}" if isinstance(value, int | float) else str(value)


def model_sections(model: LinearModel | None, title: str = "Weights") -> Iterator[Section]:
    """The weights with their intervals, drawn and listed; those of each class by themselves."""
    if model is None:
        return
    error = model.error_bars
    if model.domain.label.classes is None:
        yield _weights(title, _rows_of(model.weight_names, model.weights, error), error.about)
        return
    for place, (name, rows) in enumerate(_by_class(model)):  # what they are about is said once
        about, drawn = "" if place else error.about, len(model.weights) <= _FEW_CLASSES
        yield _weights(f"{title}: {name}", rows, about, drawn=drawn)


def _rows_of(names: Sequence[str], weights: NDArray[np.float64], error: ErrorBars) -> list[_Row]:
    """Name, weight, interval, p-value and mark, the largest weights first."""
    parts = (weights, error.low, error.high, error.p_values)
    rows = list(zip(names, *(part.tolist() for part in parts), error.marks, strict=True))
    return sorted(rows, key=lambda row: -abs(row[1]))


def _by_class(model: LinearModel) -> Iterator[tuple[str, list[_Row]]]:
    """The weights of each of several classes."""
    error, width = model.error_bars, model.domain.width
    for k, one in enumerate(model.domain.label.values):
        own = slice(k * width, (k + 1) * width)
        bars_ = ErrorBars(error.low[own], error.high[own], error.seen[own], error.about)
        yield str(one), _rows_of(model.domain.feature_names, model.weights[k], bars_)


def _weights(title: str, rows: list[_Row], about: str, *, drawn: bool = True) -> Section:
    ends = {name: (low, high) for name, _, low, high, _, _ in rows if low == low}
    weak = frozenset(name for name, *_, mark in rows if mark in (NOISE, UNSEEN))
    unseen = sum(mark == UNSEEN for *_, mark in rows)
    said = [f"{about[0].upper()}{about[1:]}."] if about else []
    if ends:
        said.append(f"Lines are the intervals; grey bars may be noise: {sum(m == NOISE for *_, m in rows)} weights.")
    if unseen:
        said.append(f"{unseen} features are unseen: {MEANING[UNSEEN]}.")
    return Section(
        title,
        text=" ".join(said),
        header=("feature", "weight", "95 % interval", "p", "mark"),
        rows=[
            (name, f"{weight:+.5g}", *((f"{low:+.4g} to {high:+.4g}", _p(p)) if name in ends else ("", "")), mark)
            for name, weight, low, high, p, mark in rows
        ],
        plot=bars({name: weight for name, weight, *_ in rows}, "weight", ends=ends, faint=weak) if drawn else "",
        folded=True,
    )


def _p(value: float) -> str:
    return f"{value:.2g}" if value >= 1e-4 else "< 0.0001"


def privacy_sections(statement: PrivacyStatement) -> Iterator[Section]:
    """Who was protected, and by what."""
    title = "What was protected, and for whom"
    if statement.private:
        yield Section(title, rows=statement_rows(statement))
    else:
        yield Section(title, text="Nobody. These are exact figures; do not publish them where the rows are private.")


def statement_rows(statement: PrivacyStatement) -> list[tuple[str, str]]:
    """A private statement as the rows of a table."""
    assert statement.relation is not None
    return [
        ("protected", f"{statement.unit}, with up to {statement.rows_per_unit} row(s)"),
        ("neighbouring lakes", statement.relation.meaning(statement.rows_per_unit)),
        ("guarantee", f"epsilon {statement.epsilon:g}, delta {statement.delta:g}"),
        ("mechanism", f"{statement.mechanism}: {statement.theorem}"),
        ("accountant", statement.accountant),
        ("it assumes", "; ".join(statement.assumptions)),
    ]
