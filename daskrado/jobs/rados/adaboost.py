"""Pipelines of kind ``adaboost``: the baseline on the rows themselves. It protects nobody, and says so."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

from pydantic import Field

import daskrado
from daskrado.cluster import connect
from daskrado.jobs.pipeline import LakePipeline
from daskrado.jobs.pipeline_job import PipelineJob, Progress
from daskrado.jobs.report import Section, bars, render_page
from daskrado.lake.collect import open_passes
from daskrado.lake.publish import check_free, new_folder
from daskrado.lake.scan import open_lake
from daskrado.lake.seeds import SignatureKey
from daskrado.learners.on_passes.adaboost import AdaBoost
from daskrado.ledger.account import Account
from daskrado.ledger.charging import Clock
from daskrado.ledger.ledger import Ledger
from daskrado.models.linear import LinearModel
from daskrado.privacy.statement import PrivacyStatement
from daskrado.table.lattice import Lattice
from daskrado.table.yaml_file import write_text

MANIFEST_SCHEMA = "daskrado.adaboost-manifest/1"


class AdaBoostPipeline(LakePipeline):
    """AdaBoost on all rows of a lake, or on a sample of exactly ``sample`` of them."""

    private: Literal[False] = Field(description="must be written out: this baseline protects nobody")
    rounds: int = Field(default=1000, ge=1, le=1_000_000)
    sample: int | None = Field(default=None, ge=1)
    seed: int = Field(default=0, ge=0)
    oracle: Literal["strongest", "median", "prudential"] = "strongest"
    prudence: float = Field(default=0.5, gt=0, le=1)
    clamp: float = Field(default=0.999999, gt=0, lt=1)
    clamp_low: float = Field(default=0.0, ge=0, lt=1)
    keep: Literal["risk", "training_error", "last"] = "risk"

    def build(self) -> AdaBoost:
        """The learner."""
        return AdaBoost(self.rounds, self.sample, self.oracle, self.prudence, self.clamp, self.clamp_low, self.keep)


def fit_adaboost(
    pipeline: AdaBoostPipeline, *, overwrite: bool = False, progress: Progress | None = None, write: bool = True
) -> tuple[LinearModel, dict[str, float]]:
    """Boost over the lake, one pass a round (rows stay in memory where they fit); returns the model and seconds."""
    if write:
        check_free(pipeline.output, overwrite=overwrite, reading=(pipeline.lake,))
    clock, domain = Clock(), pipeline.domain
    with clock("scan"):
        lake = open_lake(pipeline.lake, domain)
    key = SignatureKey.from_seed(pipeline.seed)
    with (
        connect(pipeline.cluster, lake.size) as client,
        open_passes(lake, domain, Lattice(domain.norm_bound), placed=True, key=key, client=client) as passes,
        clock("boost"),
    ):
        weights, details = pipeline.build().fit(passes.sum, domain.width, progress)
    model = LinearModel(domain, weights, PrivacyStatement.none(), "adaboost", details)
    if write:
        with new_folder(pipeline.output, overwrite=overwrite) as folder:
            model.save(folder / "model.json")
            write_text(folder / "manifest.json", json.dumps(_manifest(pipeline, model, clock), indent=2) + "\n")
            write_text(folder / "report.html", _report(pipeline, model))
    return model, clock.seconds


class AdaBoostJob(PipelineJob[AdaBoostPipeline]):
    """A baseline pipeline for ``daskrado plan`` and ``daskrado run``."""

    schema = AdaBoostPipeline

    def plan_lines(self, ledger: Ledger | None) -> Iterator[str]:
        """What it would do."""
        del ledger
        yield f"data set    {self.pipeline.dataset}"
        yield f"learner     adaboost, {self.pipeline.rounds} rounds, one pass each"
        yield f"guarantee   {PrivacyStatement.none().sentence()}"

    def result(
        self,
        *,
        overwrite: bool = False,
        ledger_path: str | Path | None = None,
        progress: Progress | None = None,
        account: Account | None = None,
    ) -> tuple[LinearModel, dict[str, float]]:
        """Boost and write; nothing is charged."""
        del ledger_path, account
        return fit_adaboost(self.pipeline, overwrite=overwrite, progress=progress)

    def lines(self, result: tuple[LinearModel, dict[str, float]]) -> Iterator[str]:
        """Rounds and weights."""
        return _lines(self.pipeline, *result)


def _lines(pipeline: AdaBoostPipeline, model: LinearModel, seconds: dict[str, float]) -> Iterator[str]:
    yield model.statement.sentence()
    yield f"adaboost: {model.details['rounds']} rounds on {model.details['examples']:,} rows"
    weights = model.coefficients
    for name in weights.abs().sort_values(ascending=False).index[:8]:
        yield f"  {weights[name]:+12.5g}  {name}"
    spent = ", ".join(f"{stage} {value:g} s" for stage, value in seconds.items())
    yield f"{spent}; written to {pipeline.output}: model.json, manifest.json, report.html"


def _manifest(pipeline: AdaBoostPipeline, model: LinearModel, clock: Clock) -> dict[str, Any]:
    return {
        "schema": MANIFEST_SCHEMA,
        "daskrado": daskrado.__version__,
        "run": uuid.uuid4().hex,
        "dataset": pipeline.dataset,
        "privacy": model.statement.model_dump(mode="json"),
        "privacy_in_words": model.statement.sentence(),
        "learner": pipeline.model_dump(mode="json", exclude={"lake", "domain", "cluster", "output"}),
        "domain_sha256": pipeline.domain.digest(),
        "details": model.details,
        "seconds": clock.seconds,
    }


def _report(pipeline: AdaBoostPipeline, model: LinearModel) -> str:
    weights = {str(name): float(weight) for name, weight in model.coefficients.items()}
    rows = [(key.replace("_", " "), str(value)) for key, value in model.details.items()]
    sections = [Section("How it was made", rows=rows), Section("Coefficients", plot=bars(weights, "weight"))]
    return render_page(f"{pipeline.dataset}: AdaBoost on the rows", "a baseline", model.statement, sections)
