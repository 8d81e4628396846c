"""A study's folder: cards of sites, rounds, bundles, closings, by name."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from daskrado.errors import DataError, UsageError
from daskrado.parties.documents import Document, seal
from daskrado.parties.keys import PrivateKeys, PublicKeys
from daskrado.parties.mailbox import Mailbox
from daskrado.parties.rounds import Round

CARD = "daskrado.site/1"
CLOSING = "daskrado.closing/1"


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
        data = seal(CARD, {"site": site, "keys": keys.public.text}, keys)
        if not self.mailbox.put_new(f"sites/{site}.json", data):
            if self.card(site) == keys.public:
                return
            raise UsageError(f"{self.mailbox.where(f'sites/{site}.json')}: another site has joined under this name")

    def card(self, site: str) -> PublicKeys | None:
        """The keys of a site that has joined."""
        data = self.mailbox.get(f"sites/{site}.json")
        if data is None:
            return None
        where = self.mailbox.where(f"sites/{site}.json")
        try:
            card = Document(CARD, data)
            keys = PublicKeys.from_text(card.text("keys"), site)
        except (DataError, UsageError) as error:
            raise DataError(f"{where}: {error}") from None
        if card.text("site") != site or not card.signed_by(keys):
            raise DataError(f"{where}: tampered with: it is not signed by the keys that it shows for {site!r}")
        return keys

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
        where = self.mailbox.where(_round(number))
        data = self.mailbox.get(_round(number))
        if data is None:
            raise DataError(f"{where}: missing")
        found = Round.read(data, where)
        if found.number != number:
            raise DataError(f"{where}: holds round {found.number}")
        return found

    def put_bundle(self, round_: Round, site: str, name: str, data: bytes) -> None:
        """Upload a bundle; the same again changes nothing."""
        self.mailbox.put_new(f"bundles/{round_.number:04d}/{site}-{name}.json", data)

    def bundles(self, round_: Round) -> list[tuple[str, bytes]]:
        """Whatever lies in the round's folder, believed or not."""
        return self.mailbox.all(f"bundles/{round_.number:04d}")

    def put_closing(self, round_: Round, closing: Closing, keys: PrivateKeys) -> bool:
        """Close a round, once; False if it was closed already."""
        content = {"round_sha256": round_.digest.hex(), "outcome": closing.outcome, "counted": closing.counted}
        return self.mailbox.put_new(f"closed/{round_.number:04d}.json", seal(CLOSING, content, keys))

    def closing(self, round_: Round) -> Closing | None:
        """How a round ended, if it did."""
        name = f"closed/{round_.number:04d}.json"
        data = self.mailbox.get(name)
        if data is None:
            return None
        try:
            document = Document(CLOSING, data)
        except DataError as error:
            raise DataError(f"{self.mailbox.where(name)}: {error}") from None
        content: dict[str, Any] = document.content
        if not document.signed_by(round_.coordinator) or content.get("round_sha256") != round_.digest.hex():
            raise DataError(f"{self.mailbox.where(name)}: tampered with: the coordinator's signature does not fit")
        return Closing(str(content["outcome"]), {str(k): str(v) for k, v in content["counted"].items()})


def _round(number: int) -> str:
    return f"rounds/{number:04d}.json"
