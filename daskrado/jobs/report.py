"""The report page: a statement at the top, then sections of text, tables and plots. Self-contained, no script."""

from __future__ import annotations

import io
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import daskrado
from daskrado.ledger.words import Price, percent, run_line
from daskrado.models.linear import LinearModel
from daskrado.privacy.statement import PrivacyStatement

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from daskrado.jobs.outcome import Outcome, Result
    from daskrado.jobs.run import Run

_SHOWN = 25
_NAME = 48  # characters of a name beside a bar; the table has it whole


@dataclass(frozen=True)
class Section:
    """One part of a report. ``header`` names the columns of ``rows``; without it, rows are key and value."""

    title: str
    text: str = ""
    rows: Sequence[Sequence[str]] = ()
    header: Sequence[str] = ()
    plot: str = ""
    folded: bool = False


def render_page(title: str, run: str, statement: PrivacyStatement, sections: Sequence[Section]) -> str:
    """The page as HTML. Sections must hold released or public facts only."""
    import jinja2

    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("daskrado.jobs", "."), autoescape=True, undefined=jinja2.StrictUndefined
    )
    return environment.get_template("page.html.j2").render(
        title=title, run=run, version=daskrado.__version__, statement=statement, sections=sections
    )


def draw(paint: Callable[[Axes], Any], x: str, y: str = "", *, legend: str | None = None, height: float = 3.6) -> str:
    """An inline SVG: ``paint`` draws on axes of these names; ``legend`` is the title of one, perhaps empty."""
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7.2, height), layout="constrained")
    axes = figure.add_subplot()
    paint(axes)
    axes.set_xlabel(x)
    axes.set_ylabel(y)
    if legend is not None:
        axes.legend(title=legend or None, fontsize=8, frameon=False)
    axes.tick_params(labelsize=8)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    buffer = io.StringIO()
    with rc_context({"svg.hashsalt": "daskrado"}), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph")  # a name in a script that the plot's font lacks: the table has it
        figure.savefig(buffer, format="svg", metadata={"Date": None})
    text = buffer.getvalue()
    return text[text.index("<svg") :]


def bars(values: dict[str, float], title: str, *, noise: float = 0.0) -> str:
    """A horizontal bar chart, largest first, with the noise's two standard deviations as a band."""
    ranked = sorted(values.items(), key=lambda item: -abs(item[1]))[:_SHOWN][::-1]

    def paint(axes: Axes) -> None:
        colours = ["#2b6cb0" if value >= 0 else "#c05621" for _, value in ranked]
        names = [name if len(name) <= _NAME else f"{name[: _NAME // 2]}…{name[-_NAME // 2 :]}" for name, _ in ranked]
        axes.barh(range(len(ranked)), [value for _, value in ranked], color=colours, height=0.72)
        axes.set_yticks(range(len(ranked)), [name.replace("$", r"\$") for name in names])
        if noise > 0:
            axes.axvspan(-2 * noise, 2 * noise, color="#718096", alpha=0.25, label="noise, ± 2 standard deviations")
            axes.legend(loc="lower right", fontsize=8, frameon=False)
        axes.axvline(0, color="#2d3748", linewidth=0.8)

    most = f" (largest {_SHOWN} of {len(values)})" if len(values) > _SHOWN else ""
    return draw(paint, title + most, height=0.9 + 0.24 * len(ranked))


def page_of(run: Run, outcome: Outcome, result: Result) -> str:
    """The report of a run, a page that a data protection officer can read: the same frame for every kind."""
    job, details = run.job, {} if result.model is None else result.model.details
    made = [
        *outcome.made,
        *((key.replace("_", " "), plain(value)) for key, value in details.items()),
        ("rows", f"{result.rows:,}" if result.rows is not None else "secret under this relation"),
        ("domain", f"{job.domain.width} features, sha256 {job.domain.digest()[:16]}…"),
    ]
    if result.seconds:
        made.append(("seconds", ", ".join(f"{stage} {value:g}" for stage, value in result.seconds.items())))
    sections = [
        *privacy_sections(result.statement),
        *budget_sections(run),
        *outcome.sections(),
        *model_sections(result.model),
        Section("How it was made", rows=made),
    ]
    if result.notes:
        sections.append(Section("Notes", text="; ".join(result.notes)))
    return render_page(outcome.title or job.title.format(job=job), result.run, result.statement, sections)


def plain(value: Any) -> str:
    """A detail of a model as text."""
    return f"{value:g}" if isinstance(value, int | float) else str(value)


def model_sections(model: LinearModel | None) -> Iterator[Section]:
    """The coefficients, drawn and listed."""
    if model is None:
        return
    pairs = zip(model.domain.feature_names, model.weights.tolist(), strict=True)
    weights = dict(sorted(pairs, key=lambda item: -abs(item[1])))
    yield Section("Coefficients", plot=bars(weights, "weight"))
    yield Section("All coefficients", rows=[(n, f"{w:+.6g}") for n, w in weights.items()], folded=True)


def privacy_sections(statement: PrivacyStatement) -> Iterator[Section]:
    """Who was protected, and by what."""
    title = "What was protected, and for whom"
    if not statement.private:
        warning = "Nobody. These are exact figures; do not publish them where the rows are private."
        yield Section(title, text=warning)
    else:
        yield Section(title, rows=statement_rows(statement))


def budget_sections(run: Run) -> Iterator[Section]:
    """What the run took, what is left, and who spent what and when."""
    prices = run.prices()
    if not prices:
        return
    whole = [price for price in prices if not price.balance.block]
    rows = [
        (str(price.balance.relation), percent(price.share), percent(price.left), f"{price.more:,}") for price in whole
    ]
    yield Section(
        "Budget",
        text=run_line(run.asked, prices),
        rows=rows,
        header=("relation", "this run", "left", "more runs like it") if whole else (),
        plot=budget_bar(whole) if whole else "",
    )
    if len(whole) < len(prices):
        from daskrado.jobs.block_report import block_sections

        yield from block_sections(run, prices)
    history = run.account.ledger.history(run.job.dataset, _SHOWN)
    told = [
        (entry.reserved_at[:16].replace("T", " "), entry.who, entry.run[:12], "" if share is None else percent(share))
        for entry, share in history
    ]
    yield Section("Who spent what, and when", rows=told, header=("when", "who", "run", "share"), folded=True)


def budget_bar(prices: Sequence[Price]) -> str:
    """For each budget a bar: spent before, this run, left."""

    def paint(axes: Axes) -> None:
        for place, price in enumerate(reversed(prices)):
            own, left = float(price.share), max(0.0, float(price.left))
            before = max(0.0, 1 - own - left)
            for start, width, colour in (
                (0.0, before, "#718096"),
                (before, own, "#2b6cb0"),
                (1 - left, left, "#e2e8f0"),
            ):
                axes.barh(place, 100 * width, left=100 * start, color=colour, height=0.6)
        axes.set_yticks(range(len(prices)), [str(price.balance.relation) for price in reversed(prices)])
        axes.set_xlim(0, 100)

    return draw(paint, "% of the budget: spent before, this run, left", height=0.8 + 0.3 * len(prices))


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
