"""Keys, masks and bundles: what cancels, what stays uniform, what is refused and by which name."""

from __future__ import annotations

import itertools
import json
import os
import pickle
import stat
from pathlib import Path

import numpy as np
import pytest

from daskrado.errors import DataError, UsageError
from daskrado.parties import rounds
from daskrado.parties.bundles import read_bundle, seal_bundle, sort_bundles
from daskrado.parties.keys import PrivateKeys, PublicKeys
from daskrado.parties.mailbox import Mailbox
from daskrado.parties.masks import mask, pair_stream, total
from daskrado.parties.rounds import Round

NAMES = ("ash", "birch", "cedar", "elm")
DOMAIN = "d" * 64


@pytest.fixture(scope="module")
def keys() -> dict[str, PrivateKeys]:
    """Keys from a public seed: whether their masks look uniform is the same in every run."""
    draw = np.random.default_rng(11)
    return {name: PrivateKeys(draw.bytes(32), draw.bytes(32)) for name in (*NAMES, "boss")}


def test_fresh_keys_are_like_no_others() -> None:
    made = [PrivateKeys.make().public for _ in range(3)]
    assert len({half for public in made for half in (public.signing, public.agreement)}) == 6


def make_round(
    keys: dict[str, PrivateKeys], number: int = 1, names: tuple[str, ...] = NAMES, study: str = "s"
) -> Round:
    roster = {name: keys[name].public for name in names}
    return Round(study, number, {"epsilon": 1.0}, roster, 2, keys["boss"].public)


