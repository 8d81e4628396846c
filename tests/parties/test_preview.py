"""What leaves this house: a page for those who have to allow it, and nothing else happens."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from study_parties import CENTRAL, DISTRIBUTED, Clinic, Parties

from daskrado.cli.main import cli
from daskrado.errors import DataError
from daskrado.ledger.ledger import Ledger
from daskrado.parties.preview import Preview

DESCENT = {"learner": {"kind": "gradient"}, "rows": 3000}


@pytest.fixture
def parties(tmp_path: Path, clinic: Clinic) -> Parties:
    return Parties(tmp_path, clinic)


def preview(parties: Parties, **options: Any) -> Preview:
    own = {"lake": parties.lakes["east"], "ledger": parties.ledger("east"), "keys": parties.keys("east")}
    return Preview(parties.box, site="east", dataset="clinic", **{**own, **options})


@pytest.mark.parametrize(
    ("terms", "learns", "leaves"),
    [
        (CENTRAL, "the exact total over 3 sites, no site's own", "moments, 377 integers: one file, under masks"),
        (DISTRIBUTED, "the noisy total over 3 sites", "one file, with this site's share of noise in it, under masks"),
        (CENTRAL | DESCENT, "the exact sums of every step over 3 sites", "sums of 40 steps of descent"),
        (DISTRIBUTED | DESCENT, "the noisy sums of every step over 3 sites", "for each of these steps, with this"),
        ({"private": False}, "the exact total over 3 sites", "the total is published without noise"),
    ],
    ids=["central", "distributed", "central steps", "distributed steps", "baseline"],
)
def test_a_preview_says_what_leaves_and_nothing_does(
    parties: Parties, terms: dict[str, Any], learns: str, leaves: str
) -> None:
    round_ = parties.open(**terms)
    parties.ledger("east")
    before = {path: path.read_bytes() for path in parties.place.rglob("*") if path.is_file()}
    found = preview(parties)
    page, said = found.page(), "\n".join(found.lines())
    for text in (learns, leaves, round_.roster_fingerprint, round_.coordinator.fingerprint):
        assert text in said
        assert text in page.replace("&#39;", "'")
    if terms != {"private": False}:
        assert "of the budget of clinic" in said
    else:
        assert "NOT PRIVATE" in page
    after = {path: path.read_bytes() for path in parties.place.rglob("*") if path.is_file()}
    assert {path: data for path, data in after.items() if "sqlite" not in path.name} == {
        path: data for path, data in before.items() if "sqlite" not in path.name
    }
    assert Ledger.open(parties.ledger("east")).entries() == []


def test_a_preview_says_what_would_be_refused(parties: Parties) -> None:
    parties.open(**DISTRIBUTED)
    with Ledger.open(parties.ledger("east")) as ledger:
        ledger.set_limit("clinic", "add_remove", 0.5, 1e-6)
    assert any("refused" in line and "does not cover" in line for line in preview(parties).lines())
    with pytest.raises(DataError, match="does not have site 'east' with this key"):
        preview(parties, keys=parties.keys("north"))


def test_the_command_writes_the_page(parties: Parties) -> None:
    parties.open(**DISTRIBUTED)
    lake = parties.place / "lake-east"
    lake.symlink_to(parties.path)
    words = ["--site", "east", "--keys", str(parties.keys("east")), "--lake", str(lake), "--dataset", "clinic"]
    words += ["--ledger", str(parties.ledger("east")), "--out", str(parties.place / "page.html")]
    done = CliRunner().invoke(cli, ["site", "preview", str(parties.box), *words])
    assert done.exit_code == 0, done.output
    assert "nothing was read or sent" in done.output
    assert "What leaves this house" in (parties.place / "page.html").read_text()
