"""What a site remembers of a study: whom it agreed with, and the one bundle that it made for each round.

A bundle is written here before it leaves the site. So whatever fails, the same round gets the same bytes again; a
vector that was not written here was never sent.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterator
from pathlib import Path

from daskrado.errors import DataError, UsageError
from daskrado.parties.keys import PublicKeys
from daskrado.parties.rounds import Round
from daskrado.table.yaml_file import write_text


class Journal:
    """The memory of one site about one study, in its own folder of keys."""

    def __init__(self, keys_folder: str | Path, study: str) -> None:
        self.folder = Path(keys_folder) / "studies" / study
        self._pin = self.folder / "agreed.json"

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """One contribution at a time; the lock ends with its process."""
        import fcntl

        self.folder.mkdir(parents=True, exist_ok=True)
        handle = os.open(self.folder / ".lock", os.O_RDWR | os.O_CREAT, 0o600)
        try:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise UsageError(f"{self.folder}: another process is contributing to this study") from None
            yield
        finally:
            os.close(handle)

    def stored(self, number: int) -> bytes | None:
        """The bundle made for a round, or None."""
        try:
            return self._bundle(number).read_bytes()
        except FileNotFoundError:
            return None

    def store(self, round_: Round, data: bytes) -> None:
        """Remember a bundle, once for each round."""
        if self._bundle(round_.number).exists():
            raise DataError(f"study {round_.study!r}: this site has a bundle for round {round_.number} already")
        write_text(self._bundle(round_.number), data.decode())

    def last(self) -> int:
        """The highest round that this site made a bundle for; 0 for none."""
        return max((int(path.stem.removeprefix("round-")) for path in self.folder.glob("round-*.json")), default=0)

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
        if self._pin.exists():
            self._compare(round_, name)
            return
        self.folder.mkdir(parents=True, exist_ok=True)
        roster = {member: keys.text for member, keys in round_.roster.items()}
        agreed = {"terms": round_.terms_digest, "roster": roster}
        write_text(self._pin, json.dumps(agreed, indent=1, sort_keys=True))

    def _compare(self, round_: Round, name: str) -> None:
        agreed = json.loads(self._pin.read_text(encoding="utf-8"))
        if agreed["terms"] != round_.terms_digest:
            raise DataError(f"{name}: its terms are not those that this site agreed to ({self._pin})")
        for member, keys in round_.roster.items():
            if agreed["roster"].get(member) != keys.text:
                raise DataError(
                    f"{name}: site {member!r} is not in the roster that this site agreed to ({self._pin})"
                )

    def _bundle(self, number: int) -> Path:
        return self.folder / f"round-{number:04d}.json"
