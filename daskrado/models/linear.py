"""LinearModel: what is published. Weights, the Domain they are for, and what was protected in learning them."""

from __future__ import annotations

import json
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from daskrado.errors import DataError, UsageError
from daskrado.models.decision import Decision
from daskrado.models.error_bars import ErrorBars, why_none
from daskrado.models.link import Link, Shares, own_link, own_shares
from daskrado.models.sql import select_classes, select_margins, select_numbers, select_predictions
from daskrado.privacy.statement import PrivacyStatement
from daskrado.table.arrow_arrays import as_table
from daskrado.table.domain import Domain
from daskrado.table.encoding import encode_table, needed_columns, type_problem
from daskrado.table.fourier_features import frequencies
from daskrado.table.lattice import row_norms
from daskrado.table.yaml_file import parse, write_text

if TYPE_CHECKING:
    import pandas as pd

SCHEMA = "daskrado.model/2"
READABLE = ("daskrado.model/1", SCHEMA)
_CHUNK_ROWS = 16_384  # encoded rows held at once
_FAR = 1e300  # a threshold that no margin reaches
_LARGEST = float(np.finfo(np.float64).max)


@dataclass(frozen=True)
class LinearModel:
    """Margin = weights . x, where x is the row encoded by the Domain and clipped to its norm bound.

    The label is the side on which the margin lies. One that is a number is the middle of its bounds plus the margin.
    Of several classes each has weights and a margin of its own, and the largest margin is the label.

    >>> import pandas as pd
    >>> label = {"column": "sick", "positive": "yes", "negative": "no"}
    >>> age = {"kind": "numeric", "lower": 0, "upper": 100}  # scaled to [-1, 1]
    >>> domain = Domain(label=label, columns={"age": age}, norm_bound=1.0, intercept=0.0)
    >>> model = LinearModel(domain, np.array([3.0]), PrivacyStatement.none(), "by hand")
    >>> people = pd.DataFrame({"age": [0, 50, 75]})
    >>> model.margins(people).tolist()
    [-3.0, 0.0, 1.5]
    >>> model.predict(people).tolist()
    ['no', 'yes', 'yes']
    """

    domain: Domain
    weights: NDArray[np.float64]
    statement: PrivacyStatement
    learner: str
    details: dict[str, Any] = field(default_factory=dict)
    bars: ErrorBars | None = None
    decision: Decision = Decision()  # noqa: RUF009 - frozen

    def __post_init__(self) -> None:
        if self.weights.shape != self.domain.weights_shape:
            raise UsageError(f"{self.weights.shape} weights for a Domain of {self.domain.width} features")
        if not np.isfinite(self.weights).all():
            raise UsageError("weights must be finite")

    @property
    def error_bars(self) -> ErrorBars:
        """What is known of the weights' errors, or that nothing is."""
        return self.bars or ErrorBars.none(self.weights.size, why_none(self.learner))

    @property
    def weight_names(self) -> tuple[str, ...]:
        """The names of the features; of several classes each before them."""
        return _weight_names(self.domain)

    @property
    def coefficients(self) -> pd.DataFrame:
        """By feature name: weight, both ends of its 95 % interval, p-value, and a mark (``error_bars.MEANING``)."""
        import pandas as pd  # only where a frame is asked for: half a second

        bars = self.error_bars
        columns = {"weight": self.weights.ravel(), "low": bars.low, "high": bars.high, "p": bars.p_values}
        return pd.DataFrame(columns | {"mark": bars.marks}, index=list(self.weight_names))

    def intervals(self, level: float = 0.95) -> pd.DataFrame:
        """By feature name: both ends of its interval at this level; NaN where there is none."""
        import pandas as pd

        low, high = self.error_bars.ends(level)
        return pd.DataFrame({"low": low, "high": high}, index=list(self.weight_names))

    def margins(self, table: pa.Table | pd.DataFrame) -> NDArray[np.float64]:
        """Signed margin of each row; its sign is the predicted label, unless that is a number. One for each class."""
        needed = needed_columns(self.domain, label=False)
        table = _as_arrow(table, needed)
        for name in needed:
            if (problem := type_problem(self.domain, name, table.schema.field(name).type)) is not None:
                raise DataError(f"column {name!r} {problem}")
        encoded = encode_table(self.domain, table, label=False)
        out = np.empty((encoded.length, *self.weights.shape[:-1]))
        buffer = np.empty((min(encoded.length, _CHUNK_ROWS), self.domain.width), order="F")
        for start in range(0, encoded.length, _CHUNK_ROWS):
            stop = min(start + _CHUNK_ROWS, encoded.length)
            x = encoded.block(start, stop, buffer)
            if problems := encoded.refused(strict=True):
                raise DataError("; ".join(map(str, problems[:3])))
            clip = self.domain.norm_bound / np.maximum(row_norms(x), self.domain.norm_bound)
            out[start:stop] = ((x @ self.weights.T).T * clip).T
        return out

    @property
    def link(self) -> Link | None:
        """From margins to probabilities: as it was fitted, else the loss's own; None where the loss has none."""
        if self.domain.label.target != "sides":
            return None
        return self.decision.link or own_link(self.learner, self.details)

    def _link(self) -> Link:
        if self.domain.label.target == "number":
            raise UsageError(f"label {self.domain.label.column!r} is a number: a model of it gives no probabilities")
        if self.domain.label.classes is not None:
            raise UsageError(
                f"label {self.domain.label.column!r} has several classes: a threshold is for one of two sides; "
                "predict_proba gives the probability of each"
            )
        if self.link is None:
            raise UsageError(
                f"learner {self.learner} ({self.details.get('loss', 'no loss')}) gives margins, not probabilities: "
                "daskrado evaluate, or holdout in its pipeline, fits them"
            )
        return self.link

    def probabilities(self, table: pa.Table | pd.DataFrame) -> NDArray[np.float64]:
        """The probability of the positive label, row by row."""
        self._link()
        return self.probability_of(self.margins(table))

    def probability_of(self, margins: NDArray[np.float64]) -> NDArray[np.float64]:
        """The same from margins."""
        return self._link()(margins)

    def predict_proba(self, table: pa.Table | pd.DataFrame) -> pd.DataFrame:
        """The probability of each label, the negative one first, row by row."""
        import pandas as pd

        index = table.index if isinstance(table, pd.DataFrame) else None
        if self.domain.label.classes is not None:
            return pd.DataFrame(
                self.shares(self.margins(table)), columns=list(self.domain.label.classes), index=index
            )
        positive = self.probabilities(table)
        return pd.DataFrame(dict(zip(self.domain.label.pair, (1 - positive, positive), strict=True)), index=index)

    def shares(self, margins: NDArray[np.float64]) -> NDArray[np.float64]:
        """The probability of each of several classes."""
        if self.class_shares is None:
            raise UsageError(
                f"learner {self.learner} ({self.details.get('loss', 'no loss')}) gives margins of each class, not "
                "probabilities: take gradient, moments or a logistic loss"
            )
        return self.class_shares(margins)

    @property
    def class_shares(self) -> Shares | None:
        """From margins of several classes to their probabilities; None where there are two, or the loss has none."""
        return None if self.domain.label.classes is None else own_shares(self.learner, self.details)

    @property
    def gives_probabilities(self) -> bool:
        """Whether margins are probabilities in another form."""
        return self.link is not None or self.class_shares is not None

    def ranks(self, table: pa.Table | pd.DataFrame) -> NDArray[np.float64]:
        """The share of the evaluated units whose margin is smaller, row by row."""
        return self.rank_of(self.margins(table))

    def rank_of(self, margins: NDArray[np.float64]) -> NDArray[np.float64]:
        """The same from margins."""
        if self.decision.ranks is None or margins.ndim > 1:
            raise UsageError("ranks are among units that an evaluation counted: run daskrado evaluate, or holdout")
        return self.decision.ranks(margins)

    def saying_yes_from(self, probability: float) -> LinearModel:
        """The same model with another threshold: the positive label from this probability on."""
        if not 0 < probability < 1:
            raise UsageError(f"a threshold is a probability above 0 and below 1, got {probability:g}")
        margin = max(-_FAR, min(_FAR, self._link().margin(probability)))
        chosen = f"probability {probability:g}"
        return replace(self, decision=replace(self.decision, threshold=margin, chosen=chosen))

    def labels(self, margins: NDArray[np.float64]) -> pa.Array:
        """The Domain's label values for margins; a margin of exactly the threshold counts as positive.

        Of a label that is a number, margins are off the middle of its bounds, and predictions stay within these.
        """
        if self.domain.label.bounds is not None:
            return pa.array(np.clip(self.domain.label.span[0] + margins, *self.domain.label.bounds))
        if self.domain.label.classes is not None:
            return pa.array(self.domain.label.classes).take(pa.array(margins.argmax(axis=1)))
        pair = pa.array(self.domain.label.pair)
        return pair.take(pa.array((margins >= self.decision.threshold).astype(np.int8)))

    def predict(self, table: pa.Table | pd.DataFrame) -> pd.Series:
        """The predicted label of each row; of a Dask frame a Dask series, computed when it is asked for."""
        import pandas as pd

        if hasattr(table, "map_partitions"):
            like = pd.Series(
                self.labels(np.zeros((1, *self.weights.shape[:-1]))).to_pandas().to_numpy(), name="predicted"
            )
            return cast("pd.Series", table.map_partitions(self.predict, meta=like))
        index = table.index if isinstance(table, pd.DataFrame) else None
        return pd.Series(self.labels(self.margins(table)).to_pandas().to_numpy(), index=index, name="predicted")

    def to_json(self) -> str:
        """The published form, with its Domain and privacy statement."""
        content: dict[str, Any] = {
            "schema": SCHEMA,
            "privacy": self.statement.model_dump(mode="json"),
            "privacy_in_words": self.statement.sentence(),
            "learner": self.learner,
            "weights": dict(zip(self.weight_names, self.weights.ravel().tolist(), strict=True)),
            "error_bars": self.error_bars.to_json(self.weight_names),
            "domain": self.domain.model_dump(mode="json"),
            "details": self.details,
        }
        if self.decision != Decision():
            content["decision"] = self.decision.to_json()
        if self.domain.kernel is not None:
            content["frequencies"] = _frequencies(self.domain)
        return json.dumps(content, indent=2, allow_nan=False) + "\n"

    def save(self, path: str | Path) -> None:
        """Write the JSON form, whole or not at all."""
        write_text(path, self.to_json())

    @classmethod
    def from_json(cls, text: str, where: str = "model") -> LinearModel:
        """Read a published model; anything unexpected is a UsageError that names the key."""
        try:
            content = json.loads(text)
        except ValueError as error:
            raise UsageError(f"{where}: is no model ({error}); give model.json, or the folder of a run") from error
        except RecursionError as error:
            raise UsageError(f"{where}: is no model (its brackets are nested too deeply)") from error
        if not isinstance(content, dict) or content.get("schema") not in READABLE:
            found = content.get("schema") if isinstance(content, dict) else None
            raise UsageError(f"{where}: schema is {found!r}, this version reads {' and '.join(map(repr, READABLE))}")
        missing = [k for k in ("privacy", "learner", "weights", "domain") if k not in content]
        if missing:
            raise UsageError(f"{where}: key {missing[0]!r} is missing")
        if isinstance(content["domain"], dict) and "norm_bound" not in content["domain"]:
            raise UsageError(f"{where}: domain: norm_bound: missing")  # a derived one may not be the one of the fit
        domain = parse(Domain, content["domain"], f"{where}: domain")
        if domain.kernel is not None and content.get("frequencies") != _frequencies(domain):
            raise UsageError(f"{where}: frequencies are not those that the Domain's kernel gives here")
        weights = content["weights"]
        if not isinstance(weights, dict) or tuple(weights) != _weight_names(domain):
            raise UsageError(f"{where}: weights do not name the Domain's features in order")
        for name, weight in weights.items():
            if isinstance(weight, bool) or not isinstance(weight, int | float) or not abs(weight) <= _LARGEST:
                raise UsageError(f"{where}: weights must be finite numbers, and that of {name!r} is not")
        statement = parse(PrivacyStatement, content["privacy"], f"{where}: privacy")
        words = str(content.get("privacy_in_words", statement.sentence()))
        if words.startswith("NOT PRIVATE") == statement.private:  # other versions word the rest in their own way
            raise UsageError(f"{where}: privacy_in_words is not what privacy says: {statement.sentence()}")
        if not isinstance(content["learner"], str):
            raise UsageError(f"{where}: learner must be a text, got {type(content['learner']).__name__}")
        details = content.get("details", {})
        if not isinstance(details, dict):
            raise UsageError(f"{where}: details must be a mapping of keys, got {type(details).__name__}")
        return cls(
            domain=domain,
            weights=np.array(list(weights.values()), dtype=np.float64).reshape(domain.weights_shape),
            statement=statement,
            learner=content["learner"],
            details=details,
            bars=None if content["schema"] != SCHEMA else _bars(content, domain, where),
            decision=Decision.from_json(content.get("decision"), where),
        )

    @classmethod
    def load(cls, path: str | Path) -> LinearModel:
        """Read a published model from a file."""
        try:
            text = Path(path).read_text(encoding="utf-8")
        except OSError as error:
            raise UsageError(
                f"{path}: cannot be read ({error.strerror}); give model.json, or the folder of a run"
            ) from error
        except UnicodeDecodeError as error:
            raise UsageError(f"{path}: is not UTF-8 text") from error
        return cls.from_json(text, str(path))

    def sql(self, table: str = "lake", *, keep: tuple[str, ...] = (), probability: bool = False) -> str:
        """A SELECT that gives the same margins, in standard SQL (checked in DuckDB and SQLite).

        A row that predict refuses gets a null margin: a null, NaN, infinity or value that the Domain does not allow.
        With ``probability`` it also gives the probability and the predicted label; that of a number, or of several
        classes, always: then the margin is the largest, and the probability is of the label.
        """
        if self.domain.label.classes is not None:
            if probability:
                self.shares(np.zeros((1, len(self.weights))))  # refused where there are none
            shares = self.class_shares if probability else None
            return select_classes(self.domain, self.weights.tolist(), table, keep, shares)
        margins = select_margins(self.domain, self.weights.tolist(), table, keep)
        if self.domain.label.bounds is not None and not probability:
            return select_numbers(margins, self.domain.label.span[0], self.domain.label.bounds, keep)
        if not probability:
            return margins
        return select_predictions(margins, self._link(), self.decision.threshold, self.domain.label.pair, keep)


