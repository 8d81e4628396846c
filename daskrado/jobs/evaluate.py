"""kind: evaluate. Error, ROC, calibration and base rate of a published model on a lake, by group, with intervals."""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections.abc import Iterator
from dataclasses import replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from pydantic import Field, model_validator

from daskrado.errors import UsageError, about_the_key
from daskrado.jobs import holdout as held
from daskrado.jobs.base import Address, Charge, Line, Outcome, PrivateJob, Run
from daskrado.jobs.measure import ROLE, EvaluationKeys, Measurement, measurement
from daskrado.lake.holdout import HELD_OUT, check_column
from daskrado.lake.scan import Lake
from daskrado.ledger.account import Account
from daskrado.ledger.words import amount
from daskrado.models.decision import Decision
from daskrado.models.linear import LinearModel
from daskrado.privacy.accountant import MAX_DELTA, MAX_EPSILON, ApproximateEvent, PureEvent
from daskrado.privacy.protect import Budget
from daskrado.privacy.statement import PrivacyStatement
from daskrado.table.label import Target
from daskrado.table.yaml_file import write_text


class EvaluateJob(EvaluationKeys, PrivateJob):
    """``model`` is a published model file; ``against`` are others of the same domain to compare it with.

    The domain is the model's own, unless it is given. In Python ``model`` may be a model itself.
    """

    name: ClassVar[str] = "evaluate"
    addresses: ClassVar[tuple[Address, ...]] = (("model",), ("against",))
    counts_units: ClassVar[bool] = True
    targets: ClassVar[tuple[Target, ...]] = ("sides", "number", "classes")
    title: ClassVar[str] = "{job.dataset}: how good a model is"

    model: Any = Field(repr=False)
    holdout: held.Holdout | None = Field(default=None, description="what training held out: a share, or {fold, of}")
    against: tuple[Any, ...] = Field(default=(), max_length=10, repr=False)

    @model_validator(mode="before")
    @classmethod
    def _domain_of_model(cls, content: Any) -> Any:
        if not isinstance(content, dict) or "model" not in content:
            return content
        others = content.get("against", ())
        others = others if isinstance(others, list | tuple) else (others,)
        content = {**content, "against": tuple(map(_plain, others)), "model": _plain(content["model"])}
        if "domain" in content:
            return content
        with about_the_key("model: "):
            return {**content, "domain": loaded(content["model"]).domain}

    @model_validator(mode="after")
    def _check_models(self) -> EvaluateJob:
        with about_the_key():
            self.models  # noqa: B018 - refuses files that are no models of this domain
        self.measurement  # noqa: B018 - refuses groups and relations
        held.check_ids(self)
        return self

    @cached_property
    def models(self) -> dict[str, LinearModel]:
        """The model and those that it is compared with, read once, all for this job's domain."""
        found: dict[str, LinearModel] = {}
        for number, one in enumerate((self.model, *self.against)):
            model, name = loaded(one), one if isinstance(one, str) else f"model {number + 1}"
            if model.domain.feature_names != self.domain.feature_names or model.domain.label != self.domain.label:
                key = "against" if number else "model"
                raise UsageError(f"{key}: {name} was learned for another domain than the pipeline's")
            if not model.domain.encodes_like((*found.values(), model)[0].domain):
                raise UsageError(
                    f"against: {name} scales numbers in another way than the model, so one pass cannot count for "
                    "both: evaluate it by itself, or learn both with learner.centre: false"
                )
            if name in found and number > 1:
                raise UsageError(f"against: {name} is listed twice")
            found[name if number else "model"] = model
        return found

    @cached_property
    def measurement(self) -> Measurement:
        """What is counted, and at what price."""
        private = self.asked if self.private else None
        assumed = self.assumptions if self.private else ()
        keys = EvaluationKeys(**{name: getattr(self, name) for name in EvaluationKeys.model_fields})
        return measurement(self.models["model"].domain, keys, private, assumed, len(self.models))

    def charges(self) -> tuple[Charge, ...]:
        return held.of_parts(self, self.measurement.charges())

    def scan(self) -> Lake:
        """The lake; groups, and with a hold-out ids, must be usable."""
        lake = super().scan()
        self.measurement.check_lake(lake)
        if self.holdout is not None:
            check_column(lake, str(held.column_of(self)))
        return lake

    @property
    def can_be_remembered(self) -> bool:
        return all(isinstance(one, str) for one in (self.model, *self.against))

    def inputs(self) -> dict[str, str]:
        return {"the models": digest(*self.models.values())}

    def needs_rows(self, account: Account) -> bool:
        return not account.has(f"{ROLE}#{len(self.measurement.steps):05d}")

    def plan(self) -> Iterator[Line]:
        yield from self.measurement.plan()

    def work(self, run: Run) -> Outcome:
        """Place score bins, count in them, compute everything from the counts."""
        models = self.models
        gather = partial(run.collect, part=held.part_of(self, HELD_OUT), domain=models["model"].domain)
        found, released = self.measurement.measure(run, list(models.values()), gather)
        model, about = models["model"], f"counts of {self.dataset}"
        measured = self.measurement.measured(list(models), found, self._where(), about, model)
        statement = run.charges[ROLE].statement if run.charges else PrivacyStatement.none()
        both = self._both(model.statement, run) if measured.decision != Decision() else None
        fitted = None if both is None else replace(model, decision=measured.decision, statement=both)
        facts = {"noise_std": released.noise_std, "model_sha256": digest(model), **measured.facts()}

        def save(path: Path) -> None:
            write_text(path, json.dumps(measured.to_json(), allow_nan=False) + "\n")

        return Outcome(
            measured,
            statement,
            release=released,
            facts=facts,
            lines=list(measured.lines()),
            made=list(self.measurement.plan()),
            sections=measured.sections,
            files={"evaluation.json": save, **({} if fitted is None else {"model.json": fitted.save})},
            notes=()
            if fitted is None
            else (f"model.json: the same weights with fitted probabilities; {in_few_words(both)}",),
        )

    def _where(self) -> str:
        """What is said where the model may have seen these rows: its run read the same data set, all of it."""
        same = keys_beside(self.model).get("dataset") == self.dataset and isinstance(self.model, str)
        return "on rows that the model may have been trained on" if same and self.holdout is None else ""

    def _both(self, model: PrivacyStatement, run: Run) -> PrivacyStatement | None:
        """What a model protects once it says what this evaluation found; None where the two protect others.

        The model's own epsilon and delta add to the evaluation's, whichever rows each of them read.
        """
        if not (model.private and run.charges):
            return PrivacyStatement.none()
        mine, protect = run.charges[ROLE], self.asked.protect
        whom = (protect.relation, protect.unit, protect.rows_per_unit, protect.column)
        if (model.relation, model.unit, model.rows_per_unit, model.column) != whom:
            return None
        epsilon, delta = model.epsilon or 0.0, model.delta or 0.0
        if epsilon + self.asked.budget.epsilon > MAX_EPSILON or delta + self.asked.budget.delta > MAX_DELTA:
            return None
        before = ApproximateEvent(epsilon, delta) if delta else PureEvent(epsilon)
        return PrivacyStatement.of(
            [before, mine.event],
            protect,
            Budget(epsilon=epsilon + self.asked.budget.epsilon, delta=delta + self.asked.budget.delta),
            mechanism=f"{model.mechanism}, then {mine.statement.mechanism}",
            theorem=f"{model.theorem}; then, on an evaluation's counts, {mine.statement.theorem}",
            assumptions=tuple(dict.fromkeys((*model.assumptions, *mine.statement.assumptions))),
        )


