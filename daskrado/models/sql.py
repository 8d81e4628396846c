"""A linear model as a SELECT: the margins that predict gives, and a null where predict refuses the row."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence

from daskrado.errors import UsageError
from daskrado.models.link import LEAST_SHARE, Link, Logistic, Pieces, Shares
from daskrado.table.domain import BooleanColumn, CategoricalColumn, Column, DateColumn, Domain, NumericColumn
from daskrado.table.label import Scalar

_BLANKS = "' \t\n\x0b\x0c\r'"  # what trimming takes away


def select_margins(domain: Domain, weights: Sequence[float], table: str, keep: Sequence[str]) -> str:
    """A SELECT of the ``keep`` columns and the margin of each row of ``table``."""
    return _select(domain, [weights], ["margin"], table, keep, _prefix(domain, keep))


def select_classes(
    domain: Domain, weights: Sequence[Sequence[float]], table: str, keep: Sequence[str], shares: Shares | None
) -> str:
    """A SELECT of the ``keep`` columns, the largest of the margins of several classes and its class, the first of
    equal ones; with ``shares`` also the probability of that class."""
    kept, prefix = _kept(keep), _prefix(domain, keep)
    names = [f"{prefix}m{place}" for place in range(len(weights))]
    found = _select(domain, weights, names, table, keep, prefix)
    best = [(name, str(place)) for place, name in enumerate(names)]
    while len(best) > 1:  # a tournament: engines have no common name for the largest of some columns
        won, columns = [], []
        for (a, at_a), (b, at_b) in zip(best[::2], best[1::2], strict=False):
            won.append((f"{a}w", f"{a}p"))
            columns += [f"CASE WHEN {a} >= {b} THEN {a} ELSE {b} END AS {a}w"]
            columns += [f"CASE WHEN {a} >= {b} THEN {at_a} ELSE {at_b} END AS {a}p"]
        best = [*won, *best[2 * len(won) :]]
        found = f"SELECT *, {', '.join(columns)}\nFROM ({found}) AS compared"
    top, place = best[0]
    assert domain.label.classes is not None
    cases = " ".join(f"WHEN {at} THEN {_literal(one)}" for at, one in enumerate(domain.label.classes))
    likely = "" if shares is None else f"{_share(shares, top, names)} AS probability, "
    return (
        f"SELECT {kept}{top} AS margin, {likely}\n"
        f"CASE WHEN {top} IS NOT NULL THEN CASE {place} {cases} END END AS predicted\nFROM ({found}) AS scored"
    )


def _share(shares: Shares, top: str, names: Sequence[str]) -> str:
    """The probability of the class whose margin is largest."""
    if shares.link is None:
        return f"1.0 / {_sum([f'EXP({name} - {top})' for name in names])}"
    link = shares.link

    def part(name: str) -> str:
        likely = _probability(link, name)
        return f"CASE WHEN {likely} < {_number(LEAST_SHARE)} THEN {_number(LEAST_SHARE)} ELSE {likely} END"

    return f"{part(top)} / {_sum([part(name) for name in names])}"


def _prefix(domain: Domain, keep: Sequence[str]) -> str:
    """What names of columns begin with that are made here, and no other does."""
    prefix = "f"
    while any(name.lower().startswith(prefix) for name in (*keep, *domain.columns)):
        prefix = f"_{prefix}"
    return prefix


def _select(
    domain: Domain,
    weights: Sequence[Sequence[float]],
    names: Sequence[str],
    table: str,
    keep: Sequence[str],
    prefix: str,
) -> str:
    """A SELECT of the ``keep`` columns and of one margin for each vector of weights.

    The inner SELECT gives one value for each column: a scaled number, or of one-hot features the weight of the one
    that is 1, for each vector. Such a column adds exactly 1 to the row's squared norm.
    """
    if domain.kernel is not None:
        raise UsageError("a kernel model has no short SQL; score the lake with daskrado predict")
    keep = tuple(dict.fromkeys(keep))
    _check_names(domain, keep)
    left = [iter(one) for one in weights]
    inner, squares = [_name(c) for c in keep], []
    dots: list[list[str]] = [[] for _ in left]
    one_hots = 0

    def times(value: str) -> None:
        for dot, own in zip(dots, left, strict=True):
            dot.append(f"{_number(next(own))} * {value}")

    for name, column in domain.columns.items():
        alias = f"{prefix}{len(inner)}"
        if len(column.feature_names(name)) == 1 and not isinstance(column, CategoricalColumn):
            inner.append(f"{_scaled(name, column)} AS {alias}")
            times(alias)
            squares.append(f"{alias} * {alias}")
        else:
            for dot, own in zip(dots, left, strict=True):
                alias = f"{prefix}{len(inner)}"
                inner.append(f"{_weight(name, column, own)} AS {alias}")
                dot.append(alias)
            one_hots += 1
        if column.flags:
            alias = f"{prefix}{len(inner)}"
            inner.append(f"CASE WHEN {_there(name, column)} THEN 0.0 ELSE 1.0 END AS {alias}")
            times(alias)
            squares.append(alias)
    if domain.intercept:
        times(_number(domain.intercept))
    square = _sum([*squares, _number(one_hots + domain.intercept**2)])
    bound = _number(domain.norm_bound)
    clip = f"CASE WHEN {square} > {bound} * {bound} THEN {bound} / SQRT({square}) ELSE 1.0 END"
    kept = "".join(f"{_name(c)}, " for c in keep)
    rows = f"(SELECT {', '.join(inner)} FROM {_name(table)}) AS encoded"
    if len(dots) > 1:  # clipped once, not for each class
        rows, clip = f"(SELECT *, {clip} AS {prefix}c FROM {rows}) AS clipped", f"{prefix}c"
    margins = ", ".join(f"{_sum(dot)} * {clip} AS {name}" for dot, name in zip(dots, names, strict=True))
    return f"SELECT {kept}{margins}\nFROM {rows}"


def select_predictions(
    margins: str, link: Link, threshold: float, pair: Sequence[Scalar], keep: Sequence[str]
) -> str:
    """A SELECT around that of :func:`select_margins`: margin, probability and predicted label."""
    kept = _kept(keep)
    no, yes = map(_literal, pair)
    always = "TRUE" if threshold < 0 else "FALSE"
    says_yes = f"margin >= {_number(threshold)}" if math.isfinite(threshold) else always
    return (
        f"SELECT {kept}margin, {_probability(link)} AS probability,\n"
        f"CASE WHEN margin IS NULL THEN NULL WHEN {says_yes} THEN {yes} ELSE {no} END AS predicted\n"
        f"FROM ({margins}) AS scored"
    )


def select_numbers(margins: str, middle: float, bounds: tuple[float, float], keep: Sequence[str]) -> str:
    """A SELECT around that of :func:`select_margins`: margin and predicted number, which stays within its bounds."""
    low, high = map(_number, bounds)
    number = f"({_number(middle)} + margin)"
    return (
        f"SELECT {_kept(keep)}margin,\n"
        f"CASE WHEN margin IS NULL THEN NULL WHEN {number} < {low} THEN {low} WHEN {number} > {high} THEN {high} "
        f"ELSE {number} END AS predicted\nFROM ({margins}) AS scored"
    )


def _kept(keep: Sequence[str]) -> str:
    for name in keep:
        if name.lower() in ("probability", "predicted"):
            raise UsageError(f"--keep {name}: the SELECT gives a column of that name")
    return "".join(f"{_name(c)}, " for c in dict.fromkeys(keep))


def _probability(link: Link, margin: str = "margin") -> str:
    """A link as an expression of the column of margins."""
    if isinstance(link, Logistic):
        odds = f"({_number(link.slope)} * {margin} + {_number(link.offset)})"
        inner = f"CASE WHEN {odds} < -700.0 THEN 0.0 ELSE 1.0 / (1.0 + EXP(-{odds})) END"
    else:
        assert isinstance(link, Pieces)
        points = list(zip(link.margins, link.probabilities, strict=True))
        cases = [f"WHEN {margin} <= {_number(points[0][0])} THEN {_number(points[0][1])}"]
        for (left, low), (right, high) in itertools.pairwise(points):
            slope = _number((high - low) / (right - left))
            line = f"{_number(low)} + ({margin} - {_number(left)}) * {slope}"
            cases.append(f"WHEN {margin} <= {_number(right)} THEN {line}")
        inner = f"CASE {' '.join(cases)} ELSE {_number(points[-1][1])} END"
    return f"CASE WHEN {margin} IS NOT NULL THEN {inner} END"


def _check_names(domain: Domain, keep: Sequence[str]) -> None:
    """SQL does not tell Age from age."""
    seen: dict[str, str] = {}
    for name in dict.fromkeys((*keep, *domain.columns)):
        if name in keep and name.lower() == "margin":
            raise UsageError(f"--keep {name}: the SELECT gives a column of that name")
        if seen.setdefault(name.lower(), name) != name:
            raise UsageError(
                f"columns {seen[name.lower()]!r} and {name!r} are one name in SQL, which ignores case; score the "
                "lake with daskrado predict, or rename one"
            )


def _stored(name: str, column: Column) -> str:
    """A column as a number, a text or a truth: a date is days since 1970."""
    quoted = _name(name)
    if isinstance(column, DateColumn):
        return f"(EXTRACT(EPOCH FROM CAST({quoted} AS TIMESTAMP)) / 86400.0)"
    if isinstance(column, BooleanColumn) and column.values is not None:
        no, yes = map(_literal, column.values)
        return f"CASE {quoted} WHEN {yes} THEN TRUE WHEN {no} THEN FALSE END"
    return f"TRIM({quoted}, {_BLANKS})" if isinstance(column, CategoricalColumn) and column.trim else quoted


def _value(name: str, column: Column) -> str:
    if column.fill is None:
        return _stored(name, column)
    if isinstance(column, BooleanColumn) and column.values is not None:  # only a null is filled, not another value
        return f"CASE WHEN {_name(name)} IS NULL THEN {_literal(column.fill)} ELSE {_stored(name, column)} END"
    fill = _number(float(column.fill)) if isinstance(column, NumericColumn) else _literal(column.fill)
    return f"CASE WHEN {_there(name, column)} THEN {_stored(name, column)} ELSE {fill} END"


def _there(name: str, column: Column) -> str:
    """Whether a column has a value: a number that is not finite is none, and only of a finite x is x - x = 0."""
    quoted = _name(name) if isinstance(column, BooleanColumn) else _stored(name, column)
    return f"{quoted} - {quoted} = 0" if isinstance(column, NumericColumn) else f"{quoted} IS NOT NULL"


def _finite(value: str, result: str) -> str:
    """Null for a null, NaN or an infinity."""
    return f"CASE WHEN {value} - {value} = 0 THEN {result} END"


def _weight(name: str, column: Column, weights: Iterator[float]) -> str:
    """The weight of the one-hot feature that is 1; null where the Domain has none for the value."""
    value = _value(name, column)
    if isinstance(column, CategoricalColumn):
        cases = " ".join(f"WHEN {_literal(v)} THEN {_number(next(weights))}" for v in column.values)
        known = f"CASE {value} {cases} END"
        if not column.other:
            return known
        return f"CASE WHEN {value} IS NOT NULL THEN COALESCE({known}, {_number(next(weights))}) END"
    assert isinstance(column, NumericColumn)
    assert column.bins is not None
    cases = " ".join(f"WHEN {value} < {_number(edge)} THEN {_number(next(weights))}" for edge in column.bins)
    return _finite(value, f"CASE {cases} ELSE {_number(next(weights))} END")


def _scaled(name: str, column: Column) -> str:
    """A number or truth value on [-1, 1]."""
    value = _value(name, column)
    if isinstance(column, BooleanColumn):
        return f"CASE WHEN {value} THEN 1.0 WHEN NOT {value} THEN -1.0 END"
    assert isinstance(column, NumericColumn)
    (centre, reach), shown, log = column.scale, value, column.transform == "log1p"
    low, high = centre - reach, centre + reach
    if log:
        low = max(low, math.log1p(column.lower))
        # LN(1 + x) loses what a small x holds, and the other form of log1p what a large one does.
        if column.upper > 1:
            shown = f"LN({_number(1)} + {value})"
        else:
            shown = f"2.0 * ATANH({value} / ({_number(2)} + {value}))"
    ends = [
        (sign, math.expm1(end) if log else end, (end - centre) / reach) for sign, end in (("<=", low), (">=", high))
    ]
    cases = " ".join(f"WHEN {value} {sign} {_number(end)} THEN {_number(known)}" for sign, end, known in ends)
    return _finite(value, f"CASE {cases} ELSE ({shown} - {_number(centre)}) / {_number(reach)} END")


def _sum(terms: Sequence[str]) -> str:
    """A sum nested as a balanced tree: engines refuse deep expressions, which a long a + b + c + ... is."""
    if len(terms) == 1:
        return terms[0]
    half = len(terms) // 2
    return f"({_sum(terms[:half])} + {_sum(terms[half:])})"


def _number(value: float) -> str:
    """A literal that SQL engines read as a double, not as a decimal that they would round."""
    return f"{float(value):.17e}"


def _name(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def _literal(value: Scalar) -> str:
    if isinstance(value, bool):
        return "TRUE" if value else "FALSE"
    return "'" + value.replace("'", "''") + "'" if isinstance(value, str) else repr(value)
