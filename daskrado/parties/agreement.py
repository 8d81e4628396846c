"""What a site remembers of a study: whom it agreed with, and the one bundle that it made for each round.

A bundle is written here before it leaves the site. So whatever fails, the same round gets the same bytes again; a
vector that was not written here was never sent.
"""

from __future__ import annotations

from pathlib import Path

from daskrado.errors import DataError, UsageError
from daskrado.ledger.journal import Journal
from daskrado.ledger.journal_folder import InUseError
from daskrado.ledger.lines import Closable
from daskrado.parties.keys import PublicKeys
from daskrado.parties.rounds import Round


class Agreement(Closable):
    """The journal of one site about one study, in its own folder of keys; one contribution at a time."""

    def __init__(self, keys_folder: str | Path, study: str) -> None:
        folder = Path(keys_folder) / "studies" / study
        try:
            self._journal = Journal.open(folder, {"study": study})
        except InUseError:
            raise UsageError(f"{folder}: another process is contributing to this study") from None
        try:
            self._bundles = self._journal.lines("bundles", {})
            if not all(isinstance(line, dict) and {"round", "bundle"} <= set(line) for line in self._bundles.entries):
                raise self._bundles.damaged()
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        self._journal.close()

    def stored(self, number: int) -> bytes | None:
        """The bundle made for a round, or None."""
        return next((line["bundle"].encode() for line in self._bundles.entries if line["round"] == number), None)

    def store(self, round_: Round, data: bytes) -> None:
        """Remember a bundle, once for each round."""
        if self.stored(round_.number) is not None:
            raise DataError(f"study {round_.study!r}: this site has a bundle for round {round_.number} already")
        self._bundles.append({"round": round_.number, "bundle": data.decode()})

    def last(self) -> int:
        """The highest round that this site made a bundle for; 0 for none."""
        return max((line["round"] for line in self._bundles.entries), default=0)

    def agree(self, round_: Round, site: str, mine: PublicKeys, fingerprint: str | None) -> None:
        """Check a round against what this site agreed to when it first contributed, and remember it then.

        Terms and coordinator never change; the roster only shrinks. ``fingerprint`` is the roster's, as the other
        sites read it out: it protects against a coordinator who puts keys of his own into the roster.
        """
        name = f"study {round_.study!r}"
        if site not in round_.roster:
            raise DataError(
                f"{name}: site {site!r} is not in the roster of round {round_.number}: {', '.join(round_.roster)}"
            )
        if round_.roster[site] != mine:
            raise DataError(f"{name}: the key of {site!r} in the roster of round {round_.number} is not this site's")
        if fingerprint is not None and fingerprint != round_.roster_fingerprint:
            raise DataError(f"{name}: the roster's fingerprint is {round_.roster_fingerprint}, not {fingerprint}")
        if "agreed" in self._journal.content:
            self._compare(round_, name)
            return
        roster = {member: keys.text for member, keys in round_.roster.items()}
        self._journal.remember(agreed={"terms": round_.terms_digest, "roster": roster})

    def _compare(self, round_: Round, name: str) -> None:
        agreed, where = self._journal.content["agreed"], self._journal.place("run.json")
        if agreed["terms"] != round_.terms_digest:
            raise DataError(f"{name}: its terms are not those that this site agreed to ({where})")
        for member, keys in round_.roster.items():
            if agreed["roster"].get(member) != keys.text:
                raise DataError(f"{name}: site {member!r} is not in the roster that this site agreed to ({where})")
