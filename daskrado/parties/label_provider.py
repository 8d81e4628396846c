"""A provider's side of the label protocol: it owns the labels, the noise and the ledger, and answers once.

Reference: Patrini, Nielsen and Nock (2015), algorithm 3.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from daskrado.cluster import ClusterConfig, connect
from daskrado.errors import BudgetError, DataError, LedgerError, MessageError, UsageError
from daskrado.jobs.label_learning import label_charge
from daskrado.jobs.outcome import calibrated
from daskrado.lake.collect import Progress, open_passes
from daskrado.lake.file_locks import lock
from daskrado.lake.joined import forget_labels, open_joined
from daskrado.learners.on_passes.public_features import measure
from daskrado.ledger.account import Account
from daskrado.ledger.journal import entries_of, journal_folder
from daskrado.ledger.ledger import Ledger
from daskrado.ledger.opening import is_open, named_account
from daskrado.parties.label_learner import features_digest
from daskrado.parties.label_messages import ANSWER, Answer, NoiseMark, Request, read_request, sha256, write_answer
from daskrado.parties.signing import SigningKey, read_signed
from daskrado.privacy.protect import Budget, Private, Protect
from daskrado.privacy.relations import Relation
from daskrado.statistics.label_means import LabelMeans
from daskrado.table.label import Label
from daskrado.table.yaml_file import canonical_digest, parse, write_text

_AGAIN = "the learner may make a new request, at a new charge"


@dataclass(frozen=True)
class Provider:
    """A label provider's own facts and rules; ``answers`` is where it keeps what it has answered.

    ``label`` is the one column that it answers for, with its two values: a learner cannot choose another.
    """

    key: SigningKey
    trusted: tuple[str, ...]
    dataset: str
    labels: Any
    label: Label
    ledger: Ledger
    answers: Path
    unit: str = "one record's label"
    rows_per_unit: int = 1
    max_epsilon: float | None = None
    cluster: ClusterConfig = field(default_factory=ClusterConfig)

    def answer(self, text: str, features: Any, *, where: str = "request", progress: Progress | None = None) -> str:
        """The signed answer. The same request always has the same answer, byte for byte, and is debited once.

        A request that the ledger was debited for and whose answer is not kept here is refused: a second draw of noise
        would be a second answer. One that was cut off goes on only under the very terms that it began with.

        Sensitivity
            2 max|x|_1 or 2 max|x|_2 of the features as this provider encodes, clips and measures them, over the rows.
        """
        request = read_request(text, self.trusted, where)
        with self._turn(request.request) as stored:
            if stored.exists():
                return _same_request(stored, text, where)
            self._check_label(request, where)
            if self.max_epsilon is not None and request.epsilon > self.max_epsilon:
                raise BudgetError(
                    f"{where}: epsilon {request.epsilon:g} is above {self.max_epsilon:g}, the most that this "
                    "provider grants to one request; nothing was debited"
                )
            self._check_unanswered(request, where)
            finish = "daskrado label answer, as before"
            with named_account(self.ledger, request.request, finish, again=_AGAIN) as account:
                answer = write_answer(self._release(request, text, features, where, progress, account), self.key)
                write_text(stored, answer)
                account.done(f"answer sha256 {sha256(answer)}")
            return answer

    def _release(
        self, request: Request, text: str, features: Any, where: str, progress: Progress | None, account: Account
    ) -> Answer:
        domain, lattice = request.domain, request.lattice
        lake = open_joined(features, self.labels, domain, progress)
        digest, rows = features_digest(features, request, self.cluster, progress)
        if (digest, rows) != (request.features.digest, request.features.rows):
            raise DataError(
                f"{where}: the features changed since the request was made, or are others: "
                f"{rows} rows here, {request.features.rows} in the request, and their digests differ"
            )

        # The request holds its features, domain, mechanism and epsilon; the other terms are the provider's.
        own = {"request": sha256(text), "unit": self.unit, "rows_per_unit": self.rows_per_unit}
        terms = "the terms of the answer (request, unit, rows per unit)"
        account.unchanged("terms", canonical_digest(own), f"{where}: {terms}")

        private = Private(self.protect, Budget(epsilon=request.epsilon, delta=request.delta))
        loosest = LabelMeans.loosest(domain.width, lattice.bits)
        charge = label_charge(calibrated(private, loosest, lattice, request.mechanism), private)
        account.reading = lake.reading
        grant = charge.reserve(account, self.dataset, lake.fingerprint)
        with connect(self.cluster, lake.size) as client:
            try:
                with open_passes(lake, domain, lattice, client=client, memory=0) as passes:
                    statistic = measure(passes, progress=progress).label_means()
                    chosen = calibrated(private, statistic, lattice, request.mechanism, grant.event)
                    public = {"scale": chosen.scale.hex(), "statement": charge.statement.model_dump(mode="json")}
                    account.unchanged("statement", canonical_digest(public), f"{where}: the answer's statement")
                    released = account.release(
                        charge.role,
                        grant,
                        chosen,
                        charge.statement,
                        partial(passes.sum, statistic, progress=progress),
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
                kind=request.mechanism,
                scale=chosen.scale,
                std=chosen.noise_std()["mean"] / lattice.norm_bound,
                l1=statistic.l1,
                l2=statistic.l2,
            ),
            privacy=charge.statement,
        )

    @property
    def protect(self) -> Protect:
        """Whose labels are protected."""
        whose = {"relation": Relation.LABEL_FLIP, "unit": self.unit, "rows_per_unit": self.rows_per_unit}
        return parse(Protect, whose, "provider")

    def _check_label(self, request: Request, where: str) -> None:
        """Before anything is read: which of the provider's columns is a label is the provider's to say."""
        asked = request.domain.label
        if _in_words(asked) != _in_words(self.label):
            raise MessageError(
                f"{where}: asks for the label {_in_words(asked)}; this provider answers for {_in_words(self.label)} "
                "alone; nothing was read or debited"
            )

    def _check_unanswered(self, request: Request, where: str) -> None:
        """Noise is drawn once for a request id, whatever became of the answer."""
        if is_open(self.ledger, request.request):
            return
        for entry in entries_of(self.ledger, request.request).values():
            if entry.state.used:
                raise LedgerError(
                    f"{where}: the request id {request.request} was answered before (entry {entry.id} of "
                    f"{self.ledger.address}) and its answer is not in {self.answers}: give the folder that keeps it, "
                    f"or else {_AGAIN}"
                )

    @contextlib.contextmanager
    def _turn(self, request: str) -> Iterator[Path]:
        """One process at a time answers a request; the system frees the lock if the process dies.

        The lock is the ledger's, not the folder's: a request is answered once, also with another folder of answers.
        """
        locks = journal_folder(self.ledger)
        for folder in (self.answers, locks):
            try:
                folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            except OSError as error:
                raise UsageError(f"{folder}: answers cannot be kept there ({error.strerror})") from error
        try:
            handle = os.open(locks / f"{request}.lock", os.O_RDWR | os.O_CREAT, 0o600)
        except OSError as error:
            raise UsageError(f"{locks}: a request cannot be locked there ({error.strerror})") from error
        try:
            lock(handle, wait=True)
            yield self.answers / f"{request}.json"
        finally:
            os.close(handle)


def _same_request(stored: Path, text: str, where: str) -> str:
    """The stored answer, if it is to this very request."""
    try:
        answer = stored.read_bytes().decode("ascii")
        answered = read_signed(answer, ANSWER, None, str(stored))
    except OSError as error:
        raise MessageError(f"{stored}: the stored answer cannot be read ({error.strerror})") from error
    except UnicodeDecodeError as error:
        raise MessageError(f"{stored}: the stored answer is damaged: not a signed message") from error
    if answered.get("request_sha256") != sha256(text):
        raise MessageError(
            f"{where}: the request id {stored.stem} was already answered for a request with other content"
        )
    return answer


def _in_words(label: Label) -> str:
    """As it is written on a command line, where values have no types."""
    no, yes = label.pair
    sides = (str(v).lower() if isinstance(v, bool) else str(v) for v in (yes, no))
    keys = label.model_dump(include=set(label.later) - {"positive", "negative"})  # only those that are used
    return f"{label.column}={'/'.join(sides)}" + "".join(f", {key}: {value}" for key, value in keys.items())
