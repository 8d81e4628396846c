"""The study's folder: any shared folder or object store. Sites only ever read and write files; no port is open."""

from __future__ import annotations

import os
import re
import secrets
from pathlib import Path
from typing import Any

from daskrado.errors import DataError, UsageError

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}")


class Mailbox:
    """Whole files under one address. What is written once is never replaced."""

    def __init__(self, address: str | Path) -> None:
        import fsspec

        self.address = str(address)
        try:
            self._fs, self._root = fsspec.core.url_to_fs(self.address)
        except (ImportError, ValueError) as error:
            raise UsageError(f"{self.address}: not an address that fsspec can open ({error})") from None
        self._local = "file" in _protocols(self._fs)

    def _path(self, name: str) -> str:
        return f"{self._root.rstrip('/')}/{name}"

    def where(self, name: str) -> str:
        """The address of a file, for messages."""
        return f"{self.address.rstrip('/')}/{name}"

    def put_new(self, name: str, data: bytes) -> bool:
        """Write a file that appears whole or not at all; False, and nothing written, where it exists.

        On a local or mounted folder this is atomic (a hard link). On an object store a put is whole, and each name
        has one writer: the coordinator for rounds, a site for its own content-addressed bundles.
        """
        path = self._path(name)
        try:
            if not self._local:
                if self._fs.exists(path):
                    return False
                self._fs.pipe_file(path, data)
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
        except OSError as error:
            raise DataError(f"{self.where(name)}: cannot be written ({error.strerror or error})") from error

    def get(self, name: str) -> bytes | None:
        """A file's bytes, or None."""
        self._fs.invalidate_cache()
        try:
            data: bytes = self._fs.cat_file(self._path(name))
        except FileNotFoundError:
            return None
        except OSError as error:
            raise DataError(f"{self.where(name)}: cannot be read ({error.strerror or error})") from error
        return data

    def names(self, folder: str) -> list[str]:
        """The files directly in a folder, sorted; hidden ones (uploads in progress) aside."""
        self._fs.invalidate_cache()
        try:
            found = self._fs.ls(self._path(folder), detail=True)
        except FileNotFoundError:
            return []
        except OSError as error:
            raise DataError(f"{self.where(folder)}: cannot be listed ({error.strerror or error})") from error
        names = [str(entry["name"]).rsplit("/", 1)[-1] for entry in found if entry["type"] == "file"]
        return sorted(name for name in names if not name.startswith("."))

    def all(self, folder: str) -> list[tuple[str, bytes]]:
        """Name and bytes of every file in a folder."""
        pairs = [(name, self.get(f"{folder}/{name}")) for name in self.names(folder)]
        return [(name, data) for name, data in pairs if data is not None]


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


def _protocols(fs: Any) -> tuple[str, ...]:
    return (fs.protocol,) if isinstance(fs.protocol, str) else tuple(fs.protocol)


def check_name(name: str, what: str) -> str:
    """Names become file names and are signed: letters, digits, ``_`` and ``-``, 64 at most."""
    if not NAME.fullmatch(name):
        raise UsageError(
            f"{what} {name!r}: use 1 to 64 letters, digits, '_' or '-', beginning with a letter or digit"
        )
    return name
