"""The Domain: the public description of a lake's columns. It fixes every array shape before data is read.

Nothing here may come from private rows: bounds, categories and the norm bound are facts the owner declares.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, field_validator, model_validator

from daskrado.errors import UsageError
from daskrado.table.label import Grown, Label, Scalar
from daskrado.table.yaml_file import Frozen, canonical_digest, parse, read_yaml, shown

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_LARGEST = 1e100  # bounds beyond this, or narrower than a billionth of their size, cannot be scaled safely


class Fill(Grown):
    """Nulls are replaced by a declared value and, unless they are rare, flagged by an extra 0/1 feature."""

    fill: Scalar
    flag: bool = Field(default=True, description="whether nulls have a feature of their own")
    later: ClassVar[frozenset[str]] = frozenset({"flag"})


class _Column(Grown):
    nulls: Literal["error"] | Fill = "error"

    @field_validator("nulls", mode="before")
    @classmethod
    def _error_or_fill(cls, value: Any) -> Any:
        if value == "error" or isinstance(value, dict | Fill):
            return value
        raise ValueError(f"is error, or {{fill: VALUE}}, which replaces a null; got {shown(value)}")

    @property
    def fill(self) -> Scalar | None:
        return self.nulls.fill if isinstance(self.nulls, Fill) else None

    @property
    def flags(self) -> int:
        """Number of features that flag nulls: 1 or 0."""
        return int(isinstance(self.nulls, Fill) and self.nulls.flag)


class NumericColumn(_Column):
    """A number between public bounds, scaled to [-1, 1], or cut into one-hot bins at public edges.

    ``zero`` and ``one`` are the values that become 0 and 1, by default the middle and the farther bound from it;
    what would lie beyond [-1, 1] is clipped to it. So ``transform: log1p`` with ``zero: 0`` keeps 0 at 0.
    """

    kind: Literal["numeric"]
    lower: float
    upper: float
    transform: Literal["none", "log1p"] = "none"
    bins: tuple[float, ...] | None = None
    zero: float | None = Field(default=None, description="the value that becomes 0; left out, the middle")
    one: float | None = Field(default=None, description="the value that becomes 1; left out, the farther bound")
    later: ClassVar[frozenset[str]] = frozenset({"zero", "one"})

    @model_validator(mode="after")
    def _check(self) -> NumericColumn:
        if not self.lower < self.upper:
            raise ValueError(f"lower {self.lower:g} must be below upper {self.upper:g}: swap them, or widen them")
        size = max(abs(self.lower), abs(self.upper))
        if size > _LARGEST or self.upper - self.lower < max(size, 1e-90) * 1e-9:
            raise ValueError(f"bounds {self.lower:g} and {self.upper:g} are too large or too close together")
        if self.transform == "log1p" and self.lower < 0:
            raise ValueError(f"transform log1p needs lower >= 0, got {self.lower:g}")
        if self.bins is not None:
            if self.transform != "none":
                raise ValueError("bins and transform together: bin edges are in the column's own unit, drop one")
            if not self.bins or list(self.bins) != sorted(set(self.bins)):
                raise ValueError(f"bins must be a rising list of edges, each once, got {shown(self.bins)}")
            if self.bins[0] <= self.lower or self.bins[-1] >= self.upper:
                raise ValueError(
                    f"bins must lie strictly between lower {self.lower:g} and upper {self.upper:g}, which are the "
                    "outer edges already: drop the edges that touch or pass them"
                )
        if self.fill is not None and (isinstance(self.fill, bool | str)):
            raise ValueError(f"fill must be a number, got {self.fill!r}")
        self._check_scale()
        return self

    def _check_scale(self) -> None:
        if self.bins is not None and (self.zero is not None or self.one is not None):
            raise ValueError("zero and one scale a plain number, and bins have no scale: drop them, or bins")
        if self.zero is not None and not self.lower <= self.zero <= self.upper:
            raise ValueError(f"zero {self.zero:g} must lie between lower {self.lower:g} and upper {self.upper:g}")
        least = self.lower if self.zero is None else self.zero
        if self.one is not None and not (least < self.one <= _LARGEST and self.scale[1] > abs(self.scale[0]) * 1e-9):
            raise ValueError(f"one {self.one:g} must be above the value that becomes 0, by more than rounding")

    @property
    def scale(self) -> tuple[float, float]:
        """Centre and reach: a value t, transformed if the column says so, becomes (t - centre) / reach."""
        low, high = self.transformed(self.lower), self.transformed(self.upper)
        centre = low + (high - low) / 2 if self.zero is None else self.transformed(self.zero)
        return centre, (max(high - centre, centre - low) if self.one is None else self.transformed(self.one) - centre)

    def transformed(self, value: float) -> float:
        """A value on the scale on which it is centred."""
        return math.log1p(value) if self.transform == "log1p" else value

    def restored(self, value: float) -> float:
        """The value that :meth:`transformed` gives this one."""
        return math.expm1(value) if self.transform == "log1p" else value

    @property
    def size(self) -> int:
        """Number of encoded features, excluding the null indicator."""
        return 1 if self.bins is None else len(self.bins) + 1

    def feature_names(self, name: str) -> list[str]:
        """Names of the encoded features, excluding the null indicator."""
        if self.bins is None:
            return [name]
        edges = [self.lower, *self.bins, self.upper]
        return [f"{name}[{low:.12g},{high:.12g})" for low, high in itertools.pairwise(edges)]


def _days(value: Any) -> Any:
    """A date or a moment, also as text, as days since 1970; anything else as it is."""
    if isinstance(value, str):
        try:
            value = datetime.fromisoformat(value)
        except ValueError:
            return value
    if isinstance(value, datetime):
        moment = value.astimezone(UTC) if value.tzinfo is not None else value.replace(tzinfo=UTC)
        return (moment - _EPOCH) / timedelta(days=1)
    return (value - _EPOCH.date()).days if isinstance(value, date) else value


class DateColumn(NumericColumn):
    """A date or a moment between public bounds: the number of days since 1970, and a number in every other way."""

    kind: Literal["date"]  # type: ignore[assignment]

    @model_validator(mode="before")
    @classmethod
    def _in_days(cls, content: Any) -> Any:
        if not isinstance(content, dict):
            return content
        found = {key: _days(value) if key in ("lower", "upper") else value for key, value in content.items()}
        if isinstance(found.get("bins"), list | tuple):
            found["bins"] = [_days(edge) for edge in found["bins"]]
        if isinstance(found.get("nulls"), dict):
            found["nulls"] = {key: _days(value) for key, value in found["nulls"].items()}
        return found

    def feature_names(self, name: str) -> list[str]:
        """Names of the encoded features, excluding the null indicator."""
        if self.bins is None:
            return [name]
        edges = [_shown_day(edge) for edge in (self.lower, *self.bins, self.upper)]
        return [f"{name}[{low},{high})" for low, high in itertools.pairwise(edges)]


def _shown_day(days: float) -> str:
    moment = _EPOCH + timedelta(days=days)
    return moment.date().isoformat() if days == int(days) else moment.replace(tzinfo=None).isoformat()


class CategoricalColumn(_Column):
    """One-hot over declared values; anything else falls in the "other" bucket, or is an error without one."""

    kind: Literal["categorical"]
    values: tuple[Scalar, ...] = Field(min_length=1)
    other: bool = True
    trim: bool = Field(default=False, description="blanks around a text do not count")
    later: ClassVar[frozenset[str]] = frozenset({"trim"})

    @field_validator("values", mode="before")
    @classmethod
    def _no_null(cls, values: Any) -> Any:
        if isinstance(values, list | tuple) and None in values:
            raise ValueError("null is no value of a column: nulls: {fill: VALUE} replaces and flags it")
        return values

    @field_validator("values")
    @classmethod
    def _distinct(cls, values: tuple[Scalar, ...]) -> tuple[Scalar, ...]:
        counts = Counter((type(value), value) for value in values)
        repeated = sorted({str(value) for (_, value), count in counts.items() if count > 1})
        if repeated:
            raise ValueError(f"values repeats {', '.join(repeated)}: list each category once")
        if len({type(v) for v in values}) > 1:
            truth = (
                "; YAML reads yes, no, on, off, true and false as truths" if True in values or False in values else ""
            )
            raise ValueError(f"values mixes types: {shown(values)}; quote them all, or none{truth}")
        return values

    @property
    def size(self) -> int:
        """Number of encoded features, excluding the null indicator."""
        return len(self.values) + self.other

    def feature_names(self, name: str) -> list[str]:
        """Names of the encoded features, excluding the null indicator."""
        return [f"{name}={value}" for value in self.values] + ([f"{name}=other"] if self.other else [])

    @model_validator(mode="after")
    def _fill_known(self) -> CategoricalColumn:
        if self.trim and not all(isinstance(value, str) and value == value.strip() for value in self.values):
            raise ValueError(f"trim compares texts without blanks around them, got {list(self.values)}")
        if self.fill is None:
            return self
        if not all(isinstance(self.fill, kind) == isinstance(self.values[0], kind) for kind in (bool, str)):
            raise ValueError(f"fill {self.fill!r} is of another type than the values {shown(self.values)}")
        if not self.other and self.fill not in self.values:
            raise ValueError(
                f"fill {self.fill!r} is not one of the values {shown(self.values)}; use one of them, or other: true"
            )
        return self


class BooleanColumn(_Column):
    """True is encoded +1 and false -1, so that flipping it leaves the row's norm unchanged.

    ``values`` are what stands for false and true in a column of numbers or text: [0, 1], [N, Y].
    """

    kind: Literal["boolean"]
    values: tuple[Scalar, Scalar] | None = Field(default=None, description="what stands for false, and for true")
    later: ClassVar[frozenset[str]] = frozenset({"values"})

    @model_validator(mode="after")
    def _check(self) -> BooleanColumn:
        if self.values is not None:
            no, yes = self.values
            if type(no) is not type(yes) or no == yes or (isinstance(no, bool) and self.values != (False, True)):
                raise ValueError(f"values names false, then true: two texts or two numbers, got {list(self.values)}")
        if self.fill is not None and not isinstance(self.fill, bool):
            raise ValueError(f"fill must be true or false, got {self.fill!r}")
        return self

    @property
    def size(self) -> int:
        """Number of encoded features, excluding the null indicator."""
        return 1

    def feature_names(self, name: str) -> list[str]:
        """Names of the encoded features, excluding the null indicator."""
        return [name]


Column = Annotated[NumericColumn | DateColumn | CategoricalColumn | BooleanColumn, Field(discriminator="kind")]


class Kernel(Frozen):
    """Random Fourier features of a kernel in place of the encoded columns; see ``table.fourier_features``.

    gaussian exp(-gamma |x - y|_2^2), laplacian exp(-gamma |x - y|_1), cauchy prod 1 / (1 + gamma^2 (x - y)^2).
    """

    kind: Literal["gaussian", "laplacian", "cauchy"]
    gamma: float = Field(gt=0, le=1e6)
    features: int = Field(ge=2, le=1 << 14, multiple_of=2)
    seed: int = Field(default=0, ge=0, lt=1 << 63)


class Described(Frozen):
    """Where bounds and categories were found in private: the run, its data set, its cost, the rows it counted."""

    run: str = Field(min_length=1, max_length=64)
    dataset: str
    epsilon: float = Field(gt=0)
    delta: float = Field(ge=0, lt=1)
    rows: int = Field(ge=1, description="a noisy number of rows, or of units where those are protected")


class Domain(Grown):
    """Public description of columns, label, bounds; the same Domain always gives the same features.

    >>> label = {"column": "sick", "positive": True, "negative": False}
    >>> age, sex = {"kind": "numeric", "lower": 0, "upper": 100}, {"kind": "categorical", "values": ["f", "m"]}
    >>> domain = Domain(label=label, columns={"age": age, "sex": sex}, norm_bound=2.0)
    >>> domain.feature_names
    ('age', 'sex=f', 'sex=m', 'sex=other', 'intercept')
    >>> round(domain.largest_norm**2, 6)  # a number in [-1, 1], one category, the intercept
    3.0
    """

    label: Label
    columns: dict[str, Column] = Field(min_length=1)
    norm_bound: float = Field(
        default=0.0, ge=1e-9, le=1e9, description="rows are clipped to this length; left out, it is the usual norm"
    )
    intercept: float = Field(default=1.0, ge=0, le=1e9, description="value of the constant feature; 0 for none")
    id: str | None = Field(default=None, description="column that names a record, to key signatures")
    kernel: Kernel | None = None
    schema_version: Literal[1] = 1
    described: Described | None = Field(default=None, description="written by daskrado describe")
    later: ClassVar[frozenset[str]] = frozenset({"described"})

    @model_validator(mode="after")
    def _check(self) -> Domain:
        if self.label.column in self.columns:
            raise ValueError(f"column {self.label.column!r} is both the label and a feature: delete it below columns")
        if self.id is not None and (self.id in self.columns or self.id == self.label.column):
            raise ValueError(f"id column {self.id!r} is also a feature or the label: delete it below columns, or id")
        names = self.feature_names
        if len(set(names)) < len(names):
            repeated = sorted(name for name, count in Counter(names).items() if count > 1)
            raise ValueError(f"two features would both be called {', '.join(repeated)}: rename a column")
        if not self.norm_bound:
            self.__dict__["norm_bound"] = self.usual_norm  # before anybody sees the frozen value
        return self

    @property
    def feature_names(self) -> tuple[str, ...]:
        """Names of the encoded features, in their order."""
        names = self.column_features
        if self.kernel is not None:
            pairs = range(self.kernel.features // 2)
            names = (*(f"cos {i}" for i in pairs), *(f"sin {i}" for i in pairs))
        return (*names, "intercept") if self.intercept else names

    @property
    def column_features(self) -> tuple[str, ...]:
        """Names of what the columns encode to, before any kernel and without the intercept."""
        names: list[str] = []
        for name, column in self.columns.items():
            names += column.feature_names(name)
            if column.flags:
                names.append(f"{name} is null")
        return tuple(names)

    @property
    def width(self) -> int:
        """Number of encoded features."""
        if self.kernel is not None:
            return self.kernel.features + bool(self.intercept)
        return sum(column.size + column.flags for column in self.columns.values()) + bool(self.intercept)

    @property
    def weights_shape(self) -> tuple[int, ...]:
        """Of a linear model's weights: of several classes each has a row."""
        return (self.width,) if self.label.classes is None else (len(self.label.classes), self.width)

    @property
    def largest_norm(self) -> float:
        """The largest Euclidean norm an encoded row can have before clipping: a public fact."""
        square = self.intercept**2
        if self.kernel is not None:
            return math.sqrt(square + 1.0)
        for column in self.columns.values():
            square += 1.0 + column.flags
        return math.sqrt(square)

    @property
    def usual_norm(self) -> float:
        """The norm bound where none is given, at most the largest norm: a public rule.

        It is the root mean square norm of a row without nulls whose numbers are uniform between their bounds: such a
        number counts 1/3, a one-hot or boolean column 1. Longer rows are clipped and keep their direction; a bound
        above the usual norm would only add noise.
        """
        if self.kernel is not None:
            return self.largest_norm
        numbers = sum(isinstance(column, NumericColumn) and column.bins is None for column in self.columns.values())
        return round(math.sqrt(self.intercept**2 + len(self.columns) - 2 / 3 * numbers), 6)

    def encodes_like(self, other: Domain) -> bool:
        """Whether rows become the same features under both, so that weights for one are weights for the other."""
        same = ("columns", "norm_bound", "intercept", "kernel")
        return all(getattr(self, key) == getattr(other, key) for key in same)

    def digest(self) -> str:
        """A hash that two parties compare to know they mean the same Domain, with features in the same order."""
        return canonical_digest(self.model_dump(mode="json"))

    @classmethod
    def load(cls, path: str | Path) -> Domain:
        """Read and validate a YAML file."""
        content = read_yaml(path)
        refuse_pipeline(content, str(path))
        return parse(cls, content, str(path))


def refuse_pipeline(content: Any, where: str) -> None:
    """Refuse a pipeline where a domain is meant."""
    if isinstance(content, dict) and {"lake", "domain"} <= content.keys():
        raise UsageError(f"{where}: is a pipeline, not a domain; its domain is {shown(content['domain'])}")
