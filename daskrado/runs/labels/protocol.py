"""Two agents, nothing shared but files: a learner with features, a provider with labels.

The provider trusts nothing in a request: it reads the features itself, clips them, measures their norms, matches
keys, debits its own ledger, and draws the noise. The learner gets one noisy vector and learns from it alone.

Reference: Patrini, Nielsen and Nock (2015), algorithm 3.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import uuid
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from daskrado.cluster import ClusterConfig, connect
from daskrado.domain import Domain
from daskrado.errors import BudgetError, DataError, MessageError, UsageError
from daskrado.lake.collect import Progress, collect, open_passes
from daskrado.lake.joined import KEY, forget_labels, open_joined
from daskrado.lake.publish import check_free, new_folder
from daskrado.lattice import Lattice
from daskrado.learners.linear_odd import LakeFeatures, check_strength, fit_mean
from daskrado.models import write_text
from daskrado.privacy.ledger import Ledger
from daskrado.relations import Relation
from daskrado.runs.account import Account
from daskrado.runs.charging import Clock
from daskrado.runs.labels.config import DEFAULT_STRENGTH
from daskrado.runs.labels.learn import (
    Learned,
    NoiseFacts,
    finish,
    label_means,
    label_mechanism,
    label_statement,
    loosest_means,
    measure,
    open_features,
)
from daskrado.runs.labels.messages import (
    Answer,
    FeatureMark,
    NoiseMark,
    Request,
    new_request,
    read_answer,
    read_request,
    sha256,
    write_answer,
    write_request,
)
from daskrado.runs.labels.report import write_labels
from daskrado.runs.opening import named_account
from daskrado.signing import SigningKey
from daskrado.statistics.features import FeatureDigest, digest_text

_AGAIN = "the learner may make a new request, at a new charge"


def make_request(
    features: Any,
    domain: Domain,
    key: SigningKey,
    *,
    alpha: float,
    delta: float = 0.0,
    noise: str = "laplace",
    loss: Any = "logistic",
    lattice_bits: int = 20,
    address: str | None = None,
    cluster: ClusterConfig | None = None,
    progress: Progress | None = None,
) -> str:
    """The learner's signed request; reads the features once, for their digest."""
    if domain.id is None:
        raise UsageError("the domain has no id: name the key column that features and labels share")
    # Every other key is checked before the features are read; their digest is filled in after.
    draft = new_request(
        domain,
        features={"digest": "0" * 64, "rows": 1},
        loss=loss,
        noise=noise,
        alpha=alpha,
        delta=delta,
        lattice_bits=lattice_bits,
    )
    digest, rows = features_digest(features, domain, Lattice(domain.norm_bound, lattice_bits), cluster, progress)
    request = draft.model_copy(update={"features": FeatureMark(digest=digest, rows=rows, address=address)})
    return write_request(request, key)


def features_digest(
    features: Any, domain: Domain, lattice: Lattice, cluster: ClusterConfig | None, progress: Progress | None
) -> tuple[str, int]:
    """The digest of encoded features by key, and their number of rows."""
    lake = open_features(features, domain, ids=True)
    with connect(cluster or ClusterConfig(), lake.size) as client:
        statistic = FeatureDigest(domain.width)
        summary = collect(statistic, lake, domain, lattice, key=KEY, client=client, progress=progress)
    return digest_text(summary.vector, summary.rows, lattice), summary.rows


