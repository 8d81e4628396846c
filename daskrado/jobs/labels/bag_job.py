"""kind: bags. Rows have no labels, only bags: the share of positive labels in each, given or released with noise."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from daskrado.cluster import connect
from daskrado.errors import DataError, UsageError
from daskrado.jobs.labels.access import LabelRun, PrivateLabels, plan_of, publish
from daskrado.jobs.labels.config import BagPipeline, EstimatorChoice, Shares
from daskrado.jobs.labels.learn import finish, measure, open_features
from daskrado.jobs.labels.report import bag_section, descent_section, summary_lines
from daskrado.jobs.pipeline_job import PipelineJob
from daskrado.jobs.report import Section
from daskrado.lake.collect import Passes, Progress, collect, open_passes
from daskrado.learners.bags import Bags, check_sizes, laplacian_mean_map, mean_map, similarity
from daskrado.learners.on_passes.alternating import alternate, lake_bags
from daskrado.learners.on_passes.linear_odd import Fit, LakeFeatures, fit_mean
from daskrado.ledger.account import Account
from daskrado.ledger.charging import Clock
from daskrado.ledger.ledger import Ledger
from daskrado.ledger.opening import open_account
from daskrado.losses.margin import Loss
from daskrado.privacy.statement import PrivacyStatement
from daskrado.statistics.base import Groups
from daskrado.statistics.label_means import BagCounts
from daskrado.table.domain import Scalar
from daskrado.table.yaml_file import parse

MAX_BAGS = 2000  # the Laplacian's system is dense, of twice this size


def run_bags(
    pipeline: BagPipeline,
    *,
    overwrite: bool = False,
    ledger_path: str | Path | None = None,
    progress: Progress | None = None,
    write: bool = True,
    account: Account | None = None,
) -> LabelRun:
    """Bags and proportions become a mean operator, and that a model."""
    with open_account(
        "bags",
        pipeline,
        overwrite=overwrite,
        ledger_path=ledger_path,
        write=write,
        private=pipeline.budget is not None,
        account=account,
    ) as account:
        result, sections = _run(pipeline, account, progress)
        if write:
            publish(result, pipeline, f"{pipeline.dataset}: learned from bags", account, sections)
    return result


def _run(pipeline: BagPipeline, account: Account, progress: Progress | None) -> tuple[LabelRun, list[Section]]:
    given = _given(pipeline)
    names = tuple(given) if given is not None else pipeline.values
    assert names is not None
    if not 2 <= len(names) <= MAX_BAGS:
        raise UsageError(f"between 2 and {MAX_BAGS} bags are needed, got {len(names)}")
    groups = Groups(pipeline.bags, names)
    clock, domain, lattice = Clock(), pipeline.domain, pipeline.lattice
    with clock("scan"):
        extra = [pipeline.bags, *([] if given is not None else [domain.label.column])]
        lake = open_features(pipeline.lake, domain, *extra)
    with (
        connect(pipeline.cluster, lake.size) as client,
        open_passes(lake, domain, lattice, client=client) as passes,
    ):
        statement, budget = PrivacyStatement.none(), {}
        counts = BagCounts(domain.width, groups)
        labels = None if given is not None else PrivateLabels(pipeline, lake, account, counts)
        with clock("features"):  # what is public is found out, and refused, before the grant is spent
            association = pipeline.estimator.similarity == "association"
            measured = measure(passes, groups, squares=association, progress=progress)
        check_sizes(measured.rows, names)
        if labels is None:
            assert given is not None
            proportions = np.array(list(given.values()))
        else:
            with clock("labels"):
                released, _ = labels.release(
                    counts, lambda: collect(counts, lake, domain, lattice, client=client, progress=progress)
                )
            rows = np.maximum(released.values["count"], 1.0)
            proportions = np.clip(released.values["positives"] / rows, 0.0, 1.0)
            statement, budget = released.statement, labels.budget
        bags = Bags(measured.sums, measured.rows, measured.squares, proportions)
        if statement.private:  # noise may have made them alike: what was paid for is published, and says so
            trouble = bags.indistinct(domain.feature_names)
            account.notes += () if trouble is None else (f"take no advice from this model: as released, {trouble}",)
        else:
            bags.check_rank(domain.feature_names)
        loss = pipeline.loss.build()
        with clock("learn"):
            mean, fit, objectives = _learn(pipeline, passes, groups, bags, loss, progress)
    extras = {
        "proportions": {str(n): float(p) for n, p in zip(names, proportions, strict=True)},
        "estimator": pipeline.estimator.model_dump(mode="json"),
    }
    learned = finish(domain, loss, pipeline.strength, mean, fit, measured.total_rows, statement, extras=extras)
    sections = [bag_section([str(n) for n in names], proportions.tolist(), measured.rows.tolist())]
    sections += [descent_section(objectives)] if objectives else []
    return LabelRun(account.run, learned, budget, clock.seconds, account.notes), sections


def bag_estimate(bags: Bags, choice: EstimatorChoice) -> NDArray[np.float64]:
    """Mean Map or Laplacian Mean Map, as chosen."""
    weights = bags.rows / bags.rows.mean() if choice.weights == "rows" else None
    if choice.first == "mean_map":
        return mean_map(bags, weights)
    graph = similarity(bags, choice.similarity, choice.sigma)
    return laplacian_mean_map(bags, graph, gamma=choice.gamma, weights=weights)


def _learn(
    pipeline: BagPipeline, passes: Passes, groups: Groups, bags: Bags, loss: Loss, progress: Progress | None
) -> tuple[NDArray[np.float64], Fit, tuple[float, ...]]:
    choice = pipeline.estimator
    mean = bag_estimate(bags, choice)
    if choice.kind != "alternating":
        return mean, fit_mean(LakeFeatures(passes, groups, progress), loss, mean, pipeline.strength), ()
    features = lake_bags(passes, groups, bags.sums.sum(axis=0), int(bags.rows.sum()), progress)
    found = alternate(
        features,
        loss,
        mean,
        pipeline.strength,
        bags.proportions * bags.rows,
        labels=choice.labels,
        rounds=choice.rounds,
    )
    return found.mean, found.fit, found.objectives


def _given(pipeline: BagPipeline) -> dict[Scalar, float] | None:
    """The proportions that the pipeline gives, by bag; None where they are to be counted."""
    if pipeline.proportions is None:
        return None
    if isinstance(pipeline.proportions, dict):
        return {name: shares.positive for name, shares in pipeline.proportions.items()}
    return read_proportions(pipeline.proportions)


def read_proportions(path: str) -> dict[Scalar, float]:
    """From a CSV or Parquet file with the columns bag and positive, and negative if it has it."""
    import pyarrow as pa
    import pyarrow.csv as csv
    import pyarrow.parquet as pq

    try:
        table = pq.read_table(path) if path.endswith((".parquet", ".pq")) else csv.read_csv(path)
    except (OSError, pa.ArrowException) as error:
        raise DataError(f"{path}: cannot be read as a table of proportions ({str(error).splitlines()[0]})") from error
    for column in ("bag", "positive"):
        if column not in table.column_names:
            raise DataError(f"{path}: column {column!r} is missing; it has {', '.join(table.column_names)}")
    found: dict[Scalar, float] = {}
    for row in table.to_pylist():
        where = f"{path}: bag {row['bag']!r}"
        if row["bag"] in found or row["bag"] is None:
            raise DataError(f"{where} is {'named twice' if row['bag'] is not None else 'null'}")
        content = {key: row[key] for key in ("positive", "negative") if row.get(key) is not None}
        found[row["bag"]] = parse(Shares, content, where).positive
    return found


class BagJob(PipelineJob[BagPipeline]):
    """``kind: bags`` for ``daskrado plan`` and ``daskrado run``."""

    schema = BagPipeline
    runner = staticmethod(run_bags)

    def plan_lines(self, ledger: Ledger | None) -> Iterator[str]:
        """Cost and noise, from public facts."""
        names = self.pipeline.values or tuple(_given(self.pipeline) or ())
        counts = BagCounts(self.pipeline.domain.width, Groups(self.pipeline.bags, names))
        yield from plan_of(self.pipeline, counts, ledger, "positives")
        yield f"bags        {len(names)} values of {self.pipeline.bags!r}; estimator {self.pipeline.estimator.kind}"

    def lines(self, result: LabelRun) -> Iterator[str]:
        """Guarantee, budget and weights."""
        return summary_lines(result.learned, result.budget, result.notes, self.pipeline.output)
