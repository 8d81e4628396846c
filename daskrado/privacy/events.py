"""Privacy events: frozen values that hold only what accounting needs, with exact rational parameters."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from fractions import Fraction
from typing import Any

from daskrado.errors import UsageError

Amount = int | float | str | Decimal | Fraction
"""A number as people write it. A float means its shortest decimal text: 0.1 is exactly 1/10."""

MIN_EPSILON = Fraction(1, 10**9)  # of what may be asked for; its shares among releases may be smaller
MAX_EPSILON = Fraction(50)
MIN_DELTA = Fraction(1, 10**300)  # smaller ones leave floating point
MAX_DELTA = Fraction(1, 10)
MIN_MU = Fraction(1, 10**100)  # the square of a smaller one may count as nothing
MAX_TIMES = 10**9  # that one grant repeats an event
MAX_RHO = MAX_EPSILON**2 / 2  # what the largest pure event costs in zCDP


def exact(value: Amount, name: str = "value") -> Fraction:
    """The rational number that the decimal text of ``value`` denotes, so that ten times 0.1 is 1."""
    try:
        if isinstance(value, bool):
            raise TypeError
        if isinstance(value, float):
            # float() first: numpy's subclass of float has another repr.
            return Fraction(repr(float(value)))
        if isinstance(value, str):
            return Fraction(value.strip())
        return Fraction(value)
    except (TypeError, ValueError, ZeroDivisionError, OverflowError, InvalidOperation):
        raise UsageError(f"{name} must be a finite number, got {value!r}") from None


def exact_epsilon(value: Amount) -> Fraction:
    """An epsilon above 0 and at most 50; beyond that the word private has no meaning."""
    epsilon = exact(value, "epsilon")
    if not 0 < epsilon <= MAX_EPSILON:
        raise UsageError(f"epsilon must be above 0 and at most {MAX_EPSILON}, got {value!s}")
    return epsilon


def asked_epsilon(value: Amount) -> Fraction:
    """An epsilon that somebody asks for or allows: from 1e-9, below which noise drowns any lake, to 50."""
    epsilon = exact(value, "epsilon")
    if not MIN_EPSILON <= epsilon <= MAX_EPSILON:
        raise UsageError(f"epsilon must be from {float(MIN_EPSILON):g} to {MAX_EPSILON}, got {value!s}")
    return epsilon


def exact_delta(value: Amount, *, zero: bool = False) -> Fraction:
    """A delta above 0 (or equal to it, when ``zero``) and at most 0.1."""
    delta = exact(value, "delta")
    if not (MIN_DELTA <= delta <= MAX_DELTA or (zero and delta == 0)):
        raise UsageError(f"delta must be {'0, or ' if zero else ''}above 1e-300 and at most 0.1, got {value!s}")
    return delta


def decimal_text(value: Fraction | float) -> str:
    """Exact text that ``exact`` reads back: decimal where it terminates, p/q where it does not."""
    if isinstance(value, float):
        return repr(float(value))
    places, rest = 0, value.denominator
    for prime in (2, 5):
        power = 0
        while rest % prime == 0:
            rest, power = rest // prime, power + 1
        places = max(places, power)
    if rest != 1:
        return str(value)
    digits = abs(value.numerator) * 10**places // value.denominator
    return str(Decimal((int(value < 0), tuple(map(int, str(digits))), -places)))


@dataclass(frozen=True, init=False, slots=True)
class PureEvent:
    """epsilon-differential privacy: P(M(D) in S) <= exp(epsilon) P(M(D') in S) for neighbours D, D'.

    *Reference*: Dwork, McSherry, Nissim and Smith (2006).

    >>> PureEvent(0.1).epsilon  # as it is written, not as a float holds it
    Fraction(1, 10)
    """

    epsilon: Fraction

    def __init__(self, epsilon: Amount) -> None:
        object.__setattr__(self, "epsilon", exact_epsilon(epsilon))

    def __str__(self) -> str:
        return f"epsilon {decimal_text(self.epsilon)}"


@dataclass(frozen=True, init=False, slots=True)
class ApproximateEvent:
    """(epsilon, delta)-differential privacy: P(M(D) in S) <= exp(epsilon) P(M(D') in S) + delta.

    *Reference*: Dwork, Kenthapadi, McSherry, Mironov and Naor (2006).
    """

    epsilon: Fraction
    delta: Fraction

    def __init__(self, epsilon: Amount, delta: Amount) -> None:
        object.__setattr__(self, "epsilon", exact_epsilon(epsilon))
        object.__setattr__(self, "delta", exact_delta(delta))

    def __str__(self) -> str:
        return f"epsilon {decimal_text(self.epsilon)}, delta {decimal_text(self.delta)}"


@dataclass(frozen=True, init=False, slots=True)
class ZcdpEvent:
    """rho-zero-concentrated differential privacy: D_a(M(D) || M(D')) <= rho a for every order a > 1.

    Gaussian noise of standard deviation sigma on a vector of L2 sensitivity s has rho = s^2 / (2 sigma^2).

    *Reference*: Bun and Steinke (2016).
    """

    rho: float

    def __init__(self, rho: Amount) -> None:
        value = exact(rho, "rho")
        # Below the least float it would count as nothing.
        if not (value <= MAX_RHO and float(value) > 0):
            raise UsageError(f"rho must be above 0 and at most {MAX_RHO}, got {rho!s}")
        object.__setattr__(self, "rho", float(value))

    def __str__(self) -> str:
        return f"rho {self.rho:g} (zCDP)"


@dataclass(frozen=True, init=False, slots=True)
class GaussianEvent:
    """Gaussian noise of standard deviation sigma on a vector of L2 sensitivity s, mu = s / sigma; or so fine a noise
    on integers that :func:`daskrado.privacy.curves.rounding_gap` does not tell it from that.

    Its (epsilon, delta) curve is known exactly, and it is also mu^2 / 2 in zCDP. With a ``delta`` the release fails
    with that chance, and the lake may be told then: its curve is at most delta + (1 - delta) delta_G(epsilon; mu).

    *Reference*: Dong, Roth and Su (2022), mu-Gaussian differential privacy; Kairouz, Oh and Viswanath (2015), leaks.
    """

    mu: float
    delta: Fraction = Fraction(0)

    def __init__(self, mu: Amount, delta: Amount = 0) -> None:
        value = exact(mu, "mu")
        if not MIN_MU <= value <= MAX_EPSILON:
            raise UsageError(f"mu must be above 1e-100 and at most {MAX_EPSILON}, got {mu!s}")
        object.__setattr__(self, "mu", float(value))
        object.__setattr__(self, "delta", exact_delta(delta, zero=True))

    def __str__(self) -> str:
        leak = f", delta {decimal_text(self.delta)}" if self.delta else ""
        return f"mu {self.mu:g}{leak} (Gaussian)"


SingleEvent = PureEvent | ApproximateEvent | ZcdpEvent | GaussianEvent


@dataclass(frozen=True, init=False, slots=True)
class SeveralEvents:
    """Events that one grant pays for together, each with how often it happens, in any order and adaptively.

    A single (epsilon, delta) for all of them would forget how they compose with what comes later.

    >>> str(SeveralEvents.of([PureEvent(0.1), PureEvent(0.2), PureEvent(0.1)]))
    'epsilon 0.1 x 2 and epsilon 0.2'
    """

    parts: tuple[tuple[SingleEvent, int], ...]

    def __init__(self, parts: Iterable[tuple[SingleEvent, int]]) -> None:
        known = tuple(parts)
        if not known or any(not (isinstance(times, int) and 1 <= times <= MAX_TIMES) for _, times in known):
            raise UsageError(f"an event happens between 1 and {MAX_TIMES:,} times, got {known!r}")
        if len({event for event, _ in known}) < len(known) or any(isinstance(e, SeveralEvents) for e, _ in known):
            raise UsageError(f"the parts of several events are single events, each named once, got {known!r}")
        object.__setattr__(self, "parts", known)

    @classmethod
    def of(cls, events: Iterable[Event]) -> Event:
        """All events as one; a single one as it is."""
        counts: Counter[SingleEvent] = Counter()
        for event in events:
            for part, times in each(event):
                counts[part] += times
        parts = tuple(counts.items())
        return parts[0][0] if len(parts) == 1 and parts[0][1] == 1 else cls(parts)

    def __str__(self) -> str:
        return " and ".join(f"{event}{f' x {times:,}' if times > 1 else ''}" for event, times in self.parts)


Event = SingleEvent | SeveralEvents


def each(event: Event) -> tuple[tuple[SingleEvent, int], ...]:
    """The single events of an event, with how often each happens."""
    return event.parts if isinstance(event, SeveralEvents) else ((event, 1),)


def own_delta(events: Iterable[Event]) -> Fraction:
    """The sum of the deltas that events have of their own."""
    parts = [part for event in events for part in each(event)]
    leaky = ApproximateEvent | GaussianEvent
    return sum((one.delta * times for one, times in parts if isinstance(one, leaky)), Fraction(0))


def event_to_json(event: Event) -> dict[str, Any]:
    """The event as plain JSON: an explicit kind, and numbers as exact text."""
    match event:
        case SeveralEvents():
            parts = [{"times": str(times), "event": event_to_json(part)} for part, times in event.parts]
            return {"kind": "several", "events": parts}
        case PureEvent():
            return {"kind": "pure", "epsilon": decimal_text(event.epsilon)}
        case ApproximateEvent():
            delta = decimal_text(event.delta)
            return {"kind": "approximate", "epsilon": decimal_text(event.epsilon), "delta": delta}
        case ZcdpEvent():
            return {"kind": "zcdp", "rho": decimal_text(event.rho)}
        case GaussianEvent():
            leak = {"delta": decimal_text(event.delta)} if event.delta else {}
            return {"kind": "gaussian", "mu": decimal_text(event.mu), **leak}
        case _:
            raise UsageError(f"{type(event).__name__} is no privacy event that can be written down")


def event_from_json(value: object) -> Event:
    """The event that ``event_to_json`` wrote. Kinds are listed here; stored text never names a class."""
    if not isinstance(value, Mapping):
        raise UsageError(f"a privacy event must be an object with a kind, got {value!r}")
    fields = dict(value)
    kind = fields.pop("kind", None)
    if kind == "several" and set(fields) == {"events"} and isinstance(fields["events"], list):
        return SeveralEvents(map(_repeated, fields["events"]))
    expected = {"pure": {"epsilon"}, "approximate": {"epsilon", "delta"}, "zcdp": {"rho"}, "gaussian": {"mu"}}
    leaks = {"gaussian": {"delta"}}  # what a kind may have beside
    if not isinstance(kind, str) or kind not in expected:
        raise UsageError(f"unknown kind of privacy event {kind!r}; known: {', '.join(expected)}")
    if set(fields) != expected[kind] | (leaks.get(kind, set()) & set(fields)):
        raise UsageError(f"a {kind} event has the fields {sorted(expected[kind])}, got {sorted(map(str, fields))}")
    if kind == "pure":
        return PureEvent(fields["epsilon"])
    if kind == "approximate":
        return ApproximateEvent(fields["epsilon"], fields["delta"])
    return ZcdpEvent(fields["rho"]) if kind == "zcdp" else GaussianEvent(**fields)


def _repeated(value: object) -> tuple[SingleEvent, int]:
    if not (isinstance(value, Mapping) and set(value) == {"times", "event"}):
        raise UsageError(f"one of several events has the fields ['event', 'times'], got {value!r}")
    event, times = event_from_json(value["event"]), exact(value["times"], "times")
    if isinstance(event, SeveralEvents) or times.denominator != 1:
        raise UsageError(f"one of several events is a single event and a whole number of times, got {value!r}")
    return event, int(times)
