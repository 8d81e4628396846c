"""Processes that wait for a word, for races and crashes."""

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def start(script: str, *arguments: object) -> subprocess.Popen:
    """A process that prints a line when it is ready and goes on when it reads one."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True, "env": environment}
    return subprocess.Popen([sys.executable, "-c", script, *map(str, arguments)], **pipes)


def end(process: subprocess.Popen) -> str:
    out, _ = process.communicate(timeout=600)
    return out
