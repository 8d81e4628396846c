"""``daskrado bench scale`` and ``bench jobs``, in small: every figure is there and hangs together."""

from __future__ import annotations

import json
from typing import Any

import pytest
from click.testing import CliRunner

from daskrado.cli.main import cli
from daskrado.lake import dealing

pytestmark = [pytest.mark.slow, pytest.mark.cluster]


def figures(*words: str) -> dict[str, Any]:
    done = CliRunner().invoke(cli, ["bench", *words, "--json"])
    assert done.exit_code == 0, done.output
    found: dict[str, Any] = json.loads(done.output)
    return found


def test_scale() -> None:
    before = dealing.TASK_BYTES
    found = figures("scale", "--workers", "8", "--partitions", "200", "--seconds", "0.05", "--passes", "2")
    assert before == dealing.TASK_BYTES
    assert found["work_seconds_a_worker"] == pytest.approx(200 * 0.05 / 8)
    assert found["collect_seconds"] >= 200 * 0.05 / 8
    assert found["task_seconds_a_worker"] >= 0.99 * 200 * 0.05 / 8  # sleep takes at least what it was asked for
    assert 0 <= found["overhead_beside_tasks"] <= found["overhead"] + 0.01
    assert set(found["driver_growth_mb"]) == {"a tenth", "all"}
    assert set(found["merge_ms_by_level"]) == {"0", "1"}  # 64 partitions: eight groups of eight, and one of those
    spent = [found[f"{name}_cpu_ms_a_task"] for name in ("scheduler", "driver", "all_workers")]
    assert min(*spent, found["scheduler_bytes_a_task"]) > 0


def test_jobs() -> None:
    found = figures("jobs", "--rows", "20000", "--passes", "8")
    assert found["ratio"] == pytest.approx(found["at_once_seconds"] / found["one_after_the_other_seconds"], rel=0.05)
    assert 0 < found["first_to_end_seconds"] <= found["at_once_seconds"] + 0.01
