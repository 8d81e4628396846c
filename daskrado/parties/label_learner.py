"""Two agents, nothing shared but files: a learner with features, a provider with labels. This is the learner's side.

The provider (:mod:`daskrado.parties.label_provider`) trusts nothing in a request: it says which column is the label,
reads the features itself, clips them, measures their norms, matches keys, debits its own ledger, and draws the noise.
The learner gets one noisy vector and learns from it alone.

Reference: Patrini, Nielsen and Nock (2015), algorithm 3.
"""

from __future__ import annotations

import json
import uuid
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from pydantic import Field

from daskrado.cluster import ClusterConfig, connect
from daskrado.errors import DataError, UsageError
from daskrado.jobs.base import Job, Outcome, Run, perform
from daskrado.jobs.label_learning import DEFAULT_REGULARISATION, MeanOperatorFit, NoiseFacts, label_outcome
from daskrado.jobs.outcome import Result
from daskrado.lake.collect import Progress, collect
from daskrado.lake.joined import KEY
from daskrado.lake.scan import Lake
from daskrado.learners.on_passes.linear_odd import LakeFeatures, check_regularisation, fit_mean
from daskrado.learners.on_passes.public_features import open_features
from daskrado.parties.label_messages import REQUEST, Answer, FeatureMark, Request, read_answer, read_request
from daskrado.parties.signing import SigningKey
from daskrado.privacy.statement import PrivacyStatement
from daskrado.registry import options
from daskrado.statistics.features import FeatureDigest, digest_text
from daskrado.table.domain import Domain
from daskrado.table.yaml_file import parse


def make_request(
    features: Any,
    domain: Domain,
    key: SigningKey,
    *,
    epsilon: float,
    delta: float = 0.0,
    mechanism: str = "laplace",
    loss: Any = "logistic",
    lattice_bits: int = 20,
    address: str | None = None,
    cluster: ClusterConfig | None = None,
    progress: Progress | None = None,
) -> str:
    """The learner's signed request; reads the features once, for their digest."""
    if domain.id is None:
        raise UsageError("the domain has no id: name the key column that features and labels share")
    content = {
        "request": uuid.uuid4().hex,
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
        "domain_json": json.dumps(domain.model_dump(mode="json"), separators=(",", ":")),
        "features": {"digest": "0" * 64, "rows": 1},  # filled in after every other key is checked
        "loss": loss,
        "mechanism": mechanism,
        "epsilon": epsilon,
        "delta": delta,
        "lattice_bits": lattice_bits,
    }
    draft = parse(Request, content, "request")
    digest, rows = features_digest(features, draft, cluster, progress)
    request = draft.model_copy(update={"features": FeatureMark(digest=digest, rows=rows, address=address)})
    return key.sign(REQUEST, request.model_dump(mode="json", by_alias=True))


def features_digest(
    features: Any, request: Request, cluster: ClusterConfig | None, progress: Progress | None
) -> tuple[str, int]:
    """The digest of features by key, encoded as a request says, and their number of rows."""
    domain, lattice = request.domain, request.lattice
    lake = open_features(features, domain, ids=True)
    with connect(cluster or ClusterConfig(), lake.size) as client:
        statistic = FeatureDigest(domain.width)
        summary = collect(statistic, lake, domain, lattice, key=KEY, client=client, progress=progress)
    return digest_text(summary.vector, summary.rows, lattice), summary.rows


class LearnFromAnswer(Job):
    """The learner's last step: no ledger of its own is debited, for the noise was drawn and paid for elsewhere."""

    name: ClassVar[str] = "label learn"  # no pipeline file can say that
    title: ClassVar[str] = "learned from a provider's mean operator"
    protected_elsewhere: ClassVar[bool] = True

    request: Request = Field(repr=False)
    answer: Answer = Field(repr=False)
    regularisation: float

    @property
    def statement(self) -> PrivacyStatement:
        return self.answer.privacy

    def public_options(self) -> dict[str, Any]:
        """What was asked for; the messages themselves are files of their own."""
        asked = self.request
        return {
            "request": asked.request,
            "loss": options(asked.loss),
            "epsilon": asked.epsilon,
            "delta": asked.delta,
            "mechanism": asked.mechanism,
            "regularisation": self.regularisation,
        }

    def scan(self) -> Lake:
        return open_features(self.lake, self.domain)

    def work(self, run: Run) -> Outcome:
        """Check the features against the answer, then learn."""
        answer, lattice, loss = self.answer, self.request.lattice, self.request.loss
        with run.clock("digest"):
            digest, rows = features_digest(self.lake, self.request, self.cluster, run.progress)
        if digest != answer.features_digest:
            raise DataError(f"the features changed since the request was made: {rows} rows here, {answer.rows} then")
        mean = np.ldexp(np.array(answer.steps, dtype=np.float64), -lattice.bits) / rows
        with run.passes(lattice) as passes, run.clock("learn"):
            fit = fit_mean(LakeFeatures(passes, None, run.progress), loss, mean, self.regularisation)
        noise = NoiseFacts(answer.noise.kind, len(mean), answer.noise.scale / rows, answer.noise.std / rows)
        return label_outcome(
            self.domain,
            MeanOperatorFit(mean, fit, noise),
            loss,
            self.regularisation,
            answer.privacy,
            rows=rows,
            facts={"request": self.request.request, "features_digest": digest},
            notes=("the provider's ledger was debited, not one of the learner's",),
        )


def learn_from_answer(
    answer_text: str,
    request_text: str,
    features: Any,
    trusted: list[str],
    *,
    regularisation: float = DEFAULT_REGULARISATION,
    output: str | Path | None = None,
    overwrite: bool = False,
    cluster: ClusterConfig | None = None,
    where: str = "answer",
    progress: Progress | None = None,
) -> Result:
    """Check the answer and the features, learn, and publish where there is an ``output``."""
    check_regularisation(regularisation)
    request = read_request(request_text, None, "request")
    answer = read_answer(answer_text, trusted, request, request_text, where)
    content = {
        "dataset": request.request,  # the provider's name for it is not the learner's to know
        "lake": features,
        "domain": request.domain,
        "output": "." if output is None else str(output),
        "cluster": cluster or ClusterConfig(),
        "request": request,
        "answer": answer,
        "regularisation": regularisation,
    }
    job = parse(LearnFromAnswer, content, where)
    return perform(job, overwrite=overwrite, write=output is not None, progress=progress)
