"""Summary + Mechanism + Grant -> Release: the one place where private sums become a publishable object."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, cast

import numpy as np
from numpy.typing import NDArray

from daskrado.privacy.events import each
from daskrado.privacy.mechanisms import Mechanism
from daskrado.privacy.shares import GaussianShares
from daskrado.privacy.statement import PrivacyStatement

if TYPE_CHECKING:
    from daskrado.privacy.accountant import Event
    from daskrado.privacy.relations import Relation
    from daskrado.statistics.base import Statistic, Summary
    from daskrado.table.lattice import Lattice


class Granted(Protocol):
    """What a debit of the ledger was reserved for."""

    @property
    def event(self) -> Event:
        """What may be drawn."""

    @property
    def relation(self) -> Relation:
        """Between which neighbours."""


@dataclass(frozen=True)
class Release:
    """A published statistic: values in the units of the features, the noise on them, and what they protect.

    Whatever a learner does with a Release is post-processing.
    """

    statistic: Statistic
    lattice: Lattice
    values: dict[str, NDArray[np.float64]]
    noise_std: dict[str, float]
    statement: PrivacyStatement


def release(
    summary: Summary,
    mechanism: Mechanism,
    grant: Granted,
    spend: Callable[[], None],
    statement: PrivacyStatement,
) -> Release:
    """Spend the grant, then draw the noise, once. A crash in between leaves the grant spent.

    The grant must have been reserved for exactly this mechanism's relation and event, or for several of which that is
    one: then the ledger counts a draw of each name once. ``spend`` marks it as spent, for ever, and raises where it
    is spent already.
    """
    paid = {event for event, _ in each(grant.event)} if mechanism.event != grant.event else {grant.event}
    if mechanism.event not in paid or grant.relation != mechanism.target.relation:
        raise ValueError("the grant was reserved for another event or relation than this mechanism's")
    if summary.statistic != mechanism.target.statistic or summary.lattice != mechanism.target.lattice:
        raise ValueError("the mechanism was calibrated for another statistic or lattice than this summary's")
    spend()
    noisy = mechanism.perturb(summary.vector)
    return _publish(mechanism.target.statistic, summary.lattice, noisy, mechanism.noise_std(), statement)


def release_noised_rows(summary: Summary, statement: PrivacyStatement) -> Release:
    """A statistic whose rows were noised before they were summed: its grant is spent just before this."""
    statistic = cast("Statistic", summary.statistic)
    if not (statistic.noises_rows and statement.private):
        raise ValueError(f"{statistic.name} does not noise its rows, or its statement is not a private one")
    quiet = {block.name: 0.0 for block in statistic.blocks}
    return _publish(statistic, summary.lattice, summary.vector, quiet, statement)


def release_without_privacy(summary: Summary, statement: PrivacyStatement | None = None) -> Release:
    """The exact statistic as a baseline. Its statement, and that of all that is learned from it, says not private.

    ``statement`` may say more, such as what holds for the marginal of one coordinate.
    """
    if not hasattr(summary.statistic, "blocks"):
        raise TypeError(f"{summary.statistic.name} is a part of a learner, not a statistic to publish")
    statistic = cast("Statistic", summary.statistic)
    quiet = {block.name: 0.0 for block in statistic.blocks}
    stated = statement or PrivacyStatement.none()
    if stated.private:
        raise ValueError("an exact statistic cannot carry a private statement")
    return _publish(statistic, summary.lattice, summary.vector, quiet, stated)


def release_of_shares(mechanism: GaussianShares, noisy: NDArray[np.int64], statement: PrivacyStatement) -> Release:
    """A total whose noise was added in shares, each by its site, after that site's ledger was debited."""
    target = mechanism.target
    return _publish(target.statistic, target.lattice, noisy, mechanism.noise_std(), statement)


def _publish(
    statistic: Statistic,
    lattice: Lattice,
    vector: NDArray[np.int64],
    noise_std: dict[str, float],
    statement: PrivacyStatement,
) -> Release:
    parts = statistic.split(vector)
    steps = {block.name: block.step(lattice) for block in statistic.blocks}
    values = {name: part.astype(np.float64) * steps[name] for name, part in parts.items()}
    return Release(statistic.plain, lattice, values, noise_std, statement)
