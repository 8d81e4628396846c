"""Output folders that appear whole or not at all."""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
from collections.abc import Iterator
from pathlib import Path

from daskrado.errors import UsageError


def check_free(path: str | Path, *, overwrite: bool) -> None:
    """Refuse an output folder that exists, unless it may be replaced; refuse a plain file always."""
    target = Path(path)
    if target.exists() and not target.is_dir():
        raise UsageError(f"{target}: exists and is not a folder")
    if target.exists() and any(target.iterdir()) and not overwrite:
        raise UsageError(f"{target}: the output folder exists; choose another or pass --overwrite")


@contextlib.contextmanager
def new_folder(path: str | Path, *, overwrite: bool = False) -> Iterator[Path]:
    """A temporary folder that is renamed to ``path`` when the block ends well, and removed when it does not."""
    target = Path(os.path.abspath(path))
    check_free(target, overwrite=overwrite)
    target.parent.mkdir(parents=True, exist_ok=True)
    mark = secrets.token_hex(4)
    temporary = target.parent / f".{target.name}.{mark}.new"
    temporary.mkdir()
    try:
        yield temporary
        check_free(target, overwrite=overwrite)
        old = target.parent / f".{target.name}.{mark}.old"
        if target.exists():
            target.rename(old)
        temporary.rename(target)
        shutil.rmtree(old, ignore_errors=True)
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise
