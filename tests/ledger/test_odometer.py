"""Adding up losses: the table, the ledger's charges, one relation at a time, and the command."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ET
from fractions import Fraction
from pathlib import Path

import pytest
from click.testing import CliRunner

from daskrado.cli.commands.ledger import compose as command
from daskrado.errors import UsageError
from daskrado.ledger.ledger import Ledger
from daskrado.ledger.odometer import charged_events, odometer, read_release
from daskrado.privacy.accountant import ApproximateEvent, GaussianEvent, PureEvent, ZcdpEvent, compose


def test_releases_are_read_as_written() -> None:
    assert read_release("0.1") == [PureEvent("0.1")]
    assert read_release(" 0.1,1e-8x3 ") == [ApproximateEvent("0.1", "1e-8")] * 3
    assert read_release("rho=0.01x2") == [ZcdpEvent(0.01)] * 2
    assert read_release("mu=0.1x3") == [GaussianEvent(0.1)] * 3
    for text in ("", "0.1,1e-8,3", "rho=0.1,1e-6", "mu=0.1,1e-6", "0.1x0", "0.1xx2", "nan", "-1"):
        with pytest.raises(UsageError):
            read_release(text)


def test_the_columns_of_releases_without_an_epsilon_of_their_own() -> None:
    for event, curve in ((ZcdpEvent(0.01), "zCDP"), (GaussianEvent(0.1), "Gaussian")):
        found = odometer([event], 20, 1e-6)
        for count, epsilon in zip(found.counts, found.theorems[curve], strict=True):
            assert epsilon == float(compose([event] * count, 1e-6).epsilon)
        assert all(len(values) == len(found.counts) for values in found.theorems.values())


@pytest.mark.slow
def test_columns_are_named_by_what_is_in_them() -> None:
    """The exact curve ends at epsilon 50; from there on the plain sum is that of zCDP."""
    found = odometer([GaussianEvent(1)], 100, 1e-6)
    assert found.theorems["Gaussian or zCDP"] == [float(best.epsilon) for best in found.best]
    tiny = odometer([GaussianEvent(0.0001)], 1_000_000, 1e-6)
    for values in tiny.theorems.values():
        assert all(low >= float(best.epsilon) * 0.999 for low, best in zip(values, tiny.best, strict=True))
    for nothing in (GaussianEvent(1e-6), ZcdpEvent(5e-13)):
        assert odometer([nothing], 1, 1e-6).best[0].epsilon <= 1e-3


def test_the_lecture_table() -> None:
    found = odometer([PureEvent("0.1")], 100, "1e-6")
    assert found.counts == (1, 2, 5, 10, 20, 50, 100)
    last = {name: values[-1] for name, values in found.theorems.items()}
    assert last["basic"] == 10
    assert last["advanced, loose drift"] == pytest.approx(7.26, abs=0.005)
    assert last["advanced"] == pytest.approx(6.31, abs=0.005)
    assert last["advanced, tanh drift"] == pytest.approx(5.76, abs=0.005)
    assert last["optimal"] == pytest.approx(4.77, abs=0.005)
    assert [b.method for b in found.best] == ["basic"] * 4 + ["optimal"] * 3


def test_a_person_with_three_rows_pays_three_times() -> None:
    found = odometer([PureEvent("0.1")], 1, 0, rows_per_person=3)
    assert found.best[0].epsilon == Fraction("0.3")


def test_charges_under_different_relations_are_never_added(own_ledger: Path) -> None:
    ledger = Ledger.open(own_ledger)
    for relation in ("add_remove", "label_flip"):
        ledger.set_limit("clinic", relation, 10, "1e-5")
        ledger.reserve("clinic", relation, PureEvent("0.5"), theorem="t", run="r")
    with pytest.raises(UsageError, match=r"add_remove and label_flip .* never added"):
        charged_events(ledger, "clinic", None)
    assert charged_events(ledger, "clinic", "label_flip") == [PureEvent("0.5")]
    voided = ledger.reserve("clinic", "label_flip", PureEvent("0.25"), theorem="t", run="r")
    ledger.void(voided)
    assert charged_events(ledger, "clinic", "label_flip") == [PureEvent("0.5")]
    refused = CliRunner().invoke(command, ["--dataset", "clinic", "--ledger", str(own_ledger)])
    assert isinstance(refused.exception, UsageError)


def test_an_unknown_relation_is_named(own_ledger: Path) -> None:
    with Ledger.open(own_ledger) as ledger, pytest.raises(UsageError, match="bogus is unknown; allowed: add_remove"):
        charged_events(ledger, "clinic", "bogus")


def test_the_ledger_foretells_what_a_release_would_cost(own_ledger: Path) -> None:
    ledger = Ledger.open(own_ledger)
    ledger.set_limit("clinic", "add_remove", 10, "1e-6")
    for _ in range(49):
        ledger.reserve("clinic", "add_remove", PureEvent("0.1"), theorem="t", run="r")
    after = ledger.after("clinic", "add_remove", PureEvent("0.1"))
    assert after == compose([PureEvent("0.1")] * 50, "1e-6")
    assert after.method == "optimal"
    ledger.reserve("clinic", "add_remove", PureEvent("0.1"), theorem="t", run="r")
    assert ledger.spent("clinic", "add_remove") == after


def test_the_command_prints_plots_and_speaks_json(tmp_path: Path) -> None:
    plot = tmp_path / "curves.svg"
    done = CliRunner().invoke(command, ["--release", "0.1", "--plot", str(plot)], catch_exceptions=False)
    assert done.exit_code == 0
    assert "4.7746 (optimal)" in done.output
    names = {element.text for element in ET.fromstring(plot.read_text()).iter() if element.text}
    assert ET.fromstring(plot.read_text()).tag.endswith("svg")
    assert names
    done = CliRunner().invoke(command, ["--release", "0.1", "--count", "20", "--json"], catch_exceptions=False)
    answer = json.loads(done.output)
    assert answer["best"][-1] == {"epsilon": pytest.approx(1.7886, abs=1e-4), "method": "optimal"}


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([], "give --release"),
        (["--release", "0.1", "--count", "0"], "between 1 and"),
        (["--release", "0.1", "--count", "2000000"], "between 1 and"),
        (["--release", "0.1", "--delta", "2"], "delta"),
        (["--release", "0.1", "--rows-per-person", "0"], "group"),
        (["--release", "51"], "epsilon"),
        (["--release", "1,1e-8", "--rows-per-person", "1000"], "protects nobody who owns 1000 rows"),
        (["--release", "rho=0.01", "--delta", "0"], "no finite epsilon at delta 0"),
        (["--release", "0.1", "--delta", "1e-400"], "at least 1e-300"),
    ],
)
def test_bad_input_is_named(words: list[str], said: str) -> None:
    done = CliRunner().invoke(command, words)
    assert done.exit_code != 0
    assert said in (str(done.exception) if isinstance(done.exception, UsageError) else done.output)
