"""The size of things: modules that can be read at a sitting, a README of one page. Ruff (C901) counts branches."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
MODULES = sorted(path for folder in ("daskrado", "pipelines") for path in (ROOT / folder).rglob("*.py"))
README = (ROOT / "README.md").read_text(encoding="utf-8")


def test_no_module_has_more_than_400_lines() -> None:
    long = {str(path.relative_to(ROOT)): lines for path in MODULES if (lines := _lines(path)) > 400}
    assert len(MODULES) > 100
    assert long == {}


def _lines(path: Path) -> int:
    return len(path.read_text(encoding="utf-8").splitlines())


def test_no_function_may_have_more_than_15_branches() -> None:
    """Ruff measures it in the test command; here nobody raises the limit or leaves a file out."""
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["ruff"]["lint"]
    assert settings["mccabe"]["max-complexity"] <= 15
    assert "C90" in settings["select"]
    ignored = [*settings["ignore"], *(rule for rules in settings["per-file-ignores"].values() for rule in rules)]
    assert not [rule for rule in ignored if rule.startswith("C")]
    assert not [str(path) for path in MODULES if "noqa: C90" in path.read_text(encoding="utf-8")]


@pytest.mark.xfail(len(README.splitlines()) > 200, reason="README.md is still to be cut", strict=True)
def test_the_readme_is_one_page() -> None:
    assert len(README.splitlines()) <= 200
    assert len(README.encode()) <= 14_000
