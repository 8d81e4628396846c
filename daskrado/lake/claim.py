"""The right to write one output folder: a lock beside it, which a run holds before it is charged.

While a process holds ``.name.claim``, the hidden folders ``.name.new`` and ``.name.old`` are its own. The lock dies
with the process, the file does not: a claim that nobody holds is that of a process that was killed. The next one to
claim the folder removes what it left, and puts back an older output that was moved away and not replaced. A hidden
folder of such a name without a claim is somebody else's, and is refused.
"""

from __future__ import annotations

import contextlib
import os
import shutil
from pathlib import Path

from daskrado.errors import UsageError
from daskrado.lake.durable import sync_folder
from daskrado.lake.file_locks import lock

_MARK = b"claimed by "  # how a claim begins; a file without it is somebody else's


class Claim:
    """An output folder that no other process writes while this one holds it."""

    def __init__(self, target: Path, handle: int, made: list[Path]) -> None:
        self.target = target
        self.new = target.with_name(f".{target.name}.new")
        self.old = target.with_name(f".{target.name}.old")
        self._handle: int | None = handle
        self._made = made  # folders above it that were not there, the deepest first

    def __repr__(self) -> str:
        return f"<Claim of {self.target}>"

    def __enter__(self) -> Claim:
        return self

    def __exit__(self, *details: object) -> None:
        self.release()

    @classmethod
    def take(cls, path: str | Path, who: str = "this command") -> Claim:
        """Claim a folder for ``who``, or refuse: another process has it, or it cannot be written."""
        target = Path(os.path.abspath(path))
        made = [folder for folder in target.parents if not folder.exists()]
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
            handle = _locked(_file(target), path)
        except OSError as error:
            _remove_empty(made)
            raise UsageError(f"{path}: cannot be written ({error.strerror}); choose another output") from error
        claim = cls(target, handle, made)
        try:
            claim._begin(who)
        except BaseException:
            claim.close()
            raise
        return claim

    def _begin(self, who: str) -> None:
        """Remove what a killed process left, and put this one's name on disk before it makes anything."""
        assert self._handle is not None
        found, file = os.pread(self._handle, 100, 0), _file(self.target)
        if found.startswith(_MARK):
            self._recover()
        elif found:
            raise _in_the_way(file)
        elif foreign := [path for path in (self.new, self.old) if os.path.lexists(path)]:
            file.unlink()
            raise _in_the_way(foreign[0])
        os.ftruncate(self._handle, 0)
        os.pwrite(self._handle, _MARK + who.encode(), 0)
        os.fsync(self._handle)
        sync_folder(self.target.parent)

    def _recover(self) -> None:
        if self.old.exists() and not self.target.exists():
            self.old.rename(self.target)
        self._remove_hidden()

    def published(self) -> None:
        """Put the folder's name, and those of the folders that were made for it, on disk; remove the older output."""
        for folder in (self.target, *self._made):
            sync_folder(folder.parent)
        self._remove_hidden()

    def release(self) -> None:
        """End the claim, once, and remove what is left beside the output."""
        try:
            if self._handle is not None:
                self.clear()
        finally:
            self.close()

    def clear(self) -> None:
        """Remove what is left beside the output, the claim itself last."""
        self._recover()
        with contextlib.suppress(OSError):
            _file(self.target).unlink()
        _remove_empty(self._made)

    def close(self) -> None:
        """Release the lock."""
        if self._handle is not None:
            os.close(self._handle)
            self._handle = None

    def _remove_hidden(self) -> None:
        for folder in (self.new, self.old):
            shutil.rmtree(folder, ignore_errors=True)


def _file(target: Path) -> Path:
    return target.with_name(f".{target.name}.claim")


def _locked(file: Path, path: str | Path) -> int:
    """The open claim, locked; refused while another process has it."""
    while True:
        handle = os.open(file, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
        try:
            lock(handle)
            if os.path.exists(file) and os.path.samestat(os.fstat(handle), os.stat(file)):
                return handle
        except BlockingIOError:
            who = os.pread(handle, 100, 0).removeprefix(_MARK).decode(errors="replace") or "another run"
            os.close(handle)
            raise UsageError(f"{path}: {who} is writing there; wait for it, or choose another output") from None
        except FileNotFoundError:
            pass
        except OSError as error:
            os.close(handle)
            raise UsageError(
                f"{path}: its disk has no file locks ({error.strerror}), so two runs could write there; "
                "choose another output"
            ) from error
        os.close(handle)  # whoever had it removed it at this moment


def _in_the_way(path: Path) -> UsageError:
    return UsageError(f"{path}: is in the way, and is not a run's; move it away, or choose another output")


def _remove_empty(folders: list[Path]) -> None:
    with contextlib.suppress(OSError):
        for folder in folders:
            folder.rmdir()
