"""Domains: validated key by key, with messages that name the key, the value and what is allowed."""

from __future__ import annotations

import copy
import math
from pathlib import Path
from typing import Any

import pytest
import yaml

from daskrado.errors import UsageError
from daskrado.table.domain import Domain
from daskrado.table.yaml_file import parse, read_yaml, shown

GOOD: dict[str, Any] = {
    "label": {"column": "y", "positive": "yes", "negative": "no"},
    "norm_bound": 2.0,
    "id": "who",
    "columns": {
        "age": {"kind": "numeric", "lower": 0, "upper": 100, "nulls": {"fill": 50}},
        "dose": {"kind": "numeric", "lower": 0, "upper": 9, "transform": "log1p"},
        "visits": {"kind": "numeric", "lower": 0, "upper": 30, "bins": [1, 5]},
        "ward": {"kind": "categorical", "values": ["a", "b"]},
        "sex": {"kind": "categorical", "values": ["F", "M"], "other": False},
        "smoker": {"kind": "boolean"},
    },
}


def changed(path: str, value: Any) -> dict[str, Any]:
    content = copy.deepcopy(GOOD)
    *parents, last = path.split(".")
    at = content
    for key in parents:
        at = at[key]
    if value is KeyError:
        del at[last]
    else:
        at[last] = value
    return content


def test_features_are_named_and_counted_before_any_data() -> None:
    domain = parse(Domain, GOOD, "here")
    assert domain.feature_names == (
        "age",
        "age is null",
        "dose",
        "visits[0,1)",
        "visits[1,5)",
        "visits[5,30)",
        "ward=a",
        "ward=b",
        "ward=other",
        "sex=F",
        "sex=M",
        "smoker",
        "intercept",
    )
    assert domain.width == 13
    assert domain.largest_norm == pytest.approx((6 + 1 + 1) ** 0.5)


def test_the_digest_depends_on_every_fact_and_not_on_the_order_of_keys() -> None:
    digest = parse(Domain, GOOD, "here").digest()
    assert parse(Domain, dict(reversed(GOOD.items())), "here").digest() == digest
    swapped = {**GOOD, "columns": dict(reversed(GOOD["columns"].items()))}  # other features first: another vector
    assert parse(Domain, swapped, "here").digest() != digest
    assert parse(Domain, changed("norm_bound", 2.5), "here").digest() != digest
    assert parse(Domain, changed("columns.age.upper", 99), "here").digest() != digest


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        ("norm_bund", 2, "norm_bund: unknown key; did you mean norm_bound?"),
        ("columns.age.lowr", 2, "columns.age.lowr: unknown key; did you mean lower?"),
        ("columns.sex.bins", [1], "columns.sex.bins: unknown key; allowed: nulls, kind, values, other"),
        ("norm_bound", 0, "norm_bound: input should be greater than or equal to 0.000000001"),
        ("norm_bound", 1e160, "norm_bound: input should be less than or equal to 1000000000"),
        ("norm_bound", True, "norm_bound must be a number, got True"),
        ("columns.age.upper", 1e-320, "too large or too close together"),
        ("columns.age.upper", 1e200, "too large or too close together"),
        ("norm_bound", float("nan"), "norm_bound"),
        ("norm_bound", "big", "got 'big'"),
        ("bounds", 3, "bounds: unknown key"),
        ("columns", {}, "columns"),
        ("columns.age.lower", KeyError, "columns.age.lower: missing"),
        ("columns.age.lower", "...", "columns.age.lower"),
        ("columns.age.lower", 100, "lower 100 must be below upper 100"),
        ("columns.age.lowest", 1, "columns.age.lowest: unknown key"),
        ("columns.age.kind", "number", "columns.age"),
        ("columns.age.nulls", {"fill": "x"}, "fill must be a number, got 'x'"),
        ("columns.age.nulls", "drop", "columns.age.nulls"),
        ("columns.dose.lower", -0.5, "log1p needs lower >= 0"),
        ("columns.visits.bins", [5, 1], "rising list of edges"),
        ("columns.visits.bins", [0, 5], "strictly between"),
        ("columns.visits.bins", [True, 3], "columns.visits: bins must be a number, got True"),
        ("columns.visits.transform", "log1p", "bins and transform together"),
        ("columns.ward.values", ["a", "b", "a"], "repeats a"),
        ("columns.ward.values", ["a", 1], "mixes types"),
        ("columns.ward.values", [], "columns.ward.values"),
        ("columns.sex.nulls", {"fill": "X"}, "not one of the values"),
        ("columns.sex.nulls", {"fill": 3}, "fill 3 is of another type than the values"),
        ("columns.smoker.nulls", {"fill": 1}, "true or false"),
        ("columns.y", {"kind": "boolean"}, "both the label and a feature"),
        ("columns.who", {"kind": "boolean"}, "also a feature"),
        ("columns.age is null", {"kind": "boolean"}, "would both be called age is null"),
        ("label.negative", "yes", "both 'yes'"),
        ("label.negative", 0, "differ in type"),
        ("label.column", KeyError, "label.column: missing"),
        ("columns.tuple", {"kind": "numeric", "lower": 0}, "columns.tuple.upper: missing"),
        ("columns.numeric", {"kind": "numeric", "lower": 0}, "columns.numeric.upper: missing"),
        ("columns.bmi[kg/m2]", {"kind": "numeric", "lower": 0}, "columns.bmi[kg/m2].upper: missing"),
        (
            "label.positive",
            None,
            "label.positive: input should be a valid boolean or a valid integer or a valid number",
        ),
    ],
)
def test_mistakes_are_named(path: str, value: Any, message: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse(Domain, changed(path, value), "domain.yaml")
    assert message in str(caught.value)
    assert str(caught.value).startswith("domain.yaml: ")
    assert "\n" not in str(caught.value)


def test_files_that_cannot_be_read_are_named(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"no\.yaml: cannot be read"):
        Domain.load(tmp_path / "no.yaml")
    bad = tmp_path / "bad.yaml"
    bad.write_text("label: [unclosed")
    with pytest.raises(UsageError, match="not valid YAML"):
        Domain.load(bad)
    bad.write_text("norm_bound: 1\nnorm_bound: 9\n")
    with pytest.raises(UsageError, match="'norm_bound' given twice"):
        Domain.load(bad)
    bad.write_text("- 1\n")
    with pytest.raises(UsageError, match="must be a mapping"):
        Domain.load(bad)
    bad.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(UsageError, match=r"bad\.yaml"):
        Domain.load(bad)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("norm_bound: " + "9" * 5000, "neither a number that fits nor a day that exists in .* line 2.*norm_bound"),
        ("id: 2024-02-31", "neither a number that fits nor a day that exists in .* line 2.*id: 2024-02-31"),
        ("id: !!timestamp soon", "neither a number .* line 2"),
        ("label: {<<: {column: y}}", r"merge keys \(<<\) are not supported, write the keys out in .* line 2"),
        ("? [a, b]\n: 3", "a list as a key in .* line 2"),
        pytest.param("columns: " + "[" * 5000, "its brackets are nested too deeply", marks=pytest.mark.slow),
    ],
)
def test_what_yaml_allows_and_a_configuration_does_not_is_named(tmp_path: Path, text: str, message: str) -> None:
    bad = tmp_path / "bad.yaml"
    bad.write_text(f"# a domain\n{text}\n")
    with pytest.raises(UsageError, match=rf"bad\.yaml: .*{message}"):
        read_yaml(bad)