@dataclass(frozen=True)
class Provider:
    """A label provider's own facts and rules; ``answers`` is where it keeps what it has answered."""

    key: SigningKey
    trusted: tuple[str, ...]
    dataset: str
    labels: Any
    ledger: Ledger
    answers: Path
    unit: str = "one record's label"
    rows_per_unit: int = 1
    max_alpha: float | None = None
    cluster: ClusterConfig = field(default_factory=ClusterConfig)

    def answer(self, text: str, features: Any, *, where: str = "request", progress: Progress | None = None) -> str:
        """The signed answer. The same request always has the same answer, byte for byte, and is debited once.

        Sensitivity
            2 max|x|_1 or 2 max|x|_2 of the features as this provider encodes, clips and measures them, over the rows.
        """
        request = read_request(text, list(self.trusted), where)
        with self._turn(request.request) as stored:
            if stored.exists():
                return _same_request(stored, text, where)
            if self.max_alpha is not None and request.alpha > self.max_alpha:
                raise BudgetError(
                    f"{where}: alpha {request.alpha:g} is above {self.max_alpha:g}, the most that this provider "
                    "grants to one request; nothing was debited"
                )
            finish = "daskrado label answer, as before"
            with named_account(self.ledger, request.request, finish, again=_AGAIN) as account:
                answer = write_answer(self._release(request, text, features, where, progress, account), self.key)
                write_text(stored, answer)
                account.done()
            return answer

    def _release(
        self, request: Request, text: str, features: Any, where: str, progress: Progress | None, account: Account
    ) -> Answer:
        domain, lattice = request.domain, Lattice(request.domain.norm_bound, request.lattice_bits)
        lake = open_joined(features, self.labels, domain, progress)
        digest, rows = features_digest(features, domain, lattice, self.cluster, progress)
        if (digest, rows) != (request.features.digest, request.features.rows):
            raise DataError(
                f"{where}: the features changed since the request was made, or are others: "
                f"{rows} rows here, {request.features.rows} in the request, and their digests differ"
            )

        def calibrated(statistic: Any) -> Any:
            return label_mechanism(
                request.noise, statistic, lattice, self.rows_per_unit, request.alpha, request.delta
            )

        planned = calibrated(loosest_means(domain.width, lattice))
        grant = account.reserve(
            "labels",
            self.dataset,
            Relation.LABEL_FLIP,
            planned.event,
            theorem=planned.theorem,
            fingerprint=lake.fingerprint,
            room=16 * planned.target.statistic.size,
        )
        with connect(self.cluster, lake.size) as client:
            try:
                with open_passes(lake, domain, lattice, client=client, memory=0) as passes:
                    measured = measure(passes, progress=progress)
                    statistic = label_means(measured, domain.width, lattice, None, missing=False)
                    chosen = calibrated(statistic)
                    said = label_statement(chosen, self.unit, self.rows_per_unit, request.delta)
                    released = account.release(
                        "labels", grant, chosen, said, lambda: passes.sum(statistic, progress=progress)
                    )
            finally:
                forget_labels()
        steps = np.rint(released.values["mean"][0] / lattice.step).astype(np.int64)
        return Answer(
            request=request.request,
            request_sha256=sha256(text),
            features_digest=digest,
            domain_sha256=domain.digest(),
            rows=rows,
            lattice_bits=lattice.bits,
            steps=tuple(steps.tolist()),
            noise=NoiseMark(
                kind=request.noise,
                scale=chosen.scale,
                std=chosen.noise_std()["mean"] / lattice.norm_bound,
                l1=statistic.l1,
                l2=statistic.l2,
            ),
            privacy=said,
        )

    @contextlib.contextmanager
    def _turn(self, request: str) -> Iterator[Path]:
        """One process at a time answers a request; the system frees the lock if the process dies."""
        try:
            self.answers.mkdir(parents=True, exist_ok=True, mode=0o700)
            handle = os.open(self.answers / f"{request}.lock", os.O_RDWR | os.O_CREAT, 0o600)
        except OSError as error:
            raise UsageError(f"{self.answers}: answers cannot be kept there ({error.strerror})") from error
        try:
            fcntl.flock(handle, fcntl.LOCK_EX)
            yield self.answers / f"{request}.json"
        finally:
            os.close(handle)


def _same_request(stored: Path, text: str, where: str) -> str:
    """The stored answer, if it is to this very request."""
    answer = stored.read_text(encoding="utf-8")
    answered = json.loads(answer)["body"]
    if answered["request_sha256"] != sha256(text):
        raise MessageError(
            f"{where}: the request id {answered['request']} was already answered for a request with other content"
        )
    return answer


def learn_from_answer(
    answer_text: str,
    request_text: str,
    features: Any,
    trusted: list[str],
    *,
    strength: float = DEFAULT_STRENGTH,
    output: str | Path | None = None,
    overwrite: bool = False,
    cluster: ClusterConfig | None = None,
    where: str = "answer",
    progress: Progress | None = None,
) -> Learned:
    """The learner's last step: check the answer and the features, learn, publish."""
    if output is not None:
        check_free(output, overwrite=overwrite)
    check_strength(strength)
    request = read_request(request_text, [_own_signer(request_text)], "request")
    answer = read_answer(answer_text, trusted, request, request_text, where)
    domain, lattice = request.domain, Lattice(request.domain.norm_bound, request.lattice_bits)
    clock = Clock()
    with clock("digest"):
        digest, rows = features_digest(features, domain, lattice, cluster, progress)
    if digest != answer.features_digest:
        raise DataError(f"the features changed since the request was made: {rows} rows here, {answer.rows} then")
    loss, config = request.loss.build(), cluster or ClusterConfig()
    mean = np.ldexp(np.array(answer.steps, dtype=np.float64), -lattice.bits) / rows
    lake = open_features(features, domain)
    with (
        connect(config, lake.size) as client,
        open_passes(lake, domain, lattice, client=client) as passes,
        clock("learn"),
    ):
        fit = fit_mean(LakeFeatures(passes, None, progress), loss, mean, strength)
    noise = NoiseFacts(answer.noise.kind, len(mean), answer.noise.scale / rows, answer.noise.std / rows)
    extras = {"request": request.request, "features_digest": digest}
    learned = finish(domain, loss, strength, mean, fit, rows, answer.privacy, noise=noise, extras=extras)
    if output is not None:
        config_facts = {
            "request": request.request,
            "loss": request.loss.kind,
            "alpha": request.alpha,
            "noise": request.noise,
        }
        with new_folder(output, overwrite=overwrite) as folder:
            write_labels(
                learned,
                folder,
                run=uuid.uuid4().hex,
                title="learned from a provider's mean operator",
                config=config_facts,
                budget={},
                seconds=clock.seconds,
                notes=("the provider's ledger was debited, not one of the learner's",),
            )
    return learned


def _own_signer(text: str) -> str:
    """Who signed a message, to check one's own: the answer's hash of it says whether it is the right one."""
    try:
        return str(json.loads(text)["signer"])
    except (ValueError, KeyError, TypeError):
        raise MessageError("request: is not a signed message") from None
