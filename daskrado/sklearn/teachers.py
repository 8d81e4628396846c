"""TeacherClassifier: teachers on disjoint shards answer public queries; a student learns from the answers."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

from daskrado.sklearn.classes import LakeClassifier
from daskrado.sklearn.classifier import common_keys
from daskrado.table.domain import Domain


class TeacherClassifier(LakeClassifier):
    """A student of private votes. ``queries`` are **public** rows without labels, which the teachers answer.

    ``teachers`` is how many there are, ``teacher`` and ``student`` are their learners: a kind, or a mapping such as
    ``{"kind": "sklearn", "estimator": "sklearn.tree.DecisionTreeClassifier"}``.

    Sensitivity
        A row reaches one teacher, so it moves a vote difference by 2.

    Reference
        Bassily, Thakkar and Thakurta (2018), Model-agnostic private learning.
    """

    def __init__(
        self,
        domain: Domain | Mapping[str, Any] | str | Path | None = None,
        *,
        queries: Any = None,
        bounds: Any = None,
        classes: tuple[Any, ...] | None = None,
        dataset: str | None = None,
        epsilon: float = 1.0,
        delta: float = 1e-6,
        relation: str = "add_remove",
        unit: str | Mapping[str, Any] | None = None,
        teachers: int = 400,
        teacher: str | Mapping[str, Any] = "logistic",
        student: str | Mapping[str, Any] = "logistic",
        most_queries: int = 400,
        ledger: str | Path | None = None,
        first_limit: tuple[float, float] | None = None,
        workers: int | None = None,
        cluster: Any = None,
    ) -> None:
        self.domain = domain
        self.queries = queries
        self.bounds = bounds
        self.classes = classes
        self.dataset = dataset
        self.epsilon = epsilon
        self.delta = delta
        self.relation = relation
        self.unit = unit
        self.teachers = teachers
        self.teacher = teacher
        self.student = student
        self.most_queries = most_queries
        self.ledger = ledger
        self.first_limit = first_limit
        self.workers = workers
        self.cluster = cluster

    several: ClassVar[bool] = True
    private = True  # votes without noise would be a plain ensemble

    def _job(self, domain: Domain) -> Mapping[str, Any]:
        del domain
        keys = {key: value for key, value in common_keys(self).items() if key != "private"}
        return {
            "kind": "teachers",
            **keys,
            "queries": self.queries,
            "teachers": {"count": self.teachers, "learner": _choice(self.teacher)},
            "answers": {"mechanism": "gaussian", "queries": self.most_queries},
            "student": {"learner": _choice(self.student)},
        }


def _choice(learner: str | Mapping[str, Any]) -> Mapping[str, Any]:
    return {"kind": learner} if isinstance(learner, str) else learner
