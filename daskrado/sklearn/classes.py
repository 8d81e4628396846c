"""What every classifier here is: margins, probabilities and one of two classes, or of several."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Self

import numpy as np
import pandas as pd
import pyarrow as pa
from numpy.typing import NDArray
from sklearn.base import ClassifierMixin
from sklearn.utils.metaestimators import available_if
from sklearn.utils.multiclass import check_classification_targets, type_of_target
from sklearn.utils.validation import check_is_fitted

from daskrado.errors import UsageError
from daskrado.jobs.outcome import Result
from daskrado.sklearn.base import LakeEstimator
from daskrado.table.label_sides import label_sides


def _gives_probabilities(estimator: Any) -> bool:
    """Whether margins of the fitted model are probabilities in another form; before a fit nobody can tell."""
    if not estimator.gives_probabilities or not hasattr(estimator, "model_"):
        return bool(estimator.gives_probabilities)
    return bool(estimator.model_.gives_probabilities)


class LakeClassifier(ClassifierMixin, LakeEstimator):  # type: ignore[misc]  # scikit-learn has no types
    """A classifier of two classes; of several where ``several`` says so."""

    several: ClassVar[bool] = False
    gives_probabilities: ClassVar[bool] = True  # False where no loss of its learners has a link
    label_fact: ClassVar[str] = "classes"
    score = LakeEstimator.score  # the mixin's would score private rows

    classes: Any
    classes_: NDArray[Any]

    def _learned(self, result: Result, *, arrays: bool) -> Self:
        assert result.model is not None
        label = result.model.domain.label
        self.classes_ = np.sort(np.array(label.pair if label.classes is None else label.classes))
        return super()._learned(result, arrays=arrays)

    def _label(self, fact: Any) -> Mapping[str, Any]:
        values = [value.item() if isinstance(value, np.generic) else value for value in fact]
        if len(values) > 2 and self.several:
            return {"column": "y", "classes": values}
        if len(values) != 2:
            raise UsageError(f"classes must name two values, the negative one first, got {len(values)}")
        return {"column": "y", "positive": values[1], "negative": values[0]}

    def _fact_of(self, y: Any) -> NDArray[Any]:
        """The classes of labels that nobody protects."""
        check_classification_targets(y)
        classes = np.unique(y)
        if len(classes) > 2 and not self.several:
            said = f"The type of the target is {type_of_target(y)}."
            raise ValueError(f"Only binary classification is supported. {said}")
        if len(classes) < 2:
            raise ValueError(f"Classifier can't train when only one class is present: {classes[0]!r}.")
        return classes

    @property
    def _sign(self) -> float:
        """+1 where the positive side of the label is the second class, in sorted order, else -1."""
        if self._order is not None:
            return 1.0
        return 1.0 if self.model_.domain.label.pair[1] == self.classes_[1] else -1.0

    @property
    def _order(self) -> NDArray[np.intp] | None:
        """Of several classes, the places that sort them; None for two."""
        classes = self.model_.domain.label.classes
        return None if classes is None else np.argsort(np.array(classes))

    def decision_function(self, X: Any) -> NDArray[np.float64]:
        """Signed margins beyond the model's threshold: above 0 for the second class; of several, one each."""
        rows = self._rows(X)
        if self._order is not None:
            return self.model_.margins(rows)[:, self._order]
        return self._sign * (self.model_.margins(rows) - self.model_.decision.threshold)

    @available_if(_gives_probabilities)  # type: ignore[untyped-decorator]  # scikit-learn has no types
    def predict_proba(self, X: Any) -> NDArray[np.float64]:
        """The probability of each class, by the model's own link; one that has none lacks this method."""
        rows = self._rows(X)
        if self._order is not None:
            return self.model_.shares(self.model_.margins(rows))[:, self._order]
        positive = self.model_.probabilities(rows)
        both = np.column_stack([1 - positive, positive])
        return both if self._sign > 0 else both[:, ::-1]

    def predict(self, X: Any) -> NDArray[Any]:
        """The predicted class of each row."""
        margins = self.decision_function(X)
        if margins.ndim > 1:
            return np.asarray(self.classes_[margins.argmax(axis=1)])
        return np.asarray(self.classes_[(margins >= 0).astype(np.intp)])

    def _score(self, rows: Any, labels: Any, sample_weight: Any) -> float:
        label = self.model_.domain.label
        if label.classes is not None:
            hit = np.asarray(self.model_.labels(self.model_.margins(rows))) == np.asarray(labels)
            return float(np.average(hit, weights=sample_weight))
        sides = label_sides(
            label, pa.Array.from_pandas(labels) if isinstance(labels, pd.Series) else labels.combine_chunks()
        )
        if sides is None:
            raise ValueError(f"y must hold values of the domain's label: {label.in_words}")
        hit = np.where(self.model_.margins(rows) >= self.model_.decision.threshold, 1, -1) == sides
        return float(np.average(hit, weights=sample_weight))

    @property
    def coef_(self) -> NDArray[np.float64]:
        """Weights of the encoded features (``model_.domain.feature_names``), for the second class: 1 x features."""
        weights = super().coef_
        return weights[np.newaxis, :] if self._order is None else weights[self._order]

    @property
    def intercept_(self) -> NDArray[np.float64]:
        """The constant of the margin, before clipping."""
        check_is_fitted(self, "model_")
        domain, weights = self.model_.domain, np.atleast_2d(self.model_.weights)
        constant = weights[:, -1] * domain.intercept if domain.intercept else np.zeros(len(weights))
        return np.asarray(self._sign * constant if self._order is None else constant[self._order])

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.classifier_tags.multi_class = self.several
        return tags
