"""The sparse-vector engine: any number of threshold questions on private integers; only rare answers are paid for.

``SparseVector`` holds the public facts (cost, noise, tails). ``Engine``, one for a data set, answers. It keeps in a
journal what was answered and what was paid, so that a crash never makes anything free.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, Literal, NoReturn

import numpy as np
from numpy.typing import NDArray

from daskrado.errors import LedgerError, UsageError
from daskrado.ledger.journal import Journal, lines_of
from daskrado.ledger.lines import Closable
from daskrado.privacy.accountant import Amount, PureEvent, decimal_text, exact_epsilon, within
from daskrado.privacy.noise import discrete_laplace
from daskrado.privacy.vote_laws import least

Rare = Literal["above", "below"]
Count = Callable[[str], None]
THRESHOLD_SHARE = Fraction(35, 100)  # of epsilon; the best split found for long runs of common answers
MAX_INSTANCES = 1_000_000


@dataclass(frozen=True)
class SparseVector:
    """Noise and cost of an engine that gives at most ``instances`` rare answers.

    One instance compares each value plus fresh noise Lap(b_q) with one noisy threshold, noise Lap(b_t), and ends with
    the first rare answer; the next instance draws a fresh threshold. Noise is discrete Laplace, in whole steps.

    Sensitivity
        Every value moves by at most s = ``sensitivity`` steps between neighbours. Shift the threshold's noise by s
        and the noise of the rare answer by 2 s: all common answers stay as they are, and so does the rare one. One
        instance is therefore pure epsilon = s / b_t + 2 s / b_q, however many common answers it gives.

    Reference
        Dwork, Naor, Reingold, Rothblum and Vadhan (2009); Lyu, Su and Li (2017), the correct variants; Bassily,
        Thakkar and Thakurta (2018), its use on votes.
    """

    epsilon: Fraction
    instances: int
    sensitivity: int = 1
    share: Fraction = THRESHOLD_SHARE

    def __post_init__(self) -> None:
        exact_epsilon(self.epsilon)
        if not (isinstance(self.instances, int) and 1 <= self.instances <= MAX_INSTANCES):
            raise UsageError(f"a sparse vector has between 1 and {MAX_INSTANCES:,} instances, got {self.instances!r}")
        if not (isinstance(self.sensitivity, int) and self.sensitivity >= 1):
            raise UsageError(f"the sensitivity must be a whole number of steps, at least 1, got {self.sensitivity!r}")
        if not 0 < self.share < 1:
            raise UsageError(f"the threshold's share of epsilon must lie between 0 and 1, got {self.share!s}")

    @classmethod
    def for_budget(cls, epsilon: Amount, delta: Amount, instances: int) -> SparseVector:
        """The engine with the largest epsilon per instance whose instances together cost at most (epsilon, delta)."""
        target = exact_epsilon(epsilon)
        cls(target, instances)  # refuse bad facts before the search

        def fits(one: Fraction) -> bool:
            return within([PureEvent(one)] * instances, target, delta)

        return cls(largest_fraction(fits, target), instances)

    @property
    def threshold_scale(self) -> float:
        """b_t in steps, rounded up."""
        return math.nextafter(float(self.sensitivity / (self.share * self.epsilon)), math.inf)

    @property
    def query_scale(self) -> float:
        """b_q in steps, rounded up."""
        return math.nextafter(float(2 * self.sensitivity / ((1 - self.share) * self.epsilon)), math.inf)

    def crossing(self, steps: int) -> float:
        """P(query noise - threshold noise > steps), exactly: how often a value ``steps`` below counts as above.

        With c(b) = q / (1 - q)^2, q = exp(-1/b) (half a variance; b^2 in the continuous limit) and
        T(b) = P(Lap(b) > steps) = q^(steps + 1) / (1 + q), the tail is (c_q T_q - c_t T_t) / (c_q - c_t).
        """
        if steps < 0:
            return 1 - self.crossing(-steps - 1)
        (c_q, tail_q), (c_t, tail_t) = (
            _half_variance_and_tail(b, steps) for b in (self.query_scale, self.threshold_scale)
        )
        if abs(c_q - c_t) > 1e-6 * c_q:
            return (c_q * tail_q - c_t * tail_t) / (c_q - c_t)
        q = math.exp(-1 / self.query_scale)  # the limit of equal scales
        return tail_q * (1 + (1 - q) * ((steps + 1) - q / (1 + q)) / (1 + q))

    def least_margin(self, probability: float) -> int:
        """The least number of steps with ``crossing(steps) <= probability``: for a stability threshold."""
        if not 0 < probability < 0.5:
            raise UsageError(f"a crossing probability lies between 0 and 1/2, got {probability!r}")
        found = least(lambda steps: self.crossing(steps) <= probability)
        assert found is not None
        return found


def uncounted(name: str) -> None:
    """Count nothing: for an engine that no ledger pays for."""
    del name


def instance_name(name: str, number: int) -> str:
    """An instance as the ledger counts it."""
    return f"{name}@{number:07d}"


def largest_fraction(fits: Callable[[Fraction], bool], target: Fraction) -> Fraction:
    """The largest of 2^20 parts of ``target`` that fits, within 1e-6 of it; the least part must fit."""
    low, high = Fraction(0), target
    if fits(high):
        return high
    while high - low > max(low, target / 2**30) / 10**6:
        middle = (low + high) / 2
        # Ten decimal digits: the number printed is the number used.
        unit = Fraction(1, 10 ** max(10, 10 - math.floor(math.log10(middle))))
        middle = math.floor(middle / unit) * unit
        if not low < middle < high:
            break
        low, high = (middle, high) if fits(middle) else (low, middle)
    if low == 0:
        raise UsageError(f"no epsilon above 0 for each of these events fits epsilon {decimal_text(target)} in total")
    return low


def _half_variance_and_tail(scale: float, steps: int) -> tuple[float, float]:
    q = math.exp(-1 / scale)
    return q / math.expm1(-1 / scale) ** 2, math.exp(-(steps + 1) / scale) / (1 + q)


class Engine(Closable):
    """Answers "is this value above the threshold?" until the last instance has given its rare answer.

    ``rare`` says which answer is paid for. Answers are public; values, noise and thresholds are not and are never
    shown, pickled or written. With a ``journal`` the answers survive a crash, in its lines called ``name``: what was
    answered is replayed in ``answered``, and an instance that was interrupted counts as used, because its threshold
    is gone. ``facts`` are more public settings that a journal must match. An instance is on disk before its threshold
    is drawn and an answer before it is returned: a crash can lose an answer that nobody saw, but never a payment.
    ``count`` counts an instance in the ledger, by its name, once it is on disk and before its threshold is drawn.
    """

    def __init__(
        self,
        plan: SparseVector,
        threshold: int,
        rare: Rare,
        journal: Journal | None = None,
        facts: Mapping[str, Any] | None = None,
        name: str = "answers",
        count: Count = uncounted,
    ) -> None:
        if rare not in ("above", "below"):
            raise UsageError(f"the rare answer is 'above' or 'below', got {rare!r}")
        self.plan = plan
        self.threshold = int(threshold)
        self.rare: Rare = rare
        settings = {
            "epsilon": decimal_text(plan.epsilon),
            "instances": plan.instances,
            "sensitivity": plan.sensitivity,
            "share": decimal_text(plan.share),
            "threshold": self.threshold,
            "rare": rare,
            **(facts or {}),
        }
        self._noisy_threshold: int | None = None
        self._name, self._count = name, count
        self.used = 0  # instances opened so far: what was paid
        self._lines = lines_of(journal, name, settings)
        for line in self._lines.entries:
            match line:
                case {"open": number} if number == self.used + 1:
                    self.used = number
                case {"unopened": number} if number == self.used:
                    self.used -= 1
                case {"note": _}:
                    pass
                case {"above": str(flags)} if set(flags) <= {"0", "1"}:
                    pass
                case _:
                    raise self._lines.damaged()

    def __repr__(self) -> str:
        return f"<Engine: {self.used} of {self.plan.instances} instances used>"

    def __reduce__(self) -> NoReturn:
        raise TypeError("a sparse-vector engine holds a secret threshold and is never written or sent")

    def close(self) -> None:
        """Forget the threshold. The open instance is lost, and stays paid for."""
        self._noisy_threshold = None
        self._lines.close()

    @property
    def halted(self) -> bool:
        """Whether no instance is open and none is left."""
        return self._noisy_threshold is None and self.used >= self.plan.instances

    @property
    def known(self) -> set[str]:
        """The names of the instances opened so far, as the ledger counts them."""
        return {instance_name(self._name, number) for number in range(1, self.used + 1)}

    @property
    def answered(self) -> NDArray[np.bool_]:
        """Every answer so far (true: above), also those from before a restart."""
        flags = "".join(line.get("above", "") for line in self._lines.entries)
        return np.array([flag == "1" for flag in flags], dtype=bool)

    @property
    def notes(self) -> list[Any]:
        """Public values kept in the journal with :meth:`note`, in order."""
        return [line["note"] for line in self._lines.entries if "note" in line]

    def note(self, value: Any) -> None:
        """Keep a public value in the journal, for a restart."""
        self._lines.append({"note": value})

    def ask(self, values: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Answer values in order; true means above. Fewer answers than values mean that the engine halted.

        The answers are in the journal before they are returned.
        """
        array = np.asarray(values)
        if array.dtype != np.int64 or array.ndim != 1:
            raise UsageError(f"the engine compares a vector of int64 steps, got {array.dtype} of shape {array.shape}")
        if self.halted:
            raise UsageError(f"the engine has halted: all {self.plan.instances} rare answers it may give were given")
        answers = np.zeros(0, dtype=bool)
        if not len(array):
            return answers
        self._draw_threshold()  # first: it is counted
        noisy = discrete_laplace(array, self.plan.query_scale)
        while len(answers) < len(noisy) and not self.halted:
            above = noisy[len(answers) :] > self._draw_threshold()
            hits = np.flatnonzero(above if self.rare == "above" else ~above)
            if len(hits):
                above = above[: hits[0] + 1]
                self._noisy_threshold = None  # this instance ends here
            answers = np.concatenate([answers, above])
        self._lines.append({"above": "".join("01"[int(above)] for above in answers)})
        return answers

    def _draw_threshold(self) -> int:
        if self._noisy_threshold is None:
            self._lines.append({"open": self.used + 1})
            self.used += 1
            try:
                self._count(instance_name(self._name, self.used))
            except LedgerError:  # busy, or out of reach: nothing is drawn
                self._lines.append({"unopened": self.used})
                self.used -= 1
                raise
            start = np.array([self.threshold], dtype=np.int64)
            self._noisy_threshold = int(discrete_laplace(start, self.plan.threshold_scale)[0])
        return self._noisy_threshold
