"""Processes that are killed at a chosen moment, forked from one that has imported everything: they start at once."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator

import pytest

FORGE = """
import importlib, json, os, sys, traceback
import daskrado.api, daskrado.cli, daskrado.runs.resume, daskrado.runs.combine, daskrado.runs.site, matplotlib.figure
from daskrado.runs.kinds import KINDS
for where in KINDS.values():
    importlib.import_module(where.partition(":")[0])
for line in sys.stdin:
    asked = json.loads(line)
    child = os.fork()
    if child == 0:
        os.environ.update(asked["environ"])
        os.dup2(2, 1)  # what it prints is not an answer
        try:
            exec(asked["code"], {"__name__": "child"})
            code = 0
        except BaseException:
            traceback.print_exc()
            code = 1
        os._exit(code)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
"""


@pytest.fixture(scope="session")
def forge() -> Iterator[Callable[[str], int]]:
    """``forge(code)``: run a program in a process of its own; returns its exit code, negative for a signal."""
    with subprocess.Popen(
        [sys.executable, "-c", FORGE], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=os.environ
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None

        def run(code: str) -> int:
            environ = {"DASKRADO_LEDGER": os.environ["DASKRADO_LEDGER"]}
            process.stdin.write(json.dumps({"code": code, "environ": environ}) + "\n")
            process.stdin.flush()
            return int(process.stdout.readline())

        yield run
        process.stdin.close()


@pytest.fixture
def killed(forge: Callable[[str], int]) -> Callable[[str], None]:
    """``killed(code)``: run a program that kills itself, and see that it did."""

    def run(code: str) -> None:
        assert forge(f"import os, signal\n{code}") == -signal.SIGKILL

    return run
