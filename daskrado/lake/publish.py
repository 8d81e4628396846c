"""Output folders that appear whole or not at all, and that never replace what is not their own."""

from __future__ import annotations

import contextlib
import json
import os
import re
import secrets
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyarrow import fs as pafs

from daskrado.errors import DataError, UsageError
from daskrado.lake.claim import Claim
from daskrado.lake.durable import exchange, sync_tree
from daskrado.lake.files import INCOMPLETE, first_line, remote, shown
from daskrado.lake.ownership import MANIFEST, Own, by_a_run, by_ingestion, overlap

_LONGEST = 220  # bytes of a folder's name, so that names of temporary folders beside it are not too long
_INGESTED = re.compile(r"part-([0-9a-f]{8}-)?\d{5,}\.parquet")


def check_free(path: str | Path, *, overwrite: bool, own: Own = by_a_run, reading: Sequence[Any] = ()) -> None:
    """Refuse an output folder that exists, unless it may be replaced; refuse a plain file always.

    Only what the same kind of command wrote may be replaced, as ``own`` tells, and never what this one is ``reading``
    or where it was started from.
    """
    if "\0" in str(path):
        raise UsageError(f"the output folder's name {str(path)!r} holds a NUL")
    target = Path(path)
    if len(os.fsencode(target.name)) > _LONGEST:
        raise UsageError(f"the output folder's name has more than {_LONGEST} bytes; choose a shorter one: {target}")
    if target.is_symlink() or (target.exists() and not target.is_dir()):
        raise UsageError(f"{target}: exists and is not a folder")
    if os.path.ismount(target):
        raise UsageError(f"{target}: is a mount point, which cannot be replaced; choose a folder inside it")
    if (source := overlap(target, reading)) is not None:
        raise UsageError(f"{target}: would hold or lie inside what is read ({shown(source)}); choose another output")
    if not target.exists():
        above = next(p for p in Path(os.path.abspath(target)).parents if p.exists())
        if not above.is_dir() or not os.access(above, os.W_OK):
            raise UsageError(f"{target}: cannot be made, since {above} is not a folder that can be written to")
        return
    if next(target.iterdir(), None) is None:
        return
    if not overwrite:
        raise UsageError(f"{target}: the output folder exists; choose another or pass --overwrite")
    here, there = Path(os.path.realpath(os.getcwd())), Path(os.path.realpath(target))
    if there == here or there in here.parents:
        raise UsageError(f"{target}: holds the current folder; it is not overwritten")
    if (reason := own(target)) is not None:
        raise UsageError(f"{target}: was not written by this command ({reason}); it is not overwritten")


def check_free_text(path: str | Path, *, overwrite: bool) -> None:
    """Refuse a text file that exists, unless it may be replaced: a plain one, no device, link or database."""
    target = Path(path)
    if not os.path.lexists(target):
        above = target.absolute().parent
        if not above.is_dir() or not os.access(above, os.W_OK):
            raise UsageError(f"{target}: cannot be written, since {above} is not a folder that can be written to")
        return
    if target.is_symlink() or not target.is_file():
        raise UsageError(f"{target}: exists and is not a plain file")
    if not overwrite:
        raise UsageError(f"{target}: exists; choose another or pass --overwrite")
    try:
        with target.open("rb") as file:
            binary = b"\0" in file.read(4096)
    except OSError as error:
        raise UsageError(f"{target}: cannot be read ({error.strerror}); it is not overwritten") from error
    if binary:
        raise UsageError(f"{target}: is not a text file; it is not overwritten")


@contextlib.contextmanager
def claimed(
    path: str | Path,
    *,
    overwrite: bool = False,
    own: Own = by_a_run,
    reading: Sequence[Any] = (),
    who: str = "another command",
) -> Iterator[Claim]:
    """The right to write a folder for a block: it is free or may be replaced, and nobody else writes it."""
    check_free(path, overwrite=overwrite, own=own, reading=reading)
    with Claim.take(path, who) as claim:
        check_free(path, overwrite=overwrite, own=own, reading=reading)  # an older output may have been put back
        yield claim


