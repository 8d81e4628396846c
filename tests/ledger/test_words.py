"""One currency: a plan, a run, a report, the ledger and its refusals say the same shares in the same words."""

from __future__ import annotations

import json
import math
import re
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

import daskrado
from daskrado.cli.main import cli
from daskrado.errors import BudgetError
from daskrado.jobs.base import Job
from daskrado.jobs.load import load_job
from daskrado.jobs.published import Published
from daskrado.jobs.show import plan_lines
from daskrado.ledger.entries import following_limits, without_limit
from daskrado.ledger.history import check_all
from daskrado.ledger.ledger import Ledger, Mark
from daskrado.ledger.records import Balance
from daskrado.ledger.show import ledger_lines
from daskrado.ledger.words import Price, percent, refusal, run_line
from daskrado.privacy.accountant import ApproximateEvent, GaussianEvent, PureEvent, gaussian_mu
from daskrado.privacy.filter import Cost, GaussianFilter, PureSums, filter_for, following
from daskrado.privacy.groups import ProtectedUnit
from daskrado.privacy.relations import Relation

ROW = ProtectedUnit(Relation.ADD_REMOVE)
OLD_WORDS = re.compile(r"\bmu \d|of \d+ spent|for one (more )?pure")


def job(clinic: Any, relation: str = "add_remove", **keys: Any) -> Job:
    path, domain = clinic(2000, 2)
    content = {
        "dataset": "clinic",
        "lake": str(path),
        "domain": domain,
        "output": "unused",
        "protect": {"relation": relation, "unit": "one patient"},
        "budget": {"epsilon": 1.0, "delta": 1e-6},
        "ledger": {"first_limit": {"epsilon": 10, "delta": 1e-5}},
    }
    return load_job(content | keys)


def test_the_sentence_of_the_issue() -> None:
    rule = filter_for(10, 1e-5)
    cost = rule.cost(GaussianEvent(gaussian_mu(1, 1e-6)))
    line = run_line("epsilon 1 at delta 1e-6", [Price(Balance("clinic", ROW, "", rule, cost, 1), cost)])
    assert line == (
        "this run: epsilon 1 at delta 1e-6 = 1.4 % of the budget of clinic (10, 1e-5); "
        "98.6 % left, 69 more runs like this"
    )


def test_another_budget_that_has_room_for_fewer_runs_is_told_beside_it() -> None:
    """The largest share is of rows; runs on labels have nearly used up that of labels, which has its own rest."""
    rows, labels = filter_for(10, 0), filter_for(20, 0)
    own = Price(Balance("clinic", ROW, "", rows, rows.cost(PureEvent(1)), 1), rows.cost(PureEvent(1)))
    used = Balance("clinic", ProtectedUnit(Relation.LABEL_FLIP), "", labels, labels.cost(PureEvent(18)), 9)
    line = run_line("epsilon 1", [own, Price(used, labels.cost(PureEvent("1.9")))])
    assert line == (
        "this run: epsilon 1 = 10 % of the budget of clinic (10, 0) under add_remove; 90 % left, 9 more runs like "
        "this; 9.5 % of clinic (20, 0) under label_flip: 10 % left, 1 more"
    )
    assert run_line("epsilon 1", [own]).endswith("(10, 0); 90 % left, 9 more runs like this")


def test_share_rest_and_number_are_of_one_counter() -> None:
    """Half of the loss is spent and nothing of what is kept for deltas, of which this run takes more."""
    rule = filter_for(10, 1e-5)
    spent = rule.cost(GaussianEvent(float(rule.mu) / math.sqrt(2)))
    one = rule.cost(ApproximateEvent("0.2", "1.8e-8"))
    shares = rule.shares(one)
    assert shares["delta"] > shares["loss"]
    price = Price(Balance("clinic", ROW, "", rule, spent + one, 2), one)
    assert (price.share, price.left) == (shares["loss"], 1 - rule.shares(spent + one)["loss"])
    line = run_line("epsilon 0.2 at delta 1.8e-8", [price])
    assert f"= {percent(price.share)} of the budget of clinic (10, 1e-5); {percent(price.left)} left, " in line
    assert line.endswith(f"{price.left // price.share} more runs like this")


