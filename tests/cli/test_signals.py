"""Signals that end a command, wherever they arrive."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from daskrado.ledger.deferred_signals import deferred_signals

# Each calls strike(), a signal to this process, where Python or a library swallows what is raised.
SWALLOWED = {
    "a destructor": """
class Dying:
    def __del__(self):
        strike()
Dying()
""",
    "a class whose failure is forgiven": """
class Named:
    def __set_name__(self, owner, name):
        strike()
try:
    type("Owner", (), {"field": Named()})
except Exception as error:
    assert type(error) is RuntimeError
""",
    "a serialiser in another language": """
import pydantic
class Model(pydantic.BaseModel):
    field: int = 1
    @pydantic.field_serializer("field")
    def shown(self, value):
        strike()
try:
    Model().model_dump()
except Exception as error:
    assert type(error).__name__ == "PydanticSerializationError"
""",
}
PROGRAM = """
import os, sys, time
import daskrado.cli.main

def strike():
    os.kill(os.getpid(), int(sys.argv[1]))
    time.sleep(600)

def command(*words, **options):
    exec(sys.argv[2], {"strike": strike})
    END

daskrado.cli.main.cli = command
daskrado.cli.main.main()
"""
ENDS = [(signal.SIGTERM, 143, "terminated"), (signal.SIGINT, 130, "interrupted")]


def ended(program: str, number: signal.Signals, code: str) -> subprocess.CompletedProcess[str]:
    words = [sys.executable, "-c", program, str(int(number)), code]
    return subprocess.run(words, capture_output=True, text=True, timeout=600, check=False)


@pytest.mark.slow
@pytest.mark.parametrize(("number", "code", "word"), ENDS)
@pytest.mark.parametrize("place", SWALLOWED)
def test_a_signal_that_is_swallowed_ends_the_command_all_the_same(
    place: str, number: signal.Signals, code: int, word: str
) -> None:
    found = ended(PROGRAM.replace("END", "time.sleep(600)"), number, SWALLOWED[place])
    assert found.returncode == code
    assert found.stderr.startswith(f"daskrado: error: {word};")
    assert found.stderr.count("\n") == 1


@pytest.mark.slow
@pytest.mark.parametrize(("number", "code", "word"), ENDS)
def test_a_signal_that_is_turned_into_an_error_is_reported_as_the_signal(
    number: signal.Signals, code: int, word: str
) -> None:
    found = ended(
        PROGRAM.replace("END", "pass"),
        number,
        SWALLOWED["a serialiser in another language"].split("try:")[0] + "Model().model_dump()",
    )
    assert (found.returncode, found.stderr.count("\n")) == (code, 1)
    assert found.stderr.startswith(f"daskrado: error: {word};")


@pytest.mark.slow
def test_a_command_that_ends_before_a_swallowed_signal_is_sent_again_says_so() -> None:
    found = ended(PROGRAM.replace("END", "pass"), signal.SIGTERM, SWALLOWED["a class whose failure is forgiven"])
    assert found.returncode == 143
    assert found.stderr == "daskrado: error: terminated; the command had done its work\n"


@pytest.fixture
def received() -> Any:
    """Signals that this process hears, in a list."""
    found: list[int] = []
    before = {n: signal.signal(n, lambda number, _: found.append(number)) for n in (signal.SIGINT, signal.SIGTERM)}
    yield found
    for number, handler in before.items():
        signal.signal(number, handler)


def send(number: signal.Signals) -> None:
    os.kill(os.getpid(), number)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_deferred_signal_is_heard_at_the_end_and_a_second_one_at_once(
    number: signal.Signals, received: list[int]
) -> None:
    handlers = [signal.getsignal(n) for n in (signal.SIGINT, signal.SIGTERM)]
    with deferred_signals():
        send(number)
        assert received == []
    assert received == [number]
    with deferred_signals():
        send(number)
        send(signal.SIGTERM)
        assert received == [number, signal.SIGTERM]
    assert received == [number, signal.SIGTERM, number]
    assert [signal.getsignal(n) for n in (signal.SIGINT, signal.SIGTERM)] == handlers


def test_what_is_ignored_stays_ignored(received: list[int]) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with deferred_signals():
        send(signal.SIGINT)
        assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    assert received == []


@pytest.mark.slow
def test_a_run_that_is_stopped_while_its_page_is_drawn_says_that_all_is_published(
    clinic: Callable[..., tuple[Path, Any]], tmp_path: Path, own_ledger: Path
) -> None:
    lake, _ = clinic(3000, 7)
    (tmp_path / "p.yaml").write_text(
        f"{{dataset: c, lake: {lake}, domain: {lake}.yaml, output: out,"
        " protect: {relation: add_remove, unit: one patient}, budget: {epsilon: 1, delta: 1.0e-6},"
        " ledger: {first_limit: {epsilon: 5, delta: 1.0e-5}}}"
    )
    out = tmp_path / "out"
    program = (
        "import os, signal, sys, daskrado.jobs.publish as publish, daskrado.cli.main\n"
        "publish.page_of = lambda *a: os.kill(os.getpid(), signal.SIGTERM)\n"
        f"sys.argv = ['daskrado', 'run', {str(tmp_path / 'p.yaml')!r}, '--out', {str(out)!r}]\n"
        "daskrado.cli.main.main()"
    )
    words = [sys.executable, "-c", program]
    found = subprocess.run(words, capture_output=True, text=True, timeout=600, check=False, env=os.environ)
    assert found.returncode == 143
    assert found.stderr == f"daskrado: error: terminated; everything was published in {out} before that\n"
    assert {path.name for path in out.iterdir()} == {"model.json", "manifest.json"}
