"""Draws of noise: each is marked in the journal and counted in the ledger before it is made, and kept after."""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from daskrado.errors import LedgerError
from daskrado.lake.seeds import SignatureKey
from daskrado.ledger.deferred_signals import deferred_signals
from daskrado.ledger.endings import cannot_go_on, left_over, lost, outdated
from daskrado.ledger.grants import Grants
from daskrado.ledger.journal import Arrays, Journal
from daskrado.ledger.ledger import Grant, Ledger
from daskrado.privacy.mechanisms import Mechanism
from daskrado.privacy.noise import get_ready
from daskrado.privacy.release import Release, release
from daskrado.privacy.statement import PrivacyStatement
from daskrado.statistics.base import Summary

T = TypeVar("T")


class Draws(Grants):
    """What a run draws under its grants; the base of :class:`daskrado.ledger.account.Account`, which publishes it."""

    def __init__(
        self, run: str, ledger: Ledger | None, journal: Journal | None, *, resumed: bool, again: str
    ) -> None:
        super().__init__(run, ledger, journal, resumed=resumed, again=again)
        self._counted: set[str] = set()  # names of the draws that this process made or tried
        self._checked: set[int] = set()  # entries whose counted draws are all kept here
        self._digest = hashlib.sha256()  # of all that was drawn

    def draw(
        self,
        role: str,
        grant: Grant | None,
        gather: Callable[[], T],
        perturb: Callable[[T], Arrays],
        *,
        number: int | None = None,
    ) -> Arrays:
        """What was drawn and kept before, else ``perturb(gather())``, marked and counted before, kept after.

        ``gather`` reads rows and draws nothing, or in secret: what it returns is forgotten where the run ends before
        it is counted. ``perturb`` draws. Without a grant the draw is of public randomness and may be repeated.
        ``number`` counts the draws of one role.
        """
        name = role if number is None else f"{role}#{number:05d}"
        drawn = None if self.journal is None else self.journal.kept(name)
        if drawn is None:
            drawn = self._drawn(name, grant, gather, perturb)
        for key, values in drawn.items():
            self._digest.update(f"{name} {key} ".encode() + np.asarray(values).tobytes())
        return drawn

    def _drawn(
        self, name: str, grant: Grant | None, gather: Callable[[], T], perturb: Callable[[T], Arrays]
    ) -> Arrays:
        if grant is not None:
            self._check_not_drawn(name, grant)
        private = gather()
        get_ready()
        self._begin(name)
        with deferred_signals():
            if grant is not None:
                self._counted.add(name)
                self.count(grant, name)
            drawn = perturb(private)
            self._keep(name, drawn)
        return drawn

    def _check_not_drawn(self, name: str, grant: Grant) -> None:
        """Refuse a draw that may have been made, before rows are read for it."""
        if name in self._counted:
            raise LedgerError(lost(self.run, self._again))
        if grant.entry in self._checked:  # later draws are refused one by one as they are counted
            return
        self._check_journal()
        counted = self.ledger.draws(grant.entry)
        if self.journal is None and counted - self._counted:
            raise LedgerError(outdated(f"run {self.run}", counted - self._counted, self._again))
        if not counted and self.spent(grant):  # by a version that did not count
            raise LedgerError(lost(self.run, self._again))
        self._checked.add(grant.entry)

    def _check_journal(self) -> None:
        """Refuse a journal that lacks a draw that was counted."""
        if self.journal is not None:
            why = cannot_go_on(self.journal, self.ledger, self._again, self._counted)
            if why is not None:
                raise LedgerError(why)

    def _begin(self, name: str) -> None:
        """Mark a draw before it is made."""
        if self.journal is None:
            return
        try:
            self.journal.begin(name)
        except OSError as error:
            raise LedgerError(
                f"{self.journal.folder}: cannot be written ({error.strerror}); {self._left()}"
            ) from error

    def _keep(self, name: str, drawn: Arrays) -> None:
        if self.journal is None:
            return
        try:
            self.journal.keep(name, drawn)
        except OSError as error:  # a disk that fails here is no reason to lose what was paid for
            self.notes += (f"a release could not be kept in {self.journal.folder} ({error.strerror})",)

    @contextlib.contextmanager
    def marked(self, name: str) -> Iterator[None]:
        """Mark an engine's last draw: a run that is killed inside, after it was counted, is not resumed."""
        self._begin(name)
        yield
        if self.journal is not None:
            self.journal.unmark(name)

    def release(
        self,
        role: str,
        grant: Grant,
        mechanism: Mechanism,
        statement: PrivacyStatement,
        gather: Callable[[], Summary],
    ) -> Release:
        """Collect a statistic, spend the grant and add noise, once; or the release that was kept."""

        def perturb(summary: Summary) -> Arrays:
            return {**release(summary, mechanism, grant, partial(self._check_counted, role), statement).values}

        values = self.draw(role, grant, gather, perturb)
        target = mechanism.target
        return Release(target.statistic.plain, target.lattice, values, mechanism.noise_std(), statement)

    def _check_counted(self, name: str) -> None:
        if name not in self._counted:
            raise LedgerError(f"run {self.run}: {name} was not counted before it is drawn; it is not released")

    def numbered(self, role: str, grant: Grant) -> Callable[[bool, Callable[[], Any], Callable[[Any], Any]], Any]:
        """The draws of a learner that draws several times under one grant, in their order."""
        done = 0

        def draw(paid: bool, gather: Callable[[], Any], perturb: Callable[[Any], NDArray[Any]]) -> NDArray[Any]:
            nonlocal done
            done += 1
            kept = self.draw(
                role, grant if paid else None, gather, lambda private: {"drawn": perturb(private)}, number=done
            )
            return np.asarray(kept["drawn"])

        return draw

    def row_key(self, role: str) -> SignatureKey:
        """A secret key for noise on rows: the noise is a function of it, so that keeping it repeats the same draw."""
        if self.journal is None:
            return SignatureKey.secret()
        self._check_journal()  # its own key may be gone
        return SignatureKey(self.journal.secret(role), public=False)

    def count_repeatable(self, role: str, grant: Grant, noisy: NDArray[Any]) -> None:
        """Count noise that is a function of the role's secret key, before it is released.

        It may be computed again: the ledger has a digest of it under that key. A run whose key is gone, or whose rows
        are others than then, gets another digest and is refused.
        """
        key = self.row_key(role).key_bytes()
        self.count(grant, role, hashlib.blake2b(noisy.tobytes(), key=key, digest_size=16).hexdigest())

    def has(self, role: str) -> bool:
        """Whether the release of a role is kept, so that rows are not needed."""
        return self.journal is not None and self.journal.kept(role) is not None

    @property
    def returned(self) -> str:
        """What stands for a result that is returned and not written: a digest of all that was drawn for it."""
        return f"returned sha256 {self._digest.hexdigest()}"

    def _left(self) -> str:
        """What a user can do about a run that ended early; the truth in each state."""
        assert self.journal is not None
        return left_over(self.journal, self.ledger, self._again)