@given(st.lists(st.tuples(st.floats(0.01, 1), st.integers(1, 40)), min_size=1, max_size=5), st.floats(0.01, 1))
def test_so_many_more_runs_are_what_the_rest_and_the_share_say(
    spent: list[tuple[float, int]], epsilon: float
) -> None:
    rule, total = filter_for(10, 1e-5), Cost()
    for size, places in spent:
        total = total + rule.cost(ApproximateEvent(round(size, 3), f"{places}e-9"))
        total = total + rule.cost(GaussianEvent(round(size / 20, 4)))
    one = rule.cost(ApproximateEvent(round(epsilon, 3), "1e-9"))
    price = Price(Balance("clinic", ROW, "", rule, total + one, 1), one)
    assert price.more == max(0, math.floor(price.left / price.share))
    fits = [rule.fits(total + one, one.times(number)) for number in (price.more, price.more + 1)]
    assert price.over or fits == [True, False]


def test_a_line_of_the_ledger_names_the_counter_that_its_runs_need(tmp_path: Path) -> None:
    ledger = Ledger.open(tmp_path / "ledger.db")
    ledger.set_limit("clinic", "add_remove", 10, "1e-5")
    ledger.reserve("clinic", ROW, ApproximateEvent("0.001", "9e-7"), theorem="t", run="r")
    (line,) = (line for line in ledger_lines(ledger) if "more runs" in line)
    loss = percent(1 - ledger.balances("clinic")[0].rule.shares(ledger.balances("clinic")[0].total)["loss"])
    assert f": 90 % spent, 10 % left; {loss} of loss left, 70 more runs of epsilon 1 at delta 1e-6 (" in line


def test_a_refusal_says_what_would_fit_and_that_fits() -> None:
    rule = filter_for(10, 0)
    total, asked = rule.cost(PureEvent(9.7)), rule.cost(PureEvent(0.5))
    said = refusal(Balance("clinic", ROW, "", rule, total, 1), asked)
    assert said == (
        "the budget of clinic (10, 0) does not cover this: asked for 5 %, 3 % is left: epsilon 0.3 would fit; "
        "nothing was debited"
    )
    assert rule.fits(total, rule.cost(PureEvent(0.3)))


@pytest.mark.parametrize("steps", [1, 2, 5])
def test_what_would_fit_counts_the_steps(steps: int) -> None:
    for rule, delta in ((filter_for(10, 0), 0), (filter_for(10, 1e-5), 0), (filter_for(10, 1e-5), 1e-6)):
        largest = rule.largest_epsilon(Cost(), delta, steps)
        mu = gaussian_mu(largest, delta) if delta else 0
        event = GaussianEvent(steps * mu) if delta else PureEvent(steps * Fraction(str(largest)))
        assert rule.fits(Cost(), rule.cost(event))


def test_shares_look_like_nothing_or_all_only_where_they_are() -> None:
    assert percent(Fraction(1, 10**9)) not in ("0 %", "0.0 %")
    assert percent(1 - Fraction(1, 10**9)) != "100 %"
    assert (percent(Fraction(0)), percent(Fraction(1))) == ("0 %", "100 %")


@pytest.mark.parametrize(("epsilon", "delta"), [(10, 1e-5), (1, 1e-6), (5, 0), (15, 1e-5)])
def test_a_release_takes_the_same_share_of_a_limit_that_follows(epsilon: float, delta: float) -> None:
    rule = filter_for(epsilon, delta)
    wider = following(rule, 2)
    assert wider is not None
    event, twice = (GaussianEvent(0.1), GaussianEvent(0.2)) if delta else (PureEvent(0.1), PureEvent(0.2))
    own, other = rule.shares(rule.cost(event))["loss"], wider.shares(wider.cost(twice))["loss"]
    assert other <= own * (1 + Fraction(1, 10**9))
    assert other >= own * Fraction(97, 100)  # an epsilon of three digits


