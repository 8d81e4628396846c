"""A round: what is asked, of whom, under which number. Its digest is what masks and bundles are bound to."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from daskrado.errors import DataError, UsageError
from daskrado.parties.keys import Document, PrivateKeys, PublicKeys
from daskrado.parties.signing import digest

KIND = "daskrado.study/2"  # counts up when the same terms ask for other noise: sites pay for what is drawn elsewhere


@dataclass(frozen=True)
class Round:
    """The study file as sites see it: terms (domain, statistic, noise, learner, budget), roster, round, minimum."""

    study: str
    number: int
    terms: Mapping[str, Any]
    roster: Mapping[str, PublicKeys]
    minimum: int
    coordinator: PublicKeys
    step: int = 0  # of a learner that takes many; 0 where a site gives one vector

    def __post_init__(self) -> None:
        if self.number < 1:
            raise UsageError(f"study {self.study!r}: rounds count from 1, got {self.number}")
        if not 2 <= self.minimum <= len(self.roster):
            raise UsageError(
                f"study {self.study!r}: minimum must be between 2 and the {len(self.roster)} sites of the round, "
                f"got {self.minimum}"
            )
        keys = [*self.roster.values()]
        if len({k.signing for k in keys}) < len(keys) or len({k.agreement for k in keys}) < len(keys):
            raise UsageError(f"study {self.study!r}: two sites of the roster have the same key")

    @property
    def content(self) -> dict[str, Any]:
        """As plain JSON values."""
        return {
            "study": self.study,
            "round": self.number,
            "terms": dict(self.terms),
            "roster": {name: keys.text for name, keys in self.roster.items()},
            "minimum": self.minimum,
            "coordinator": self.coordinator.text,
        }

    @property
    def digest(self) -> bytes:
        """Changes with anything that a site agreed to: terms and what they mean in this version, roster, number.

        And with the step, so that masks are used once.
        """
        return digest({"kind": KIND, **self.content, **({"step": self.step} if self.step else {})})

    @property
    def mark(self) -> str:
        """Sixteen digits of the digest, the same in every step."""
        return self.at(0).digest.hex()[:16]

    @property
    def place(self) -> str:
        """The folder of what belongs to the round, or to a step of it."""
        return f"{self.number:04d}/{self.step:05d}" if self.step else f"{self.number:04d}"

    def at(self, step: int) -> Round:
        """One step of the round, from 1 on; 0 is the round itself."""
        return replace(self, step=step)

    @property
    def terms_digest(self) -> str:
        """Of the terms and the coordinator alone: the same in every round of a study."""
        fixed = {"study": self.study, "terms": dict(self.terms), "coordinator": self.coordinator.text}
        return digest({"kind": KIND, **fixed, "minimum": self.minimum}).hex()

    @property
    def roster_fingerprint(self) -> str:
        """Thirty-two digits that the sites compare with each other, not through the coordinator."""
        return fingerprint_of({name: keys.text for name, keys in self.roster.items()})

    def among(self, present: Iterable[str]) -> Round:
        """The next round, among those present."""
        stay = set(present)
        return replace(self, number=self.number + 1, roster={n: k for n, k in self.roster.items() if n in stay})

    def seal(self, keys: PrivateKeys) -> bytes:
        """As a document signed by the coordinator."""
        if keys.public != self.coordinator:
            raise UsageError(f"study {self.study!r} belongs to another coordinator than these keys'")
        return keys.seal(KIND, self.content)

    @classmethod
    def read(cls, data: bytes, where: str) -> Round:
        """Parse a document and check its signature against the coordinator that it names."""
        try:
            document = Document(KIND, data)
            content = document.content
            roster = {str(name): PublicKeys.from_text(text, str(name)) for name, text in content["roster"].items()}
            found = cls(
                document.text("study"),
                int(content["round"]),
                dict(content["terms"]),
                roster,
                int(content["minimum"]),
                PublicKeys.from_text(content["coordinator"], "the coordinator"),
            )
        except (DataError, UsageError) as error:
            raise DataError(f"{where}: {error}") from None
        except (KeyError, TypeError, ValueError, AttributeError):
            raise DataError(f"{where}: not a study file") from None
        if not document.signed_by(found.coordinator) or found.content != content:
            raise DataError(f"{where}: tampered with: the coordinator's signature does not fit")
        return found


def fingerprint_of(roster: Mapping[str, str]) -> str:
    """Of a roster as names and keys: 128 bits, so that nobody finds two rosters, with keys of his own, of one."""
    return digest(roster).hex()[:32]
