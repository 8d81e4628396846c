"""feature_flip names one +-1 feature: every kind of job refuses a column whose change would reach further."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from daskrado.errors import UsageError
from daskrado.jobs.load import load_job
from daskrado.lake.make import domain_content
from daskrado.parties.study import load_study
from daskrado.table.domain import Domain
from daskrado.table.yaml_file import parse

BUDGET = {"epsilon": 1.0, "delta": 1e-6}


def flip(feature: str) -> dict[str, Any]:
    return {"relation": "feature_flip", "unit": "one patient", "feature": feature}


def learn(feature: str) -> dict[str, Any]:
    return {"protect": flip(feature), "budget": BUDGET}


def iterative(feature: str) -> dict[str, Any]:
    return {**learn(feature), "learner": {"kind": "objective_perturbation"}}


def summed(kind: str) -> Callable[[str], dict[str, Any]]:
    return lambda feature: {"sets": [{"name": "s", "kind": kind, "count": 4, **learn(feature)}]}


def named(kind: str, **more: Any) -> Callable[[str], dict[str, Any]]:
    item = {"name": "s", "kind": kind, "unit": "one patient", "count": 4, "budget": {"epsilon": 1.0}, **more}
    return lambda feature: {"sets": [{**item, "features": [feature]}]}


def window(feature: str) -> dict[str, Any]:
    return {"sets": [{"name": "s", "kind": "dp_feat", "feature": feature, "epsilon": 1.0}]}


def margins(feature: str) -> dict[str, Any]:
    return {**learn(feature), "models": ["model.json"]}


def queries(feature: str) -> dict[str, Any]:
    return {**learn(feature), "universe": ["smoker", "diabetic"]}


def teachers(feature: str) -> dict[str, Any]:
    return {**learn(feature), "teachers": {"count": 10}, "answers": {"mechanism": "gaussian", "queries": 5}}


JOBS = [
    ("learn", learn),
    ("learn", iterative),
    *(("rados", summed(kind)) for kind in ("uniform", "balanced", "hadamard", "noisy_edges")),
    ("rados", named("randomised_response")),
    ("rados", named("noisy_column")),
    ("rados", window),
    ("margins", margins),
    ("queries", queries),
    ("teachers", teachers),
]


def content(**changes: Any) -> dict[str, Any]:
    return {**domain_content(12), **changes}


def load(kind: str, keys: dict[str, Any], domain: dict[str, Any]) -> Any:
    whole = {"dataset": "d", "lake": "/nowhere", "output": "o", "domain": parse(Domain, domain, "domain"), **keys}
    return load_job({"kind": kind, **whole})


def with_nulls() -> dict[str, Any]:
    made = content()
    made["columns"]["smoker"] = {"kind": "boolean", "nulls": {"fill": False}}
    return made


@pytest.mark.parametrize(("kind", "keys"), JOBS)
def test_only_a_boolean_without_nulls_or_kernel_can_be_flipped(
    kind: str, keys: Callable[[str], dict[str, Any]]
) -> None:
    load(kind, keys("smoker"), content())
    for feature, domain, message in (
        ("nosuchcolumn", content(), "feature 'nosuchcolumn' is not a column of the domain"),
        ("age", content(), "'age' is numeric, not boolean|'age' would reach other columns through clipping"),
        ("ward", content(), "'ward' is one-hot"),
        ("smoker", with_nulls(), "'smoker' may be null"),
        ("smoker", content(kernel={"kind": "gaussian", "gamma": 1.0, "features": 8}), "a kernel mixes every column"),
    ):
        with pytest.raises(UsageError, match=message):
            load(kind, keys(feature), domain)


def test_studies_check_the_feature_when_their_terms_are_read() -> None:
    terms = {"study": "s", "minimum": 2, "noise": {"kind": "central"}, "sites": {"a": None, "b": None}}
    for domain, feature, message in (
        (content(), "age", "'age' is numeric, not boolean"),
        (with_nulls(), "smoker", "'smoker' may be null"),
    ):
        whole = {**terms, "domain": parse(Domain, domain, "domain"), **learn(feature)}
        with pytest.raises(UsageError, match=message):
            load_study(whole)


def test_randomised_columns_are_named_once() -> None:
    """A column named twice would be flipped twice, each time at half the epsilon that is stated for it."""
    for kind in ("randomised_response", "noisy_column"):
        item = {"name": "s", "kind": kind, "unit": "u", "count": 4, "budget": {"epsilon": 1.0}}
        with pytest.raises(UsageError, match="name each feature once; smoker is repeated"):
            load("rados", {"sets": [{**item, "features": ["smoker", "diabetic", "smoker"]}]}, content())


def test_a_learner_with_options_that_contradict_each_other_is_refused_before_anything_is_read() -> None:
    options = {"kind": "radoboost", "clamp": 0.5, "clamp_low": 0.8}
    item = {"name": "s", "kind": "balanced", "count": 4, "learn": options, **learn("smoker")}
    with pytest.raises(UsageError, match=r"learn: clamp_low must be between 0 and clamp 0.5, got 0.8"):
        load("rados", {"sets": [item]}, content())
    with pytest.raises(UsageError, match=r"clamp_low must be between 0 and clamp 0.5, got 0.8"):
        load("learn", {**learn("smoker"), "learner": options}, content())