def test_no_limit_follows_above_epsilon_50() -> None:
    assert following(filter_for(30, 0), 2) is None
    assert following(filter_for(40, 1e-5), 2) is None
    missing = without_limit(following_limits("add_remove", filter_for(30, 0)))
    assert missing.startswith(
        "none under replace_one and label_flip and feature_flip, where more than epsilon 50 would"
    )
    assert without_limit(following_limits("add_remove", filter_for(10, 1e-5))) == ""
    assert [str(whose.relation) for whose, _ in following_limits("add_remove", filter_for(30, 0))] == ["add_remove"]
    assert {type(rule) for _, rule in following_limits("label_flip", filter_for(30, 0))} == {PureSums}
    limits = dict(following_limits("replace_one", filter_for(30, 1e-5)))
    assert {rule.epsilon for rule in limits.values()} == {30}
    assert all(isinstance(rule, GaussianFilter) for rule in limits.values())


def test_plan_run_report_and_ledger_say_the_same(clinic: Any, tmp_path: Path, own_ledger: Path) -> None:
    made = job(clinic, output=str(tmp_path / "out"))
    planned = [line for line in plan_lines(made, None) if "this run:" in line]
    result = daskrado.run(made)
    (line,) = [line for line in result.lines if line.startswith("this run:")]
    assert planned == [f"budget      {line}"]
    assert "= 1.4 % of the budget of clinic (10, 1e-5) under add_remove; 98.6 % left, 69 more runs like this" in line
    page = (tmp_path / "out" / "report.html").read_text()
    assert line in page
    assert "Who spent what, and when" in page
    told = "\n".join(Published.load(tmp_path / "out").lines())
    assert "budget: 1.4 % of clinic (10, 1e-5) under add_remove; 98.6 % was left, 69 more runs like it" in told
    ledger = Ledger.open(own_ledger)
    manifest = json.loads((tmp_path / "out" / "manifest.json").read_text())
    own = manifest["budget"][0]
    assert (own["relation"], own["more_runs"], round(own["share"], 4)) == ("add_remove", 69, 0.0141)
    assert own["ledger_head"].partition(":")[0].isdigit()
    shown = "\n".join(ledger_lines(ledger, totals=True))
    assert (
        "clinic (10, 1e-5) under add_remove for one row: 1.4 % spent, 98.6 % left, 69 more runs of epsilon 1" in shown
    )
    assert f"run {result.run[:12]}: 1.4 %" in shown
    assert "one row has lost at most 1.4 % of clinic (24.4, 1e-5) under replace_one" in shown
    for text in (shown, "\n".join(result.lines), "\n".join(plan_lines(made, ledger)), page):
        assert not OLD_WORDS.search(text)


@pytest.mark.parametrize(
    ("epsilon", "delta", "fits", "event"),
    [
        ("10", "1e-5", "70 more runs of epsilon 1 at delta 1e-6", GaussianEvent(gaussian_mu(1, 1e-6))),
        ("10", "0", "10 more runs of epsilon 1", PureEvent(1)),
        ("0.5", "0", "10 more runs of epsilon 0.05", PureEvent("0.05")),
        ("1", "1e-6", "1 more run of epsilon 1 at delta 1e-7", GaussianEvent(gaussian_mu(1, 1e-7))),
    ],
)
def test_a_limit_says_what_fits_and_so_much_does(
    own_ledger: Path, epsilon: str, delta: str, fits: str, event: Any
) -> None:
    words = ["ledger", "limit", "clinic", "--epsilon", epsilon, "--delta", delta, "--ledger", str(own_ledger)]
    done = CliRunner().invoke(cli, words)
    assert f"under add_remove for one row: 0 % spent, 100 % left, {fits}" in done.output
    ledger = Ledger.open(own_ledger)
    for _ in range(int(fits.split()[0])):
        ledger.reserve("clinic", "add_remove", event, theorem="t", run="r")
    assert "no more run of epsilon" in next(line for line in ledger_lines(ledger) if "under add_remove" in line)
    with pytest.raises(BudgetError, match="nothing was debited"):
        ledger.reserve("clinic", "add_remove", event, theorem="t", run="r")


def two_sets(clinic: Any, budget: dict[str, float], limit: dict[str, float]) -> Job:
    """A run of two charges."""
    path, domain = clinic(2000, 2)
    protect = {"relation": "add_remove", "unit": "one patient"}
    one = {"kind": "balanced", "count": 64, "protect": protect, "budget": budget}
    own = {"dataset": "clinic", "lake": str(path), "domain": domain, "output": "unused"}
    sets = [{"name": name, **one} for name in ("one", "two")]
    return load_job({**own, "kind": "rados", "sets": sets, "ledger": {"first_limit": limit}})


