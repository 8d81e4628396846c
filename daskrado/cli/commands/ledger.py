"""Commands on the ledger, and the one that adds up what releases cost."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import click

from daskrado.cli.commands.shared import open_ledger
from daskrado.cli.commands.signature import AsJson, LedgerPath, Lines, command

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from daskrado.ledger.history import Replay
    from daskrado.ledger.odometer import Odometer

ledger = click.Group("ledger", help="Budgets: limits set by owners, what was spent, what is left.")


@command(ledger)
def show(
    dataset: str | None = None,
    *,
    blocks: Annotated[bool, "A line for each block of DATASET."] = False,
    ledger: LedgerPath = None,
    totals: Annotated[bool, "What all entries would cost together, had they been planned beforehand."] = False,
    as_json: Annotated[bool, "--json", "Every entry, as JSON."] = False,
) -> Lines:
    """Show limits, what is spent and left of each, who spent it and when, of DATASET or of all.

    Examples:
      daskrado ledger show
      daskrado ledger show clinic --totals
    """
    from daskrado.ledger.show import block_lines, ledger_lines

    if blocks and (dataset is None or as_json or totals):
        raise click.UsageError("--blocks lists the blocks of one data set: give DATASET, without --json or --totals")
    with open_ledger(ledger, create=False) as opened:
        if as_json:
            return json.dumps(opened.to_json(), indent=2)
        if blocks and dataset is not None:
            return [*block_lines(opened, dataset)]
        return [*ledger_lines(opened, dataset, totals=totals)]


@command(ledger)
def limit(
    dataset: str,
    *,
    relation: Annotated[
        str | None, "Only under this one.  [default: add_remove, and what follows under the others]"
    ] = None,
    epsilon: Annotated[str, "The most that may ever be spent."],
    delta: str = "0",
    column: Annotated[str | None, "The id column of the people whom the limit is for, in place of rows."] = None,
    unit: Annotated[str | None, "What one of them is called."] = None,
    owns: Annotated[int | None, "The most rows that one of them has: your word, which nothing checks."] = None,
    within: Annotated[str | None, "Only their rows with one value of this column, such as a day."] = None,
    per_block: Annotated[bool, "A budget of this size for each block of the lake, also those to come."] = False,
    ledger: LedgerPath = None,
) -> Lines:
    """Set the limit of a data set, its owner's decision: without --relation, with what follows under all of them.

    What was charged before counts against it. A limit for people (--column) stands beside one for rows: every
    charge has to fit both. It counts a charge for rows as a group of --owns rows, and refuses it without that.

    Examples:
      daskrado ledger limit clinic --epsilon 10 --delta 1e-5
      daskrado ledger limit clinic --epsilon 10 --delta 1e-5 --column patient_id
    """
    from daskrado.lake.block_facts import EACH
    from daskrado.ledger.entries import following_limits, people, without_limit
    from daskrado.ledger.show import balance_line
    from daskrado.privacy.filter import filter_for

    with open_ledger(ledger, create=True) as opened:
        block, whom = EACH if per_block else "", people(relation, column, unit, owns, within)
        opened.set_limit(dataset, whom, epsilon, delta, block=block, follows=relation is None)
        missing = "" if relation else without_limit(following_limits(whom, filter_for(epsilon, delta)))
        known = [
            balance
            for balance in opened.balances(dataset)
            if relation in (None, str(balance.relation)) and balance.block == block
        ]
        lines = [f"{opened.address}: {balance_line(balance)}" for balance in known]
        return [*lines, *([f"{dataset}: {missing}"] if missing else ())]


@command(ledger)
def export(
    file: Path,
    *,
    key: Annotated[Path, "A private key, to sign with."],
    overwrite: Annotated[bool, "Replace FILE if it exists."] = False,
    ledger: LedgerPath = None,
) -> Lines:
    """Write the ledger's whole history to FILE, signed, for somebody else to verify; no fingerprint is in it.

    Examples:
      daskrado ledger export history.json --key owner.key
    """
    from daskrado.lake.publish import check_free_text
    from daskrado.ledger.history import SCHEMA, exported
    from daskrado.parties.signing import SigningKey
    from daskrado.table.yaml_file import write_text

    check_free_text(file, overwrite=overwrite)
    signer = SigningKey.load(key)
    with open_ledger(ledger, create=False) as opened:
        told = exported(opened)
    write_text(file, signer.sign(SCHEMA, told))
    return f"{file}: {len(told['records']):,} records, head {told['head']}"


@command(ledger)
def verify(
    file: str,
    *,
    trust: Annotated[tuple[Path, ...], "The public key of who exported it; without one FILE is a ledger."] = (),
    runs: Annotated[Path | None, "A folder of published runs: each must be in it, as its manifest noted."] = None,
) -> Lines:
    """Check an exported history, or a ledger itself: signature, chain, every total, every state.

    With --runs a ledger that was put back from a copy shows: it lacks what runs noted since.

    Examples:
      daskrado ledger verify history.json --trust owner.key.pub
      daskrado ledger verify ~/.daskrado/ledger.sqlite --runs runs
    """
    from daskrado.ledger.history import SCHEMA, check_all, verified
    from daskrado.parties.signing import load_public, read_signed

    if trust:
        keys = [load_public(path) for path in trust]
        replay = verified(file, read_signed(Path(file).read_text(encoding="utf-8"), SCHEMA, keys, file))
    else:
        with open_ledger(file, create=False) as opened:
            replay, file = check_all(opened), opened.address  # which shows no password
    said = f"{file}: {replay.head.record:,} records follow from each other, every total adds up; head {replay.head}"
    return said if runs is None else [said, _runs_held(replay, runs)]


def _runs_held(replay: Replay, folder: Path) -> str:
    from daskrado.errors import LedgerError
    from daskrado.jobs.published import published_below
    from daskrado.ledger.chain import Head

    noted = [(one.folder, Head.read(head)) for one in published_below(folder)[0] for head in one.ledger_heads]
    for run, head in noted:
        if not replay.holds(head):
            raise LedgerError(
                f"{run}: noted a ledger of {head.record:,} records when it was published, and {replay.address} does "
                "not hold them: a copy was put back, or another ledger paid; restore the latest one"
            )
    return f"{folder}: {len({run for run, _ in noted})} private runs, all of them in this ledger"


@command(ledger)
def copy(
    source: str,
    target: str,
    *,
    leave: Annotated[bool, "Also where runs are unfinished: nobody can resume them, and they stay charged."] = False,
) -> Lines:
    """Move a ledger to a new file or database, with its whole chain and its engines; the old one is closed.

    What fails leaves the old one as it was; cut off after it was closed, the same command goes on.

    Examples:
      daskrado ledger copy ledger.sqlite postgresql://user@server/database
    """
    from daskrado.ledger.moving import moved

    with open_ledger(source, create=False) as opened:
        return f"{moved(opened, target, leave=leave).address}: {opened.address} was moved here, and is closed"


@command()
def compose(
    *,
    releases: Annotated[
        tuple[str, ...],
        "--release",
        "One release of a round: 0.1, or 0.1,1e-8 with a delta, or rho=0.01, or mu=0.1; x20 repeats it (repeatable)",
    ] = (),
    count: Annotated[int | None, "Number of rounds.  [default: 100, or 1 for a ledger]"] = None,
    delta: str = "1e-6",
    rows_per_person: Annotated[int, "Group privacy."] = 1,
    dataset: Annotated[str | None, "Take the charges of this data set in the ledger as one round."] = None,
    relation: Annotated[str | None, "Only charges under this relation."] = None,
    ledger: LedgerPath = None,
    plot: Annotated[Path | None, "Write the curves as an SVG file."] = None,
    as_json: AsJson = False,
) -> Lines:
    """Print epsilon against the number of releases, by every composition theorem; the smallest is what counts.

    Examples:
      daskrado compose --release 0.1 --count 100
      daskrado compose --dataset clinic --relation add_remove --delta 1e-5
    """
    from daskrado.ledger.odometer import charged_events, odometer, odometer_lines, read_release
    from daskrado.table.yaml_file import write_text

    events = [event for text in releases for event in read_release(text)]
    if dataset is not None:
        with open_ledger(ledger, create=False) as opened:
            events += charged_events(opened, dataset, relation)
        if not events:
            raise click.UsageError(f"data set {dataset!r} has no charge" + (f" under {relation}" if relation else ""))
    elif not releases:
        raise click.UsageError("give --release (for example --release 0.1), or --dataset to read the ledger")
    rounds = count if count is not None else (100 if dataset is None else 1)
    found = odometer(events, rounds, delta, rows_per_person)
    if plot is not None:
        write_text(plot, _plot(found) + "\n")
    if as_json:
        best = [{"epsilon": float(b.epsilon), "method": b.method} for b in found.best]
        finite = {n: [v if v < float("inf") else None for v in values] for n, values in found.theorems.items()}
        return json.dumps({"delta": found.delta, "counts": found.counts, "theorems": finite, "best": best})
    return (*odometer_lines(found), *(() if plot is None else (f"{plot}: the curves",)))


def _plot(found: Odometer) -> str:
    """Epsilon against the number of rounds, both on logarithmic axes, as an SVG."""
    from daskrado.jobs.report import draw

    def paint(axes: Axes) -> None:
        for name, values in found.theorems.items():
            points = [(c, v) for c, v in zip(found.counts, values, strict=True) if 0 < v < math.inf]
            if points:
                style = "--" if name.startswith("loss distribution") else "-"
                axes.plot(*zip(*points, strict=True), style, marker=".", linewidth=1.4, label=name)
        axes.set_xscale("log")
        axes.set_yscale("log")

    return draw(paint, "number of releases (rounds)", f"epsilon at delta {found.delta:g}", legend="")
