"""Fixtures of all tests of commands."""

from __future__ import annotations

from pathlib import Path

import pytest
from command_line import Shell


@pytest.fixture
def shell(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Shell:
    monkeypatch.chdir(tmp_path)
    return Shell(monkeypatch, capsys)
