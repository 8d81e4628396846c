"""The command line. Commands are imported when they are called, so that help comes at once."""

from __future__ import annotations

import os
import signal
import sys
from importlib import import_module
from typing import Any

import click

from daskrado import __version__
from daskrado.cli.signals import heard, listen
from daskrado.errors import DaskradoError, in_one_line

_STAYS = "the charge stays"
WORDS = {signal.SIGINT: "interrupted", signal.SIGTERM: "terminated"}

COMMANDS = {
    "lake": ("lakes:lake", "Lakes: make a synthetic clinic."),
    "ingest": ("ingest:ingest", "Turn CSV and ARFF files into a typed Parquet lake."),
    "init": ("init:init", "Write a domain and a pipeline for a lake, from its schema."),
    "describe": ("describe:describe", "Find bounds and categories in private, or release shares of nulls."),
    "plan": ("jobs:plan", "Show what a pipeline costs; reads no data and spends nothing."),
    "run": ("jobs:run", "Run a pipeline: debit, read, add noise once, learn, publish."),
    "resume": ("jobs:resume", "Finish a run that was cut off: no second debit, no second draw."),
    "show": ("runs:show", "Show a published run: guarantee, cost, weights, files."),
    "report": ("runs:report", "Write one page over all runs of a folder."),
    "learn": ("rados:learn", "Learn from a file of rados alone."),
    "audit": ("rados:audit", "Attack a published object, to see what it gives away."),
    "evaluate": ("evaluate:evaluate", "Measure a published model on a lake, by group, with intervals."),
    "predict": ("jobs:predict", "Score a lake with a published model, into Parquet."),
    "sql": ("jobs:sql", "Print a SELECT that gives a model's margins."),
    "onnx": ("jobs:onnx", "Write a model as ONNX, for other programs."),
    "teachers": ("teachers:teachers", "Private answers to public queries from an ensemble of teachers."),
    "label": ("label:label", "Learn from another party's labels: keys, request, answer, learn."),
    "ledger": ("ledger:ledger", "Budgets: limits, what was spent, what is left."),
    "local": ("local:local", "Local privacy: randomise rows at the source, read the reports."),
    "compose": ("ledger:compose", "Add up privacy losses by every theorem, for planned or charged releases."),
    "site": ("sites:site", "Take part in a study of several sites; rows stay here."),
    "study": ("sites:study", "Coordinate a study: open, status, combine."),
    "cluster": ("cluster:cluster", "Clusters: certificates for TLS, jobs on a scheduler."),
    "schema": ("schema:schema", "Print the JSON Schema of pipelines or domains, for editors."),
    "bench": ("bench:bench", "Measure the promises of speed and memory."),
}


GROUPS = {
    "From a table to a model": ("ingest", "init", "describe", "plan", "run", "evaluate", "predict"),
    "What was published": ("show", "report", "sql", "onnx", "learn", "audit", "resume"),
    "Budgets": ("ledger", "compose"),
    "Several parties": ("study", "site", "label", "teachers", "local"),
    "Lakes, clusters, files": ("lake", "cluster", "schema", "bench"),
}
EPILOG = """\
Exit codes: 0 done, 1 data, budget or cluster, 2 usage, 130 Ctrl-C, 143 SIGTERM. Every command takes --json.

\b
Completion: eval "$(_DASKRADO_COMPLETE=bash_source daskrado)" in ~/.bashrc (zsh_source, fish_source likewise).
"""
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

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """A word that is no command asks whether another was meant."""
        if args and not args[0].startswith("-") and self.get_command(ctx, args[0]) is None:
            from daskrado.table.nearest import did_you_mean

            raise click.UsageError(
                f"No such command {args[0]!r}{did_you_mean(args[0], COMMANDS)}; see daskrado --help"
            )
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        del ctx
        for title, names in GROUPS.items():
            with formatter.section(title):
                formatter.write_dl([(name, COMMANDS[name][1]) for name in names])


@click.group(
    cls=_Lazy, epilog=EPILOG, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100}
)
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


def main() -> None:
    """Run the command line: one clear line for an error, 2 for usage, 1 for data, 130 for Ctrl-C, 143 for SIGTERM."""
    listen()
    debug = "--debug" in sys.argv[1:]
    words = [word for word in sys.argv[1:] if word != "--debug"]
    # One BLAS thread, as in Dask's workers: small products gain nothing from more, and more would fight for cores.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    code: Any
    try:
        code = cli(words, standalone_mode=False)
        if (number := heard()) is not None:  # it came too late to stop anything
            code = _complain(f"{WORDS[number]}; the command had done its work", 128 + number)
    except BaseException as error:
        number = heard() or (signal.SIGINT if isinstance(error, KeyboardInterrupt | click.Abort) else None)
        if number is not None:
            code = _complain("; ".join([WORDS[number], *_rest(error, words)]), 128 + number)
        elif isinstance(error, click.exceptions.NoArgsIsHelpError):
            click.echo(error.format_message(), err=True)
            code = 2
        elif isinstance(error, click.ClickException):
            code = _complain(error.format_message(), 2)
        elif debug or not isinstance(error, Exception):
            raise
        else:
            code = _failed(error)
    sys.exit(code if isinstance(code, int) else 0)


def _rest(error: BaseException, words: list[str]) -> list[str]:
    """What is left of a command that a signal ended."""
    # A resumed run's grant is older than this command.
    resumed = any(word == "resume" or word.startswith("--resume") for word in words)
    grant = "daskrado ledger show tells how the run stands" if resumed else "a grant that it took was given back"
    return _left(error) or [f"nothing was written, and {grant}"]


def _failed(error: Exception) -> int:
    if isinstance(error, DaskradoError):
        left = [note for note in _left(error) if note not in str(error) and not _said(str(error), note)]
        return _complain("; ".join([str(error), *left]), error.exit_code)
    if isinstance(error, OSError):
        return _complain(f"{error.filename or 'operating system'}: {error.strerror or error}", 1)
    # Not its text: that may quote a row.
    about = [f"internal error ({type(error).__name__})", *_left(error), "--debug shows where"]
    return _complain("; ".join(about), 1)


def _said(text: str, note: str) -> bool:
    """Whether an error says already what is left of its run: that the charge stays."""
    return _STAYS in text and _STAYS in note


def _left(error: BaseException) -> list[str]:
    """What a run that was charged says is left of it; other runs leave nothing behind."""
    found, chain, seen = dict[str, None](), [error], set[int]()
    while chain:
        one = chain.pop()
        seen.add(id(one))
        found |= dict.fromkeys(getattr(one, "__notes__", []))
        chain += [e for e in (one.__context__, one.__cause__) if e is not None and id(e) not in seen]
    return list(found)


def _complain(text: str, code: int) -> int:
    click.echo(f"daskrado: error: {in_one_line(' '.join(text.split()))}", err=True)
    return code
