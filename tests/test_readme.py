"""The README is true: its two commands name what is here, its first example runs, its files exist."""

from __future__ import annotations

import re
from pathlib import Path

import pandas as pd
import pytest

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")


def test_the_first_python_example_runs(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(ROOT)
    example = re.search(r"```python\n(.*?)```", README, flags=re.DOTALL)
    assert example is not None
    patients = pd.read_parquet(next(iter(sorted((ROOT / "data" / "clinic_sample").glob("*.parquet")))))
    exec(example.group(1), {"new_patients": patients})
    assert "Differentially private for one patient" in capsys.readouterr().out


def test_the_files_it_points_to_exist() -> None:
    links = re.findall(r"\]\(([^)#:]+)\)", README)
    assert links
    assert [link for link in links if not (ROOT / link).exists()] == []


def test_its_commands_set_themselves_up_and_ci_runs_the_second() -> None:
    blocks = re.findall(r"```sh\n(.*?)```", README, flags=re.DOTALL)
    first, second = blocks[0], blocks[1]
    for block in (first, second):
        assert block.count("\n") == 1
        assert block.startswith("python3 -m venv .venv && .venv/bin/pip install")
    assert "daskrado run pipelines/quickstart.yaml" in first
    for part in ("ruff", "mypy", "lint-imports", "pytest"):
        assert part in second
    assert README.index("<!-- test command -->") < README.index(second)


@pytest.mark.slow
def test_the_sample_lake_is_small_and_is_what_make_lake_makes(tmp_path: Path) -> None:
    from daskrado.lake.make import make_lake

    sample = ROOT / "data" / "clinic_sample"
    assert sum(p.stat().st_size for p in sample.iterdir()) < 1_000_000
    made = make_lake(tmp_path / "clinic_sample", rows=60_000, features=12, partitions=5, seed=7)
    assert made.read_text() == (ROOT / "data" / "clinic_sample.yaml").read_text()
    for path in sorted(sample.glob("*.parquet")):
        pd.testing.assert_frame_equal(pd.read_parquet(path), pd.read_parquet(tmp_path / "clinic_sample" / path.name))
