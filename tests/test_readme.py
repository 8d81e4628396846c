"""The documents are true: README.md runs from the top in one fresh folder, links lead somewhere, commands exist."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import click
import pandas as pd
import pytest

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
PAGES = sorted(
    path.relative_to(ROOT)
    for path in (
        *ROOT.glob("*.md"),
        *ROOT.glob("[a-z]*/README.md"),
        *ROOT.glob("pipelines/*/*.md"),
        *ROOT.glob(".github/*.md"),
    )
)
SECTIONS = [
    "Two commands",
    "A worked example",
    "Guarantees",
    "Limits",
    "Which job answers your question",
    "Choosing a learner",
    "Ten figures",
    "Clusters",
    "Extending",
    "Help and licence",
]
TEST_COMMAND = "<!-- test command -->"
HUNG = 900  # seconds after which a command is taken to hang; none is measured


@dataclass(frozen=True)
class Step:
    """A fenced block, or a command in the text, as a reader meets it."""

    language: str
    text: str
    section: str = ""

    @property
    def placeholder(self) -> bool:
        """Whether a reader must fill something in: a word in capitals, or a command that is only named."""
        return re.search(r"\b[A-Z]{3,}\b", self.text) is not None or len(self.text.split()) < 3


def steps(page: str) -> Iterator[Step]:
    """The blocks and inline commands of a page, in their order, without the test command."""
    section, language, block, skip = "", None, [], False
    for line in page.splitlines():
        if language is not None and line.startswith("```"):
            if not skip:
                yield Step(language, "\n".join(block), section)
            language, block, skip = None, [], False
        elif language is not None:
            block.append(line)
        elif line.startswith("```"):
            language = line[3:]
        elif line == TEST_COMMAND:
            skip = True
        elif line.startswith("#"):
            section = line.lstrip("# ")
        else:
            yield from (
                Step("inline", found, section) for found in re.findall(r"`((?:daskrado|python) [^`]+)`", line)
            )


def runnable(page: str) -> Iterator[Step]:
    """What a reader runs: blocks of shell and Python, and whole commands outside the table of figures."""
    for step in steps(page):
        if step.language in ("sh", "python"):
            yield Step(step.language, _without_installation(step.text))
        elif step.language == "inline" and not step.placeholder and step.section != "Ten figures":
            yield Step("sh", step.text)


def _without_installation(block: str) -> str:
    parts = block.split(" && ")
    return " && ".join(part for part in parts if " -m venv " not in part and "pip install" not in part)


class Reader:
    """Somebody in a fresh copy of the repository, with one ledger, who installed it as README.md says."""

    def __init__(self, home: Path) -> None:
        self.home = home
        for name in ("data", "pipelines", "cluster"):
            shutil.copytree(ROOT / name, home / name, ignore=shutil.ignore_patterns("__pycache__"))
        tools = home / ".venv" / "bin"
        tools.mkdir(parents=True)
        (tools / "activate").write_text(f"export PATH={tools}:$PATH\n", encoding="utf-8")
        for name, words in (("daskrado", "-m daskrado"), ("python", "")):
            (tools / name).write_text(f'#!/bin/sh\nexec "{sys.executable}" {words} "$@"\n', encoding="utf-8")
            (tools / name).chmod(0o755)
        self.environ = {**os.environ, "PYTHONPATH": str(ROOT), "DASKRADO_LEDGER": str(home / "ledger.sqlite")}

    def run(self, step: Step) -> str | None:
        """Run a step; None, or what it complained of."""
        words = ["bash", "-euo", "pipefail", "-c"] if step.language == "sh" else [sys.executable, "-c"]
        done = subprocess.run(
            [*words, step.text], cwd=self.home, env=self.environ, capture_output=True, text=True, timeout=HUNG
        )
        if "activate" in step.text:  # the reader's shell stays as it is after this block
            self.environ["PATH"] = f"{self.home / '.venv' / 'bin'}:{self.environ['PATH']}"
        return (
            None if done.returncode == 0 else f"{step.text}\n  exit {done.returncode}: {done.stderr.strip()[-800:]}"
        )


@pytest.mark.slow
def test_everything_in_it_runs_from_the_top_and_all_pipelines_after_it(tmp_path: Path) -> None:
    reader = Reader(tmp_path)
    found = list(runnable(README))
    assert sum(step.language == "python" for step in found) >= 1
    assert sum("run pipelines/" in step.text for step in found) >= 10
    after = [
        Step("sh", f"daskrado run pipelines/{path.name} --out again/{path.stem}")
        for path in sorted((ROOT / "pipelines").glob("*.yaml"))
    ]
    assert [problem for step in [*found, *after] if (problem := reader.run(step)) is not None] == []


@pytest.mark.slow
def test_the_page_of_pipelines_runs_from_the_top(tmp_path: Path) -> None:
    reader = Reader(tmp_path)
    page = (ROOT / "pipelines" / "README.md").read_text(encoding="utf-8")
    blocks = [Step("sh", ". .venv/bin/activate"), *(s for s in steps(page) if s.language in ("sh", "python"))]
    assert [problem for step in blocks if (problem := reader.run(step)) is not None] == []


def test_it_is_one_page() -> None:
    assert len(README.splitlines()) <= 200
    assert len(README.encode()) <= 14_000
    assert re.findall(r"^## (.+)$", README, flags=re.MULTILINE) == SECTIONS


def test_guarantees_and_limits_have_eight_lines_each() -> None:
    for name in ("Guarantees", "Limits"):
        section = README.split(f"## {name}\n")[1].split("\n## ")[0]
        assert [line[:2] for line in section.strip().splitlines()] == ["- "] * 8


@pytest.mark.parametrize("page", PAGES, ids=str)
def test_links_lead_to_files_and_headings(page: Path) -> None:
    text = (ROOT / page).read_text(encoding="utf-8")
    lost = []
    for link in re.findall(r"\]\(([^)\s]+)\)", text):
        if "://" in link:
            continue
        name, _, heading = link.partition("#")
        target = (ROOT / page.parent / name) if name else ROOT / page
        if not target.exists() or (heading and heading not in _headings(target)):
            lost.append(link)
    assert lost == []


def _headings(page: Path) -> set[str]:
    """The anchors of a page, as GitHub makes them."""
    titles = re.findall(r"^#+ (.+)$", page.read_text(encoding="utf-8"), flags=re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


def test_every_page_is_reached_from_the_first() -> None:
    reached, open_pages = set(), {Path("README.md")}
    while open_pages:
        page = open_pages.pop()
        reached.add(page)
        links = re.findall(r"\]\(([^)#\s]+\.md)", (ROOT / page).read_text(encoding="utf-8"))
        found = {Path(os.path.normpath(page.parent / link)) for link in links if "://" not in link}
        open_pages |= {path for path in found if (ROOT / path).exists()} - reached
    assert set(PAGES) - reached == set()


def _commands() -> list[tuple[str, str]]:
    """Every command of daskrado in the pages and in the comments of YAML files, with where it stands."""
    found = []
    for page in PAGES:
        for step in steps((ROOT / page).read_text(encoding="utf-8")):
            if step.language in ("sh", "inline") and page.name != "CHANGELOG.md":
                found += [(str(page), line) for line in step.text.splitlines()]
    for path in sorted(
        (*ROOT.glob("pipelines/*.yaml"), *ROOT.glob("pipelines/*/*.yaml"), *ROOT.glob("cluster/*.yaml"))
    ):
        lines = path.read_text(encoding="utf-8").splitlines()
        found += [(path.name, line.lstrip("# ")) for line in lines if re.match(r"#\s+daskrado ", line)]
    pieces = [(where, piece) for where, line in found for piece in re.split(r"&&|;|\|", line)]
    return [(where, piece.strip()) for where, piece in pieces if re.match(r"\s*(do )?(\S*/)?daskrado ", piece)]


def test_every_command_and_option_exists() -> None:
    from daskrado.cli import main as module

    [program] = [value for value in vars(module).values() if isinstance(value, click.Group)]
    commands = _commands()
    assert len(commands) > 60
    assert [(where, line, why) for where, line in commands if (why := _unknown(program, line))] == []


def _unknown(program: click.Group, line: str) -> str:
    """The word of a command line that the program does not know; nothing where it knows all."""
    words = shlex.split(re.split(r"\s{2,}|\s#", line.removeprefix("do "))[0])[1:]
    command: click.Command = program
    for word in words:
        if word.startswith("-"):
            known = {option for param in command.params for option in (*param.opts, *param.secondary_opts)}
            if word.split("=")[0] not in known | {"-h", "--help", "--version"}:
                return f"{command.name} has no option {word}"
        elif isinstance(command, click.Group):
            inner = command.get_command(click.Context(command), word)
            if inner is None:
                return f"{command.name} has no command {word}"
            command = inner
    return ""


def _figures() -> list[list[str]]:
    section = README.split("## Ten figures\n")[1].split("\n## ")[0]
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in section.splitlines() if line[:1] == "|"]
    return rows[2:]


def test_ten_figures_each_have_a_command() -> None:
    rows = _figures()
    assert len(rows) == 10
    for _, figure, command in rows:
        assert re.search(r"\d", figure)
        assert re.fullmatch(r"`(daskrado|python pipelines/reproduce/\w+\.py) [^`]+`", command)


def test_every_script_and_its_options_exist() -> None:
    texts = [step.text for page in PAGES for step in steps((ROOT / page).read_text(encoding="utf-8"))]
    lines = [
        line.split("#")[0] for text in texts for line in text.splitlines() if line.startswith("python pipelines/")
    ]
    assert len(lines) > 10
    for _, script, *options in map(shlex.split, lines):
        source = (ROOT / script).read_text(encoding="utf-8")
        assert [word for word in options if word.startswith("--") and f'"{word}"' not in source] == []


def test_the_figure_of_composition_is_what_its_command_prints() -> None:
    [(_, figure, command)] = [row for row in _figures() if "compose" in row[2]]
    words = [sys.executable, "-m", *shlex.split(command.strip("`")), "--json"]
    done = subprocess.run(words, capture_output=True, text=True, check=True, timeout=HUNG)
    total, plain = (float(number) for number in figure.split(","))
    by_theorem = json.loads(done.stdout)["theorems"]
    assert round(min(values[-1] for values in by_theorem.values()), 3) == total
    assert round(by_theorem["basic"][-1], 3) == plain


def test_its_commands_set_themselves_up_and_ci_runs_the_second() -> None:
    first, second = re.findall(r"```sh\n(.*?)```", README, flags=re.DOTALL)[:2]
    for block in (first, second):
        assert block.count("\n") == 1
        assert block.startswith("python3 -m venv .venv && .venv/bin/pip install")
    assert "daskrado run pipelines/quickstart.yaml" in first
    for part in ("ruff", "mypy", "lint-imports", "pytest"):
        assert part in second
    assert README.index(TEST_COMMAND) < README.index(second)


def test_a_record_walks_through_quickstart_in_at_most_fifteen_steps() -> None:
    text = (ROOT / "daskrado" / "README.md").read_text(encoding="utf-8")
    section = text.split("## One record walked through quickstart\n")[1].split("\n## ")[0]
    numbers = [int(number) for number in re.findall(r"^(\d+)\. ", section, flags=re.MULTILINE)]
    assert numbers == list(range(1, len(numbers) + 1))
    assert len(numbers) <= 15


@pytest.mark.slow
def test_the_sample_lake_is_small_and_is_what_lake_make_makes(tmp_path: Path) -> None:
    from daskrado.lake.make import make_lake

    sample = ROOT / "data" / "clinic_sample"
    assert sum(p.stat().st_size for p in sample.iterdir()) < 1_000_000
    made = make_lake(tmp_path / "clinic_sample", rows=60_000, features=12, partitions=5, seed=7)
    assert made.read_text() == (ROOT / "data" / "clinic_sample.yaml").read_text()
    for path in sorted(sample.glob("*.parquet")):
        pd.testing.assert_frame_equal(pd.read_parquet(path), pd.read_parquet(tmp_path / "clinic_sample" / path.name))
