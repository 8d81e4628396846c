"""Signed messages: every changed byte, every wrong signer and every wrong schema is refused by name."""

import json
import os
import pickle
import stat

import pytest

from daskrado.errors import MessageError, UsageError
from daskrado.parties.signing import SigningKey, load_public, make_keys, read_signed

BODY = {"request": "abc", "alpha": "0.5", "nested": {"b": [1, 2], "a": None}, "text": "é\n"}


@pytest.fixture(scope="module")
def keys(tmp_path_factory):
    folder = tmp_path_factory.mktemp("keys")
    make_keys(folder / "one")
    make_keys(folder / "two")
    return folder


def test_round_trip(keys):
    text = SigningKey.load(keys / "one").sign("test/1", BODY)
    public = load_public(keys / "one.pub")
    assert read_signed(text, "test/1", [load_public(keys / "two.pub"), public], "m") == BODY
    assert SigningKey.load(keys / "one").public == public


def test_every_changed_byte_is_refused(keys):
    text = SigningKey.load(keys / "one").sign("test/1", {"x": 12, "y": "ab"})
    trusted = [load_public(keys / "one.pub")]
    for i in range(len(text)):
        for other in ("0", "1", "a", " ", '"'):
            changed = text[:i] + other + text[i + 1 :]
            if changed != text:
                with pytest.raises(MessageError, match=r"^m: "):
                    read_signed(changed, "test/1", trusted, "m")
        with pytest.raises(MessageError):
            read_signed(text[:i], "test/1", trusted, "m")
        with pytest.raises(MessageError):
            read_signed(text[:i] + " " + text[i:], "test/1", trusted, "m")


def test_wrong_signer_schema_and_signature_are_named(keys):
    one, two = SigningKey.load(keys / "one"), SigningKey.load(keys / "two")
    text = one.sign("test/1", BODY)
    with pytest.raises(MessageError, match="unknown signer"):
        read_signed(text, "test/1", [two.public], "m")
    with pytest.raises(MessageError, match="unknown signer"):
        read_signed(text, "test/1", [], "m")
    with pytest.raises(MessageError, match="schema is 'test/1', expected 'test/2'"):
        read_signed(text, "test/2", [one.public], "m")
    # another's signature under one's own name, and the other way round
    message, other = json.loads(text), json.loads(two.sign("test/1", BODY))
    for key in ("signer", "signature"):
        forged = json.dumps({**message, key: other[key]}, sort_keys=True, separators=(",", ":")) + "\n"
        with pytest.raises(MessageError, match="changed after it was signed"):
            read_signed(forged, "test/1", [one.public, two.public], "m")


@pytest.mark.parametrize(
    "text", ["", "[]", "{}", "null", '{"body":1,"schema":"test/1","signature":"","signer":""}', "[" * 100_000]
)
def test_rubbish_is_refused(keys, text):
    with pytest.raises(MessageError):
        read_signed(text, "test/1", [load_public(keys / "one.pub")], "m")


def test_keys_stay_private(keys, tmp_path):
    assert stat.S_IMODE(os.stat(keys / "one").st_mode) == 0o600
    key = SigningKey.load(keys / "one")
    assert "PRIVATE" not in repr(key)
    with pytest.raises(TypeError):
        pickle.dumps(key)
    with pytest.raises(UsageError, match="never overwritten"):
        make_keys(keys / "one")
    for bad in ("one.pub", "missing"):
        with pytest.raises(UsageError):
            SigningKey.load(keys / bad)
    with pytest.raises(UsageError):
        load_public(keys / "one")
    (tmp_path / "junk").write_bytes(b"\xff\xfe")
    with pytest.raises(UsageError):
        load_public(tmp_path / "junk")
