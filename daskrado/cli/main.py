"""The command line. Commands are imported when they are called, so that help comes at once."""

from __future__ import annotations

import os
import signal
import sys
import threading
from importlib import import_module
from typing import Any

import click

from daskrado import __version__
from daskrado.errors import DaskradoError, LedgerError

INTERRUPTED, TERMINATED = 130, 143  # 128 and the number of the signal
SEND_AGAIN = 0.05  # seconds: a destructor has ended by then

COMMANDS = {
    "lake": ("lakes:lake", "Lakes: make a synthetic clinic."),
    "ingest": ("ingest:ingest", "Turn CSV and ARFF files into a typed Parquet lake."),
    "init": ("init:init", "Write a domain and a pipeline for a lake, from its schema."),
    "describe": ("lakes:describe", "Release noisy shares of what the columns hold."),
    "plan": ("jobs:plan", "Show what a pipeline costs; reads no data and spends nothing."),
    "run": ("jobs:run", "Run a pipeline: debit, read, add noise once, learn, publish."),
    "resume": ("jobs:resume", "Finish a run that was cut off: no second debit, no second draw."),
    "learn": ("rados:learn", "Learn from a file of rados alone."),
    "audit": ("rados:audit", "Attack a published object, to see what it gives away."),
    "predict": ("jobs:predict", "Score a lake with a published model, into Parquet."),
    "sql": ("jobs:sql", "Print a SELECT that gives a model's margins."),
    "teachers": ("teachers:teachers", "Private answers to public queries from an ensemble of teachers."),
    "label": ("label:label", "Learn from another party's labels: keys, request, answer, learn."),
    "ledger": ("ledger:ledger", "Budgets: limits, what was spent, what is left."),
    "local": ("local:local", "Local privacy: randomise rows at the source, read the reports."),
    "compose": ("ledger:compose", "Add up privacy losses by every theorem, for planned or charged releases."),
    "site": ("sites:site", "Take part in a study of several sites; rows stay here."),
    "study": ("sites:study", "Coordinate a study: open, status, combine."),
    "cluster": ("cluster:cluster", "Clusters: certificates for TLS, jobs on a scheduler."),
    "bench": ("bench:bench", "Measure the promises of speed and memory."),
}


OLDER = {"make-lake": "lakes:make_lake"}  # spellings that stay readable, and are not listed


class _Lazy(click.Group):
    """Knows every command by name and one line of help; imports one only to run it."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """In the order a new user needs them."""
        del ctx
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        del ctx
        where = COMMANDS[cmd_name][0] if cmd_name in COMMANDS else OLDER.get(cmd_name)
        if where is None:
            return None
        module, _, name = where.partition(":")
        command: click.Command = getattr(import_module(f"daskrado.cli.commands.{module}"), name)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        del ctx
        with formatter.section("Commands"):
            formatter.write_dl([(name, text) for name, (_, text) in COMMANDS.items()])


@click.group(cls=_Lazy, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(__version__)
@click.option("--debug", is_flag=True, help="Show a traceback with an error.")
@click.option("-v", "--verbose", is_flag=True, help="Say on stderr what happens; never a value from a row.")
def cli(debug: bool, verbose: bool) -> None:
    """Learn linear classifiers with differential privacy from Parquet lakes."""
    del debug  # read by main
    if verbose:
        import logging

        handler = logging.StreamHandler()
        handler.setFormatter(logging.Formatter("%(asctime)s %(name)s: %(message)s", "%H:%M:%S"))
        logging.getLogger("daskrado").addHandler(handler)
        logging.getLogger("daskrado").setLevel(logging.INFO)


class Terminated(BaseException):
    """SIGTERM, as scancel, kubectl delete, timeout and a shutdown send it: it ends a run as Ctrl-C does."""


def _on_sigterm(number: int, frame: Any) -> None:
    del frame
    signal.signal(number, signal.SIG_IGN)  # once is enough: what follows gives grants back
    raise Terminated


def _send_again(swallowed: Any) -> None:
    """A signal that arrived inside a destructor: Python drops what destructors raise, so the signal is sent again."""
    number = {Terminated: signal.SIGTERM, KeyboardInterrupt: signal.SIGINT}.get(swallowed.exc_type)
    if number is None:
        sys.__unraisablehook__(swallowed)
        return
    if number == signal.SIGTERM:
        signal.signal(number, _on_sigterm)
    threading.Timer(SEND_AGAIN, os.kill, [os.getpid(), number]).start()


def main() -> None:
    """Run the command line: one clear line for an error, 2 for usage, 1 for data, 130 for Ctrl-C, 143 for SIGTERM."""
    signal.signal(signal.SIGTERM, _on_sigterm)
    sys.unraisablehook = _send_again
    debug = "--debug" in sys.argv[1:]
    words = [word for word in sys.argv[1:] if word != "--debug"]
    # One BLAS thread, as in Dask's workers: small products gain nothing from more, and more would fight for cores.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    code: Any
    try:
        code = cli(words, standalone_mode=False)
    except DaskradoError as error:
        if debug:
            raise
        left = [note for note in _left(error) if not isinstance(error, LedgerError) and note not in str(error)]
        code = _complain("; ".join([str(error), *left]), error.exit_code)
    except click.exceptions.NoArgsIsHelpError as error:
        click.echo(error.format_message(), err=True)
        code = 2
    except click.ClickException as error:
        code = _complain(error.format_message(), 2)
    except (KeyboardInterrupt, click.Abort, Terminated) as error:
        # A resumed run's grant is older than this command.
        resumed = any(word == "resume" or word.startswith("--resume") for word in words)
        grant = "daskrado ledger show tells how the run stands" if resumed else "a grant that it took was given back"
        rest = _left(error) or [f"nothing was written, and {grant}"]
        ended = ("terminated", TERMINATED) if isinstance(error, Terminated) else ("interrupted", INTERRUPTED)
        code = _complain("; ".join([ended[0], *rest]), ended[1])
    except OSError as error:
        if debug:
            raise
        code = _complain(f"{error.filename or 'operating system'}: {error.strerror or error}", 1)
    except Exception as error:
        if debug:
            raise
        # Not its text: that may quote a row.
        code = _complain(
            "; ".join([f"internal error ({type(error).__name__})", *_left(error), "--debug shows where"]), 1
        )
    sys.exit(code if isinstance(code, int) else 0)


def _left(error: BaseException) -> list[str]:
    """What a run that was charged says is left of it; other runs leave nothing behind."""
    found = [getattr(e, "__notes__", []) for e in (error, error.__cause__, error.__context__) if e is not None]
    return list(dict.fromkeys(note for notes in found for note in notes))


def _complain(text: str, code: int) -> int:
    click.echo(f"daskrado: error: {' '.join(text.split())}", err=True)
    return code
