"""Commands that prepare clusters."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import click

from daskrado.cli.commands.signature import Lines, command

cluster = click.Group("cluster", help="Prepare clusters: see the folder cluster/ for one file of each kind.")


@command(cluster)
def certificates(
    folder: Path,
    *,
    nodes: Annotated[tuple[str, ...], "--node", "A node (repeatable); scheduler, worker and client by default."] = (),
    hosts: Annotated[tuple[str, ...], "--host", "A host name or address of nodes (repeatable)."] = (),
    days: Annotated[int, "How long the certificates are valid."] = 365,
) -> Lines:
    """Make a certificate authority and node certificates for a TLS cluster, in FOLDER."""
    from daskrado.cluster.certificates import ROLES, make_certificates

    made = make_certificates(folder, nodes=nodes or ROLES, hosts=hosts or ("localhost", "127.0.0.1"), days=days)
    return f"{folder}: {', '.join(path.name for path in made)}; keep ca-key.pem off the workers"
