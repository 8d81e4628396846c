"""Bundles: one site's masked vector, signed, bound to study, round, domain and site; and the sorting of arrivals."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterable, Set
from dataclasses import dataclass

import numpy as np

from daskrado.errors import DataError
from daskrado.parties.keys import Document, PrivateKeys
from daskrado.parties.masks import Words
from daskrado.parties.rounds import Round

KIND = "daskrado.bundle/1"
_MOST_SAID = 1000  # characters of what a site says that it read


def seal_bundle(
    round_: Round, site: str, domain: str, words: Words, keys: PrivateKeys, reads: str | None = None
) -> bytes:
    """The bytes that a site publishes: a masked vector, what it belongs to, and what was read, if not all rows."""
    content = {
        "study": round_.study,
        "round": round_.number,
        "round_sha256": round_.digest.hex(),
        "domain_sha256": domain,
        "site": site,
        **({} if reads is None else {"reads": reads}),
        "words": base64.b64encode(words.astype("<u8").tobytes()).decode(),
    }
    return keys.seal(KIND, content)


@dataclass(frozen=True)
class Bundle:
    """An accepted contribution."""

    site: str
    words: Words
    sha256: str
    reads: str | None = None  # the blocks of its lake that a site read; None for all rows


def read_bundle(data: bytes, round_: Round, domain: str, size: int) -> Bundle:
    """Check a bundle against the round that is open; whatever does not fit is a DataError that says what."""
    document = Document(KIND, data)
    site = document.text("site")
    if document.text("study") != round_.study:
        raise DataError(f"foreign: it belongs to the study {document.text('study')!r}")
    if site not in round_.roster:
        raise DataError(f"foreign: site {site!r} is not in the roster of round {round_.number}")
    if not document.signed_by(round_.roster[site]):
        raise DataError(f"tampered with: the signature of site {site!r} does not fit")
    if document.text("round_sha256") != round_.digest.hex():
        raise DataError(
            f"replayed: site {site!r} made it for round {document.content.get('round')!r} of another roster "
            f"or another number, not for this round {round_.number}"
        )
    if document.text("domain_sha256") != domain:
        raise DataError(f"foreign: site {site!r} encoded its rows with another domain, or another version")
    try:
        raw = base64.b64decode(document.text("words"), validate=True)
    except ValueError:
        raise DataError(f"truncated: the vector of site {site!r} is not base64") from None
    if len(raw) != 8 * size:
        raise DataError(f"of a vector of {len(raw) / 8:g} numbers, where the statistic has {size}")
    reads = document.text("reads") if "reads" in document.content else None
    if reads is not None and not (reads.isprintable() and 0 < len(reads) <= _MOST_SAID):
        raise DataError(f"of site {site!r}, which does not say in one short line what it read")
    return Bundle(site, np.frombuffer(raw, dtype="<u8").astype(np.uint64), hashlib.sha256(data).hexdigest(), reads)


@dataclass(frozen=True)
class Tally:
    """What arrived in a round: one bundle a site, who is missing, and what was refused and why."""

    accepted: dict[str, Bundle]
    missing: tuple[str, ...]
    refused: tuple[str, ...]
    repeated: tuple[str, ...]

    @property
    def reads(self) -> dict[str, str]:
        """What each site says that it read, where one of them read blocks of its lake only."""
        said = {site: bundle.reads for site, bundle in sorted(self.accepted.items())}
        return {site: text or "all rows" for site, text in said.items()} if any(said.values()) else {}

    @property
    def counted(self) -> dict[str, str]:
        """SHA-256 of the one bundle of each site that is there."""
        return {site: bundle.sha256 for site, bundle in self.accepted.items()}


def sort_bundles(
    arrived: Iterable[tuple[str, bytes]], round_: Round, domain: str, size: int, counted: Set[str] | None = None
) -> Tally:
    """Sort (file name, bytes) pairs. The same vector twice counts once; two different ones of a site count as none.

    ``counted`` holds the SHA-256 of the bundles that were there when the round closed: any other is late.

    Two bundles of one site for one round carry the same masks: taking either would let its sender choose, and their
    difference is a difference of two vectors of that site. Both are refused by name.
    """
    accepted: dict[str, Bundle] = {}
    refused: list[str] = []
    repeated: list[str] = []
    conflicts: set[str] = set()
    for name, data in sorted(arrived):
        try:
            bundle = read_bundle(data, round_, domain, size)
        except DataError as error:
            refused.append(f"{name}: {error}")
            continue
        if counted is not None and bundle.sha256 not in counted:
            refused.append(f"{name}: late: round {round_.number} was closed without this bundle of {bundle.site!r}")
            continue
        earlier = accepted.get(bundle.site)
        if earlier is None:
            accepted[bundle.site] = bundle
        elif np.array_equal(earlier.words, bundle.words):
            repeated.append(f"{name}: the same bundle of site {bundle.site!r} again, counted once")
        else:
            conflicts.add(bundle.site)
    for site in sorted(conflicts):
        refused.append(f"site {site!r} signed two different bundles for round {round_.number}: none of them counts")
        del accepted[site]
    missing = tuple(name for name in round_.roster if name not in accepted)
    return Tally(accepted, missing, tuple(refused), tuple(repeated))
