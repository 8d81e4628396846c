"""Commands of the two-agent label protocol: keys, request, answer, learn."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from daskrado.cli.commands.shared import open_ledger, progress_bar, with_cluster, with_ledger

if TYPE_CHECKING:
    from daskrado.table.domain import Label


@click.group()
def label() -> None:
    """Learn from another party's labels: it answers one signed request with one noisy vector."""


@label.command("keys")
@click.argument("path", type=click.Path(path_type=Path))
def label_keys(path: Path) -> None:
    """Make a signing key: PATH stays here, PATH.pub goes to the other party."""
    from daskrado.parties.signing import make_keys

    public = make_keys(path)
    click.echo(f"{path}: private key, keep it; {public}: public key, hand it over")


@label.command("request")
@click.option(
    "--domain", "domain_path", required=True, type=click.Path(path_type=Path), help="Domain with an id column."
)
@click.option("--features", required=True, help="Lake of features with the key column; no label is read.")
@click.option("--epsilon", "--alpha", "epsilon", required=True, type=float, help="The epsilon asked for.")
@click.option("--delta", default=0.0, show_default=True, type=float, help="Only where the mechanism needs one.")
@click.option(
    "--mechanism", "--noise", "mechanism", default="laplace", show_default=True, help="Or l2_gamma, gaussian."
)
@click.option("--loss", default="logistic", show_default=True, help="A linear-odd loss.")
@click.option("--rho", default=None, type=float, help="Of the loss absolute.")
@click.option("--generator", default=None, help="Of the loss proper.")
@click.option("--address", default=None, help="Where the provider can read the features, if not its own copy.")
@click.option("--key", required=True, type=click.Path(path_type=Path), help="The learner's private key.")
@click.option("--out", required=True, type=click.Path(path_type=Path))
@with_cluster
def label_request(
    domain_path: Path,
    features: str,
    epsilon: float,
    delta: float,
    mechanism: str,
    loss: str,
    rho: float | None,
    generator: str | None,
    address: str | None,
    key: Path,
    out: Path,
    workers: int | None,
    cluster: str | None,
) -> None:
    """Learner: ask for the mean operator of these features with the provider's labels."""
    from daskrado.cluster import cluster_config
    from daskrado.parties.label_learner import make_request
    from daskrado.parties.signing import SigningKey
    from daskrado.table.domain import Domain

    _free(out)
    signer, domain = SigningKey.load(key), Domain.load(domain_path)
    with progress_bar("digest") as progress:
        text = make_request(
            features,
            domain,
            signer,
            epsilon=epsilon,
            delta=delta,
            mechanism=mechanism,
            loss={"kind": loss, "rho": rho, "generator": generator},
            address=address,
            cluster=cluster_config(workers, cluster),
            progress=progress,
        )
    _write(out, text)
    click.echo(f"{out}: request signed by {signer.public[:16]}…; epsilon {epsilon:g}, {mechanism} noise")


