"""Output folders against real kills: at every step one output is in place, whole, and the next command tidies up."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from dying import kill_points

from daskrado.errors import DaskradoError, DataError, UsageError
from daskrado.lake import durable, publish
from daskrado.lake.claim import Claim
from daskrado.lake.publish import check_free, claimed, new_folder
from daskrado.lake.score import score
from daskrado.models.linear import LinearModel
from daskrado.models.rados import RadoSet
from daskrado.privacy.statement import PrivacyStatement
from daskrado.table.domain import Domain

Forge = Callable[[str], int]
WRITING = """
from daskrado.lake import publish
with publish.new_folder({out!r}, overwrite={overwrite}) as folder:
    (folder / "manifest.json").write_text('{{"schema": "daskrado.manifest/2", "run": "{run}"}}')
    (folder / "a.rados.parquet").write_text({run!r} * 1000)
"""


def write(out: Path, run: str, *, overwrite: bool = False) -> None:
    exec(WRITING.format(out=str(out), overwrite=overwrite, run=run), {})


def content(out: Path) -> str | None:
    """The run whose output is there, whole; None where there is nothing."""
    if not out.exists():
        return None
    run = json.loads((out / "manifest.json").read_text())["run"]
    assert (out / "a.rados.parquet").read_text() == run * 1000
    assert sorted(path.name for path in out.iterdir()) == ["a.rados.parquet", "manifest.json"]
    return str(run)


def hidden(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir() if path.name.startswith("."))


def test_killed_at_each_step_a_new_output_is_whole_or_not_there(forge: Forge, tmp_path: Path) -> None:
    out, seen = tmp_path / "deep" / "below" / "out", []
    for _ in kill_points(forge, "arm()" + WRITING.format(out=str(out), overwrite=False, run="one")):
        seen.append(content(out))
        if seen[-1] is None:
            write(out, "two")
        else:  # published: nothing but the claim may be left, and whoever is next removes it
            write(out, "two", overwrite=True)
        assert content(out) == "two"
        assert hidden(out.parent) == []
        for path in (*out.iterdir(), out, out.parent, out.parent.parent):
            path.unlink() if path.is_file() else path.rmdir()
    assert {None, "one"} == set(seen)
    assert seen == sorted(seen, key=lambda run: run is not None)  # once it is there, it stays


@pytest.mark.parametrize("exchanges", [True, False])
def test_killed_at_each_step_of_an_overwrite_one_output_is_in_place(
    forge: Forge, tmp_path: Path, exchanges: bool
) -> None:
    """Where the platform exchanges folders, always; else the next command puts the older one back."""
    out, seen = tmp_path / "out", []
    write(out, "old")
    for _ in kill_points(
        forge, "arm()" + WRITING.format(out=str(out), overwrite=True, run="new"), exchanges=exchanges
    ):
        if exchanges:
            seen.append(content(out))
        with claimed(out, overwrite=True):
            seen.append(content(out))
        assert seen[-1] in ("old", "new")
        assert hidden(tmp_path) == []
        write(out, "old", overwrite=True)
    assert set(seen) == {"old", "new"}


def test_an_exchange_is_one_step_for_whoever_looks(tmp_path: Path) -> None:
    """A reader that looks all the time never finds the folder missing."""
    out = tmp_path / "out"
    write(out, "old")
    program = (
        "import os, sys\nmissing = 0\nprint(flush=True)\n"
        f"while not os.path.exists({str(tmp_path / 'stop')!r}):\n    missing += not os.path.exists({str(out)!r})\n"
        "print(missing)"
    )
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True) as reader:
        assert reader.stdout is not None
        reader.stdout.readline()
        for number in range(200):
            write(out, str(number), overwrite=True)
        (tmp_path / "stop").touch()
        assert reader.stdout.read().strip() == "0"
    assert content(out) == "199"


def test_an_exchange_that_the_platform_lacks_is_said_and_others_fail(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "one").mkdir()
    with pytest.raises(FileNotFoundError):
        durable.exchange(tmp_path / "one", tmp_path / "two")
    for number in durable._CANNOT:
        monkeypatch.setattr(durable, "_renameat2", lambda number=number: lambda *_: number)
        assert not durable.exchange(tmp_path / "one", tmp_path / "two")
    monkeypatch.setattr(durable, "_renameat2", lambda: None)
    assert not durable.exchange(tmp_path / "one", tmp_path / "two")


def test_all_is_synced_before_it_is_renamed_and_the_name_after(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every file, every folder from the inside out, then the rename, then every folder that holds a new name."""
    done: list[str] = []
    real_sync, real_rename = os.fsync, os.rename

    def sync(handle: int) -> None:
        done.append(os.readlink(f"/proc/self/fd/{handle}").removeprefix(str(tmp_path)))
        real_sync(handle)

    def rename(one: Path, other: Path) -> None:
        done.append("rename")
        real_rename(one, other)

    with claimed(tmp_path / "new" / "out") as claim:
        monkeypatch.setattr(os, "fsync", sync)
        monkeypatch.setattr(os, "rename", rename)
        with new_folder(tmp_path / "new" / "out", claim=claim) as folder:
            (folder / "deep").mkdir()
            for name in ("a", "deep/b"):
                (folder / name).write_text("x")
    before, after = done[: done.index("rename")], done[done.index("rename") + 1 :]
    names = [name.removeprefix("/new/.out.new").rstrip("/.") for name in before]
    assert sorted(names) == ["", "/a", "/deep", "/deep/b"]
    assert names.index("/deep/b") < names.index("/deep") < names.index("")
    assert after == ["/new", ""]  # and the folder that was made for it


