"""Signed documents of a study, read before it is known who must have signed them: a roster decides that."""

from __future__ import annotations

import hashlib
import json
from typing import Any

from daskrado.errors import DataError, MessageError
from daskrado.parties.keys import PrivateKeys, PublicKeys
from daskrado.parties.signing import canonical, read_signed


def digest(content: dict[str, Any]) -> bytes:
    """SHA-256 of the canonical form."""
    return hashlib.sha256(canonical(content).encode()).digest()


def seal(schema: str, content: dict[str, Any], keys: PrivateKeys) -> bytes:
    """The signed bytes; the schema is signed too, so that no document passes for one of another kind."""
    return keys.signing.sign(schema, content).encode()


class Document:
    """A parsed document whose signature is yet to be checked: nothing in it may be believed before."""

    def __init__(self, schema: str, data: bytes) -> None:
        try:
            self._text = data.decode("ascii")
            document = json.loads(self._text)
            found, self.content = document["schema"], document["body"]
        except (ValueError, KeyError, TypeError, RecursionError):
            raise DataError("truncated, or not a document of daskrado") from None
        if found != schema or not isinstance(self.content, dict):
            other = str(found).partition("/")[0] == schema.partition("/")[0]
            hint = "; another version of daskrado wrote it: all parties must run the same one" if other else ""
            raise DataError(f"of the kind {found!r}, where {schema!r} is needed{hint}")
        self._schema = schema

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
            raise DataError(f"without the text {name!r}")
        return value
