"""``daskrado bench ledger --json``: one JSON object, with every figure, on a short history."""

from __future__ import annotations

import json

from click.testing import CliRunner

from daskrado.cli.main import cli


def test_bench_ledger_prints_one_json_object() -> None:
    done = CliRunner().invoke(cli, ["bench", "ledger", "--entries", "1200", "--datasets", "2", "--json"])
    assert done.exit_code == 0, done.output
    found = json.loads(done.stdout)
    assert {key: found[key] for key in ("entries", "datasets", "limits")} == {
        "entries": 1200,
        "datasets": 2,
        "limits": 8,
    }
    assert found["new"].keys() == found["old"].keys()
    assert {"open", "plan", "reserve", "100_draws", "show", "show_totals", "limit", "limit_for_people"} < {
        *found["old"]
    }
    assert all(seconds >= 0 for which in ("new", "old") for seconds in found[which].values())
