"""The study's folder: any shared folder or object store. Sites only ever read and write files; no port is open."""

from __future__ import annotations

import contextlib
import os
import re
import secrets
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
from pyarrow import fs as pafs

from daskrado.errors import DataError, UsageError
from daskrado.lake.files import remote

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}")


class Mailbox:
    """Whole files under one address. What is written once is never replaced."""

    def __init__(self, address: str | Path) -> None:
        self.address = str(address)
        if "://" in self.address:
            self._fs, self._root = remote(self.address)
        else:
            self._fs, self._root = pafs.LocalFileSystem(), os.path.abspath(self.address)
        self._local = isinstance(self._fs, pafs.LocalFileSystem)

    def _path(self, name: str) -> str:
        return f"{self._root.rstrip('/')}/{name}"

    def where(self, name: str) -> str:
        """The address of a file, for messages."""
        return f"{self.address.partition('?')[0].rstrip('/')}/{name}"

    def put_new(self, name: str, data: bytes) -> bool:
        """Write a file that appears whole or not at all; False, and nothing written, where it exists.

        On a local or mounted folder this is atomic (a hard link). On an object store a put is whole, and each name
        has one writer: the coordinator for rounds, a site for its own content-addressed bundles.
        """
        path = self._path(name)
        with self._clear(name, "written"):
            if not self._local:
                if self._fs.get_file_info(path).type != pafs.FileType.NotFound:
                    return False
                with self._fs.open_output_stream(path) as stream:
                    stream.write(data)
                return True
            target = Path(path)
            target.parent.mkdir(parents=True, exist_ok=True)
            temporary = target.parent / f".{target.name}.{secrets.token_hex(4)}"
            try:
                with open(temporary, "xb") as file:
                    file.write(data)
                    file.flush()
                    os.fsync(file.fileno())
                return _link(temporary, target)
            finally:
                temporary.unlink(missing_ok=True)

    def get(self, name: str) -> bytes | None:
        """A file's bytes, or None."""
        with self._clear(name, "read"):
            try:
                with self._fs.open_input_stream(self._path(name)) as stream:
                    data: bytes = stream.read()
            except FileNotFoundError:
                return None
            return data

    def names(self, folder: str) -> list[str]:
        """The files directly in a folder, sorted, excluding hidden ones (uploads in progress)."""
        with self._clear(folder, "listed"):
            if self._local:
                return _listed(self._path(folder))
            found = self._fs.get_file_info(pafs.FileSelector(self._path(folder), allow_not_found=True))
        names = [info.base_name for info in found if info.type == pafs.FileType.File]
        return sorted(name for name in names if not name.startswith("."))

    def all(self, folder: str) -> list[tuple[str, bytes]]:
        """Name and bytes of every file in a folder."""
        pairs = [(name, self.get(f"{folder}/{name}")) for name in self.names(folder)]
        return [(name, data) for name, data in pairs if data is not None]

    @contextlib.contextmanager
    def _clear(self, name: str, what: str) -> Iterator[None]:
        """A failure of the folder or store as one line that names the file."""
        try:
            yield
        except (OSError, pa.ArrowException) as error:
            reason = getattr(error, "strerror", None) or " ".join(str(error).split())
            raise DataError(f"{self.where(name)}: cannot be {what} ({reason})") from error


def _listed(path: str) -> list[str]:
    """Arrow looks at every entry, and fails if a temporary file of another party vanishes meanwhile."""
    try:
        with os.scandir(path) as entries:
            return sorted(entry.name for entry in entries if not entry.name.startswith(".") and entry.is_file())
    except FileNotFoundError:
        return []


def _link(temporary: Path, target: Path) -> bool:
    try:
        os.link(temporary, target)
    except FileExistsError:
        return False
    except OSError:  # a file system without hard links: exclusive creation, then content
        try:
            with open(target, "xb") as file:
                file.write(temporary.read_bytes())
        except FileExistsError:
            return False
    return True


def check_name(name: str, what: str) -> str:
    """Names become file names and are signed: letters, digits, ``_`` and ``-``, 64 at most."""
    if not NAME.fullmatch(name):
        raise UsageError(
            f"{what} {name!r}: use 1 to 64 letters, digits, '_' or '-', beginning with a letter or digit"
        )
    return name
