"""The noisy gradient beside scikit-learn, diffprivlib and Opacus on the same rows: CPU seconds, memory, accuracy.

Peers run one by one in processes of their own, each on one thread, by the interpreter ``--python``: an environment
that has them and need not have this package. They get the rows in memory, as codes; making sparse or dense rows of
them is not counted. diffprivlib and Opacus take dense rows alone, and so ``--dense-rows`` of them.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # as the command line does

import numpy as np

BINS = 25
EPSILON, DELTA = 1.0, 1e-6
DENSE = ("diffprivlib", "opacus")
EPOCHS, BATCH = 5, 1000  # of Opacus


def one_hot(codes: np.ndarray) -> Any:
    """Codes of binned columns as a sparse matrix of ones, and a last column of ones."""
    from scipy.sparse import csr_matrix

    rows, columns = codes.shape
    places = np.hstack(
        [codes.astype(np.int32) + BINS * np.arange(columns), np.full((rows, 1), BINS * columns)]
    ).astype(np.int32)
    starts = np.arange(rows + 1) * (columns + 1)
    return csr_matrix((np.ones(places.size), places.ravel(), starts), shape=(rows, BINS * columns + 1))


def scikit_learn(x: Any, y: np.ndarray, solver: str) -> np.ndarray:
    from sklearn.linear_model import LogisticRegression

    return LogisticRegression(C=1.0, fit_intercept=False, max_iter=1000, solver=solver).fit(x, y).coef_[0]


def diffprivlib(x: Any, y: np.ndarray) -> np.ndarray:
    from diffprivlib.models import LogisticRegression

    norm = float(np.sqrt(x[0].sum()))
    return LogisticRegression(epsilon=EPSILON, data_norm=norm, fit_intercept=False, max_iter=1000).fit(x, y).coef_[0]


def opacus(x: Any, y: np.ndarray) -> np.ndarray:
    import torch
    from opacus import PrivacyEngine

    torch.manual_seed(1)
    rows = torch.utils.data.TensorDataset(torch.from_numpy(x).float(), torch.from_numpy(y > 0).float())
    model = torch.nn.Linear(x.shape[1], 1, bias=False)
    model, optimiser, loader = PrivacyEngine().make_private_with_epsilon(
        module=model,
        optimizer=torch.optim.SGD(model.parameters(), lr=2.0),
        data_loader=torch.utils.data.DataLoader(rows, batch_size=BATCH),
        target_epsilon=EPSILON,
        target_delta=DELTA,
        epochs=EPOCHS,
        max_grad_norm=1.0,
    )
    for _ in range(EPOCHS):
        for part, labels in loader:
            optimiser.zero_grad()
            torch.nn.functional.binary_cross_entropy_with_logits(model(part)[:, 0], labels).backward()
            optimiser.step()
    return next(iter(model.parameters())).detach().numpy()[0]


PEERS: dict[str, Callable[[Any, np.ndarray], np.ndarray]] = {
    "lbfgs": lambda x, y: scikit_learn(x, y, "lbfgs"),
    "saga": lambda x, y: scikit_learn(x, y, "saga"),
    "diffprivlib": diffprivlib,
    "opacus": opacus,
}


def peer_figures(name: str, path: str) -> dict[str, Any]:
    """What one peer needs; this is the process of its own."""
    rows = np.load(path)
    x, y = one_hot(rows["codes"]), rows["labels"]
    x = x.toarray() if name in DENSE else x
    PEERS[name](x[:2000], y[:2000])  # imports what it needs
    wall, start = time.perf_counter(), time.process_time()
    weights = PEERS[name](x, y)
    spent = time.process_time() - start
    right = float(np.mean(np.sign(x @ weights) == y))
    return _figures(len(y), time.perf_counter() - wall, spent, right)


def _figures(rows: int, wall: float, cpu: float, right: float) -> dict[str, Any]:
    status = Path("/proc/self/status").read_text()  # getrusage would know of the process that started this one
    peak = int(status.split("VmHWM:")[1].split()[0]) / 1e3
    named = {"seconds": wall, "cpu_seconds": cpu, "peak_mb": peak, "accuracy": right}
    return {"rows": rows} | {key: round(value, 4) for key, value in named.items()}


def ours(rows: int, columns: int, steps: int | None, folder: Path) -> tuple[dict[str, Any], Path]:
    """Our fit, from Parquet; and the rows for the peers."""
    from daskrado.cli.bench.collect import peak_memory_mb
    from daskrado.cli.bench.gradient import binned_lake, compile_first, fit, public_facts
    from daskrado.lake.scan import open_lake
    from daskrado.learners.on_passes.gradient import PrivateGradient
    from daskrado.table.encoding import encode_table, needed_columns

    with binned_lake(rows, columns) as (path, domain):
        lake = open_lake(path, domain)
        learner = PrivateGradient() if steps is None else PrivateGradient(steps=steps)
        facts = public_facts(lake, domain)
        compile_first(columns)
        wall, start = time.perf_counter(), time.process_time()
        weights = fit(lake, domain, learner, facts)
        wall, spent, peak = time.perf_counter() - wall, time.process_time() - start, peak_memory_mb()
        codes, labels = [], []
        for partition in lake.partitions:
            for _, table in partition.tables(needed_columns(domain)):
                encoded = encode_table(domain, table)
                assert encoded.labels is not None
                codes.append(np.stack([encoded.values[name] for name in domain.columns], axis=1).astype(np.uint8))
                labels.append(encoded.labels.astype(np.int8))
    found, y = np.concatenate(codes), np.concatenate(labels)
    margins = np.full(len(y), weights[-1])
    for column in range(columns):
        margins += weights[BINS * column + found[:, column].astype(np.intp)]
    figures = _figures(rows, wall, spent, float(np.mean(np.sign(margins) == y)))
    count = learner.schedule(facts).count
    np.savez(folder / "rows.npz", codes=found, labels=y)
    figures["peak_mb"] = round(peak, 4)  # of the fit alone
    return {**figures, "steps": count, "steps_per_cpu_second": round(count / spent, 1)}, folder / "rows.npz"


def compare(options: argparse.Namespace) -> dict[str, Any]:
    """Our figures, then each peer's."""
    environment = {**os.environ, "OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
    with tempfile.TemporaryDirectory(prefix="daskrado-peers-") as folder:
        own, path = ours(options.rows, options.columns, options.steps, Path(folder))
        found = {"gradient": own}
        rows = np.load(path)
        few = Path(folder) / "few.npz"
        np.savez(few, **{key: rows[key][: options.dense_rows] for key in ("codes", "labels")})
        for name in filter(None, options.peers.split(",")):
            words = [options.python, __file__, "--peer", name, str(few if name in DENSE else path)]
            done = subprocess.run(words, capture_output=True, text=True, env=environment, check=False)
            if done.returncode != 0:
                raise SystemExit(f"{name}: {done.stderr.strip().splitlines()[-1]}")
            found[name] = json.loads(done.stdout.splitlines()[-1])
    return found


def main() -> None:
    """Run ours and the peers and print what each needed."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--columns", type=int, default=12)
    parser.add_argument("--steps", type=int, help="of our learner; by default as many as its rule takes")
    parser.add_argument("--dense-rows", type=int, default=100_000, help="rows of the peers that take dense ones")
    parser.add_argument("--peers", default="lbfgs,saga", help=f"of {', '.join(PEERS)}")
    parser.add_argument("--python", default=sys.executable, help="an interpreter that has the peers")
    parser.add_argument("--peer", nargs=2, help=argparse.SUPPRESS)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    if options.peer:
        print(json.dumps(peer_figures(*options.peer)))
        return
    found = compare(options)
    print(json.dumps(found) if options.json else "\n".join(f"{name:12} {figures}" for name, figures in found.items()))


if __name__ == "__main__":
    main()