def test_two_commands_with_one_output_and_the_second_is_refused(tmp_path: Path) -> None:
    out = tmp_path / "out"
    with claimed(out, who="run 0123"):
        for _ in range(2):
            with pytest.raises(UsageError, match=r"out: run 0123 is writing there; wait for it, or choose another"):
                write(out, "two")
        assert hidden(tmp_path) == [".out.claim"]  # the first one's stays
    assert hidden(tmp_path) == []
    write(out, "two")


def test_a_claim_that_was_released_is_another_ones(tmp_path: Path) -> None:
    """Releasing it twice does not remove that of the next."""
    one = Claim.take(tmp_path / "out")
    one.release()
    with Claim.take(tmp_path / "out") as two:
        one.release()
        assert hidden(tmp_path) == [".out.claim"]
        assert repr(two) == f"<Claim of {tmp_path / 'out'}>"


@pytest.mark.parametrize("name", [".out.new", ".out.old", ".out.claim"])
def test_what_is_somebody_elses_is_refused_and_stays(name: str, tmp_path: Path) -> None:
    foreign = tmp_path / name
    if name.endswith("claim"):
        foreign.write_text("mine")
    else:
        foreign.mkdir()
        (foreign / "thesis.txt").write_text("mine")
    with pytest.raises(UsageError, match=rf"{name}: is in the way, and is not a run's; move it away"):
        write(tmp_path / "out", "one")
    assert hidden(tmp_path) == [name]
    assert (foreign if foreign.is_file() else foreign / "thesis.txt").read_text() == "mine"


def test_a_failed_command_leaves_nothing_and_no_folder_that_it_made(tmp_path: Path) -> None:
    def fail() -> None:
        with new_folder(tmp_path / "a" / "b" / "out") as folder:
            (folder / "x").write_text("x")
            raise DataError("unusable rows")

    with pytest.raises(DataError):
        fail()
    assert [*tmp_path.iterdir()] == []


def test_an_older_output_is_put_back_where_the_new_one_cannot_take_its_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out, real = tmp_path / "out", os.rename
    write(out, "old")
    monkeypatch.setattr(publish, "exchange", lambda *_: False)

    def failing(one: Path, other: Path) -> None:
        if Path(one).name == ".out.new":
            raise OSError(5, "Input/output error", str(one))
        real(one, other)

    monkeypatch.setattr(os, "rename", failing)
    with pytest.raises(OSError, match="Input/output error"):
        write(out, "new", overwrite=True)
    assert content(out) == "old"
    assert hidden(tmp_path) == []


def test_a_mount_point_is_refused_before_anything_is_done(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "out").mkdir()
    monkeypatch.setattr(os.path, "ismount", lambda path: Path(path) == tmp_path / "out")
    with pytest.raises(UsageError, match="out: is a mount point, which cannot be replaced; choose a folder inside"):
        check_free(tmp_path / "out", overwrite=True)


def test_a_disk_without_locks_is_one_clear_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_locks(handle: int, kind: int) -> None:
        raise OSError(37, "No locks available")

    monkeypatch.setattr("fcntl.flock", no_locks)
    with pytest.raises(UsageError, match=r"its disk has no file locks \(No locks available\), so two runs could"):
        write(tmp_path / "out", "one")


def test_a_flipped_bit_in_scores_is_refused_or_harmless(
    clinic: Callable[..., tuple[Path, Domain]], tmp_path: Path
) -> None:
    path, domain = clinic(300, 1)
    model = LinearModel(domain, np.linspace(-1, 1, domain.width), PrivacyStatement.none(), "test")
    score(model, path, tmp_path / "scored", keep=["patient_id"])
    (file,) = (tmp_path / "scored").glob("*.parquet")
    expected = pq.read_table(file)
    flips_are_noticed(file, lambda: pq.read_table(file, page_checksum_verification=True), expected.equals)


def test_a_flipped_bit_in_a_rado_file_is_refused_or_harmless(
    clinic: Callable[..., tuple[Path, Domain]], tmp_path: Path
) -> None:
    """No flip of a byte gives other rados: pages carry checksums."""
    _, domain = clinic(300, 1)
    rados = np.random.default_rng(1).normal(size=(5, domain.width))
    path = tmp_path / "a.rados.parquet"
    RadoSet("hadamard", domain, rados, (0.0,) * domain.width, PrivacyStatement.none()).save(path)
    flips_are_noticed(path, lambda: RadoSet.load(path).rados, lambda found: np.array_equal(found, rados))


def flips_are_noticed(path: Path, read: Callable[[], Any], unchanged: Callable[[Any], bool]) -> None:
    """Flip bits of a Parquet file's pages one after another: whoever reads it is refused, or reads the same."""
    whole, refused = path.read_bytes(), 0
    pages = pq.ParquetFile(path).metadata.row_group(0)
    columns = [pages.column(i) for i in range(pages.num_columns)]
    first = min(c.dictionary_page_offset or c.data_page_offset for c in columns)
    last = max((c.dictionary_page_offset or c.data_page_offset) + c.total_compressed_size for c in columns)
    for at in range(first, last, 3):
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 1 << at % 8]) + whole[at + 1 :])
        try:
            found = read()
        except (DaskradoError, pa.ArrowException, OSError):
            refused += 1
        else:
            assert unchanged(found)
    assert refused > (last - first) // 3 / 2  # the rest are statistics in page headers
