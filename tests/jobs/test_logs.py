"""INFO logs tell a person what happens, and never a value from a row."""

from __future__ import annotations

import logging
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import yaml
from damaged_files import damaged_copy
from published_text import numbers_in

import daskrado
from daskrado.errors import DataError
from daskrado.lake.ingest import ingest
from daskrado.table.domain import Domain

pytestmark = pytest.mark.slow

Clinic = Callable[..., tuple[Path, Domain]]


@pytest.mark.cluster
def test_logs_of_a_whole_job_name_its_stages_and_no_value(
    clinic: Clinic, tmp_path: Path, caplog: pytest.LogCaptureFixture, two_workers: Any
) -> None:
    """Rows carry values found nowhere else; none may be in a record of any logger from INFO up."""
    path, domain = clinic(3000, 3)
    frame = pd.concat([pd.read_parquet(p) for p in sorted(path.glob("*.parquet"))], ignore_index=True)
    frame["age"] = 18 + np.arange(len(frame)) * 0.0123457
    frame["patient_id"] = 9_870_000_000 + np.arange(len(frame))
    frame["ward"] = [f"ward-unheard-of-{i}" for i in range(len(frame))]
    frame.to_csv(tmp_path / "clinic.csv", index=False)
    caplog.set_level(logging.INFO)
    ingest([str(tmp_path / "clinic.csv")], str(tmp_path / "lake"))
    cluster = daskrado.cluster.ClusterConfig(kind="scheduler", address=two_workers.scheduler.address)
    given: Any = {"dataset": "clinic", "epsilon": 1.0, "delta": 1e-6, "first_limit": (5.0, 1e-5), "cluster": cluster}
    daskrado.fit(tmp_path / "lake", domain, output=tmp_path / "out", **given)
    with pytest.raises(DataError):
        daskrado.fit(damaged_copy(tmp_path / "lake", tmp_path / "bad"), domain, **given)
    told = "\n".join(record.getMessage() for record in caplog.records)
    for stage in ("ingest: ", "scan", "reserved", "working on 2 workers", "collect", "is spent", "learn", "is void"):
        assert stage in told
    assert not re.search(r"\b98700\d{5}\b|ward-unheard-of|\d\d\.\d{5,}", told)
    # Secret under add_remove. Folders of this session and ports are no numbers of rows.
    assert "3000" not in numbers_in(re.sub(r"127\.0\.0\.1:\d+", "", told.replace(str(tmp_path.parents[1]), "")))


def test_verbose_shows_them_on_stderr(clinic: Clinic, tmp_path: Path) -> None:
    path, _ = clinic(3000, 3)
    content = {
        "dataset": "c",
        "lake": str(path),
        "domain": f"{path}.yaml",
        "output": str(tmp_path / "o"),
        "private": False,
    }
    (tmp_path / "p.yaml").write_text(yaml.safe_dump(content))
    words = [
        sys.executable,
        "-c",
        "from daskrado.cli.main import main; main()",
        "-v",
        "run",
        str(tmp_path / "p.yaml"),
    ]
    done = subprocess.run(words, capture_output=True, text=True, check=True)
    assert "working in this process" in done.stderr
    quiet = subprocess.run(
        [w for w in words if w != "-v"] + ["--overwrite"], capture_output=True, text=True, check=True
    )
    assert quiet.stderr == ""
