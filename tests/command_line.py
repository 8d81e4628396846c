"""The command line in this process, as tests call it."""

from __future__ import annotations

import sys
from typing import Any

import pytest

from daskrado.cli.main import main


class Shell:
    """Calls the command line in this process; keeps its exit code, stdout and stderr."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
        self.monkeypatch, self.capsys = monkeypatch, capsys
        self.out = self.err = ""

    def __call__(self, *words: Any) -> int:
        self.monkeypatch.setattr(sys, "argv", ["daskrado", *map(str, words)])
        with pytest.raises(SystemExit) as stop:
            main()
        self.out, self.err = self.capsys.readouterr()
        return int(stop.value.code or 0)

    def fails(self, code: int, text: str, *words: Any) -> None:
        assert self(*words) == code, self.err
        assert text in self.err
        lines = self.err.strip().splitlines()
        assert len(lines) == 1
        assert lines[0].startswith("daskrado: error: ")
        assert self.out == ""
