"""A linear model as an ONNX graph that takes the columns as they are: encoding, clipping, margin, probability, label.

Each column is one input of shape (rows). Numbers and dates (days since 1970) are doubles, NaN where there is none;
texts are strings, whole numbers int64, truths bool. A category or truth that may be null has a second input, bool,
``<column> is null``. A row that predict refuses has the margin NaN. Of several classes margin and probability have
the shape (rows, classes), in the order of the Domain.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from daskrado.errors import UsageError
from daskrado.models.link import LEAST_SHARE, Link, Logistic, Pieces, Shares
from daskrado.table.domain import BooleanColumn, CategoricalColumn, NumericColumn
from daskrado.table.label import Scalar

if TYPE_CHECKING:
    from daskrado.models.linear import LinearModel

OPSET, ML_OPSET = 17, 3


def write_onnx(model: LinearModel, path: Path) -> list[str]:
    """Write a model's graph; returns the names of its inputs. Agrees with predict to 1e-9 of the margin's size."""
    try:
        import onnx
    except ModuleNotFoundError:
        raise UsageError("ONNX needs the package onnx: pip install 'daskrado[onnx]'") from None
    if model.domain.kernel is not None:
        raise UsageError("a kernel model has no short ONNX graph; score the lake with daskrado predict")
    graph = _Graph(onnx)
    graph.model(model)
    made = graph.finished(model)
    onnx.checker.check_model(made)
    onnx.save(made, str(path))
    return [value.name for value in graph.inputs]


class _Graph:
    """Nodes one after another; every value has a name of its own."""

    def __init__(self, onnx: Any) -> None:
        self.onnx = onnx
        self.inputs: list[Any] = []
        self.outputs: list[Any] = []
        self._nodes: list[Any] = []
        self._constants: list[Any] = []

    def node(self, kind: str, *given: str, out: str | None = None, domain: str = "", **options: Any) -> str:
        """One node with one output."""
        name = out or f"_{kind.lower()}_{len(self._nodes)}"
        self._nodes.append(self.onnx.helper.make_node(kind, list(given), [name], domain=domain, **options))
        return name

    def constant(self, value: Any, kind: Any = np.float64) -> str:
        """A number, or some of them."""
        name = f"_constant_{len(self._constants)}"
        self._constants.append(self.onnx.numpy_helper.from_array(np.array(value, dtype=kind), name))
        return name

    def given(self, name: str, kind: str) -> str:
        """An input of one value for each row."""
        dtype = getattr(self.onnx.TensorProto, kind)
        self.inputs.append(self.onnx.helper.make_tensor_value_info(name, dtype, ["rows"]))
        return name

    def cast(self, value: str, kind: str) -> str:
        return self.node("Cast", value, to=getattr(self.onnx.TensorProto, kind))

    def where(self, mask: str, yes: str, no: str) -> str:
        return self.node("Where", mask, yes, no)

    def sum(self, values: Sequence[str]) -> str:
        total = values[0]
        for value in values[1:]:
            total = self.node("Add", total, value)
        return total

    def model(self, model: LinearModel) -> None:
        """Margin, probability where the model gives it, label."""
        domain, weights, at = model.domain, model.weights, 0
        several = weights.ndim > 1
        parts: list[str] = []
        squares: list[str] = []
        ones = domain.intercept**2

        def times(value: str, own: NDArray[np.float64]) -> None:
            parts.append(self.node("Mul", self.tall(value) if several else value, self.constant(own)))

        for name, column in domain.columns.items():
            mine = weights[..., at : at + column.size]
            at += column.size
            if isinstance(column, NumericColumn):
                found, null = self._number(name, column)
                if column.bins is None:
                    value = self._scaled(found, column)
                    times(value, mine[..., 0])
                    squares.append(self.node("Mul", value, value))
                else:
                    parts.append(self._binned(found, column, mine))
                    ones += 1
            elif isinstance(column, BooleanColumn):
                value, null = self._truth(name, column)
                times(value, mine[..., 0])
                ones += 1
            else:
                value, null = self._category(name, column, mine)
                parts.append(value)
                ones += 1
            if null is not None and column.flags:
                flag = self.cast(null, "DOUBLE")
                times(flag, weights[..., at])
                squares.append(flag)
                at += 1
        if domain.intercept:
            parts.append(self.constant(weights[..., at] * domain.intercept))
        square = self.sum([*squares, self.constant(ones)])
        bound = self.constant(domain.norm_bound)
        clip = self.node("Div", bound, self.node("Max", self.node("Sqrt", square), bound))
        clip = self.tall(clip) if several and squares else clip
        margin = self.node("Mul", self.sum(parts), clip, out="margin")
        self._out("margin", "DOUBLE", several)
        if several:
            self._class_label(margin, model.class_shares, model.domain.label.values)
            return
        if model.link is not None:
            self._linked(margin, model.link, "probability")
            self._out("probability", "DOUBLE")
        if model.domain.label.bounds is not None:
            self._number_label(margin, model.domain.label.span[0], model.domain.label.bounds)
        else:
            self._label(margin, model.decision.threshold, model.domain.label.pair)

    def tall(self, value: str) -> str:
        """One value for each row as a column, to go with a row of one for each class."""
        return self.node("Unsqueeze", value, self.constant([1], np.int64))

    def _class_label(self, margin: str, shares: Shares | None, classes: Sequence[Scalar]) -> None:
        """The class of the largest margin, and the probability of each."""
        if shares is not None and shares.link is None:
            self.node("Softmax", margin, axis=1, out="probability")
        elif shares is not None and shares.link is not None:
            likely, least = self._linked(margin, shares.link), self.constant(LEAST_SHARE)
            likely = self.where(self.node("Less", likely, least), least, likely)
            total = self.node("ReduceSum", likely, self.constant([1], np.int64), keepdims=1)
            self.node("Div", likely, total, out="probability")
        if shares is not None:
            self._out("probability", "DOUBLE", True)
        self._named(self.node("ArgMax", margin, axis=1, keepdims=0), classes)

    def _number(self, name: str, column: NumericColumn) -> tuple[str, str | None]:
        """The number, filled where the Domain says so, else NaN; and whether it was missing."""
        value = self.given(name, "DOUBLE")
        odd = self.node("Or", self.node("IsNaN", value), self.node("IsInf", value))
        if column.fill is None:
            return self.where(odd, self.constant(math.nan), value), None
        return self.where(odd, self.constant(float(column.fill)), value), odd

    def _scaled(self, value: str, column: NumericColumn) -> str:
        if column.transform == "log1p":
            low = self.constant(column.lower)
            value = self.where(self.node("Less", value, low), low, value)
            value = self.node("Log", self.node("Add", value, self.constant(1.0)))
        centre, reach = column.scale
        value = self.node("Mul", self.node("Sub", value, self.constant(centre)), self.constant(1.0 / reach))
        for name, end in ("Less", -1.0), ("Greater", 1.0):
            value = self.where(self.node(name, value, self.constant(end)), self.constant(end), value)
        return value

    def _binned(self, value: str, column: NumericColumn, weights: NDArray[np.float64]) -> str:
        assert column.bins is not None
        above = self.cast(self.node("GreaterOrEqual", self.tall(value), self.constant([column.bins])), "INT64")
        code = self.node("ReduceSum", above, self.constant([1], np.int64), keepdims=0)
        known = self.node("Gather", self.constant(weights.T), code)
        odd = self.node("IsNaN", value)
        return self.where(self.tall(odd) if weights.ndim > 1 else odd, self.constant(math.nan), known)

    def _codes(self, name: str, values: Sequence[Scalar], codes: Sequence[int], default: int) -> str:
        """A column's values as whole numbers."""
        if isinstance(values[0], bool):
            return self.node("Gather", self._places(values, codes), self.cast(self.given(name, "BOOL"), "INT64"))
        text = isinstance(values[0], str)
        if not text and not all(isinstance(value, int) for value in values):
            raise UsageError(f"column {name!r}: categories that are numbers with a fraction have no ONNX form")
        keys: dict[str, Any] = {"keys_strings" if text else "keys_int64s": list(values)}
        column = self.given(name, "STRING" if text else "INT64")
        return self.node(
            "LabelEncoder", column, domain="ai.onnx.ml", values_int64s=list(codes), default_int64=default, **keys
        )

    def _places(self, values: Sequence[Scalar], codes: Sequence[int]) -> str:
        known = dict(zip(values, codes, strict=True))
        return self.constant([known.get(False, -1), known.get(True, -1)], np.int64)

    def _category(self, name: str, column: CategoricalColumn, weights: NDArray[np.float64]) -> tuple[str, str | None]:
        if column.trim:
            raise UsageError(
                f"column {name!r}: ONNX cannot trim texts; trim them first, and drop trim from the domain"
            )
        count = len(column.values)
        table = (
            weights.T
            if column.other
            else np.pad(weights.T, [(0, 1), *[(0, 0)] * (weights.ndim - 1)], constant_values=math.nan)
        )  # the last place is any other value
        code = self._codes(name, column.values, range(count), count)
        if isinstance(column.values[0], bool):
            code = self.where(
                self.node("Less", code, self.constant(0, np.int64)), self.constant(count, np.int64), code
            )
        null = None
        if column.fill is not None:
            null = self.given(f"{name} is null", "BOOL")
            filled = column.values.index(column.fill) if column.fill in column.values else count
            code = self.where(null, self.constant(filled, np.int64), code)
        return self.node("Gather", self.constant(table), code), null

    def _truth(self, name: str, column: BooleanColumn) -> tuple[str, str | None]:
        code = self._codes(name, column.values or (False, True), (0, 1), 2)
        null = None
        if column.fill is not None:
            null = self.given(f"{name} is null", "BOOL")
            code = self.where(null, self.constant(int(bool(column.fill)), np.int64), code)
        return self.node("Gather", self.constant([-1.0, 1.0, math.nan]), code), null

    def _linked(self, margin: str, link: Link, out: str | None = None) -> str:
        """A link of margins."""
        if isinstance(link, Logistic):
            odds = self.node("Mul", margin, self.constant(link.slope))
            return self.node("Sigmoid", self.node("Add", odds, self.constant(link.offset)), out=out)
        assert isinstance(link, Pieces)
        slopes = np.diff(link.probabilities) / np.diff(link.margins)
        total = self.node("Add", self.node("Mul", margin, self.constant(0.0)), self.constant(link.probabilities[0]))
        for left, change in zip(link.margins, np.diff([0.0, *slopes, 0.0]), strict=True):
            beyond = self.node("Sub", margin, self.constant(left))
            beyond = self.where(self.node("Greater", beyond, self.constant(0.0)), beyond, self.constant(0.0))
            total = self.node("Add", total, self.node("Mul", beyond, self.constant(change)))
        return self.node("Identity", total, out=out)

    def _number_label(self, margin: str, middle: float, bounds: tuple[float, float]) -> None:
        low, high = map(self.constant, bounds)
        value = self.node("Add", margin, self.constant(middle))
        value = self.where(self.node("Less", value, low), low, value)
        self.node("Where", self.node("Greater", value, high), high, value, out="label")
        self._out("label", "DOUBLE")

    def _label(self, margin: str, threshold: float, pair: Sequence[Scalar]) -> None:
        self._named(self.cast(self.node("GreaterOrEqual", margin, self.constant(threshold)), "INT64"), pair)

    def _named(self, places: str, values: Sequence[Scalar]) -> None:
        """The label's values by their places."""
        kinds = {bool: ("BOOL", np.bool_), int: ("INT64", np.int64), float: ("DOUBLE", np.float64)}
        kind, dtype = kinds.get(type(values[0]), ("STRING", object))
        self.node("Gather", self.constant(list(values), dtype), places, out="label")
        self._out("label", kind)

    def _out(self, name: str, kind: str, several: bool = False) -> None:
        dtype, shape = getattr(self.onnx.TensorProto, kind), ["rows", "classes"] if several else ["rows"]
        self.outputs.append(self.onnx.helper.make_tensor_value_info(name, dtype, shape))

    def finished(self, model: LinearModel) -> Any:
        """The whole model, with its statement of privacy as metadata."""
        helper = self.onnx.helper
        graph = helper.make_graph(self._nodes, "daskrado", self.inputs, self.outputs, self._constants)
        opsets = [helper.make_opsetid("", OPSET), helper.make_opsetid("ai.onnx.ml", ML_OPSET)]
        made = helper.make_model(graph, opset_imports=opsets, producer_name="daskrado", ir_version=8)
        helper.set_model_props(made, {"privacy_in_words": model.statement.sentence()})
        return made
