"""A study's folder: cards of sites, rounds, bundles, closings, by name."""

from __future__ import annotations

import base64
import re
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from daskrado.errors import DataError, UsageError
from daskrado.parties.keys import Document, PrivateKeys, PublicKeys
from daskrado.parties.mailbox import Mailbox
from daskrado.parties.rounds import Round

CARD = "daskrado.site/1"
CLOSING = "daskrado.closing/1"
SUMS = "daskrado.sums/1"
IntVector = NDArray[np.int64]


@dataclass(frozen=True)
class Closing:
    """How a round ended: ``combined``, or ``remasked`` among those present; and the bundles that were there."""

    outcome: str
    counted: dict[str, str]


class StudyFolder:
    """Reads and writes the documents of a study; every one is signed."""

    def __init__(self, address: str | Path) -> None:
        self.mailbox = Mailbox(address)

    def put_card(self, site: str, keys: PrivateKeys) -> None:
        """A site's public keys, signed by themselves: proof that it holds the private half."""
        data = keys.seal(CARD, {"site": site, "keys": keys.public.text})
        if not self.mailbox.put_new(f"sites/{site}.json", data) and self.card(site) != keys.public:
            raise UsageError(f"{self.mailbox.where(f'sites/{site}.json')}: another site has joined under this name")

    def card(self, site: str) -> PublicKeys | None:
        """The keys of a site that has joined."""
        where, card = self._document(CARD, f"sites/{site}.json")
        if card is None:
            return None
        keys = card.keys("keys", site)
        if card.text("site") != site or not card.signed_by(keys):
            raise DataError(f"{where}: tampered with: it is not signed by the keys that it shows for {site!r}")
        return keys

    def _document(self, schema: str, name: str) -> tuple[str, Document | None]:
        """The address of a document, and the document if it is there."""
        where, data = self.mailbox.where(name), self.mailbox.get(name)
        return where, None if data is None else Document(schema, data, where)

    def put_round(self, round_: Round, keys: PrivateKeys) -> None:
        """Open a round; a number is used once."""
        if not self.mailbox.put_new(_round(round_.number), round_.seal(keys)):
            raise UsageError(f"{self.mailbox.where(_round(round_.number))}: this round is open already")

    def latest(self) -> Round:
        """The round with the highest number."""
        numbers = [int(m[1]) for name in self.mailbox.names("rounds") if (m := re.fullmatch(r"(\d{4,})\.json", name))]
        if not numbers:
            raise DataError(
                f"{self.mailbox.address}: no study is open there; the coordinator runs `daskrado study open`"
            )
        return self.round(max(numbers))

    def round(self, number: int) -> Round:
        """A round by its number."""
        where, data = self.mailbox.where(_round(number)), self.mailbox.get(_round(number))
        if data is None:
            raise DataError(f"{where}: missing")
        found = Round.read(data, where)
        if found.number != number:
            raise DataError(f"{where}: holds round {found.number}")
        return found

    def put_bundle(self, round_: Round, site: str, name: str, data: bytes) -> None:
        """Upload a bundle; the same again changes nothing."""
        self.mailbox.put_new(f"bundles/{round_.place}/{site}-{name}.json", data)

    def bundles(self, round_: Round) -> list[tuple[str, bytes]]:
        """Whatever lies in the round's folder, believed or not."""
        return self.mailbox.all(f"bundles/{round_.place}")

    def put_sums(self, step: Round, sums: IntVector, keys: PrivateKeys) -> None:
        """Publish the noisy sums of a step, once: what was there first stays."""
        text = base64.b64encode(np.ascontiguousarray(sums, dtype="<i8").tobytes()).decode()
        content = {"step_sha256": step.digest.hex(), "sums": text}
        self.mailbox.put_new(f"sums/{step.place}.json", keys.seal(SUMS, content))

    def sums(self, step: Round, size: int) -> IntVector | None:
        """The noisy sums of a step, if they are published; ``size`` is how many the step has."""
        where, document = self._document(SUMS, f"sums/{step.place}.json")
        if document is None:
            return None
        if not document.signed_by(step.coordinator) or document.text("step_sha256") != step.digest.hex():
            raise DataError(f"{where}: tampered with: the coordinator's signature for this step does not fit")
        try:
            raw = base64.b64decode(document.text("sums"), validate=True)
        except ValueError:
            raw = b""
        if len(raw) != 8 * size:
            raise DataError(f"{where}: holds {len(raw) / 8:g} numbers, where the step has {size}")
        return np.frombuffer(raw, dtype="<i8").astype(np.int64)

    def put_closing(self, round_: Round, closing: Closing, keys: PrivateKeys) -> None:
        """Close a round, once."""
        content = {"round_sha256": round_.digest.hex(), "outcome": closing.outcome, "counted": closing.counted}
        if not self.mailbox.put_new(f"closed/{round_.number:04d}.json", keys.seal(CLOSING, content)):
            raise DataError(f"study {round_.study!r}: round {round_.number} was closed by another process")

    def closing(self, round_: Round) -> Closing | None:
        """How a round ended, if it did."""
        where, document = self._document(CLOSING, f"closed/{round_.number:04d}.json")
        if document is None:
            return None
        content = document.content
        if not document.signed_by(round_.coordinator) or content.get("round_sha256") != round_.digest.hex():
            raise DataError(f"{where}: tampered with: the coordinator's signature does not fit")
        return Closing(str(content["outcome"]), {str(k): str(v) for k, v in content["counted"].items()})


def _round(number: int) -> str:
    return f"rounds/{number:04d}.json"
