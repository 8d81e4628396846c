"""The label: two sides of its column's values, several classes, or a number between bounds. All of it public."""

from __future__ import annotations

from typing import Any, ClassVar, Literal, cast

from pydantic import Field, SerializerFunctionWrapHandler, StrictBool, model_serializer, model_validator

from daskrado.errors import UsageError
from daskrado.table.yaml_file import Frozen

Scalar = StrictBool | int | float | str
Side = Scalar | tuple[Scalar, ...]
Target = Literal["sides", "number", "classes"]
TARGETS: dict[Target, str] = {"sides": "one of two sides", "number": "a number", "classes": "one of several classes"}
MOST_CLASSES = 100
REST = "rest"  # as a side: every value that the other side does not list


class Grown(Frozen):
    """Configuration that got new keys: files, digests and models hold them only where they are used."""

    later: ClassVar[frozenset[str]] = frozenset()

    @model_serializer(mode="wrap")
    def _without_unused(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        fields = type(self).model_fields
        unused = {key for key in self.later if getattr(self, key) == fields[key].default}
        return {key: value for key, value in handler(self).items() if key not in unused}


class Label(Grown):
    """The label column and what is +1 and what is -1 in it; or the ``bounds`` of a number that is to be predicted; or
    three ``classes`` and more, by name.

    A side is a value, a list of values or ``rest``; or numbers ``above`` (or ``below``) a threshold are positive and
    all others negative. What is on neither side is not allowed, and so is a null unless ``nulls`` says what it means.
    A number beyond its bounds counts as the nearer one.

    >>> Label(column="readmitted", positive=["<30"], negative="rest").pair
    ('rest', '<30')
    >>> Label(column="delay", above=15).pair
    ('at most 15', 'above 15')
    >>> Label(column="rings", kind="number", bounds=(0, 30)).target
    'number'
    """

    later: ClassVar[frozenset[str]] = frozenset(
        {"kind", "bounds", "classes", "positive", "negative", "above", "below", "nulls", "trim"}
    )

    column: str
    kind: Target = "sides"
    bounds: tuple[float, float] | None = Field(default=None, description="of a number: the least and the largest")
    classes: tuple[Scalar, ...] | None = Field(default=None, description="three values or more, each a class")
    positive: Side = cast(Side, None)  # with a threshold alone
    negative: Side = cast(Side, None)
    above: float | None = Field(default=None, description="larger numbers are positive, all others negative")
    below: float | None = Field(default=None, description="smaller numbers are positive, all others negative")
    nulls: Literal["error", "drop", "positive", "negative"] = Field(
        default="error", description="drop: a row without a label counts as nothing; or the side of such rows"
    )
    trim: bool = Field(default=False, description="blanks around a text do not count")

    @model_validator(mode="before")
    @classmethod
    def _both_or_a_threshold(cls, content: Any) -> Any:
        """Name the key that is missing: two sides, or one threshold."""
        if not isinstance(content, dict):
            return content
        if content.get("bounds") is not None or content.get("kind") == "number":
            return _number_keys(content)
        if content.get("classes") is not None or content.get("kind") == "classes":
            return _class_keys(content)
        given = [key for key in ("above", "below") if content.get(key) is not None]
        sides = [key for key in ("positive", "negative") if key in content]
        if len(given) > 1 or (given and sides):
            raise ValueError("give positive and negative, or one threshold: above or below")
        if not given and len(sides) < 2:
            key = "negative" if "positive" in sides else "positive"
            raise ValueError(
                f"{key} is missing: a value, a list of values or rest; or give a threshold, above; or to predict a "
                "number its bounds"
            )
        return content

    @model_validator(mode="after")
    def _check_sides(self) -> Label:
        if self.bounds is not None:
            low, high = self.bounds
            if not (high - low > 1e-9 * max(abs(low), abs(high), 1e-90) and max(abs(low), abs(high)) <= 1e100):
                raise ValueError(
                    f"bounds are two numbers, the smaller one first and not too close, got {low:g}, {high:g}"
                )
            return self
        if self.classes is not None:
            self._check_values()
            return self
        if self.threshold is not None:
            if self.trim:
                raise ValueError("trim is for texts, and a threshold for numbers: drop one")
            return self
        if self.positive == self.negative:
            raise ValueError(f"positive and negative are both {self.positive!r}: give each side values of its own")
        lists = isinstance(self.positive, tuple) or isinstance(self.negative, tuple)
        if REST in (self.positive, self.negative) and not lists:
            raise ValueError(
                "rest beside a single value can be meant in two ways: write the other side as a list for 'all other "
                'values\', as in positive: ["<30"], or ["rest"] for the text itself'
            )
        self._check_values()
        return self

    def _check_values(self) -> None:
        values = self.values
        if self.classes is None and not all(
            map(len, (side for side in (self.positives, self.negatives) if side is not None))
        ):
            raise ValueError("positive and negative are empty lists: name a value, or rest")
        sides = "positive and negative" if self.classes is None else "classes"
        if len({type(value) for value in values}) > 1:
            if self.plain:
                raise ValueError(f"positive {self.positive!r} and negative {self.negative!r} differ in type")
            raise ValueError(f"{sides} mix types: {list(values)}; quote them all, or none")
        if len(set(values)) < len(values):
            repeated = sorted({str(value) for value in values if values.count(value) > 1})
            raise ValueError(f"{sides} repeat {', '.join(repeated)}: list each value once")
        if self.trim and not all(isinstance(value, str) and value == value.strip() for value in values):
            raise ValueError(f"trim compares texts without blanks around them, got {list(values)}")

    @property
    def target(self) -> Target:
        """What a model predicts: one of two sides, one of several classes, or a number."""
        return self.kind

    @property
    def span(self) -> tuple[float, float]:
        """Of a number: the middle of its bounds, and half of what is between them."""
        assert self.bounds is not None
        low, high = self.bounds
        return (low + high) / 2, (high - low) / 2

    @property
    def threshold(self) -> float | None:
        """The number that divides the sides, where the label is a number."""
        return self.below if self.above is None else self.above

    @property
    def positives(self) -> tuple[Scalar, ...] | None:
        """The values that are +1; None for all others than the negatives, and for thresholds."""
        return self._side(self.positive, self.negative)

    @property
    def negatives(self) -> tuple[Scalar, ...] | None:
        """The values that are -1; None for all others than the positives, and for thresholds."""
        return self._side(self.negative, self.positive)

    @staticmethod
    def _side(side: Side | None, other: Side) -> tuple[Scalar, ...] | None:
        if side is None or (side == REST and isinstance(other, tuple)):
            return None
        return side if isinstance(side, tuple) else (side,)

    @property
    def values(self) -> tuple[Scalar, ...]:
        """All values that are named, the positive ones first."""
        if self.classes is not None:
            return self.classes
        return (*(self.positives or ()), *(self.negatives or ()))

    @property
    def rest(self) -> int:
        """The side of a value that is not named: +1, -1, or 0 for neither."""
        if self.threshold is not None or self.kind != "sides":
            return 0
        return 1 if self.positives is None else -1 if self.negatives is None else 0

    @property
    def plain(self) -> bool:
        """Whether the sides are two single values."""
        return (
            self.threshold is None
            and self.kind == "sides"
            and not any(isinstance(s, tuple) for s in (self.positive, self.negative))
        )

    @property
    def pair(self) -> tuple[Scalar, Scalar]:
        """What predictions are called: the negative and the positive side, as values or in words."""
        if self.kind != "sides":
            raise UsageError(f"label {self.column!r} is {TARGETS[self.kind]}, not one of two sides")
        if self.above is not None:
            return f"at most {self.above:g}", f"above {self.above:g}"
        if self.below is not None:
            return f"at least {self.below:g}", f"below {self.below:g}"
        if (self.negatives, self.positives).count(None) == 0 and len(self.values) == 2:
            return self.values[1], self.values[0]
        return _in_words(self.negatives), _in_words(self.positives)

    @property
    def in_words(self) -> str:
        """The values that are on a side, as they are declared."""
        if self.threshold is not None or self.bounds is not None:
            return "finite numbers"
        return f"{list(self.values)}" if not self.rest else f"{list(self.values)} and all other values"

    def two_values(self, what: str) -> tuple[Scalar, Scalar]:
        """The negative and the positive value, for what writes labels or compares them one by one."""
        if not self.plain or self.trim:
            raise UsageError(
                f"{what} needs a label of two single values, positive and negative; make such a column first"
            )
        return self.pair


def _number_keys(content: dict[str, Any]) -> dict[str, Any]:
    """The keys of a number: its bounds, and what becomes of nulls."""
    if extra := sorted(content.keys() - {"column", "kind", "bounds", "nulls"}):
        raise ValueError(f"a number has bounds and no sides: drop {extra[0]}, or drop bounds")
    if content.get("kind", "number") != "number" or content.get("nulls", "error") not in ("error", "drop"):
        raise ValueError("bounds are of kind: number, with nulls: error or drop")
    bounds = content.get("bounds")
    if bounds is None:
        raise ValueError("bounds is missing: the least and the largest number that counts, as in bounds: [0, 30]")
    if not isinstance(bounds, list | tuple) or len(bounds) != 2:
        raise ValueError(f"bounds are two numbers, the least and the largest, got {bounds!r}")
    return {**content, "kind": "number"}


def _class_keys(content: dict[str, Any]) -> dict[str, Any]:
    """The keys of several classes: their names, and what becomes of nulls."""
    if extra := sorted(content.keys() - {"column", "kind", "classes", "nulls", "trim"}):
        raise ValueError(f"several classes have no sides: drop {extra[0]}, or drop classes")
    if content.get("kind", "classes") != "classes" or content.get("nulls", "error") not in ("error", "drop"):
        raise ValueError("classes are of kind: classes, with nulls: error or drop")
    classes = content.get("classes")
    if not isinstance(classes, list | tuple) or not 3 <= len(classes) <= MOST_CLASSES:
        raise ValueError(
            f"classes is a list of 3 to {MOST_CLASSES} values, got "
            f"{len(classes) if isinstance(classes, list | tuple) else classes!r}; for two say positive and negative"
        )
    return {**content, "kind": "classes"}


def _in_words(values: tuple[Scalar, ...] | None) -> str:
    words = [str(value).lower() if isinstance(value, bool) else str(value) for value in values or ()]
    return REST if values is None else " or ".join(words)
