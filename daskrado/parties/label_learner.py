"""Two agents, nothing shared but files: a learner with features, a provider with labels. This is the learner's side.

The provider (:mod:`daskrado.parties.label_provider`) trusts nothing in a request: it says which column is the label,
reads the features itself, clips them, measures their norms, matches keys, debits its own ledger, and draws the noise.
The learner gets one noisy vector and learns from it alone.

Reference: Patrini, Nielsen and Nock (2015), algorithm 3.
"""

from __future__ import annotations

import json
import uuid
from pathlib import Path
from typing import Any

import numpy as np

from daskrado.cluster import ClusterConfig, connect
from daskrado.errors import DataError, MessageError, UsageError
from daskrado.jobs.labels.config import DEFAULT_STRENGTH
from daskrado.jobs.labels.learn import (
    Learned,
    NoiseFacts,
    finish,
    open_features,
)
from daskrado.jobs.labels.report import write_labels
from daskrado.lake.collect import Progress, collect, open_passes
from daskrado.lake.joined import KEY
from daskrado.lake.publish import check_free, new_folder
from daskrado.learners.on_passes.linear_odd import LakeFeatures, check_strength, fit_mean
from daskrado.ledger.charging import Clock
from daskrado.parties.label_messages import (
    FeatureMark,
    new_request,
    read_answer,
    read_request,
    write_request,
)
from daskrado.parties.signing import SigningKey
from daskrado.statistics.features import FeatureDigest, digest_text
from daskrado.table.domain import Domain
from daskrado.table.lattice import Lattice


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
        check_free(output, overwrite=overwrite, reading=(features,))
    check_strength(strength)
    request = read_request(request_text, [signer_of(request_text, "request")], "request")
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


def signer_of(text: str, where: str) -> str:
    """Who signed a message of one's own; hashes tell the right one, its signature a whole one."""
    try:
        return str(json.loads(text)["signer"])
    except (ValueError, KeyError, TypeError, RecursionError):
        raise MessageError(f"{where}: is not a signed message; it was cut short or changed") from None