def test_charges_that_do_not_fit_together_are_refused_as_planned(clinic: Any, own_ledger: Path) -> None:
    """Not one of them is debited first: the ledger has no entry at all, not even a void one."""
    made = two_sets(clinic, {"epsilon": 1.0, "delta": 1e-6}, {"epsilon": 1.1, "delta": 1e-6})
    (planned,) = [line for line in plan_lines(made, None) if line.startswith("refused")]
    with pytest.raises(BudgetError) as refused:
        daskrado.run(made, write=False)
    assert planned == f"refused     {refused.value}"
    assert Ledger.open(own_ledger).entries() == []


def test_charges_that_add_up_to_the_limit_fit(clinic: Any, own_ledger: Path) -> None:
    daskrado.run(two_sets(clinic, {"epsilon": 0.5}, {"epsilon": 1}), write=False)
    own = Ledger.open(own_ledger).balance("clinic", "add_remove")
    assert own is not None
    assert own.rule.share(own.total) == 1


@pytest.mark.parametrize("first", list(Relation)[:3])
@pytest.mark.parametrize("second", list(Relation)[:3])
def test_a_first_pipeline_locks_nobody_out(clinic: Any, first: str, second: str, own_ledger: Path) -> None:
    daskrado.run(job(clinic, first), write=False)
    made = job(clinic, second)
    planned = [line for line in plan_lines(made, Ledger.open(own_ledger)) if "this run:" in line]
    lines = daskrado.run(made, write=False).lines
    assert planned == [f"budget      {line}" for line in lines if line.startswith("this run:")]


def test_a_plan_refuses_as_the_run_does(clinic: Any, own_ledger: Path) -> None:
    made = job(clinic, budget={"epsilon": 2.0})
    Ledger.open(own_ledger).set_limit("clinic", "add_remove", 1, 0)
    (said,) = [
        line.removeprefix("refused     ") for line in plan_lines(made, Ledger.open(own_ledger)) if "refused" in line
    ]
    with pytest.raises(BudgetError, match=re.escape(said)):
        daskrado.run(made, write=False)
    other = job(clinic, "replace_one", budget={"epsilon": 0.1})
    (said,) = [
        line.removeprefix("refused     ") for line in plan_lines(other, Ledger.open(own_ledger)) if "refused" in line
    ]
    assert "no limit under replace_one" in said
    with pytest.raises(BudgetError, match=re.escape(said)):
        daskrado.run(other, write=False)


def test_a_limit_for_rows_becomes_one_for_patients(clinic: Any, own_ledger: Path) -> None:
    daskrado.run(job(clinic), write=False)

    def limit(*options: str) -> Any:
        return CliRunner().invoke(cli, ["ledger", "limit", "clinic", "--epsilon", "10", "--delta", "1e-5", *options])

    refused = limit("--relation", "add_remove", "--column", "patient")
    assert refused.exit_code == 1
    assert "proves nothing about the limit" in str(refused.exception)
    done = limit("--column", "patient", "--owns", "5")
    assert done.exit_code == 0, done.output
    rows, patients = (line for line in done.output.splitlines() if " under add_remove for " in line)
    assert " for one row: 1.4 % spent" in rows
    declared = "(all rows of one patient, 5 at most by the owner's word, which nothing checks)"
    assert f"{declared}: 35.3 % spent" in patients  # 25 times the 1.41 % of a row
    assert len(done.output.splitlines()) == 2 * len(Relation)
    shown = "\n".join(ledger_lines(Ledger.open(own_ledger)))
    assert "one row has lost at most 1.4 % of clinic (24.4, 1e-5) under replace_one" in shown
    # A limit that follows is rounded up to three digits, so that a share of it is no larger.
    assert re.search(r"one patient has lost at most 35\.[23] % of clinic \(24\.4, 1e-5\) under replace_one", shown)
    assert "names the column of their ids" in str(limit("--owns", "5").exception)