def in_few_words(statement: PrivacyStatement | None) -> str:
    """A guarantee in a few words."""
    if statement is None or not statement.private:
        return "not private"
    return f"both together {amount(statement.epsilon or 0, statement.delta or 0)}"


def _plain(model: Any) -> Any:
    """A path as text; a result as its model."""
    return str(model) if isinstance(model, Path) else getattr(model, "model", model)


def loaded(model: Any) -> LinearModel:
    """A model from its file, or as it is."""
    if isinstance(model, LinearModel):
        return model
    if not isinstance(model, str):
        raise UsageError(f"must be the path of a model file, or a model, got {type(model).__name__}")
    path = Path(model)
    return LinearModel.load(path / "model.json" if path.is_dir() else path)


def digest(*models: LinearModel) -> str:
    """Of what models predict by."""
    return hashlib.sha256(b"".join(np.ascontiguousarray(model.weights).tobytes() for model in models)).hexdigest()


def keys_beside(model: Any) -> dict[str, Any]:
    """Data set, hold-out, protection and delta of the run that published a model, as its files say."""
    model = _plain(model)
    stated = loaded(model).statement
    found: dict[str, Any] = {"protect": {"relation": "add_remove", "unit": "one row"}, "delta": stated.delta or 0.0}
    if stated.private and stated.relation is not None:
        unit = {"column": stated.column, "name": stated.unit, "bound": stated.rows_per_unit}
        rows = {"rows_per_unit": stated.rows_per_unit}
        own = {"unit": stated.unit} | rows if stated.column is None else {"unit": unit}
        found["protect"] = {"relation": str(stated.relation), **own}
    if isinstance(model, str):
        folder = Path(model) if Path(model).is_dir() else Path(model).parent
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
            manifest = json.loads((folder / "manifest.json").read_text(encoding="utf-8"))
            found["dataset"], found["holdout"] = manifest["dataset"], manifest["job"].get("holdout")
    return {key: value for key, value in found.items() if value is not None}
