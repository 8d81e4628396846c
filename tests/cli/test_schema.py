"""JSON Schemas for editors, --json everywhere, groups of commands, and words that were nearly right."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import click
import jsonschema
import pytest
import yaml
from command_line import Shell

from daskrado.cli.commands.schema import domain_schema, pipeline_schema
from daskrado.cli.main import COMMANDS, GROUPS, cli

ROOT = Path(__file__).parents[2]
SCHEMA = pipeline_schema()


@pytest.mark.parametrize("path", sorted((ROOT / "pipelines").glob("*.yaml")), ids=lambda path: path.stem)
def test_every_pipeline_fits_the_schema(path: Path) -> None:
    content = yaml.safe_load(path.read_text())
    jsonschema.validate(content, SCHEMA)
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(content | {"bugdet": {}}, SCHEMA)


def test_domains_fit_the_schema() -> None:
    content = yaml.safe_load((ROOT / "data" / "clinic_sample.yaml").read_text())
    jsonschema.validate(content, domain_schema())
    content["columns"]["age"]["lowre"] = 1
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(content, domain_schema())


def commands(group: click.Group, above: tuple[str, ...] = ()) -> list[tuple[tuple[str, ...], click.Command]]:
    context, found = click.Context(group), []
    for name in group.list_commands(context):
        one = group.get_command(context, name)
        assert one is not None
        below = commands(one, (*above, name)) if isinstance(one, click.Group) else [((*above, name), one)]
        found += below
    return found


def test_every_command_takes_json_and_explains_itself() -> None:
    for name, one in commands(cli):  # type: ignore[arg-type]
        assert any("--json" in option.opts for option in one.params), name
        assert one.help, name


def examples(one: click.Command) -> list[str]:
    _, _, block = (one.help or "").partition("\nExamples:\n")
    return [line.strip() for line in block.splitlines() if line.strip()]


def test_every_help_has_examples_that_its_command_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("DASKRADO_WHO", raising=False)
    for name, one in commands(cli):  # type: ignore[arg-type]
        lines = examples(one)
        assert lines, f"{' '.join(name)} has no example"
        shown = one.get_help(click.Context(one, info_name=" ".join(name)))
        for line in lines:
            program, *words = shlex.split(line.partition(" > ")[0])
            assert (program, *words[: len(name)]) == ("daskrado", *name)
            assert line in shown.splitlines()[-60:] or f"    {line}" in shown, line  # in a line of its own
            one.make_context(" ".join(name), words[len(name) :])  # refuses what it does not know, and runs nothing


def test_every_option_says_what_it_means_and_its_default() -> None:
    for name, one in commands(cli):  # type: ignore[arg-type]
        for option in one.params:
            if not isinstance(option, click.Option):
                continue
            assert option.help, f"{' '.join(name)} {option.opts[0]} has no help"
            told = option.required or option.is_flag or option.show_default or "default" in option.help
            assert told, f"{' '.join(name)} {option.opts[0]} does not say its default"


def test_a_home_folder_is_expanded_wherever_a_path_is_given(
    shell: Shell, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    assert shell("lake", "make", "~/visits", "--rows", 200, "--partitions", 1) == 0
    assert (tmp_path / "visits.yaml").is_file()
    pipeline = {
        "dataset": "v",
        "lake": "~/visits",
        "domain": "~/visits.yaml",
        "output": "~/runs/v",
        "private": False,
        "ledger": {"path": "~/l.sqlite"},
    }
    (tmp_path / "p.yaml").write_text(json.dumps(pipeline))
    assert shell("run", "~/p.yaml") == 0
    assert (tmp_path / "runs" / "v" / "model.json").is_file()
    assert shell("predict", "~/runs/v", "~/visits", "--out=~/scored") == 0
    assert (tmp_path / "scored").is_dir()
    assert not Path("~").exists()


def test_every_command_is_in_one_group() -> None:
    assert sorted(name for names in GROUPS.values() for name in names) == sorted(COMMANDS)


def test_json_is_one_object_with_what_was_said(shell: Shell) -> None:
    assert shell("compose", "--release", "0.1", "--count", "3", "--json") == 0
    json.loads(shell.out)
    assert shell("plan", ROOT / "pipelines" / "quickstart.yaml", "--json") == 0
    said = json.loads(shell.out)
    assert said["command"] == "plan"
    assert any(line.startswith("data set") for line in said["lines"])


def test_a_word_that_is_nearly_a_command_asks(shell: Shell) -> None:
    shell.fails(2, "No such command 'descibe'; did you mean describe?", "descibe")
    shell.fails(2, "No such command 'xyzzy'; see daskrado --help", "xyzzy")


def test_help_names_exit_codes_and_completion(shell: Shell) -> None:
    assert shell("--help") == 0
    for words in ("From a table to a model", "Exit codes: 0 done", "_DASKRADO_COMPLETE"):
        assert words in shell.out
