"""Plots of a report: inline SVG whose text is text and whose colours are those of the page, light or dark."""

from __future__ import annotations

import io
import re
import warnings
from collections.abc import Callable, Mapping
from html import escape
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.axes import Axes

SHOWN = 25
_NAME = 40  # characters of a name beside a bar; the table has it whole
UP, DOWN, FAINT, PALE, INK = "#2b6cb0", "#c05621", "#718096", "#e2e8f0", "#2d3748"
_OTHERS = ("#2f855a", "#805ad5", "#b7791f", "#c53030")
_IN_PAGE = {UP: "up", DOWN: "down", FAINT: "faint", PALE: "pale", INK: "ink", "#000000": "ink"} | {
    colour: f"other{place}" for place, colour in enumerate(_OTHERS)
}


def draw(
    paint: Callable[[Axes], Any],
    x: str,
    y: str = "",
    *,
    legend: str | None = None,
    width: float = 7.2,
    height: float = 3.6,
    alt: str = "",
) -> str:
    """An inline SVG: ``paint`` draws on axes of these names; ``legend`` is the title of one, perhaps empty.

    ``alt`` says in words what is seen, for those who hear the page.
    """
    from cycler import cycler
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    style = {
        "svg.hashsalt": "daskrado",
        "svg.fonttype": "none",
        "axes.prop_cycle": cycler(color=[UP, DOWN, *_OTHERS]),
        "axes.edgecolor": INK,
        "font.size": 10,
    }
    buffer = io.StringIO()
    with rc_context(style), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph")  # a name in a script that the plot's font lacks: the table has it
        figure = Figure(figsize=(width, height), layout="constrained")
        axes = figure.add_subplot()
        paint(axes)
        axes.set_xlabel(x)
        axes.set_ylabel(y)
        if legend is not None:
            axes.legend(title=legend or None, fontsize=9, frameon=False)
        axes.tick_params(labelsize=9)
        for side in ("top", "right"):
            axes.spines[side].set_visible(False)
        figure.savefig(buffer, format="svg", metadata={"Date": None}, transparent=True)
    return _of_page(buffer.getvalue(), alt or (f"{y} against {x}" if y else x))


def _of_page(text: str, alt: str) -> str:
    """The SVG element alone, in the page's own font and colours, with its words for a screen reader."""
    text = text[text.index("<svg") :]
    text = re.sub(r"<metadata>.*?</metadata>", "", text, flags=re.DOTALL)
    text = re.sub(r"font: ([\d.]+px)[^;\"]*", r"font: \1 system-ui, sans-serif", text)
    for colour, name in _IN_PAGE.items():
        text = text.replace(colour, f"var(--{name}, {colour})")
    # Text without a colour of its own is black, which a dark page hides.
    return text.replace("<svg ", f'<svg role="img" aria-label="{escape(alt)}" fill="currentColor" ', 1)


def bars(
    values: Mapping[str, float],
    title: str,
    *,
    noise: float = 0.0,
    ends: Mapping[str, tuple[float, float]] | None = None,
    faint: frozenset[str] = frozenset(),
) -> str:
    """A horizontal bar chart, largest first; ``noise`` is a band of two standard deviations.

    ``ends`` are both ends of the intervals of some values; those in ``faint`` are drawn grey.
    """
    ranked = sorted(values.items(), key=lambda item: -abs(item[1]))[:SHOWN][::-1]

    def paint(axes: Axes) -> None:
        colours = [FAINT if name in faint else UP if value >= 0 else DOWN for name, value in ranked]
        axes.barh(range(len(ranked)), [value for _, value in ranked], color=colours, height=0.72)
        axes.set_yticks(range(len(ranked)), [shortened(name) for name, _ in ranked])
        for place, (name, _) in enumerate(ranked):
            if ends is not None and name in ends:
                axes.plot(ends[name], (place, place), color=INK, linewidth=1.4, solid_capstyle="butt")
        if noise > 0:
            axes.axvspan(-2 * noise, 2 * noise, color=FAINT, alpha=0.25, label="noise, ± 2 standard deviations")
            axes.legend(loc="lower right", fontsize=9, frameon=False)
        axes.axvline(0, color=INK, linewidth=0.8)

    most = f" (largest {SHOWN} of {len(values)})" if len(values) > SHOWN else ""
    first = ", ".join(f"{name} {value:.3g}" for name, value in ranked[:-4:-1])
    alt = f"Bar chart of {title}{most}; the largest are {first}"
    return draw(paint, title + most, height=0.9 + 0.24 * len(ranked), alt=alt)


def shortened(name: str) -> str:
    """A name that fits beside a plot; a dollar would begin a formula."""
    short = name if len(name) <= _NAME else f"{name[: _NAME // 2]}…{name[-_NAME // 2 :]}"
    return short.replace("$", r"\$")
