"""Learning from a file of rados: another party's half of the work, with nothing but the file."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from daskrado.errors import UsageError
from daskrado.jobs.rados.job import diagnose
from daskrado.jobs.report import Section, bars, render_page
from daskrado.lake.publish import check_free, new_folder
from daskrado.learners import RadoBoost, RadoMoments, RadoNewton
from daskrado.models.linear import LinearModel
from daskrado.models.rados import RadoSet
from daskrado.table.domain import Domain
from daskrado.table.yaml_file import write_text


@dataclass(frozen=True)
class Learned:
    """A model from a file of rados, and what a reader should know of the rados."""

    rados: RadoSet
    model: LinearModel
    notes: tuple[str, ...]


def learn_rados(
    path: str | Path,
    learner: str = "rado_moments",
    *,
    rounds: int = 1000,
    ridge: float | None = None,
    domain: Domain | str | Path | None = None,
    out: str | Path | None = None,
    overwrite: bool = False,
) -> Learned:
    """Read rados, learn, and write model.json and report.html to ``out``. The model carries the rados' statement."""
    if out is not None:
        check_free(out, overwrite=overwrite, reading=(path,))
    if learner == "radoboost" and ridge is not None:
        raise UsageError("--ridge is for rado_moments and rado_newton; radoboost has none")
    wanted = Domain.load(domain) if isinstance(domain, str | Path) else domain
    rados = RadoSet.load(path, wanted)
    if learner == "radoboost":
        theta, details = RadoBoost(rounds=rounds).learn(rados.rados)
    elif learner == "rado_moments":
        theta, details = RadoMoments(ridge).learn(rados.rados)
    elif learner == "rado_newton":
        theta, details = RadoNewton(1.0 if ridge is None else ridge).learn(rados.rados)
    else:
        raise UsageError(f"learner {learner!r} is unknown; allowed: rado_moments, rado_newton, radoboost")
    model = LinearModel(rados.domain, theta, rados.statement, learner, details)
    learned = Learned(rados, model, diagnose(rados))
    if out is not None:
        with new_folder(out, overwrite=overwrite) as folder:
            model.save(folder / "model.json")
            write_text(folder / "report.html", _report(learned))
    return learned


def learned_lines(learned: Learned, out: Path) -> Iterator[str]:
    """The summary of a learning run."""
    yield learned.rados.statement.sentence()
    yield f"{len(learned.rados.rados)} rados of kind {learned.rados.kind}, learned by {learned.model.learner}"
    for note in learned.notes:
        yield f"note: {note}"
    yield "largest weights:"
    weights = learned.model.coefficients
    for name in weights.abs().sort_values(ascending=False).index[:8]:
        yield f"  {weights[name]:+12.5g}  {name}"
    yield f"written to {out}: model.json, report.html"


def _report(learned: Learned) -> str:
    weights = {str(name): float(weight) for name, weight in learned.model.coefficients.items()}
    rows = [
        ("rados", f"{len(learned.rados.rados)} of kind {learned.rados.kind}"),
        ("domain", f"sha256 {learned.rados.domain.digest()[:16]}…"),
        *((key.replace("_", " "), str(value)) for key, value in learned.model.details.items()),
        *(("note", note) for note in learned.notes),
    ]
    sections = [
        Section("How it was made", rows=rows),
        Section("Coefficients", plot=bars(weights, "weight")),
        Section("All coefficients", rows=[(n, f"{w:+.6g}") for n, w in weights.items()], folded=True),
    ]
    return render_page("a linear classifier from rados", "from a file", learned.rados.statement, sections)
