"""The event is the truth: a private statement is computed from what was charged, and never says less."""

from __future__ import annotations

import re
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from daskrado.privacy.accountant import (
    ApproximateEvent,
    Event,
    GaussianEvent,
    PureEvent,
    ZcdpEvent,
    gaussian_delta,
)
from daskrado.privacy.protect import Budget, Protect
from daskrado.privacy.relations import Relation
from daskrado.privacy.statement import PrivacyStatement

PATIENT = Protect(relation=Relation.ADD_REMOVE, unit="one patient", rows_per_unit=3)
ROOT = Path(__file__).parents[2]


def stated(*events: Event, epsilon: float, delta: float = 0.0, **more: Any) -> PrivacyStatement:
    return PrivacyStatement.of(
        events, PATIENT, Budget(epsilon=epsilon, delta=delta), mechanism="m", theorem="t", **more
    )


def test_a_pure_event_is_stated_as_it_is() -> None:
    found = stated(PureEvent("0.5"), epsilon=0.5, delta=1e-3)
    assert (found.private, found.epsilon, found.delta) == (True, 0.5, 0.0)
    assert (found.relation, found.unit, found.rows_per_unit) == (Relation.ADD_REMOVE, "one patient", 3)


def test_pure_events_add_up_exactly() -> None:
    assert stated(*[PureEvent("0.1")] * 10, epsilon=1.0).epsilon == 1.0


@pytest.mark.parametrize(
    ("event", "asked"),
    [
        (
            ApproximateEvent(1, "1e-6"),
            {"epsilon": 1.0},
        ),  # planted: a delta that nobody asked for
        (ApproximateEvent(1, "1e-6"), {"epsilon": 1.0, "delta": 9e-7}),
        (ApproximateEvent(2, "1e-6"), {"epsilon": 1.0, "delta": 1e-6}),
        (GaussianEvent("0.5"), {"epsilon": 50.0}),  # no finite epsilon at delta 0
        (ZcdpEvent("0.001"), {"epsilon": 50.0}),
        (PureEvent("1.0000001"), {"epsilon": 1.0, "delta": 1e-9}),
    ],
)
def test_what_costs_more_than_was_asked_for_cannot_be_stated(event: Event, asked: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="more than the epsilon"):
        stated(event, **asked)


@given(mu=st.floats(0.01, 3.0), delta=st.sampled_from([1e-9, 1e-6, 1e-3]), epsilon=st.floats(0.05, 20.0))
def test_a_gaussian_event_is_never_stated_below_its_curve(mu: float, delta: float, epsilon: float) -> None:
    """Checked against the exact curve: delta(stated epsilon) must not exceed the stated delta."""
    event = GaussianEvent(repr(mu))
    try:
        found = stated(event, epsilon=epsilon, delta=delta)
    except ValueError:
        assert gaussian_delta(epsilon * (1 + 1e-6), mu) > delta * (1 - 1e-6)
        return
    assert found.epsilon is not None
    assert gaussian_delta(found.epsilon, mu) <= delta * (1 + 1e-6)
    assert found.epsilon <= epsilon


def test_the_delta_of_an_event_is_stated_with_it() -> None:
    found = stated(ApproximateEvent(1, "1e-7"), epsilon=1.0, delta=1e-6)
    assert (found.epsilon, found.delta) == (1.0, float(Fraction("1e-7")))


def test_words_on_the_accountant_change_no_number() -> None:
    plain, worded = (stated(PureEvent(1), epsilon=1.0, **more) for more in ({}, {"accountant": "local: one report"}))
    assert plain.epsilon == worded.epsilon
    assert worded.accountant == "local: one report"


def test_there_is_no_other_way_to_a_private_statement() -> None:
    """No module makes one by hand, copies one with other numbers, or decides a delta by a mechanism's name."""
    for path in (ROOT / "daskrado").rglob("*.py"):
        text = path.read_text(encoding="utf-8")
        if path.name == "statement.py":
            continue
        assert not re.search(r"PrivacyStatement\(", text), path
        assert not re.search(r"statement\.model_copy|statement\.copy", text), path
        if path.relative_to(ROOT / "daskrado").parts[0] in ("jobs", "parties", "ledger", "privacy", "cli", "api.py"):
            assert not re.search(r"[!=]= \"gaussian\"", text), path