def test_yaml_round_trip(tmp_path: Path) -> None:
    path = tmp_path / "domain.yaml"
    path.write_text(yaml.safe_dump(GOOD))
    assert Domain.load(path) == parse(Domain, GOOD, "here")


def test_a_norm_bound_that_is_left_out_is_the_usual_norm() -> None:
    columns = {
        "a": {"kind": "numeric", "lower": 0, "upper": 1},
        "b": {"kind": "numeric", "lower": 0, "upper": 1, "bins": [0.5]},
        "c": {"kind": "categorical", "values": ["x"], "nulls": {"fill": "x"}},
        "d": {"kind": "boolean"},
    }
    content = {"label": {"column": "y", "positive": 1, "negative": 0}, "columns": columns, "intercept": 2.0}
    domain = parse(Domain, content, "here")
    # The mean square of a uniform number in [-1, 1] is 1/3; each of the other columns counts 1, the intercept 4.
    assert domain.norm_bound == pytest.approx(math.sqrt(4 + 1 / 3 + 3), abs=1e-6)
    assert domain.norm_bound <= domain.largest_norm == pytest.approx(3.0)
    assert parse(Domain, domain.model_dump(), "again").digest() == domain.digest()
    kernel = {"kind": "gaussian", "gamma": 1.0, "features": 4}
    assert parse(Domain, content | {"kernel": kernel}, "here").norm_bound == pytest.approx(math.sqrt(5))


def test_what_is_still_open_is_one_line_that_lists_the_keys() -> None:
    content = changed("columns.age.upper", "...") | {"norm_bound": "..."}
    with pytest.raises(UsageError, match=r"^d: still open \(\.\.\.\): .*norm_bound.*; write public facts") as caught:
        parse(Domain, content, "d")
    assert "columns.age.upper" in str(caught.value)


def test_a_bomb_is_refused_in_one_short_line(tmp_path: Path) -> None:
    """Nine lists, each of nine times the one before: 3 * 10^8 words if anybody wrote them out."""
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 9)}]" for i in range(1, 9)]
    bomb = tmp_path / "bomb.yaml"
    bomb.write_text("\n".join([*lines, "label: {column: *a8, positive: *a8}", "columns: {age: *a8}"]))
    with pytest.raises(UsageError) as caught:
        Domain.load(bomb)
    assert len(str(caught.value)) < 2000
    endless: list[Any] = []
    endless.append(endless)
    assert shown(endless) == "[" * 80 + "..."


def test_a_pipeline_given_as_a_domain_is_named(tmp_path: Path) -> None:
    path = tmp_path / "p.yaml"
    path.write_text("lake: x\ndomain: d.yaml\n")
    with pytest.raises(UsageError, match=r"p\.yaml: is a pipeline, not a domain; its domain is 'd\.yaml'"):
        Domain.load(path)