def _weight_names(domain: Domain) -> tuple[str, ...]:
    if domain.label.classes is None:
        return domain.feature_names
    return tuple(f"{one}: {name}" for one in domain.label.classes for name in domain.feature_names)


def _bars(content: dict[str, Any], domain: Domain, where: str) -> ErrorBars:
    if "error_bars" not in content:
        raise UsageError(f"{where}: key 'error_bars' is missing")
    return ErrorBars.from_json(content["error_bars"], _weight_names(domain), where)


def _as_arrow(table: pa.Table | pd.DataFrame, needed: list[str]) -> pa.Table:
    """The needed columns as an Arrow table; no error quotes a cell, as Arrow's own would."""
    arrow = as_table(table)
    is_arrow, table = arrow is not None, table if arrow is None else arrow
    if not is_arrow and not _is_frame(table):
        kind = f"{type(table).__module__.partition('.')[0]} {type(table).__name__}"
        raise UsageError(
            f"a model scores a frame of pandas, Polars, Arrow or DuckDB, not a {kind}: compute() or collect() it "
            "first, or score a lake of files with daskrado predict"
        )
    have = list(table.column_names if is_arrow else table.columns)
    for name in needed:
        if have.count(name) != 1:
            raise DataError(f"column {name!r} is {'there twice' if name in have else 'missing'}")
    if is_arrow:
        return table.select(needed)
    arrays = {}
    for name in needed:
        try:
            arrays[name] = pa.Array.from_pandas(table[name])
        except (pa.ArrowException, OverflowError):
            raise DataError(f"column {name!r} holds values of several types") from None
    return pa.table(arrays)


def _is_frame(table: Any) -> bool:
    import pandas as pd

    return isinstance(table, pd.DataFrame)


def _frequencies(domain: Domain) -> list[list[float]]:
    """Of a kernel model: one list for each feature of the columns."""
    assert domain.kernel is not None
    whole, bits = frequencies(domain.kernel, len(domain.column_features))
    return np.ldexp(whole, -bits).tolist()  # type: ignore[no-any-return]