def test_terms_of_another_version_are_other_terms(
    keys: dict[str, PrivateKeys], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first version drew more noise under the same terms: its files are refused, its masks never used again."""
    ours = make_round(keys)

    def bound() -> tuple[bytes, str, list[int]]:
        return ours.digest, ours.terms_digest, mask(np.zeros(4, np.int64), keys["ash"], "ash", ours).tolist()

    now = bound()
    monkeypatch.setattr(rounds, "KIND", "daskrado.study/1")
    older = ours.seal(keys["boss"])
    assert all(before != after for before, after in zip(bound(), now, strict=True))
    monkeypatch.undo()
    with pytest.raises(
        DataError, match=r"^box/1\.json: of the kind 'daskrado.study/1', .* another version of daskrado"
    ):
        Round.read(older, "box/1.json")
    assert Round.read(ours.seal(keys["boss"]), "box/1.json") == ours


def vectors(size: int) -> dict[str, np.ndarray]:
    draw = np.random.default_rng(3)
    return {name: draw.integers(-(2**60), 2**60, size) for name in NAMES}


def masked(keys: dict[str, PrivateKeys], round_: Round, given: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    return {name: mask(given[name], keys[name], name, round_) for name in round_.roster}


def test_masks_cancel_exactly_in_the_whole_sum(keys: dict[str, PrivateKeys]) -> None:
    round_, given = make_round(keys), vectors(1000)
    out = masked(keys, round_, given)
    assert np.array_equal(total(out, keys["boss"], round_), sum(given.values()))
    assert total(out, keys["boss"], round_).dtype == np.int64


def test_sums_at_the_ends_of_int64_come_back(keys: dict[str, PrivateKeys]) -> None:
    round_ = make_round(keys, names=("ash", "elm"))
    given = {"ash": np.array([2**62, -(2**62), -1, 0]), "elm": np.array([2**62 - 1, -(2**62), 1, 0])}
    assert total(masked(keys, round_, given), keys["boss"], round_).tolist() == [2**63 - 1, -(2**63), 0, 0]


def test_nothing_of_an_incomplete_round_can_be_unmasked(keys: dict[str, PrivateKeys]) -> None:
    """Every proper subset of the bundles sums to words that look uniform, whatever the vectors were.

    All vectors are zero, so a sum of bundles *is* its masks; 8,000 words give 512,000 bits, of which an honest coin
    has half within 4 standard deviations, and bytes pass a chi-square test with 255 degrees of freedom.
    """
    round_ = make_round(keys)
    out = masked(keys, round_, {name: np.zeros(8000, dtype=np.int64) for name in NAMES})
    for count in range(1, len(NAMES)):
        for chosen in itertools.combinations(NAMES, count):
            words = total({name: out[name] for name in chosen}, keys["boss"], round_).view(np.uint8)
            ones = int(np.unpackbits(words).sum())
            assert abs(ones - 256_000) < 4 * np.sqrt(512_000) / 2
            expected = len(words) / 256
            chi = float(((np.bincount(words, minlength=256) - expected) ** 2 / expected).sum())
            assert 150 < chi < 380
    assert not total(out, keys["boss"], round_).any()
    everything = np.stack([*out.values()]).sum(axis=0, dtype=np.uint64)  # what a site reads in the folder
    assert abs(int(np.unpackbits(everything.view(np.uint8)).sum()) - 256_000) < 4 * np.sqrt(512_000) / 2


def test_masks_of_two_rounds_have_nothing_in_common(keys: dict[str, PrivateKeys]) -> None:
    """The difference of a site's bundles over two rounds is masked still: re-masking gives nothing away."""
    first, second = make_round(keys), make_round(keys).among(["ash", "birch", "cedar"])
    zero = np.zeros(4000, dtype=np.int64)
    a = mask(zero, keys["ash"], "ash", first)
    b = mask(zero, keys["ash"], "ash", second)
    ones = int(np.unpackbits((a - b).view(np.uint8)).sum())
    assert abs(ones - 128_000) < 4 * np.sqrt(256_000) / 2
    same_roster = make_round(keys, number=2)
    assert not (mask(zero, keys["ash"], "ash", same_roster) == a).any()


def test_no_combination_of_bundles_of_a_failed_and_a_new_round_unmasks_anything(keys: dict[str, PrivateKeys]) -> None:
    """elm drops out of round 1; the others contribute again. All 3^6 sums and differences of the six bundles.

    Vectors are zero, so whatever is not masked is zero. Only multiples of the whole second round are.
    """
    first = make_round(keys)
    second = first.among(["ash", "birch", "cedar"])
    zero = {name: np.zeros(64, dtype=np.int64) for name in NAMES}
    boss, bundles = keys["boss"], []
    for round_ in (first, second):  # the coordinator takes off its own masks first
        for name, words in masked(keys, round_, zero).items():
            if name != "elm":
                bundles.append(total({name: words}, boss, round_).view(np.uint64))
    found = []
    for factors in itertools.product((-1, 0, 1), repeat=6):
        mixed = (np.array(factors, dtype=np.int64).view(np.uint64)[:, None] * np.stack(bundles)).sum(
            axis=0, dtype=np.uint64
        )
        bits = int(np.unpackbits(mixed.view(np.uint8)).sum())
        if bits == 0:
            found.append(factors)
        else:
            assert abs(bits - 2048) < 6 * 32  # 4,096 fair coins: six standard deviations
    assert found == [(0, 0, 0, f, f, f) for f in (-1, 0, 1)]


def test_the_streams_are_hkdf_sha256_and_aes_256_ctr() -> None:
    """Against an independent derivation: HMAC by the standard library, AES in ECB mode on a counter."""
    import hashlib
    import hmac

    from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

    secret, salt = bytes(range(32)), bytes(reversed(range(32)))
    info = b"daskrado pairwise mask 1\0ash\0elm"
    extracted = hmac.new(salt, secret, hashlib.sha256).digest()
    block1 = hmac.new(extracted, info + b"\x01", hashlib.sha256).digest()
    block2 = hmac.new(extracted, block1 + info + b"\x02", hashlib.sha256).digest()
    start = int.from_bytes(block2[:16], "big")
    ecb = Cipher(algorithms.AES256(block1), modes.ECB()).encryptor()
    stream = b"".join(ecb.update(((start + i) % 2**128).to_bytes(16, "big")) for i in range(4))
    expected = [int.from_bytes(stream[i : i + 8], "little") for i in range(0, 56, 8)]
    assert pair_stream(secret, salt, ("elm", "ash"), 7).tolist() == expected


def test_private_keys_stay_private(tmp_path: Path) -> None:
    own = PrivateKeys.open(tmp_path / "keys", create=True)
    file = tmp_path / "keys" / "keys.json"
    assert stat.S_IMODE(os.stat(file).st_mode) == 0o600
    assert PrivateKeys.open(tmp_path / "keys", create=True).public == own.public
    for half in json.loads(file.read_text()).values():
        assert half not in repr(own) + repr(own.public) + own.public.text
    with pytest.raises(TypeError, match="never pickled"):
        pickle.dumps(own)
    with pytest.raises(UsageError, match="no keys there"):
        PrivateKeys.open(tmp_path / "elsewhere", create=False)
    with pytest.raises(UsageError, match="'ash' is not 64 bytes in base64"):
        PublicKeys.from_text("AAAA", "ash")
    low_order = PublicKeys(own.public.signing, bytes(32))
    with pytest.raises(UsageError, match="'elm' gives no secret"):
        own.agree(low_order, "elm")


def bundle(keys: dict[str, PrivateKeys], round_: Round, site: str, **changes: object) -> bytes:
    given = {"domain": DOMAIN, "signer": site, "fill": 0, **changes}
    vector = np.full(16, given["fill"], dtype=np.int64)
    words = mask(vector, keys[site], site, round_)
    return seal_bundle(round_, site, str(given["domain"]), words, keys[str(given["signer"])])


def test_a_bundle_is_refused_by_name(keys: dict[str, PrivateKeys]) -> None:
    round_ = make_round(keys)
    good = bundle(keys, round_, "ash")
    assert read_bundle(good, round_, DOMAIN, 16).site == "ash"
    small = make_round(keys, names=("birch", "cedar"))
    changed = json.loads(good)
    changed["body"]["words"] = json.loads(bundle(keys, round_, "ash", fill=1))["body"]["words"]
    cases = {
        "truncated": (good[: len(good) // 2], round_, 16),
        "not a document": (b"\xff\xfe", round_, 16),
        "foreign: it belongs to the study 'other'": (
            bundle(keys, make_round(keys, study="other"), "ash"),
            round_,
            16,
        ),
        "foreign: site 'ash' is not in the roster of round 1": (good, small, 16),
        "tampered with: the signature of site 'ash'": (json.dumps(changed).encode(), round_, 16),
        "signature of site 'ash' does not fit": (bundle(keys, round_, "ash", signer="elm"), round_, 16),
        "replayed: site 'ash' made it for round 1": (good, make_round(keys, number=2), 16),
        "replayed: site 'birch'": (bundle(keys, round_, "birch"), small, 16),
        "'ash' encoded its rows with another domain": (bundle(keys, round_, "ash", domain="e" * 64), round_, 16),
        "vector of 16 numbers, where the statistic has 17": (good, round_, 17),
    }
    for text, (data, where, size) in cases.items():
        with pytest.raises(DataError, match=text.replace("(", r"\(")):
            read_bundle(data, where, DOMAIN, size)
    for cut in range(0, len(good), 7):  # no prefix, and no single changed byte, is ever taken
        with pytest.raises(DataError):
            read_bundle(good[:cut], round_, DOMAIN, 16)
        with pytest.raises(DataError):
            read_bundle(good[:cut] + bytes([good[cut] ^ 1]) + good[cut + 1 :], round_, DOMAIN, 16)


def test_repeated_bundles_count_once_and_conflicting_ones_not_at_all(keys: dict[str, PrivateKeys]) -> None:
    round_ = make_round(keys)
    files = [(f"{name}.json", bundle(keys, round_, name, fill=1)) for name in NAMES]
    tally = sort_bundles([*files, ("ash (1).json", files[0][1])], round_, DOMAIN, 16)
    assert not tally.missing
    assert not tally.refused
    assert len(tally.repeated) == 1
    assert total({n: b.words for n, b in tally.accepted.items()}, keys["boss"], round_).tolist() == [4] * 16
    two = sort_bundles([*files, ("ash-2.json", bundle(keys, round_, "ash", fill=9))], round_, DOMAIN, 16)
    assert two.missing == ("ash",)
    assert "'ash' signed two different bundles" in two.refused[0]
    some = sort_bundles(files[:2], round_, DOMAIN, 16)
    counted = {b.sha256 for b in some.accepted.values()}
    after = sort_bundles(files, round_, DOMAIN, 16, counted)
    assert after.missing == ("cedar", "elm")
    assert [text.split(":")[1].strip() for text in after.refused] == ["late", "late"]


def test_a_round_is_signed_and_sound(keys: dict[str, PrivateKeys]) -> None:
    round_ = make_round(keys)
    data = round_.seal(keys["boss"])
    assert Round.read(data, "r").digest == round_.digest
    with pytest.raises(DataError, match="tampered"):
        Round.read(data.replace(b'"minimum":2', b'"minimum":3'), "r")
    with pytest.raises(UsageError, match="another coordinator"):
        round_.seal(keys["ash"])
    with pytest.raises(UsageError, match="minimum must be between 2 and the 1 sites"):
        round_.among(["ash"])
    twice = {"ash": keys["ash"].public, "elm": PublicKeys(keys["elm"].public.signing, keys["ash"].public.agreement)}
    with pytest.raises(UsageError, match="same key"):
        Round("s", 1, {}, twice, 2, keys["boss"].public)


@pytest.mark.parametrize("address", ["{tmp}/box", "memory://box-{mark}"])
def test_a_mailbox_never_replaces_a_file(tmp_path: Path, address: str) -> None:
    box = Mailbox(address.format(tmp=tmp_path, mark=os.urandom(4).hex()))
    assert box.get("rounds/1.json") is None
    assert box.names("rounds") == []
    assert box.put_new("rounds/1.json", b"first")
    assert not box.put_new("rounds/1.json", b"second")
    assert box.get("rounds/1.json") == b"first"
    assert box.all("rounds") == [("1.json", b"first")]
    with pytest.raises(UsageError, match="no filesystem for this address"):
        Mailbox("nosuch://box")