@contextlib.contextmanager
def new_folder(
    path: str | Path,
    *,
    overwrite: bool = False,
    own: Own = by_a_run,
    reading: Sequence[Any] = (),
    claim: Claim | None = None,
) -> Iterator[Path]:
    """A hidden folder that takes the place of ``path``, durably, when the block ends well.

    Where the caller has no ``claim`` of ``path``, one is taken for the block.
    """
    options: dict[str, Any] = {"overwrite": overwrite, "own": own, "reading": reading}
    with claimed(path, **options) if claim is None else contextlib.nullcontext(claim) as held:
        check_free(path, **options)
        shutil.rmtree(held.new, ignore_errors=True)  # of an attempt before this one
        held.new.mkdir()
        yield held.new
        sync_tree(held.new)
        check_free(path, **options)
        _swap(held)
        held.published()


def _swap(claim: Claim) -> None:
    """Put the new folder in its place.

    An older one leaves it in the same step. Where the platform cannot, it is moved away first; whoever claims the
    folder next puts it back if that is as far as it came.
    """
    if claim.target.exists() and exchange(claim.new, claim.target):
        return
    if claim.target.exists():
        claim.target.rename(claim.old)
    claim.new.rename(claim.target)


@dataclass
class LakeTarget:
    """A folder to write in. ``prefix`` begins the names of new files, apart from those of an older lake there."""

    filesystem: pafs.FileSystem
    folder: str
    prefix: str = "part-"
    manifest: dict[str, Any] = field(default_factory=dict)

    def write_manifest(self) -> None:
        """Write the manifest beside the files."""
        with self.filesystem.open_output_stream(f"{self.folder}/{MANIFEST}") as stream:
            stream.write((json.dumps(self.manifest, indent=2) + "\n").encode())


@contextlib.contextmanager
def new_lake(out: str, *, overwrite: bool) -> Iterator[LakeTarget]:
    """A place to write in that becomes a lake only when the block ends well; until then an older one there stays."""
    if "://" not in out:
        with new_folder(out, overwrite=overwrite, own=by_ingestion) as folder:
            target = LakeTarget(pafs.LocalFileSystem(), str(folder))
            yield target
            target.write_manifest()
        return
    filesystem, path = remote(out)
    target = LakeTarget(filesystem, path.rstrip("/"), f"part-{secrets.token_hex(4)}-")
    try:
        older = _claim(target, out, overwrite=overwrite)
        try:
            yield target
        except BaseException:
            _clear(target, marker=not any(path.endswith(f"/{INCOMPLETE}") for path in older))
            raise
        for file in older:
            if not file.endswith((f"/{INCOMPLETE}", f"/{MANIFEST}")):
                filesystem.delete_file(file)
        target.write_manifest()
        filesystem.delete_file(f"{target.folder}/{INCOMPLETE}")
    except (OSError, pa.ArrowException) as error:
        raise DataError(f"{shown(out)}: cannot be written ({first_line(error)})") from error


def _claim(target: LakeTarget, out: str, *, overwrite: bool) -> list[str]:
    """Put the marker; returns the files that are there already."""
    there = _files(target)
    if there and not overwrite:
        raise UsageError(f"{shown(out)}: exists; choose another or pass --overwrite")
    names = [path.rpartition("/")[2] for path in there]
    foreign = [name for name in names if name not in (INCOMPLETE, MANIFEST) and not _INGESTED.fullmatch(name)]
    if there and (foreign or not {INCOMPLETE, MANIFEST} & set(names)):
        reason = f"it holds {foreign[0]}" if foreign else f"it has no {MANIFEST}"
        raise UsageError(f"{shown(out)}: was not written by this command ({reason}); it is not overwritten")
    with target.filesystem.open_output_stream(f"{target.folder}/{INCOMPLETE}") as stream:
        stream.write(b"this lake is being written, or its writer was cut off\n")
    return there


def _clear(target: LakeTarget, *, marker: bool) -> None:
    """Remove what was written, the marker last; what cannot be reached keeps its marker, and is refused."""
    with contextlib.suppress(OSError, pa.ArrowException):
        for path in _files(target):
            if path.rpartition("/")[2].startswith(target.prefix):
                target.filesystem.delete_file(path)
        if marker:
            target.filesystem.delete_file(f"{target.folder}/{INCOMPLETE}")


def _files(target: LakeTarget) -> list[str]:
    selector = pafs.FileSelector(target.folder, recursive=True, allow_not_found=True)
    return [info.path for info in target.filesystem.get_file_info(selector) if info.type == pafs.FileType.File]
