"""A budget for a block of Python: everything private inside is counted against it, beside the ledger's limits."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator, Sequence
from typing import Any

from daskrado.errors import BudgetError, UsageError
from daskrado.jobs.outcome import Charge
from daskrado.ledger.words import percent
from daskrado.privacy.costs import Cost
from daskrado.privacy.filter import Filter, filter_for

_ACTIVE: dict[str, Spending] = {}  # by data set; of this process, whatever thread asks
_LOCK = threading.RLock()


class Spending:
    """What one block may spend on a data set: a filter of its own, so the next run may depend on the last answers.

    A run that fails before it draws stays counted here. All runs inside protect the same: the first one says whom.

    Sensitivity
        None of its own: it refuses charges, which are computed and kept by the ledger as without it.

    Reference
        Smith and Thakurta (2022), as :class:`daskrado.privacy.filter.GaussianFilter`.
    """

    def __init__(self, dataset: str, rule: Filter) -> None:
        self.dataset = dataset
        self.runs = 0
        self._rule = rule
        self._total = Cost()
        self._whom: tuple[Any, ...] | None = None

    def __repr__(self) -> str:
        return f"<Spending of {self.dataset}: {self.runs} runs, {percent(self.share)} of the block's budget>"

    @property
    def share(self) -> float:
        """The part of the block's budget that is spent."""
        return float(self._rule.share(self._total)) if self.runs else 0.0

    def pay(self, charges: Sequence[Charge]) -> None:
        """Count a run, or refuse it before anything is charged."""
        said = charges[0].statement
        whom = (said.relation, said.column, said.unit, said.rows_per_unit)
        if self._whom is not None and whom != self._whom:
            raise UsageError(
                f"budget of {self.dataset!r}: its first run protects {self._whom[2]} under {self._whom[0]}, this one "
                f"{whom[2]} under {whom[0]}; all runs of a block protect the same"
            )
        more = Cost()
        for charge in charges:
            more = more + self._rule.cost(charge.event)
        if not self._rule.fits(self._total, more):
            raise BudgetError(
                f"budget of {self.dataset!r}: this run needs {percent(self._rule.share(more))} of the "
                f"block's epsilon {float(self._rule.epsilon):g} at delta {float(self._rule.delta):g}, and "
                f"{percent(1 - self.share)} are left; nothing was charged for it"
            )
        self._whom, self._total, self.runs = whom, self._total + more, self.runs + 1


@contextlib.contextmanager
def budget(dataset: str, *, epsilon: float, delta: float = 0.0) -> Iterator[Spending]:
    """Let everything inside the block that is private and of this data set stay within (epsilon, delta) together.

    Every run is charged to the ledger as always; what would exceed the block's budget is refused before it is.
    Inside, scikit-learn's searches run on private rows, with ``scoring=daskrado.private_scorer(...)``.

    >>> with budget("clinic", epsilon=2.0, delta=1e-5) as spending:
    ...     spending.share
    0.0
    """
    with _LOCK:
        if dataset in _ACTIVE:
            raise UsageError(f"budget of {dataset!r}: a block with one is open already, and budgets do not nest")
        found = _ACTIVE[dataset] = Spending(dataset, filter_for(epsilon, delta))
    try:
        yield found
    finally:
        with _LOCK:
            del _ACTIVE[dataset]


def active(dataset: str | None) -> bool:
    """Whether a block with a budget of this data set is open."""
    return dataset in _ACTIVE


def pay(dataset: str, charges: Sequence[Charge]) -> None:
    """Count a run's charges against the block that is open, if there is one."""
    with _LOCK:
        if charges and dataset in _ACTIVE:
            _ACTIVE[dataset].pay(charges)