def test_a_pipeline_for_patients_is_told_how_their_limit_is_set(clinic: Any, own_ledger: Path) -> None:
    protect = {"relation": "label_flip", "unit": {"column": "patient_id", "name": "one patient"}}
    made = job(clinic, protect=protect, budget={"epsilon": 1.0, "delta": 1e-6})
    Ledger.open(own_ledger).set_limit("clinic", "add_remove", 10, 1e-5)
    with pytest.raises(BudgetError, match=r"--delta D --column patient_id --unit 'one patient'$"):
        daskrado.run(made, write=False)


def test_what_is_public_is_marked_once_and_runs_without_privacy_each_time(
    clinic: Any, own_ledger: Path, tmp_path: Path
) -> None:
    for relation in ("add_remove", "replace_one", "replace_one", "label_flip"):
        daskrado.run(job(clinic, relation, budget={"epsilon": 0.2, "delta": 1e-6}), write=False)
    plain = job(clinic).model_copy(update={"private": False, "protect": None, "budget": None})
    done = daskrado.run(plain, write=False)
    ledger = Ledger.open(own_ledger)
    assert [marked.mark for marked in ledger.marks("clinic")] == [Mark.COUNTS, Mark.FEATURES, Mark.NOT_PRIVATE]
    assert ledger.marks("clinic")[-1].run == done.run
    shown = "\n".join(ledger_lines(ledger))
    assert shown.count("exact counts published on ") == 1
    assert "exact features published on " in shown
    assert f"a run without privacy on {ledger.marks('clinic')[-1].at[:10]} by " in shown
    assert "beside that 1 release under label_flip, where all features are public" in shown
    daskrado.run(plain.model_copy(update={"output": str(tmp_path / "out")}))
    assert ledger.marks("clinic")[-1].mark is Mark.MODEL
    assert "exact model published on " in "\n".join(ledger_lines(ledger))


def test_a_run_of_several_charges_is_told_as_what_was_asked_for(clinic: Any) -> None:
    """Counting rows, scaling and descending are two Gaussian charges: sqrt(mu1^2 + mu2^2) is the mu of (1, 1e-6)."""
    line = next(line for line in plan_lines(job(clinic, learner={"kind": "gradient"}), None) if "this run:" in line)
    assert re.search(r"this run: epsilon 1 at delta 1e-6 in \d charges = 1\.4 % of the budget of clinic", line)


def test_a_limit_with_delta_0_speaks_of_epsilon_and_delta(clinic: Any, tmp_path: Path) -> None:
    ledger = Ledger.open(tmp_path / "ledger.db")
    ledger.set_limit("clinic", None, 5, 0)
    with pytest.raises(BudgetError, match="ask for delta 0, or let the owner set a limit with a delta") as refused:
        ledger.reserve("clinic", ROW, GaussianEvent(0.1), theorem="t", run="r")
    assert not re.search("mu |Gaussian|pure", str(refused.value))


def test_shares_that_add_up_to_more_than_is_spent_say_why(tmp_path: Path) -> None:
    """One run fills a counter of deltas, the other that of loss: neither sum is the sum of both shares."""
    ledger = Ledger.open(tmp_path / "ledger.db")
    ledger.set_limit("clinic", None, 10, "1e-5")
    why = "  (these add up to more than is spent: each is the largest of its run, over all counters and limits)"
    for run in "ab":
        ledger.reserve("clinic", ROW, GaussianEvent(1), theorem="t", run=run)
    assert why not in [*ledger_lines(ledger)]
    ledger.reserve("clinic", ROW, ApproximateEvent("0.001", "2e-7"), theorem="t", run="c")
    assert [*ledger_lines(ledger)][-1] == why


def test_the_name_of_a_unit_forges_no_line(tmp_path: Path) -> None:
    ledger = Ledger.open(tmp_path / "ledger.db")
    forged = ProtectedUnit(Relation.ADD_REMOVE, unit="one row\n  2026-11-18 09:00 bob, run 1: 0 % (void)\x1b[2K")
    ledger.set_limit("clinic", forged, 1, 0)
    ledger.reserve("clinic", forged, PureEvent("0.1"), theorem="t", run="r")
    lines = [*ledger_lines(ledger)]
    assert all(line.isprintable() for line in lines)
    assert not any(line.startswith("  2026-11-18 09:00 bob") for line in lines)
    check_all(ledger)
