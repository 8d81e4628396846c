"""Commands that prepare clusters."""

from __future__ import annotations

from pathlib import Path

import click


@click.group()
def cluster() -> None:
    """Prepare clusters: see the folder cluster/ for one file of each kind."""


@cluster.command("certificates")
@click.argument("folder", type=click.Path(path_type=Path))
@click.option("--node", "nodes", multiple=True, help="A node (repeatable); scheduler, worker and client by default.")
@click.option("--host", "hosts", multiple=True, help="A host name or address of nodes (repeatable).")
@click.option("--days", type=int, default=365, show_default=True, help="How long the certificates are valid.")
def certificates(folder: Path, nodes: tuple[str, ...], hosts: tuple[str, ...], days: int) -> None:
    """Make a certificate authority and node certificates for a TLS cluster, in FOLDER."""
    from daskrado.cluster.certificates import ROLES, make_certificates

    made = make_certificates(folder, nodes=nodes or ROLES, hosts=hosts or ("localhost", "127.0.0.1"), days=days)
    click.echo(f"{folder}: {', '.join(path.name for path in made)}; keep ca-key.pem off the workers")
