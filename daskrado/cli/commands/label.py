"""Commands of the two-agent label protocol: keys, request, answer, learn."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import click

from daskrado.cli.commands.shared import open_ledger, progress_bar
from daskrado.cli.commands.signature import LedgerPath, Lines, OnCluster, command
from daskrado.errors import MessageError, UsageError

if TYPE_CHECKING:
    from daskrado.table.label import Label

label = click.Group(
    "label", help="Learn from another party's labels: it answers one signed request with one noisy vector."
)


@command(label)
def keys(path: Path) -> Lines:
    """Make a signing key: PATH stays here, PATH.pub goes to the other party.

    Examples:
      daskrado label keys provider.key
    """
    from daskrado.parties.signing import make_keys

    public = make_keys(path)
    return f"{path}: private key, keep it; {public}: public key, hand it over"


@command(label)
def request(
    *,
    domain: Annotated[Path, "Domain with an id column."],
    features: Annotated[str, "Lake of features with the key column; no label is read."],
    epsilon: Annotated[float, "--epsilon", "--alpha", "The epsilon asked for."],
    delta: Annotated[float, "Only where the mechanism needs one."] = 0.0,
    mechanism: Annotated[str, "--mechanism", "--noise", "Or l2_gamma, gaussian."] = "laplace",
    loss: Annotated[str, "A linear-odd loss."] = "logistic",
    rho: Annotated[float | None, "Of the loss absolute."] = None,
    generator: Annotated[str | None, "Of the loss proper."] = None,
    address: Annotated[str | None, "Where the provider can read the features, if not its own copy."] = None,
    key: Annotated[Path, "The learner's private key."],
    out: Path,
    cluster: OnCluster,
) -> Lines:
    """Learner: ask for the mean operator of these features with the provider's labels.

    Examples:
      daskrado label request --domain domain.yaml --features features/ --epsilon 1 --key my.key --out ask.json
    """
    from daskrado.parties.label_learner import make_request
    from daskrado.parties.signing import SigningKey
    from daskrado.table.domain import Domain

    _free(out)
    signer, meant = SigningKey.load(key), Domain.load(domain)
    with progress_bar("digest") as progress:
        text = make_request(
            features,
            meant,
            signer,
            epsilon=epsilon,
            delta=delta,
            mechanism=mechanism,
            loss={"kind": loss, "rho": rho, "generator": generator},
            address=address,
            cluster=cluster,
            progress=progress,
        )
    _write(out, text)
    return f"{out}: request signed by {signer.public[:16]}…; epsilon {epsilon:g}, {mechanism} noise"


@command(label)
def answer(
    request: Path,
    *,
    labels: Annotated[str, "Lake of labels with the key column."],
    label: Annotated[
        str,
        "--label COLUMN=POSITIVE/NEGATIVE",
        "The one column that is answered for, and its two values; a request for another is refused.",
    ],
    features: Annotated[str | None, "Lake of features; by default the request's address."] = None,
    dataset: Annotated[str, "The name by which the provider's ledger knows these labels."],
    key: Annotated[Path, "The provider's private key."],
    trust: Annotated[tuple[Path, ...], "A learner's public key."],
    max_epsilon: Annotated[
        float | None, "--max-epsilon", "--max-alpha", "The most that one request may ask for."
    ] = None,
    unit: Annotated[str, "Whose label is protected, in words."] = "one record's label",
    rows_per_unit: Annotated[int, click.IntRange(1, 10_000)] = 1,
    answers: Annotated[Path | None, "Where answers are kept (by the ledger)."] = None,
    out: Path,
    ledger: LedgerPath = None,
    cluster: OnCluster,
) -> Lines:
    """Provider: check a request, debit the ledger, answer once; a repeat returns the same bytes.

    Examples:
      daskrado label answer q.json --labels lake --label sick --dataset c --key my.key --trust their.pub --out a.json
    """
    from daskrado.cluster import ClusterConfig
    from daskrado.parties.label_messages import read_request
    from daskrado.parties.label_provider import Provider
    from daskrado.parties.signing import SigningKey, load_public

    own = _label(label)
    text, trusted = _read(request), tuple(load_public(path) for path in trust)
    asked = read_request(text, trusted, str(request))
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
            cluster=cluster or ClusterConfig(),
        )
        signed = provider.answer(text, source, where=str(request), progress=progress)
    _write(out, signed)
    return f"{out}: answer to request {asked.request}, signed by {provider.key.public[:16]}…"


@command(label)
def learn(
    answer: Path,
    *,
    request: Annotated[Path, "The request that it answers."],
    features: Annotated[str, "The same lake of features."],
    trust: Annotated[tuple[Path, ...], "A provider's public key."],
    regularisation: Annotated[float, "--regularisation", "--strength", "Above 0."] = 1e-3,
    out: Annotated[str, "--out", "--output", "Folder for model.json, manifest.json and report.html."],
    overwrite: bool = False,
    cluster: OnCluster,
) -> Lines:
    """Learner: check the answer, learn from the features and the noisy vector, publish.

    Examples:
      daskrado label learn answer.json --request ask.json --features features/ --trust their.pub --out runs/labels
    """
    from daskrado.parties.label_learner import learn_from_answer
    from daskrado.parties.signing import load_public

    with progress_bar("learn") as progress:
        return learn_from_answer(
            _read(answer),
            _read(request),
            features,
            [load_public(path) for path in trust],
            regularisation=regularisation,
            output=out,
            overwrite=overwrite,
            cluster=cluster,
            where=str(answer),
            progress=progress,
        ).lines


def _label(text: str) -> Label:
    """A label column and its two values, as a provider writes them."""
    from daskrado.table.label import Label
    from daskrado.table.yaml_file import parse

    column, _, values = text.partition("=")
    sides = values.split("/")
    if not column or len(sides) != 2 or not all(sides):
        raise UsageError(f"--label {text}: must be COLUMN=POSITIVE/NEGATIVE, such as readmitted=yes/no")
    return parse(Label, {"column": column, "positive": sides[0], "negative": sides[1]}, f"--label {text}")


def _read(path: Path) -> str:
    try:
        return path.read_bytes().decode("ascii")
    except OSError as error:
        raise UsageError(f"{path}: cannot be read ({error.strerror})") from error
    except UnicodeDecodeError as error:
        raise MessageError(f"{path}: is not a signed message; it was changed") from error


def _free(path: Path) -> None:
    if path.exists():
        raise UsageError(f"{path}: exists; choose another file")


def _write(path: Path, text: str) -> None:
    """A new file; one with the same bytes may stay."""
    from daskrado.table.yaml_file import write_text

    if path.exists() and path.read_bytes() == text.encode():
        return
    _free(path)
    write_text(path, text)
