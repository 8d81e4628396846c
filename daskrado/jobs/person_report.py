"""What the guarantee means for one person: an attacker's best odds, in words, numbers and one plot."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import ArrayLike, NDArray

from daskrado.jobs.plots import FAINT, draw
from daskrado.jobs.section import Section
from daskrado.privacy.accountant import ApproximateEvent, Event, PureEvent
from daskrado.privacy.relations import Relation
from daskrado.privacy.statement import PrivacyStatement
from daskrado.privacy.tradeoff import best_guess, best_power

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from daskrado.jobs.run import Run

_ALARMS = (0.001, 0.01, 0.05, 0.1, 0.25, 0.5)
_QUESTION = {
    Relation.ADD_REMOVE: "whether {whom} is in the lake",
    Relation.REPLACE_ONE: "which of two candidates for {whom} the lake holds",
    Relation.LABEL_FLIP: "which of the two labels {whom} has",
    Relation.FEATURE_FLIP: "whether the protected feature of {whom} is true",
}


def charged_together(run: Run, statement: PrivacyStatement) -> list[tuple[Event, ...]]:
    """The events that one protected unit is exposed to; several lists where parts of the lake are disjoint."""
    whom = statement.whose
    charges = [charge for charge in run.charges.values() if charge.statement.whose == whom]
    parts = {charge.part for charge in charges} - {""} or {""}
    found = [tuple(charge.event for charge in charges if charge.part in ("", part)) for part in sorted(parts)]
    return [events for events in found if events] or [(_as_stated(statement),)]


def _as_stated(statement: PrivacyStatement) -> Event:
    """The guarantee that another party states, as an event."""
    assert statement.epsilon is not None
    return ApproximateEvent(statement.epsilon, statement.delta) if statement.delta else PureEvent(statement.epsilon)


def of_hundred(chance: float) -> str:
    """So many of a hundred, never rounded down.

    >>> of_hundred(0.54712), of_hundred(0.5), of_hundred(0.99999), of_hundred(0.00171)
    ('54.8', '50', '100', '0.18')
    """
    places = 2 if chance < 0.01 else 1
    value = math.ceil(100 * chance * 10**places - 1e-9) / 10**places
    return f"{value:.{places}f}".rstrip("0").rstrip(".")


def odds_line(run: Run, statement: PrivacyStatement) -> str:
    """The attacker's odds in one line."""
    guess = of_hundred(max(map(best_guess, charged_together(run, statement))))
    return f"an attacker is right in at most {guess} of 100 cases, where a coin is right in 50"


def person_sections(run: Run, statement: PrivacyStatement) -> Iterator[Section]:
    """One section for each kind of person that is protected."""
    said = {charge.statement.whose: charge.statement for charge in run.charges.values()}
    if statement.private:
        said[statement.whose] = statement
    for one in said.values():
        yield _person_section(run, one, several=len(said) > 1)


def _person_section(run: Run, statement: PrivacyStatement, *, several: bool) -> Section:
    assert statement.relation is not None
    events = charged_together(run, statement)

    def power(alarms: ArrayLike) -> NDArray[np.float64]:
        return np.asarray(np.max([best_power(part, alarms) for part in events], axis=0))

    guess, one = of_hundred(max(map(best_guess, events))), of_hundred(float(power([0.01])[0]))
    question = _QUESTION[statement.relation].format(whom=statement.whom)
    text = (
        f"Suppose somebody knows all other rows of the lake, has every computer there is, and wants to find out from "
        f"all that this run published {question}. By tossing a coin he is right in 50 of 100 cases. By the best "
        f"possible attack he is right in at most {guess} of 100. If he may raise a false alarm in 1 of 100 cases, he "
        f"raises a right one in at most {one} of 100. This holds for everybody in the lake, whatever their rows are. "
        f"It is about this run alone: the budget bounds all runs together."
    )
    rows = [
        (of_hundred(alarm), of_hundred(float(found))) for alarm, found in zip(_ALARMS, power(_ALARMS), strict=True)
    ]
    title = "What this means for one person"
    return Section(
        f"{title}: {statement.unit}, {statement.relation}" if several else title,
        text=text,
        header=("false alarms, of 100", "right alarms, at most, of 100"),
        rows=rows,
        plot=_plot(power, guess),
    )


def _plot(power: Callable[[ArrayLike], NDArray[np.float64]], guess: str) -> str:
    alarms = np.concatenate([[0.0], np.logspace(-4, -1, 60), np.linspace(0.105, 1, 90)])

    def paint(axes: Axes) -> None:
        found = power(alarms)
        axes.fill_between(100 * alarms, 100 * alarms, 100 * found, alpha=0.18, linewidth=0)
        axes.plot(100 * alarms, 100 * found, label="no attack is above this line")
        axes.plot([0, 100], [0, 100], color=FAINT, linestyle="--", label="tossing coins")
        axes.set_xlim(0, 100)
        axes.set_ylim(0, 100)
        axes.set_aspect("equal")

    alt = f"The best attack against tossing coins: it is right in at most {guess} of 100 cases"
    return draw(paint, "false alarms, of 100", "right alarms, of 100", legend="", width=4.1, height=4.1, alt=alt)
