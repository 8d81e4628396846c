"""Secure sums: masks modulo 2^64 that cancel only when every site of the round is there, for the coordinator alone.

For sites i < j (by name) both derive the same stream m_ij of 64-bit words; i adds it, j subtracts it. The sum of all
contributions is the sum of all vectors. While the contribution of a site j that keeps its keys is missing, every
other vector still carries its own m_ij, which nobody else can compute: each is uniform, and so are all jointly.

Every site adds one more stream that it shares with the coordinator alone, who takes them all off: whoever else reads
the study's folder, sites included, learns nothing, not even the total.

A stream is used once: it depends on the digest of the round, which covers the study, the number of the round and the
roster, and a site contributes one vector to one round (:class:`daskrado.parties.site.Agreement`).

Reference
    Bonawitz et al. (2017), "Practical secure aggregation for privacy-preserving machine learning", without its
    recovery of dropped sites' keys: a round that lacks a site is repeated among the others with new masks.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from daskrado.parties.keys import PrivateKeys
from daskrado.parties.rounds import Round

Words = NDArray[np.uint64]
COORDINATOR = "*coordinator"  # no site can be called so


def pair_stream(secret: bytes, round_digest: bytes, pair: tuple[str, str], size: int) -> Words:
    """``size`` words that the two sites of ``pair`` share: HKDF-SHA256 of their X25519 secret keys AES-256-CTR."""
    from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
    from cryptography.hazmat.primitives.hashes import SHA256
    from cryptography.hazmat.primitives.kdf.hkdf import HKDF

    first, second = sorted(pair)
    info = b"daskrado pairwise mask 1\0" + first.encode() + b"\0" + second.encode()
    material = HKDF(SHA256(), 48, salt=round_digest, info=info).derive(secret)
    stream = Cipher(algorithms.AES256(material[:32]), modes.CTR(material[32:])).encryptor()
    return np.frombuffer(stream.update(bytes(8 * size)), dtype="<u8").astype(np.uint64)


def mask(vector: NDArray[np.int64], keys: PrivateKeys, site: str, round_: Round) -> Words:
    """A site's vector under its masks with every other site of the round and with the coordinator."""
    out = np.ascontiguousarray(vector, dtype=np.int64).view(np.uint64).copy()
    for other, public in round_.roster.items():
        if other != site:
            words = pair_stream(keys.agree(public, other), round_.digest, (site, other), len(out))
            out = out + words if site < other else out - words
    return out + pair_stream(
        keys.agree(round_.coordinator, COORDINATOR), round_.digest, (site, COORDINATOR), len(out)
    )


def total(masked: Mapping[str, Words], keys: PrivateKeys, round_: Round) -> NDArray[np.int64]:
    """The sum modulo 2^64 without the coordinator's masks, read as signed.

    Exact where every site of the round is in ``masked`` and the true sum is within int64.
    """
    size = len(next(iter(masked.values())))
    out = np.zeros(size, dtype=np.uint64)
    for site, words in masked.items():
        secret = keys.agree(round_.roster[site], site)
        out = out + words - pair_stream(secret, round_.digest, (site, COORDINATOR), size)
    return out.view(np.int64)
