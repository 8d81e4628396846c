"""Commands that prepare clusters and look at them."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import click

from daskrado.cli.commands.signature import AsJson, Lines, command

cluster = click.Group(
    "cluster", help="Prepare clusters and look at them: see the folder cluster/ for one file of each kind."
)


@command(cluster)
def certificates(
    folder: Path,
    *,
    nodes: Annotated[tuple[str, ...], "--node", "A node (repeatable); scheduler, worker and client by default."] = (),
    hosts: Annotated[tuple[str, ...], "--host", "A host name or address of nodes (repeatable)."] = (),
    days: Annotated[int, "How long the certificates are valid."] = 365,
) -> Lines:
    """Make a certificate authority and node certificates for a TLS cluster, in FOLDER.

    Examples:
      daskrado cluster certificates tls/ --node scheduler --node worker --host 10.0.0.7
    """
    from daskrado.cluster.certificates import ROLES, make_certificates

    made = make_certificates(folder, nodes=nodes or ROLES, hosts=hosts or ("localhost", "127.0.0.1"), days=days)
    return f"{folder}: {', '.join(path.name for path in made)}; keep ca-key.pem off the workers"


@command(cluster)
def status(address: str, *, as_json: AsJson = False) -> Lines:
    """Show the daskrado jobs on the scheduler at ADDRESS (or in a cluster file): memory, tasks, age.

    Examples:
      daskrado cluster status tcp://10.0.0.7:8786
    """
    import json

    from daskrado.cluster.config import cluster_config
    from daskrado.cluster.jobs import jobs_on
    from daskrado.cluster.reached import scheduler_at

    with scheduler_at(cluster_config(cluster=address), workers=False) as client:
        jobs = jobs_on(client)
    if as_json:
        return json.dumps({"jobs": jobs})
    return [_job_line(job) for job in jobs] or "no daskrado job"


def _job_line(job: dict[str, Any]) -> str:
    memory = f"{job['held'] / 1e6:,.0f} MB held, {job['promised'] / 1e6:,.0f} MB promised"
    return (
        f"{job['kind']} {job['dataset']} {job['run']} by {job['by']}: "
        f"{job['seconds']:,.0f} s, {job['tasks']} tasks left, {memory}"
    )
