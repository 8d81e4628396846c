"""Output folders that appear whole or not at all, and that never replace what is not their own."""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
from collections.abc import Iterator
from pathlib import Path

from daskrado.errors import UsageError


def check_free(path: str | Path, *, overwrite: bool, tables: frozenset[str] | None = None) -> None:
    """Refuse an output folder that exists, unless it may be replaced; refuse a plain file always.

    Only what daskrado wrote may be replaced: a folder with one of its JSON files or, where the job writes ``tables``,
    with nothing but Parquet files that have those columns. A folder that holds a database is never replaced, since it
    may be a ledger.
    """
    if "\0" in str(path):
        raise UsageError(f"the output folder's name {str(path)!r} holds a NUL")
    target = Path(path)
    if target.is_symlink() or (target.exists() and not target.is_dir()):
        raise UsageError(f"{target}: exists and is not a folder")
    if not target.exists():
        above = next(p for p in Path(os.path.abspath(target)).parents if p.exists())
        if not above.is_dir() or not os.access(above, os.W_OK):
            raise UsageError(f"{target}: cannot be made, since {above} is not a folder that can be written to")
        return
    content = sorted(target.iterdir())
    if content and not overwrite:
        raise UsageError(f"{target}: the output folder exists; choose another or pass --overwrite")
    if content and not _is_ours(target, tables):
        raise UsageError(f"{target}: was not written by this command, or holds a database; it is not overwritten")


def _is_ours(folder: Path, tables: frozenset[str] | None) -> bool:
    files = [entry for entry in folder.rglob("*") if entry.is_symlink() or not entry.is_dir()]
    if any(entry.is_symlink() or _starts(entry, b"SQLite format 3") for entry in files):
        return False
    if any(entry.suffix == ".json" and b'"schema": "daskrado.' in entry.read_bytes()[:200] for entry in files):
        return True
    return tables is not None and all(entry.suffix == ".parquet" and tables <= _columns(entry) for entry in files)


def _starts(path: Path, mark: bytes) -> bool:
    with path.open("rb") as file:
        return file.read(len(mark)) == mark


def _columns(path: Path) -> set[str]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        return set(pq.read_schema(path).names)
    except (pa.ArrowException, OSError):
        return set()


@contextlib.contextmanager
def new_folder(path: str | Path, *, overwrite: bool = False, tables: frozenset[str] | None = None) -> Iterator[Path]:
    """A temporary folder that is renamed to ``path`` when the block ends well, and removed when it does not."""
    target = Path(os.path.abspath(path))
    check_free(target, overwrite=overwrite, tables=tables)
    target.parent.mkdir(parents=True, exist_ok=True)
    mark = secrets.token_hex(4)
    temporary = target.parent / f".{target.name}.{mark}.new"
    temporary.mkdir()
    try:
        yield temporary
        check_free(target, overwrite=overwrite, tables=tables)
        _swap(temporary, target, target.parent / f".{target.name}.{mark}.old")
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise


def _swap(new: Path, target: Path, old: Path) -> None:
    if target.exists():
        target.rename(old)
    try:
        new.rename(target)
    except OSError:
        if old.exists():
            old.rename(target)
        raise
    shutil.rmtree(old, ignore_errors=True)
