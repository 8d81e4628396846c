"""skops: a model card from what a run published. ``pip install 'daskrado[skops]'``; nothing is charged."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from daskrado.errors import UsageError
from daskrado.jobs.outcome import Result
from daskrado.jobs.published import Published

__all__ = ["card"]


def card(run: Result | str | Path) -> Any:
    """The skops Card of a run, from the manifest in its folder: ``card("runs/visits").save("README.md")``.

    It says what is protected and what was taken for granted, what the owner says of the run (``card`` of the
    pipeline), how good the model is, its weights with their intervals, and the columns that it reads.
    """
    try:
        from skops.card import Card
    except ImportError as error:
        raise UsageError("daskrado.skops needs skops: pip install 'daskrado[skops]'") from error
    folder = run.folder if isinstance(run, Result) else run
    if folder is None:
        raise UsageError("this result was returned, not written, and a card is made from a manifest: run with out=")
    known = Published.load(folder)
    model, statement = known.model, known.statement
    if model is None or statement is None:
        raise UsageError(f"{folder}: the run published no model that a card could be about")
    about = known.content
    made = Card(model, model_diagram=False, template=None)
    made.add(
        **{
            "Model": f"A linear model of `{model.domain.label.column}`, learned from data set `{about['dataset']}` "
            f"by `{model.learner}` (daskrado {about['daskrado']}, run `{about['run']}`).",
            "Privacy": about["privacy_in_words"],
            "Privacy/Theorem": statement.theorem or "none",
            "Privacy/Assumptions": "\n".join(f"- {one}" for one in statement.assumptions) or "none",
        }
    )
    if known.card is not None:
        made.add(**{f"Owner/{name}": text for name, text in known.card.rows()})
    if known.figures:
        made.add_table(Evaluation={"figure": list(known.figures), "value": list(known.figures.values())})
    weights = model.coefficients.reset_index(names="feature")
    made.add_table(folded=True, Weights=weights)
    columns = [(name, column.kind) for name, column in model.domain.columns.items()]
    made.add_table(
        folded=True, Columns={"column": [one for one, _ in columns], "kind": [kind for _, kind in columns]}
    )
    return made
