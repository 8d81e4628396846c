"""What a site remembers of a study: terms and bundles, in a journal that survives a crash."""

from __future__ import annotations

from pathlib import Path

import pytest

from daskrado.errors import DataError, LedgerError
from daskrado.parties.keys import PrivateKeys
from daskrado.parties.rounds import Round
from daskrado.parties.site import Agreement

EAST, WEST, BOSS = PrivateKeys.make(), PrivateKeys.make(), PrivateKeys.make()


def a_round(number: int = 1) -> Round:
    return Round("heart", number, {"study": "heart"}, {"east": EAST.public, "west": WEST.public}, 2, BOSS.public)


MARK = a_round().roster_fingerprint


def test_bundles_come_back_byte_for_byte_and_a_torn_one_was_never_sent(tmp_path: Path) -> None:
    bundles = {1: b'{"vector": "AAAA", "text": "\xc3\xa9\\u00e9\\n"}', 3: b"{}\n\n"}
    with Agreement(tmp_path, "heart") as agreement:
        agreement.agree(a_round(), "east", EAST.public, MARK, once=False)
        for number, data in bundles.items():
            agreement.store(a_round(number), data)
        with pytest.raises(DataError, match="has a bundle for round 1 already"):
            agreement.store(a_round(1), b"other")
    with (tmp_path / "studies" / "heart" / "bundles.jsonl").open("ab") as file:
        file.write(b'{"round": 4, "bundle": "half')
    with Agreement(tmp_path, "heart") as agreement:
        assert {n: agreement.stored(a_round(n)) for n in (1, 2, 3, 4)} == {**bundles, 2: None, 4: None}
        agreement.store(a_round(3).at(2), b"second step")
        assert agreement.stored(a_round(3).at(2)) == b"second step"
        assert agreement.stored(a_round(3)) == bundles[3]
        assert agreement.last() == 3
        agreement.agree(a_round(2), "east", EAST.public, MARK, once=False)
        strange = Round("heart", 2, {"study": "heart", "x": 1}, a_round().roster, 2, BOSS.public)
        with pytest.raises(DataError, match=r"terms are not those that this site agreed to \(.*run.json\)"):
            agreement.agree(strange, "east", EAST.public, MARK, once=False)
    assert (tmp_path / "studies" / "heart").stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize("line", [b"[1]\n", b'{"round": 1}\n', b"}\n"])
def test_damaged_bundles_are_refused(tmp_path: Path, line: bytes) -> None:
    with Agreement(tmp_path, "heart") as agreement:
        agreement.store(a_round(), b"{}")
    with (tmp_path / "studies" / "heart" / "bundles.jsonl").open("ab") as file:
        file.write(line)
    for _ in range(2):  # the first attempt releases the lock
        with pytest.raises(LedgerError, match=r"bundles.jsonl: .* damaged"):
            Agreement(tmp_path, "heart")


def test_a_study_of_an_older_version_is_not_begun_anew(tmp_path: Path) -> None:
    """Else the site would send a second vector to a round that has one."""
    folder = tmp_path / "studies" / "heart"
    folder.mkdir(parents=True)
    for name in (".lock", "agreed.json", "round-0001.json"):
        (folder / name).write_text("{}")
    with pytest.raises(LedgerError, match="finish it with the version that began it"):
        Agreement(tmp_path, "heart")
    assert sorted(path.name for path in folder.iterdir()) == [".lock", "agreed.json", "round-0001.json"]
