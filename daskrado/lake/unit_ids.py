"""Ids of units: one value in any type (7, "7" and "7.0"), known by 128 bits under a secret key.

Whole numbers never agree, and two texts are taken for one unit with a chance below (units)^2 / 2^128.
"""

from __future__ import annotations

import hashlib
import re
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from daskrado.lake.frame_columns import whole_numbers
from daskrado.table.arrow_arrays import as_texts, plain

_WHOLE = re.compile(rb"([+-]?[0-9]{1,40})(?:\.0*)?")


def type_problem(kind: pa.DataType) -> str | None:
    """Why a column of this type cannot name units; None if it can."""
    kind = kind.value_type if pa.types.is_dictionary(kind) else kind
    text = pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind)
    if pa.types.is_integer(kind) or text or pa.types.is_null(kind):
        return None
    return f"is {kind}, but a unit is named by whole numbers or by text"


def unit_hashes(column: pa.ChunkedArray, key: bytes) -> NDArray[np.uint64]:
    """128 bits for each id under a secret key; zeros for a null or an empty text.

    A whole number is encrypted, so that no two of them ever agree; the text of one is that number.
    """
    known, codes = coded_ids(column, key)
    return np.asarray(known[codes])


def coded_ids(column: pa.ChunkedArray, key: bytes) -> tuple[NDArray[np.uint64], NDArray[Any]]:
    """The hashes of the different values of a column, zeros last, and for each row which of them it has."""
    values, codes = unit_codes(column)
    known = _texts(values, key) if not pa.types.is_integer(values.type) else number_hashes(values.to_numpy(), key)
    return np.concatenate([known, np.zeros((1, 2), np.uint64)]), codes


def paired(units: pa.ChunkedArray, values: pa.ChunkedArray) -> pa.ChunkedArray:
    """A text for each pair of a unit and a value, another for every other pair; null where one of them is missing.

    The value comes first, after its length, so that no two pairs have the same text; a unit that is a whole number is
    written as one, whatever its type.
    """
    known, codes = unit_codes(units)
    texts = known.cast(pa.large_binary()).to_pylist() if not pa.types.is_integer(known.type) else known.to_pylist()
    plain_texts = [str(_canonical(text)) if isinstance(text, bytes) else str(text) for text in texts]
    names = pa.array([text or None for text in plain_texts] + [None], pa.string()).take(pa.array(codes))
    filled = pc.if_else(pc.equal(values, ""), None, values)
    length = pc.binary_length(filled).cast(pa.string())
    return pa.chunked_array([pc.binary_join_element_wise(length, filled, names, ":").combine_chunks()])


def _canonical(text: bytes) -> str | int:
    whole = _whole(text.strip())
    return text.strip().decode("latin-1") if whole is None else whole


def unit_codes(column: pa.ChunkedArray) -> tuple[pa.Array, NDArray[Any]]:
    """The different values of a column in the order of their first rows, and each row's place among them, nulls last.

    A function of the rows alone: whoever reads them again gets the same places.
    """
    data = whole_numbers(plain(column))
    if type_problem(data.type) is not None:  # in a pandas frame: what a schema shows was refused before
        data = as_texts(data)
    if pa.types.is_null(data.type):
        data = data.cast(pa.string())
    coded = data.combine_chunks().dictionary_encode()
    if isinstance(coded, pa.ChunkedArray):
        coded = coded.combine_chunks()
    values = coded.dictionary
    return values, pc.fill_null(coded.indices, len(values)).to_numpy(zero_copy_only=False)


def number_hashes(values: NDArray[Any], key: bytes) -> NDArray[np.uint64]:
    """128 bits for each of some whole numbers, which are encrypted: no two of them agree."""
    from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

    blocks = np.zeros((len(values), 2), dtype=np.uint64)
    blocks[:, 0] = values.astype(np.uint64) if values.dtype == np.uint64 else values.astype(np.int64).view(np.uint64)
    blocks[:, 1] = (values < 0) if values.dtype != np.uint64 else 0  # 2^64 - 1 is not -1
    encrypt = Cipher(algorithms.AES(key), modes.ECB()).encryptor()  # a permutation is what is wanted
    return np.frombuffer(encrypt.update(blocks.tobytes()), dtype=np.uint64).reshape(-1, 2)


def _whole(text: bytes) -> int | None:
    """The whole number that a text writes, if a column of whole numbers could hold it."""
    found = _WHOLE.fullmatch(text)
    number = None if found is None else int(found[1])
    return number if number is not None and -(2**63) <= number < 2**64 else None


def _texts(values: pa.Array, key: bytes) -> NDArray[np.uint64]:
    """Texts, trimmed; those of whole numbers as numbers, also with a decimal point and zeros behind it."""
    texts = [bytes(text).strip() for text in values.cast(pa.large_binary()).to_pylist()]
    whole = [_whole(text) for text in texts]
    small = [n is not None and n < 2**63 for n in whole]
    signed = np.array([n if ok else 0 for n, ok in zip(whole, small, strict=True)], dtype=np.int64)
    unsigned = np.array([0 if ok or n is None else n for n, ok in zip(whole, small, strict=True)], dtype=np.uint64)
    numbers = np.where(np.array(small)[:, None], number_hashes(signed, key), number_hashes(unsigned, key))
    digests = [hashlib.blake2b(text, key=key, digest_size=16).digest() for text in texts]
    others = np.frombuffer(b"".join(digests), dtype=np.uint64).reshape(-1, 2).copy()
    others[[not text for text in texts]] = 0
    return np.where(np.array([n is not None for n in whole])[:, None], numbers, others)
