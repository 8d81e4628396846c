"""Keys of sites and coordinators: X25519 to agree on masks, Ed25519 to sign. Private halves stay in their folder.

Documents of a study are read before it is known who must have signed them: a roster decides that.
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from daskrado.errors import DataError, MessageError, UsageError
from daskrado.parties.signing import SigningKey, read_signed, write_new

_FILE = "keys.json"


@dataclass(frozen=True, slots=True)
class PublicKeys:
    """What others need of a party: 32 bytes to check its signatures, 32 bytes to agree with it on a secret."""

    signing: bytes
    agreement: bytes

    @classmethod
    def from_text(cls, text: object, whose: str) -> PublicKeys:
        """From the text that ``text`` gives."""
        try:
            raw = base64.b64decode(str(text), validate=True)
        except ValueError:
            raw = b""
        if len(raw) != 64:
            raise UsageError(
                f"the public key of {whose!r} is not 64 bytes in base64, as `daskrado site join` prints it"
            )
        return cls(raw[:32], raw[32:])

    @property
    def text(self) -> str:
        """Both keys in one line, for a roster."""
        return base64.b64encode(self.signing + self.agreement).decode()

    @property
    def fingerprint(self) -> str:
        """Sixteen digits to read out over the telephone."""
        return hashlib.sha256(self.signing + self.agreement).hexdigest()[:16]


class PrivateKeys:
    """Both private halves. The repr shows a fingerprint; it refuses to be pickled."""

    __slots__ = ("_agreement", "public", "signing")

    def __init__(self, signing: bytes, agreement: bytes) -> None:
        x25519, ed25519 = _curves()
        self.signing = SigningKey(ed25519.Ed25519PrivateKey.from_private_bytes(signing))
        self._agreement = x25519.X25519PrivateKey.from_private_bytes(agreement)
        agreed = self._agreement.public_key().public_bytes_raw()
        self.public = PublicKeys(bytes.fromhex(self.signing.public), agreed)

    def __repr__(self) -> str:
        return f"<PrivateKeys {self.public.fingerprint}>"

    def __reduce__(self) -> NoReturn:
        raise TypeError("private keys are never pickled or sent")

    @classmethod
    def make(cls) -> PrivateKeys:
        """Fresh keys from the operating system's generator."""
        return cls(os.urandom(32), os.urandom(32))

    @classmethod
    def open(cls, folder: str | Path, *, create: bool) -> PrivateKeys:
        """The keys of ``folder``; made there once, readable by their owner alone, if ``create``."""
        path = Path(folder) / _FILE
        if create and not path.exists():
            path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            halves = {name: base64.b64encode(os.urandom(32)).decode() for name in _HALVES}
            with contextlib.suppress(FileExistsError):  # another process made them at this moment
                write_new(path, json.dumps(halves).encode(), 0o600)
        try:
            content = json.loads(path.read_text(encoding="utf-8"))
            signing, agreement = (base64.b64decode(content[name], validate=True) for name in _HALVES)
            return cls(signing, agreement)
        except FileNotFoundError:
            raise UsageError(
                f"{path}: no keys there; `daskrado site join` makes a site's, `daskrado study open` a coordinator's"
            ) from None
        except (KeyError, TypeError, ValueError):
            raise UsageError(f"{path}: is not a file of private keys") from None

    def seal(self, schema: str, content: Mapping[str, Any]) -> bytes:
        """Signed bytes; the schema is signed too, so that no document passes for one of another kind."""
        return self.signing.sign(schema, content).encode()

    def agree(self, other: PublicKeys, whose: str) -> bytes:
        """The X25519 secret shared with another party."""
        x25519, _ = _curves()
        try:
            secret: bytes = self._agreement.exchange(x25519.X25519PublicKey.from_public_bytes(other.agreement))
            return secret
        except ValueError:  # a point of low order: the secret would be known to everybody
            raise UsageError(f"the public key of {whose!r} gives no secret: it is malformed") from None


_HALVES = ("signing", "agreement")


def _curves() -> tuple[Any, Any]:
    from cryptography.hazmat.primitives.asymmetric import ed25519, x25519

    return x25519, ed25519


class Document:
    """A parsed document whose signature is yet to be checked: nothing in it may be believed before."""

    def __init__(self, schema: str, data: bytes, where: str = "") -> None:
        self._schema, self._where = schema, f"{where}: " if where else ""
        try:
            self._text = data.decode("ascii")
            document = json.loads(self._text)
            found, self.content = document["schema"], document["body"]
        except (ValueError, KeyError, TypeError, RecursionError):
            raise DataError(f"{self._where}truncated, or not a document of daskrado") from None
        if found != schema or not isinstance(self.content, dict):
            other = str(found).partition("/")[0] == schema.partition("/")[0]
            hint = "; another version of daskrado wrote it: all parties must run the same one" if other else ""
            raise DataError(f"{self._where}of the kind {found!r}, where {schema!r} is needed{hint}")

    def signed_by(self, keys: PublicKeys) -> bool:
        """Whether these keys signed exactly these bytes."""
        try:
            read_signed(self._text, self._schema, [keys.signing.hex()], self._schema)
        except MessageError:
            return False
        return True

    def text(self, name: str) -> str:
        """A string of the content."""
        value = self.content.get(name)
        if not isinstance(value, str):
            raise DataError(f"{self._where}without the text {name!r}")
        return value

    def keys(self, name: str, whose: str) -> PublicKeys:
        """Public keys of the content."""
        try:
            return PublicKeys.from_text(self.text(name), whose)
        except UsageError as error:
            raise DataError(f"{self._where}{error}") from None
