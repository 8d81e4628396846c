"""The report page: what a reader finds first, an attacker's odds, the card, weights that may be noise."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from report_pages import check_page

import daskrado
from daskrado.errors import UsageError
from daskrado.jobs.glossary import Glossary
from daskrado.jobs.load import load_job
from daskrado.jobs.person_report import of_hundred
from daskrado.jobs.plots import bars
from daskrado.jobs.report import figures_of

Clinic = Any
CARD = {"purpose": "<script>alert(1)</script> & tests", "contact": "a@b.example", "date": "2026-11-01"}


def job(clinic: Clinic, tmp_path: Path, **more: Any) -> dict[str, Any]:
    lake, domain = clinic(4000, 2)
    common = {"dataset": "clinic", "lake": str(lake), "domain": domain, "output": str(tmp_path / "out")}
    private = {
        "protect": {"relation": "add_remove", "unit": "one patient"},
        "budget": {"epsilon": 1.0, "delta": 1e-6},
        "ledger": {"first_limit": {"epsilon": 10, "delta": 1e-5}},
    }
    return common | private | more


def page(tmp_path: Path) -> str:
    text = (tmp_path / "out" / "report.html").read_text()
    check_page(text)
    return text


def test_results_come_first_and_then_the_person(clinic: Clinic, tmp_path: Path) -> None:
    daskrado.run(job(clinic, tmp_path, card=CARD))
    text = page(tmp_path)
    titles = (
        "In short",
        "Weights",
        "What this means for one person",
        "What was protected",
        "Budget",
        "How it was made",
    )
    places = [text.index("</h2>", text.index(f">{title}", text.index("<main>"))) for title in titles]
    assert places == sorted(places)
    assert "&lt;script&gt;alert(1)&lt;/script&gt; &amp; tests" in text
    assert "<script" not in text
    assert "2026-11-01" in text
    manifest = json.loads((tmp_path / "out" / "manifest.json").read_text())
    assert manifest["job"]["card"] == CARD
    # mu 0.2367 of epsilon 1 at delta 1e-6: Phi(mu / 2) = 0.5471, and Phi(Phi^-1(0.01) + mu) = 0.0183
    assert "right in at most 54.8 of 100" in text
    assert "raises a right one in at most 1.9 of 100" in text


def test_a_baseline_protects_nobody_and_says_so(clinic: Clinic, tmp_path: Path) -> None:
    lake, domain = clinic(4000, 2)
    keys = {
        "dataset": "clinic",
        "lake": str(lake),
        "domain": domain,
        "output": str(tmp_path / "out"),
        "private": False,
    }
    daskrado.run(keys)
    text = page(tmp_path)
    assert 'class="statement none"' in text
    assert "nobody: these are exact figures" in text
    assert "What this means for one person" not in text


def test_private_sets_have_no_red_banner_over_them(clinic: Clinic, tmp_path: Path) -> None:
    protect, budget = {"relation": "replace_one", "unit": "one patient"}, {"epsilon": 1.0, "delta": 1e-6}
    sets = [
        {"name": "hidden", "kind": "hadamard", "count": 16, "protect": protect, "budget": budget},
        {"name": "bare", "kind": "uniform", "count": 4, "private": False},
    ]
    keys = job(clinic, tmp_path, kind="rados", sets=sets)
    del keys["protect"], keys["budget"]
    daskrado.run(keys)
    text = page(tmp_path)
    assert 'class="statement' not in text
    table = text[text.index('class="pairs statements"') :].partition("</table>")[0]
    rows = {row.partition("</th>")[0]: row for row in table.split('<th scope="row">')[1:]}
    assert "Differentially private" in rows["hidden"]
    assert "NOT PRIVATE" in rows["bare"]
    assert table.count('class="none"') == 1
    assert ">Sets</h2>" in text


def test_a_card_with_an_unknown_key_is_refused(clinic: Clinic, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"card.*purpse"):
        load_job(job(clinic, tmp_path, card={"purpse": "x"}))


def test_measured_figures_are_said_with_their_intervals() -> None:
    facts = {"evaluation": {"error": {"value": 0.21, "low": 0.2, "high": 0.22}, "odd": 3}, "rows": 5}
    assert figures_of(facts) == {"error": "0.2100 (0.2000 to 0.2200)"}
    assert figures_of({}) == {}


@pytest.mark.parametrize(
    ("chance", "told"), [(0.5, "50"), (0.50001, "50.1"), (1.0, "100"), (0.0, "0"), (1e-5, "0.01")]
)
def test_odds_are_never_rounded_down(chance: float, told: str) -> None:
    assert of_hundred(chance) == told


def test_a_word_is_told_once_and_its_text_is_escaped() -> None:
    gloss = Glossary()
    assert gloss("a < b") == "a &lt; b"
    assert 'title="How much a release may tell' in gloss("epsilon, delta")
    assert [word for word, _ in gloss.listed(["no such word", "the norm bound"])] == [
        "delta",
        "epsilon",
        "norm bound",
    ]


def test_names_of_features_are_text_in_a_plot() -> None:
    plot = bars({"<b>x</b> $1": 1.0, "ward=a": -2.0}, "weight", ends={"ward=a": (-3.0, -1.0)})
    assert "&lt;b&gt;x&lt;/b&gt;" in plot
    assert "<b>x" not in plot
    assert "ward=a" in plot
    assert 'aria-label="Bar chart of weight; the largest are ward=a -2' in plot
