"""Learning from a file of rados: another party's half of the work, with nothing but the file."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, ClassVar

from pydantic import BeforeValidator, Field, InstanceOf, PlainSerializer

from daskrado.bounds.rado_risk import separability
from daskrado.jobs.base import Job, Outcome, Run, perform
from daskrado.jobs.outcome import Result
from daskrado.learners.base import ReleaseLearner
from daskrado.models.linear import LinearModel
from daskrado.models.rados import RADO_STATISTICS, RadoSet
from daskrado.privacy.statement import PrivacyStatement
from daskrado.registry import kinds, make, options
from daskrado.table.domain import Domain
from daskrado.table.yaml_file import parse

_SEPARABLE_CELLS = 1 << 18  # beyond this the linear program takes longer than the rest of a run


def rado_learner(content: Any) -> ReleaseLearner:
    """A registered learner that learns from rados, by its kind or with its options."""
    found = kinds(ReleaseLearner, "daskrado.learners")
    known = [name for name, kind in found.items() if set(RADO_STATISTICS) <= set(kind.statistics)]
    name = content.get("kind") if isinstance(content, Mapping) else getattr(content, "name", content)
    if isinstance(name, str) and name not in known:
        raise ValueError(f"kind must be one of {', '.join(map(repr, sorted(known)))} (got {name!r})")
    return make(ReleaseLearner, ("daskrado.learners",), content)


RadoLearner = Annotated[InstanceOf[ReleaseLearner], BeforeValidator(rado_learner), PlainSerializer(options)]


def diagnose(rados: RadoSet) -> tuple[str, ...]:
    """Plain words on what a learner should know of a set; from the published rados only."""
    notes = []
    if rados.zero_columns:
        shown = ", ".join(rados.zero_columns[:5]) + (", ..." if len(rados.zero_columns) > 5 else "")
        notes.append(f"{len(rados.zero_columns)} columns are 0 in every rado and are dropped: {shown}")
    if rados.rados.size <= _SEPARABLE_CELLS and (found := separability(rados.rados)).separable:
        notes.append(found.warning)
    return tuple(notes)


def learned(rados: RadoSet, learner: ReleaseLearner) -> LinearModel:
    """Post-processing: the model says what the rados say."""
    weights, details = learner.fit(rados.as_release())
    return LinearModel(rados.domain, weights, rados.statement, learner.name, details)


class RadoFileJob(Job):
    """A model from a published set of rados; ``lake`` is the address of its file. No pipeline file names it."""

    name: ClassVar[str] = "learn from rados"
    title: ClassVar[str] = "a linear classifier from rados"
    protected_elsewhere: ClassVar[bool] = True

    learner: RadoLearner
    rados: InstanceOf[RadoSet] = Field(exclude=True, repr=False)

    @property
    def statement(self) -> PrivacyStatement:
        return self.rados.statement

    def work(self, run: Run) -> Outcome:
        rados, count = self.rados, len(self.rados.rados)
        with run.clock("learn"):
            model = learned(rados, self.learner)
        return Outcome(
            model,
            rados.statement,
            model,
            facts={"rows": rados.rows, "rados": count, "kind_of_rados": rados.kind},
            lines=[f"{count} rados of kind {rados.kind}, learned by {model.learner}"],
            made=[("rados", f"{count} of kind {rados.kind}"), ("learner", model.learner)],
            notes=diagnose(rados),
        )


def learn_rados(
    path: str | Path,
    learner: str | Mapping[str, Any] = "rado_moments",
    *,
    rounds: int | None = None,
    regularisation: float | None = None,
    ridge: float | None = None,
    domain: Domain | str | Path | None = None,
    out: str | Path | None = None,
    overwrite: bool = False,
) -> Result:
    """Read rados, learn, and publish in ``out``. The model carries the rados' statement.

    ``learner`` is the kind of any learner on rados, perhaps with its options; ``rounds`` and ``regularisation``
    (``ridge`` in older programs) are options that some of them have. ``domain`` refuses rados of another one.
    """
    wanted = Domain.load(domain) if isinstance(domain, str | Path) else domain
    rados = RadoSet.load(path, wanted)
    given = {"rounds": rounds, "regularisation": ridge if regularisation is None else regularisation}
    chosen = {"kind": learner} if isinstance(learner, str) else dict(learner)
    content = {
        "dataset": re.sub(r"[^A-Za-z0-9._-]", "-", Path(path).stem)[:100],
        "lake": str(path),
        "domain": rados.domain,
        "output": "." if out is None else str(out),
        "learner": chosen | {key: value for key, value in given.items() if value is not None},
        "rados": rados,
    }
    return perform(parse(RadoFileJob, content, "daskrado learn"), overwrite=overwrite, write=out is not None)
