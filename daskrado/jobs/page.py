"""The report page: a statement at the top, then sections of text, tables and plots. Self-contained, no script."""

from __future__ import annotations

import io
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import daskrado
from daskrado.privacy.statement import PrivacyStatement

if TYPE_CHECKING:
    from matplotlib.axes import Axes

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


def draw(paint: Callable[[Axes], Any], *, width: float = 7.2, height: float = 3.6) -> str:
    """An inline SVG: ``paint`` draws on the axes."""
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    axes = figure.add_subplot()
    paint(axes)
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
        axes.set_xlabel(title + (f" (largest {_SHOWN} of {len(values)})" if len(values) > _SHOWN else ""))

    return draw(paint, height=0.9 + 0.24 * len(ranked))
