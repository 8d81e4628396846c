"""A ledger moves: without a gap, to a new place only, whole or not at all, and never so that both places pay."""

import os

import pytest
from click.testing import CliRunner

from daskrado.cli.main import cli
from daskrado.errors import DaskradoError, LedgerError, UsageError
from daskrado.ledger import chain, moving
from daskrado.ledger.chain import Kind
from daskrado.ledger.history import check_all
from daskrado.ledger.journal import Journal, journal_folder
from daskrado.ledger.ledger import Ledger, Mark
from daskrado.ledger.moving import moved
from daskrado.privacy.accountant import PureEvent
from daskrado.privacy.relations import Relation

AR = Relation.ADD_REMOVE
EVENT = PureEvent("0.01")


@pytest.fixture(params=["file to file", *(pytest.param(way, marks=pytest.mark.slow) for way in ("up", "down"))])
def places(request, tmp_path):
    """An old place and a new one."""
    if request.param == "file to file":
        return str(tmp_path / "a.db"), str(tmp_path / "b.db")
    pair = str(tmp_path / "a.db"), request.getfixturevalue("database")
    return pair if request.param == "up" else pair[::-1]


def lived(address) -> Ledger:
    """A ledger whose runs are all finished."""
    ledger = Ledger.open(address)
    ledger.set_limit("adult", None, 5, "1e-5")
    grants = [ledger.reserve("adult", AR, EVENT, theorem="t", run=run, fingerprint="sha256:f") for run in "abc"]
    ledger.count_draw(grants[0], "x")
    ledger.publish(grants[0], "ab" * 32)
    ledger.spend(grants[1])
    ledger.void(grants[2])
    return ledger


def pays(address) -> bool:
    """Whether budget can be spent at a place."""
    try:
        ledger = Ledger.open(address, create=False)
        ledger.void(ledger.reserve("adult", AR, EVENT, theorem="t", run="late"))
    except LedgerError:
        return False
    return True


def test_a_ledger_moves_without_a_gap_and_the_old_one_is_closed(places):
    old, new = places
    source = lived(old)
    entries, balances, head = source.entries(), source.balances("adult"), source.head()
    target = moved(source, new)
    target.check_head(head)
    assert (target.entries(), target.balances("adult")) == (entries, balances)
    assert target.keyed("f") == source.keyed("f")
    check_all(target)
    assert (pays(old), pays(new)) == (False, True)
    moved(source, new)  # again: it is there already, and nothing happens
    check_all(target)
    with pytest.raises(LedgerError, match="was moved before, to another place"):
        moved(source, f"{source.path}.third")


@pytest.mark.parametrize(
    "cut", ["while it copies", "before the old place is closed", "before the new place is opened"]
)
def test_cut_off_at_any_step_the_same_command_goes_on(places, monkeypatch, cut):
    old, new = places
    source = lived(old)
    entries = source.entries()
    with monkeypatch.context() as patch:
        if cut == "while it copies":
            patch.setattr(moving, "TABLES", [*moving.TABLES, "CREATE TABLE nothing"])  # fails after all others
        elif cut == "before the old place is closed":
            patch.setattr(moving, "_check_copy", lambda *_: 1 / 0)
        else:
            real = chain.append
            patch.setattr(chain, "append", lambda r, k, *a, **h: 1 / 0 if k is Kind.ARRIVED else real(r, k, *a, **h))
        with pytest.raises((ZeroDivisionError, LedgerError)):
            moved(source, new)
    assert not (os.path.exists(new) and cut == "while it copies")
    if cut == "before the new place is opened":
        assert (pays(old), pays(new)) == (False, False)
    target = moved(source, new)
    assert target.entries() == entries
    check_all(target)
    assert (pays(old), pays(new)) == (False, True)


def test_what_went_on_after_a_copy_was_cut_off_is_not_lost_with_it(places, monkeypatch):
    old, new = places
    source = lived(old)
    with monkeypatch.context() as patch:
        patch.setattr(moving, "_check_copy", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            moved(source, new)
    source.mark("adult", Mark.COUNTS)
    with pytest.raises(UsageError, match="the beginning of a copy that was cut off: remove it, and copy again"):
        moved(source, new)
    assert (pays(old), pays(new)) == (True, False)


@pytest.mark.parametrize("where", ["itself", "another ledger", "a file", "a folder", "no folder", "no server"])
def test_a_place_that_cannot_take_it_leaves_the_ledger_as_it_was(places, tmp_path, where):
    old, new = places
    source, head = lived(old), None
    if where == "itself":
        new = old
    elif where == "another ledger":
        head = Ledger.open(new).head()
    elif where == "no server":
        new = "postgresql://somebody:hunter2@127.0.0.1:1/nowhere"
    else:
        new = str(tmp_path / "taken" / "x") if where == "no folder" else str(tmp_path / "taken")
        if where == "a file":
            (tmp_path / "taken").write_text("something else, and long enough to be no empty database" * 100)
        elif where == "a folder":
            (tmp_path / "taken").mkdir()
    before = source.head()
    done = CliRunner().invoke(cli, ["ledger", "copy", old, new])
    assert isinstance(done.exception, DaskradoError), done.output
    assert "\n" not in str(done.exception)
    assert "hunter2" not in str(done.exception)
    assert source.head() == before
    assert pays(old)
    assert head is None or Ledger.open(new).head() == head


def test_unfinished_runs_are_named_and_stay_charged_if_they_are_left(places):
    old, new = places
    source = lived(old)
    source.reserve("adult", AR, EVENT, theorem="t", run="far")
    with Journal.create(journal_folder(source) / "f00d", {"finish": "daskrado run --resume f00d"}) as journal:
        grant = source.reserve("adult", AR, EVENT, theorem="t", run="f00d")
        journal.granted("r", grant)
    source.spend(grant)
    with pytest.raises(UsageError) as refused:
        moved(source, new)
    for words in ("run f00d is", "daskrado run --resume f00d", "run far is reserved", "--leave"):
        assert words in str(refused.value)
    assert pays(old)
    entries = source.entries()
    assert moved(source, new, leave=True).entries() == entries


def test_engines_go_where_their_ledger_goes(places):
    old, new = places
    source = lived(old)
    kept = source.path.with_name(f"{source.path.name}.engines") / "adult.add_remove"
    kept.mkdir(parents=True)
    (kept / "run.json").write_text("{}")
    target = moved(source, new)
    assert not kept.exists()
    assert (target.path.with_name(f"{target.path.name}.engines") / "adult.add_remove" / "run.json").exists()
