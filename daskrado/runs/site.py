"""A site's side of a study: join it, contribute to a round. Rows stay here; one masked vector leaves."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from daskrado.cluster import ClusterConfig, connect
from daskrado.errors import DataError
from daskrado.federation.bundles import KIND, seal_bundle
from daskrado.federation.documents import Document
from daskrado.federation.journal import Journal
from daskrado.federation.keys import PrivateKeys, PublicKeys
from daskrado.federation.mailbox import check_name
from daskrado.federation.masks import mask
from daskrado.federation.rounds import Round
from daskrado.lake.collect import collect
from daskrado.lake.scan import open_lake
from daskrado.privacy.ledger import State
from daskrado.privacy.shares import GaussianShares
from daskrado.runs.charging import opened_ledger, void_unless_spent
from daskrado.runs.folder import StudyFolder
from daskrado.runs.job import Progress, signature_key
from daskrado.runs.plan import Plan
from daskrado.runs.study import terms_of
from daskrado.statistics.base import Summary


@dataclass(frozen=True)
class Contribution:
    """What a site did: all of it public."""

    study: str
    round: int
    site: str
    plan: Plan
    roster_fingerprint: str
    again: bool
    charged: bool


def join(folder: str | Path, *, site: str, keys: str | Path) -> PublicKeys:
    """Make this site's keys, if it has none, and put its card into the study's folder."""
    check_name(site, "site")
    own = PrivateKeys.open(keys, create=True)
    StudyFolder(folder).put_card(site, own)
    return own.public


def contribute(
    folder: str | Path,
    *,
    site: str,
    keys: str | Path,
    lake: Any,
    dataset: str,
    ledger: str | Path | None = None,
    roster: str | None = None,
    cluster: ClusterConfig | None = None,
    progress: Progress | None = None,
) -> Contribution:
    """Sum this site's lake, add its share of noise, mask it and put it into the folder of the round that is open.

    The site's own ledger is debited before a row is read. With distributed noise every round costs: whether a failed
    round stays masked depends on other sites, so its price is paid in any case. With central noise, where the
    coordinator is trusted to release once, the study is paid for once. A second call for a round sends the stored
    bytes again. ``roster`` is the roster's fingerprint, as the other sites read it out.
    """
    own = PrivateKeys.open(keys, create=False)
    where = StudyFolder(folder)
    round_ = where.latest()
    terms = terms_of(round_, where.mailbox.address)
    if terms.study != round_.study or terms.minimum != round_.minimum:
        raise DataError(
            f"{where.mailbox.address}: study, terms and minimum of round {round_.number} do not fit together"
        )
    journal = Journal(keys, round_.study)
    with journal.locked():
        journal.agree(round_, site, own.public, roster)
        plan = terms.plan(len(round_.roster), lake=lake, dataset=dataset, cluster=cluster)
        stored = journal.stored(round_.number)
        charged = False
        if stored is None:
            if round_.number < journal.last():
                raise DataError(
                    f"study {round_.study!r}: round {round_.number} is older than this site's last, {journal.last()}"
                )
            _check_open(where, round_)
            vector, charged = _vector(plan, round_, ledger, progress)
            words = mask(vector, own, site, round_)
            made = seal_bundle(round_, site, plan.pipeline.domain.digest(), words, own)
            journal.store(round_, made)
        else:
            made = stored
            _check_stored(made, round_)
        _check_open(where, round_, made)  # once more: reading a lake may take hours
        where.put_bundle(round_, site, hashlib.sha256(made).hexdigest()[:16], made)
    return Contribution(
        round_.study, round_.number, site, plan, round_.roster_fingerprint, stored is not None, charged
    )


def _check_open(where: StudyFolder, round_: Round, made: bytes | None = None) -> None:
    """A late bundle must not leave the site: it would complete the masks of a round that went on without it."""
    closing = where.closing(round_)
    if closing is not None and (made is None or hashlib.sha256(made).hexdigest() not in closing.counted.values()):
        raise DataError(f"study {round_.study!r}: late: round {round_.number} is closed; nothing was sent")
    if where.latest().number != round_.number:
        raise DataError(f"study {round_.study!r}: late: a newer round than {round_.number} is open; nothing was sent")


def _check_stored(data: bytes, round_: Round) -> None:
    """A round's number stands for one roster and one set of terms, for ever: masks must not be used twice."""
    if Document(KIND, data).text("round_sha256") != round_.digest.hex():
        raise DataError(
            f"study {round_.study!r}: this site contributed to another round {round_.number}, with another roster or "
            "other terms; it contributes once for each number"
        )


def _vector(
    plan: Plan, round_: Round, ledger_path: str | Path | None, progress: Progress | None
) -> tuple[NDArray[np.int64], bool]:
    """The site's exact vector, with its share of noise where noise is distributed; the ledger is debited first."""
    pipeline = plan.pipeline
    by_record = pipeline.domain.id is not None and plan.summed.needs_seeds
    lake = open_lake(pipeline.lake, pipeline.domain, ids=by_record)
    # Each site keeps within its part of the range, so that no total can leave int64.
    plan.lattice.guard(lake.rows * len(round_.roster), plan.summed.largest_per_row(plan.lattice))
    with connect(pipeline.cluster, lake.size) as client:

        def gather() -> Summary:
            return collect(
                plan.summed,
                lake,
                pipeline.domain,
                plan.lattice,
                key=signature_key(pipeline),
                client=client,
                progress=progress,
            )

        if plan.mechanism is None:
            return gather().vector, False
        assert plan.statement.relation is not None
        shares = plan.mechanism if isinstance(plan.mechanism, GaussianShares) else None
        with opened_ledger(ledger_path, pipeline.ledger) as ledger:
            run = f"study {round_.study} {round_.terms_digest[:16]}"
            if shares is not None:
                run += f" round {round_.number} {round_.digest.hex()[:16]}"
            elif any(e.run == run and e.state is State.SPENT for e in ledger.entries(pipeline.dataset)):
                return gather().vector, False
            grant = ledger.reserve(
                pipeline.dataset,
                plan.statement.relation,
                plan.mechanism.event,
                theorem=plan.statement.theorem,
                run=run,
                fingerprint=lake.fingerprint,
            )
            with void_unless_spent(ledger, grant):
                summary = gather()
                ledger.spend(grant)
                return shares.perturb(summary.vector) if shares is not None else summary.vector, True
