"""Signed messages between parties that share nothing but files: Ed25519 over canonical JSON.

A message is one JSON object with a schema, a body, the signer's public key and a signature over the other three. Its
bytes are canonical: a file that differs from its own canonical form in a single byte is refused, whatever it says.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from daskrado.errors import MessageError, UsageError

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

_PREFIX = b"daskrado signed message\0"  # a signature for something else can never be taken for one of ours
_FIELDS = {"body", "schema", "signature", "signer"}
_HEX_KEY = re.compile(r"[0-9a-f]{64}")
_HEX_SIGNATURE = re.compile(r"[0-9a-f]{128}")


class SigningKey:
    """A private Ed25519 key. Its repr shows the public half only, and it refuses to be pickled."""

    __slots__ = ("_key", "public")

    def __init__(self, key: Ed25519PrivateKey) -> None:
        self._key = key
        self.public = key.public_key().public_bytes_raw().hex()

    def __repr__(self) -> str:
        return f"<SigningKey of {self.public[:16]}>"

    def __reduce__(self) -> Any:
        raise TypeError("a signing key is never pickled or sent")

    @classmethod
    def load(cls, path: str | Path) -> SigningKey:
        """Read a private key from a PEM file."""
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
        from cryptography.hazmat.primitives.serialization import load_pem_private_key

        read = partial(load_pem_private_key, password=None)
        return cls(_from_pem(path, read, Ed25519PrivateKey, "a private key in PEM form without a password"))

    def sign(self, schema: str, body: Mapping[str, Any]) -> str:
        """The message as text, ready to be written."""
        content = {"body": dict(body), "schema": schema, "signer": self.public}
        return canonical({**content, "signature": self._key.sign(_PREFIX + canonical(content).encode()).hex()})


def make_keys(path: str | Path) -> Path:
    """Write a new private key to ``path`` (readable by its owner only) and the public one to ``path``.pub."""
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    private, public = Path(path), Path(f"{path}.pub")
    for file in (private, public):
        if file.exists():
            raise UsageError(f"{file}: exists; a key is never overwritten")
    key = Ed25519PrivateKey.generate()
    secret = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    shown = key.public_key().public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)
    write_new(private, secret, 0o600)
    write_new(public, shown, 0o644)
    return public


def write_new(path: Path, content: bytes, mode: int) -> None:
    """A file that does not exist yet, open to those whom ``mode`` names from its first byte on."""
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "wb") as stream:
        stream.write(content)


def load_public(path: str | Path) -> str:
    """A public key from a PEM file, as 64 hexadecimal digits."""
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
    from cryptography.hazmat.primitives.serialization import load_pem_public_key

    found: str = (
        _from_pem(path, load_pem_public_key, Ed25519PublicKey, "a public key in PEM form").public_bytes_raw().hex()
    )
    return found


def _from_pem(path: str | Path, read: Callable[[bytes], Any], kind: type, what: str) -> Any:
    try:
        key = read(Path(path).read_text(encoding="ascii").encode())
    except OSError as error:
        raise UsageError(f"{path}: cannot be read ({error.strerror})") from error
    except (ValueError, TypeError) as error:
        raise UsageError(f"{path}: is not {what}") from error
    if not isinstance(key, kind):
        raise UsageError(f"{path}: is a {type(key).__name__}; an Ed25519 key is needed")
    return key


def read_signed(text: str, schema: str, trusted: Sequence[str] | None, where: str) -> dict[str, Any]:
    """The body of a message of this schema by a trusted signer; anything else is refused, by name.

    Without ``trusted`` whoever signed it will do: for a message of one's own, whose hash tells the right one.
    """
    from cryptography.exceptions import InvalidSignature
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

    try:
        message = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise MessageError(f"{where}: is not JSON; it was cut short or changed") from error
    if not isinstance(message, dict) or set(message) != _FIELDS or not isinstance(message["body"], dict):
        raise MessageError(f"{where}: is not a signed message (it needs {', '.join(sorted(_FIELDS))})")
    if message["schema"] != schema:
        raise MessageError(f"{where}: schema is {message['schema']!r}, expected {schema!r}")
    signer, signature = message["signer"], message["signature"]
    if not (isinstance(signer, str) and _HEX_KEY.fullmatch(signer)):
        raise MessageError(f"{where}: signer is not a public key")
    if trusted is not None and signer not in trusted:
        raise MessageError(f"{where}: signed by the unknown signer {signer[:16]}…; pass its public key with --trust")
    if not (isinstance(signature, str) and _HEX_SIGNATURE.fullmatch(signature)):
        raise MessageError(f"{where}: signature is malformed")
    content = {key: message[key] for key in ("body", "schema", "signer")}
    try:
        signed = _PREFIX + canonical(content).encode()
        Ed25519PublicKey.from_public_bytes(bytes.fromhex(signer)).verify(bytes.fromhex(signature), signed)
        intact = canonical(message) == text
    except (InvalidSignature, ValueError):
        intact = False
    if not intact:
        raise MessageError(f"{where}: does not match its signature; it was changed after it was signed")
    return dict(message["body"])


def canonical(content: Mapping[str, Any]) -> str:
    """The one text of a JSON object: sorted keys, no spaces, ASCII, a newline at the end."""
    return json.dumps(content, sort_keys=True, separators=(",", ":"), allow_nan=False) + "\n"


def digest(content: Mapping[str, Any]) -> bytes:
    """SHA-256 of the canonical form."""
    return hashlib.sha256(canonical(content).encode()).digest()
