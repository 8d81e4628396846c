"""The two messages of the label protocol: what a learner asks for, and what a provider answers."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from functools import cached_property
from typing import Literal, TypeVar

from pydantic import AliasChoices, Field, model_validator

from daskrado.errors import MessageError, UsageError
from daskrado.jobs.label_learning import MechanismName, check_delta
from daskrado.losses.linear_odd import OddLoss
from daskrado.parties.signing import SigningKey, read_signed
from daskrado.privacy.events import MAX_DELTA, MAX_EPSILON, MIN_EPSILON
from daskrado.privacy.statement import PrivacyStatement
from daskrado.statistics.even_risk import MAX_BITS
from daskrado.table.domain import Domain
from daskrado.table.lattice import Lattice
from daskrado.table.yaml_file import Frozen, parse

REQUEST = "daskrado.label_request/1"
ANSWER = "daskrado.label_answer/1"
_HASH = r"^[0-9a-f]{64}$"
_NAME = r"^[0-9a-f]{32}$"
Message = TypeVar("Message", "Request", "Answer")


class FeatureMark(Frozen):
    """Which features are meant: their digest, how many rows, and where they may be found, if that is said."""

    digest: str = Field(pattern=_HASH)
    rows: int = Field(ge=1)
    address: str | None = None


class Request(Frozen):
    """A learner asks for the mean operator of its features with the provider's labels.

    Messages call ``epsilon`` alpha and ``mechanism`` noise, as they always have.
    """

    request: str = Field(pattern=_NAME)
    created: str
    domain_json: str = Field(description="as text: the order of its columns is the order of the features")
    features: FeatureMark
    loss: OddLoss
    mechanism: MechanismName = Field(validation_alias=AliasChoices("noise", "mechanism"), serialization_alias="noise")
    epsilon: float = Field(
        ge=float(MIN_EPSILON),
        le=float(MAX_EPSILON),
        validation_alias=AliasChoices("alpha", "epsilon"),
        serialization_alias="alpha",
    )
    delta: float = Field(default=0.0, ge=0, le=float(MAX_DELTA))
    lattice_bits: int = Field(ge=4, le=MAX_BITS)

    @cached_property
    def domain(self) -> Domain:
        """The Domain that both parties mean."""
        try:
            content = json.loads(self.domain_json)
        except ValueError as error:
            raise UsageError("domain_json: is not JSON") from error
        return parse(Domain, content, "domain_json")

    @property
    def lattice(self) -> Lattice:
        """The grid of the rows."""
        return Lattice(self.domain.norm_bound, self.lattice_bits)

    @model_validator(mode="after")
    def _check(self) -> Request:
        try:
            domain = self.domain
        except UsageError as error:
            raise ValueError(str(error)) from error
        if domain.id is None:
            raise ValueError("domain.id is missing: the key column by which rows are matched")
        check_delta(self.mechanism, self.delta)
        return self


class NoiseMark(Frozen):
    """The noise of an answer, for sums of rows as shares of the norm bound."""

    kind: MechanismName
    scale: float = Field(gt=0)
    std: float = Field(gt=0)
    l1: float = Field(gt=0)
    l2: float = Field(gt=0)


class Answer(Frozen):
    """The noisy mean operator as whole grid steps, bound to one request and one set of features."""

    request: str = Field(pattern=_NAME)
    request_sha256: str = Field(pattern=_HASH)
    features_digest: str = Field(pattern=_HASH)
    domain_sha256: str = Field(pattern=_HASH)
    rows: int = Field(ge=1)
    lattice_bits: int = Field(ge=4, le=MAX_BITS)
    steps: tuple[int, ...]
    noise: NoiseMark
    privacy: PrivacyStatement
    kind: Literal["mean_operator"] = "mean_operator"


def write_answer(answer: Answer, key: SigningKey) -> str:
    """Signed."""
    return key.sign(ANSWER, answer.model_dump(mode="json"))


def read_request(text: str, trusted: Sequence[str] | None, where: str) -> Request:
    """A request by a trusted learner; without ``trusted``, one of one's own."""
    return _read(Request, REQUEST, text, trusted, where)


def read_answer(text: str, trusted: Sequence[str], request: Request, request_text: str, where: str) -> Answer:
    """The answer of a trusted provider to this very request; another's is refused by name."""
    answer = _read(Answer, ANSWER, text, trusted, where)
    if answer.request != request.request:
        raise MessageError(f"{where}: answers the request {answer.request}, not {request.request}")
    if answer.request_sha256 != sha256(request_text):
        raise MessageError(f"{where}: answers another version of the request {answer.request}: their hashes differ")
    for name, theirs, ours in (
        ("features_digest", answer.features_digest, request.features.digest),
        ("domain_sha256", answer.domain_sha256, request.domain.digest()),
        ("rows", answer.rows, request.features.rows),
        ("lattice_bits", answer.lattice_bits, request.lattice_bits),
        ("noise.kind", answer.noise.kind, request.mechanism),
        ("steps", len(answer.steps), request.domain.width),
    ):
        if theirs != ours:
            raise MessageError(f"{where}: {name} is {theirs!r}, the request says {ours!r}")
    return answer


def sha256(text: str) -> str:
    """Of a message's bytes."""
    return hashlib.sha256(text.encode()).hexdigest()


def _read(model: type[Message], schema: str, text: str, trusted: Sequence[str] | None, where: str) -> Message:
    try:
        return parse(model, read_signed(text, schema, trusted, where), where)
    except UsageError as error:
        raise MessageError(str(error)) from error
