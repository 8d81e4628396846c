"""daskrado show and daskrado report: what was published, read back without a row or a ledger."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from report_pages import check_page

import daskrado
from daskrado.cli.main import cli
from daskrado.errors import UsageError


def call(*words: str | Path) -> Result:
    return CliRunner().invoke(cli, [str(word) for word in words])


@pytest.fixture(scope="module")
def runs(clinic: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with four runs, one of them deeper, beside things that are no runs."""
    top = tmp_path_factory.mktemp("published")
    lake, domain = clinic(3000, 3)
    common = {"dataset": "clinic", "lake": str(lake), "domain": domain}
    private = {
        "protect": {"relation": "add_remove", "unit": "one patient"},
        "budget": {"epsilon": 1.0, "delta": 1e-6},
        "ledger": {"path": str(top / "ledger.sqlite"), "first_limit": {"epsilon": 10, "delta": 1e-5}},
    }
    card = {"purpose": "to <test>", "contact": "me@clinic.example"}
    daskrado.run(common | private | {"output": str(top / "runs" / "first"), "card": card})
    daskrado.run(common | private | {"output": str(top / "runs" / "deep" / "second")})
    daskrado.run(common | {"private": False, "output": str(top / "runs" / "bare")})
    protect = {"relation": "replace_one", "unit": "one patient"}
    sets = [
        {"name": "h", "kind": "hadamard", "count": 16, "protect": protect, "budget": private["budget"]},
        {"name": "p", "kind": "uniform", "count": 4, "private": False},
    ]
    daskrado.run(
        common | {"kind": "rados", "sets": sets, "ledger": private["ledger"]} | {"output": str(top / "runs/r")}
    )
    (top / "runs" / "notes").mkdir()
    (top / "runs" / "notes" / "manifest.json").write_text("[]")
    (top / "runs" / ".hidden.new").mkdir()
    (top / "runs" / ".hidden.new" / "manifest.json").write_text("{}")
    return top / "runs"


def test_show_says_what_a_run_protects_costs_and_found(runs: Path) -> None:
    done = call("show", runs / "first")
    assert done.exit_code == 0, done.output
    for text in (
        "learn run",
        "of data set clinic",
        "epsilon = 1, delta = 1e-06",
        "an attacker is right in at most 54.8 of 100",
        "1.4 % of clinic (10, 1e-5) under add_remove; 98.6 % was left, 69 more runs like it",
        "purpose: to <test>",
        "largest weights, by moments",
        "files: model.json",
    ):
        assert text in done.output
    assert "WARNING" not in done.output
    assert call("show", runs / "first" / "model.json").output == done.output


def test_show_json_is_one_object_with_manifest_and_error_bars(runs: Path) -> None:
    found = json.loads(call("show", runs / "first", "--json").stdout)
    assert found["manifest"] == json.loads((runs / "first" / "manifest.json").read_text())
    assert found["attacker_right_of_100"] == "54.8"
    assert list(found["weights"]) == list(found["error_bars"]["weights"])
    assert found["changed_files"] == []


def test_a_file_that_was_changed_is_named(runs: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    copy.mkdir()
    for name in ("manifest.json", "model.json"):
        (copy / name).write_bytes((runs / "first" / name).read_bytes())
    (copy / "model.json").write_text((copy / "model.json").read_text().replace("moments", "monents"))
    assert "WARNING: model.json is not the file that was published" in call("show", copy).output
    (copy / "model.json").unlink()
    assert "WARNING: model.json is missing" in call("show", copy).output


def test_what_is_no_run_is_refused_in_one_line(runs: Path, tmp_path: Path) -> None:
    for words in (("show", tmp_path), ("show", tmp_path / "none"), ("show", runs / "notes"), ("report", tmp_path)):
        done = call(*words)
        assert done.exit_code == 1
        assert str(words[1]) in str(done.exception)
    assert not (tmp_path / "index.html").exists()


def test_report_writes_one_page_over_all_runs(runs: Path) -> None:
    done = call("report", runs)
    assert done.exit_code == 0, done.output
    assert done.output.splitlines()[0] == f"{runs / 'index.html'}: 4 runs"
    text = (runs / "index.html").read_text()
    page = check_page(text)
    assert {"first/report.html", "deep/second/report.html", "bare/report.html", "r/report.html"} <= set(page.links)
    assert all((runs / link).is_file() for link in page.links if not link.startswith("#"))
    assert "1 of 2 sets private, the others NOT PRIVATE" in text
    assert 'class="statement' not in text
    assert "Models compared: bare, deep/second, first" in text
    assert "notes/manifest.json: is not the manifest of a run" in text
    assert str(runs) not in text


def test_report_json_and_a_single_run(runs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[str] = []
    monkeypatch.setattr("webbrowser.open", opened.append)
    found = json.loads(call("report", runs, "--json", "--open").stdout)
    assert [one["run"] for one in found["runs"]] == ["bare", "deep/second", "first", "r"]
    assert [one["guarantee"] for one in found["runs"]][2] == "epsilon 1 at delta 1e-6, add_remove"
    assert len(found["problems"]) == 1
    assert call("report", runs / "first", "--open").output.startswith(str(runs / "first" / "report.html"))
    assert opened == [(runs / "index.html").as_uri(), (runs / "first" / "report.html").as_uri()]


def test_python_writes_the_same_page(runs: Path) -> None:
    index = daskrado.report(runs)
    assert index.page == runs / "index.html"
    page = index.page.read_text()
    assert CliRunner().invoke(cli, ["report", str(runs)]).exit_code == 0
    assert index.page.read_text() == page
    assert [line["run"] for line in index.table] == [one.folder.relative_to(runs).as_posix() for one in index.runs]
    assert all(line["run"] in page for line in index.table)
    with pytest.raises(UsageError, match="is no folder"):
        daskrado.report(runs / "nothing")
