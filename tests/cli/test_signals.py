"""Signals that end a command, wherever they arrive."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest

INSIDE_A_DESTRUCTOR = """
import os, sys, time
import daskrado.cli.main

class Dying:
    def __del__(self):
        os.kill(os.getpid(), int(sys.argv[1]))
        time.sleep(600)

def command(*words, **options):
    Dying()
    time.sleep(600)

daskrado.cli.main.cli = command
daskrado.cli.main.main()
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("number", "code", "word"), [(signal.SIGTERM, 143, "terminated"), (signal.SIGINT, 130, "interrupted")]
)
def test_a_signal_inside_a_destructor_ends_the_command(number: signal.Signals, code: int, word: str) -> None:
    program = [sys.executable, "-c", INSIDE_A_DESTRUCTOR, str(int(number))]
    ended = subprocess.run(program, capture_output=True, text=True, timeout=600, check=False)
    assert ended.returncode == code
    assert ended.stderr.startswith(f"daskrado: error: {word};")
    assert ended.stderr.count("\n") == 1
