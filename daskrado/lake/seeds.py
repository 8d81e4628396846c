"""Row seeds: the randomness of signatures, a pure function of a key and of where or who the row is.

Keys are secret and fresh by default. They travel to workers beside the tasks, never inside them.
"""

from __future__ import annotations

import hashlib
import secrets

import numpy as np
from numpy.typing import NDArray

from daskrado.statistics.rados import mix


class SignatureKey:
    """A 32-byte key for signatures. Its repr never shows it, and it is never pickled by accident."""

    __slots__ = ("_bytes", "public")

    def __init__(self, material: bytes, *, public: bool) -> None:
        self._bytes = material
        self.public = public

    @classmethod
    def secret(cls) -> SignatureKey:
        """A fresh key from the operating system, used for one release."""
        return cls(secrets.token_bytes(32), public=False)

    @classmethod
    def from_seed(cls, seed: int) -> SignatureKey:
        """A public key, to reproduce a published table."""
        return cls(hashlib.blake2b(f"daskrado public seed {seed}".encode(), digest_size=32).digest(), public=True)

    def __repr__(self) -> str:
        return f"<SignatureKey {'public' if self.public else 'secret'}>"

    def key_bytes(self) -> bytes:
        """The bytes themselves, for workers alone."""
        return self._bytes


def position_seeds(key: bytes, partition: str, start: int, rows: int) -> NDArray[np.uint64]:
    """One seed per row: an AES-256 key stream under a key made from the partition's name and the block's first row.

    Under add/remove this is sound only for a secret, fresh key: with a public key a removed row would shift the
    signatures of all later ones.
    """
    from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

    digest = hashlib.blake2b(f"{partition}\0{start}".encode(), key=key, digest_size=48).digest()
    cipher = Cipher(algorithms.AES(digest[:32]), modes.CTR(digest[32:]))
    return np.frombuffer(cipher.encryptor().update(bytes(8 * rows)), dtype="<u8")


def record_seeds(key: bytes, ids: NDArray[np.uint64] | NDArray[np.object_]) -> NDArray[np.uint64]:
    """One seed per record id: the same record has the same signature in any partitioning of the lake."""
    left, right = np.frombuffer(hashlib.blake2b(b"records", key=key, digest_size=16).digest(), dtype=np.uint64)
    if ids.dtype == object:
        digest = [hashlib.blake2b(str(i).encode(), key=key, digest_size=8).digest() for i in ids]
        return np.frombuffer(b"".join(digest), dtype=np.uint64)
    return mix(mix(ids.astype(np.uint64) ^ left) + right)