@label.command("answer")
@click.argument("request", type=click.Path(path_type=Path))
@click.option("--labels", required=True, help="Lake of labels with the key column.")
@click.option(
    "--label",
    "answered",
    required=True,
    metavar="COLUMN=POSITIVE/NEGATIVE",
    help="The one column that is answered for, and its two values; a request for another is refused.",
)
@click.option("--features", default=None, help="Lake of features; by default the request's address.")
@click.option("--dataset", required=True, help="The name by which the provider's ledger knows these labels.")
@click.option("--key", required=True, type=click.Path(path_type=Path), help="The provider's private key.")
@click.option(
    "--trust", required=True, multiple=True, type=click.Path(path_type=Path), help="A learner's public key."
)
@click.option(
    "--max-epsilon", "--max-alpha", "max_epsilon", type=float, help="The most that one request may ask for."
)
@click.option("--unit", default="one record's label", show_default=True, help="Whose label is protected, in words.")
@click.option("--rows-per-unit", default=1, show_default=True, type=click.IntRange(1, 10_000))
@click.option(
    "--answers", default=None, type=click.Path(path_type=Path), help="Where answers are kept (by the ledger)."
)
@click.option("--out", required=True, type=click.Path(path_type=Path))
@with_ledger
@with_cluster
def label_answer(
    request: Path,
    labels: str,
    answered: str,
    features: str | None,
    dataset: str,
    key: Path,
    trust: tuple[Path, ...],
    max_epsilon: float | None,
    unit: str,
    rows_per_unit: int,
    answers: Path | None,
    out: Path,
    ledger: Path | None,
    workers: int | None,
    cluster: str | None,
) -> None:
    """Provider: check a request, debit the ledger, answer once; a repeat returns the same bytes."""
    from daskrado.cluster import cluster_config
    from daskrado.errors import UsageError
    from daskrado.parties.label_messages import read_request
    from daskrado.parties.label_provider import Provider
    from daskrado.parties.signing import SigningKey, load_public

    own = _label(answered)
    text, trusted = _read(request), tuple(load_public(path) for path in trust)
    asked = read_request(text, list(trusted), str(request))
    source = features or asked.features.address
    if source is None:
        raise UsageError(f"{request}: gives no address of the features; pass --features")
    with open_ledger(ledger, create=False) as opened, progress_bar("answer") as progress:
        provider = Provider(
            key=SigningKey.load(key),
            trusted=trusted,
            dataset=dataset,
            labels=labels,
            label=own,
            ledger=opened,
            answers=answers or opened.path.with_name(f"{opened.path.name}.answers"),
            unit=unit,
            rows_per_unit=rows_per_unit,
            max_epsilon=max_epsilon,
            cluster=cluster_config(workers, cluster),
        )
        answer = provider.answer(text, source, where=str(request), progress=progress)
    _write(out, answer)
    click.echo(f"{out}: answer to request {asked.request}, signed by {provider.key.public[:16]}…")


@label.command("learn")
@click.argument("answer", type=click.Path(path_type=Path))
@click.option("--request", required=True, type=click.Path(path_type=Path), help="The request that it answers.")
@click.option("--features", required=True, help="The same lake of features.")
@click.option(
    "--trust", required=True, multiple=True, type=click.Path(path_type=Path), help="A provider's public key."
)
@click.option(
    "--regularisation", "--strength", "regularisation", default=1e-3, show_default=True, type=float, help="Above 0."
)
@click.option("--out", "--output", "out", required=True, help="Folder for model.json, manifest.json and report.html.")
@click.option("--overwrite", is_flag=True)
@with_cluster
def label_learn(
    answer: Path,
    request: Path,
    features: str,
    trust: tuple[Path, ...],
    regularisation: float,
    out: str,
    overwrite: bool,
    workers: int | None,
    cluster: str | None,
) -> None:
    """Learner: check the answer, learn from the features and the noisy vector, publish."""
    from daskrado.cluster import cluster_config
    from daskrado.parties.label_learner import learn_from_answer
    from daskrado.parties.signing import load_public

    with progress_bar("learn") as progress:
        result = learn_from_answer(
            _read(answer),
            _read(request),
            features,
            [load_public(path) for path in trust],
            regularisation=regularisation,
            output=out,
            overwrite=overwrite,
            cluster=cluster_config(workers, cluster),
            where=str(answer),
            progress=progress,
        )
    click.echo("\n".join(result.lines))


def _label(text: str) -> Label:
    """A label column and its two values, as a provider writes them."""
    from daskrado.errors import UsageError
    from daskrado.table.domain import Label
    from daskrado.table.yaml_file import parse

    column, _, values = text.partition("=")
    sides = values.split("/")
    if not column or len(sides) != 2 or not all(sides):
        raise UsageError(f"--label {text}: must be COLUMN=POSITIVE/NEGATIVE, such as readmitted=yes/no")
    return parse(Label, {"column": column, "positive": sides[0], "negative": sides[1]}, f"--label {text}")


def _read(path: Path) -> str:
    from daskrado.errors import MessageError, UsageError

    try:
        return path.read_bytes().decode("ascii")
    except OSError as error:
        raise UsageError(f"{path}: cannot be read ({error.strerror})") from error
    except UnicodeDecodeError as error:
        raise MessageError(f"{path}: is not a signed message; it was changed") from error


def _free(path: Path) -> None:
    from daskrado.errors import UsageError

    if path.exists():
        raise UsageError(f"{path}: exists; choose another file")


def _write(path: Path, text: str) -> None:
    """A new file; one with the same bytes may stay."""
    from daskrado.table.yaml_file import write_text

    if path.exists() and path.read_bytes() == text.encode():
        return
    _free(path)
    write_text(path, text)
