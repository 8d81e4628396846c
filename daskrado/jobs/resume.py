"""Finish a run that was cut off: ``daskrado run --resume``."""

from __future__ import annotations

import json
from pathlib import Path

from daskrado.cluster import ClusterConfig
from daskrado.errors import UsageError
from daskrado.jobs.base import perform
from daskrado.jobs.load import job_class
from daskrado.jobs.result import Result
from daskrado.lake.collect import Progress
from daskrado.lake.publish import check_free
from daskrado.ledger.account import Account
from daskrado.ledger.config import default_ledger
from daskrado.ledger.ledger import Ledger
from daskrado.ledger.opening import resumed_account
from daskrado.table.yaml_file import parse


def resume(
    identifier: str,
    *,
    cluster: ClusterConfig | None = None,
    ledger_path: str | Path | None = None,
    progress: Progress | None = None,
) -> Result:
    """Finish a run, of any kind, that had its grant but published nothing: no second debit, no second draw of noise.

    A run that was cut off before its noise was drawn reads the lake again and spends the grant it had; one that was
    cut off later goes on from what it had drawn and kept. Returns what the run would have returned.
    """
    with (
        Ledger.open(ledger_path or default_ledger(), create=False) as ledger,
        resumed_account(ledger, identifier) as account,
    ):
        assert account.journal is not None
        content, where = account.journal.content, str(account.journal.folder)
        job = parse(job_class(content["kind"]), content["pipeline"], where).with_changes(cluster=cluster)
        _check_output(job.output, account, job.prefix)
        return perform(job, overwrite=account.overwrite, ledger=ledger.path, progress=progress, account=account)


def _check_output(output: str, account: Account, prefix: str) -> None:
    """Refuse a folder that exists; where it is this very run's, only the journal was left over."""
    manifest = Path(output) / f"{prefix}manifest.json"
    if manifest.is_file():
        try:
            published = json.loads(manifest.read_text(encoding="utf-8")).get("run") == account.run
        except (OSError, ValueError, AttributeError):
            published = False
        if published:
            account.done()
            raise UsageError(f"run {account.run} is published in {output}: there is nothing left to finish")
    try:
        check_free(output, overwrite=account.overwrite)
    except UsageError as error:
        raise UsageError(
            f"run {account.run} publishes in {output}, where something else is now: move that away, then resume"
        ) from error
