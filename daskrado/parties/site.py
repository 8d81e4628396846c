"""A site's side of a study: join it, contribute to a round. Rows stay here; one masked vector leaves."""

from __future__ import annotations

import contextlib
import hashlib
import secrets
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from daskrado.cluster import ClusterConfig, connect
from daskrado.errors import DataError, UsageError
from daskrado.lake.blocks import Blocks
from daskrado.lake.collect import Progress, collect
from daskrado.lake.scan import Lake
from daskrado.lake.units import check_units, units_of
from daskrado.ledger.account import Account
from daskrado.ledger.charging import opened_ledger
from daskrado.ledger.config import LedgerConfig
from daskrado.ledger.journal import Journal
from daskrado.ledger.journal_folder import InUseError
from daskrado.ledger.ledger import Grant
from daskrado.ledger.lines import Closable
from daskrado.ledger.opening import named_account
from daskrado.parties.bundles import KIND, seal_bundle
from daskrado.parties.keys import Document, PrivateKeys, PublicKeys
from daskrado.parties.mailbox import check_name
from daskrado.parties.masks import mask
from daskrado.parties.rounds import Round, fingerprint_of
from daskrado.parties.study import RoundPlan, Terms, terms_of
from daskrado.parties.study_folder import StudyFolder
from daskrado.privacy.shares import GaussianShares
from daskrado.statistics.base import Summary

SHARE = "share"  # the role of a site's charge, and of what it draws
_EXACT = "bundle@"  # draws of such names are kept by the agreement, not by the journal of a run
_AGAIN = "let the round go on without this site, or draw a new share at a second charge with --pay-again"


class Agreement(Closable):
    """What a site remembers of a study: whom it agreed with, and the one bundle that it made for each round.

    The journal is in the site's own folder of keys; one contribution at a time. A bundle is written here before it
    leaves the site. So whatever fails, the same round gets the same bytes again; a vector that was not written here
    was never sent.
    """

    def __init__(self, keys_folder: str | Path, study: str) -> None:
        folder = Path(keys_folder) / "studies" / study
        try:
            self._journal = Journal.open(folder, {"study": study})
        except InUseError:
            raise UsageError(f"{folder}: another process is contributing to this study") from None
        try:
            self._bundles = self._journal.lines("bundles", {})
            if not all(isinstance(line, dict) and {"round", "bundle"} <= set(line) for line in self._bundles.entries):
                raise self._bundles.damaged()
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        self._journal.close()

    def stored(self, round_: Round) -> bytes | None:
        """The bundle made for a round, or for a step of it, or None."""
        wanted = (round_.number, round_.step)
        found = (line for line in self._bundles.entries if (line["round"], line.get("step", 0)) == wanted)
        return next((line["bundle"].encode() for line in found), None)

    def store(self, round_: Round, data: bytes) -> None:
        """Remember a bundle, once for each round, or for each step of it."""
        if self.stored(round_) is not None:
            raise DataError(f"study {round_.study!r}: this site has a bundle for round {round_.number} already")
        step = {"step": round_.step} if round_.step else {}
        self._bundles.append({"round": round_.number, **step, "bundle": data.decode()})

    def is_over(self, round_: Round) -> bool:
        """Whether this site has answered all steps of a round."""
        return bool(self._journal.content.get("over") == round_.mark)

    def end(self, round_: Round) -> None:
        """Remember that all steps of a round are answered."""
        self._journal.remember(over=round_.mark)

    def last(self) -> int:
        """The highest round that this site made a bundle for; 0 for none."""
        return max((line["round"] for line in self._bundles.entries), default=0)

    def agree(self, round_: Round, site: str, mine: PublicKeys, fingerprint: str, *, once: bool) -> None:
        """Check a round against what this site agreed to when it first contributed, and remember it then.

        Terms and coordinator never change; the roster only shrinks. ``fingerprint`` is the roster's, or that of the
        first one, as the other sites read it out: it protects against a coordinator who puts keys of his own into
        the roster. ``once``: vectors leave without noise, so that this site makes one for the study and no other;
        of two totals, one without a site, the difference would be the vector of that site.
        """
        name = f"study {round_.study!r}"
        if site not in round_.roster:
            raise DataError(
                f"{name}: site {site!r} is not in the roster of round {round_.number}: {', '.join(round_.roster)}"
            )
        if round_.roster[site] != mine:
            raise DataError(f"{name}: the key of {site!r} in the roster of round {round_.number} is not this site's")
        known = "agreed" in self._journal.content
        first = fingerprint_of(self._journal.content["agreed"]["roster"]) if known else None
        if fingerprint not in (round_.roster_fingerprint, first):
            raise DataError(f"{name}: the roster's fingerprint is {round_.roster_fingerprint}, not {fingerprint}")
        if known:
            self._compare(round_, name)
            if once and self.last() not in (0, round_.number):
                raise DataError(_once(round_, f"a vector to round {self.last()}"))
        else:
            roster = {member: keys.text for member, keys in round_.roster.items()}
            self._journal.remember(agreed={"terms": round_.terms_digest, "roster": roster})
        self._pin(round_)

    def _pin(self, round_: Round) -> None:
        """A round's number stands for one roster and one set of terms, for ever: masks must not be used twice."""
        rounds = self._journal.content.get("rounds", {})
        if rounds.get(str(round_.number), round_.mark) != round_.mark:
            raise DataError(_another(round_))
        if str(round_.number) not in rounds:
            self._journal.remember(rounds={**rounds, str(round_.number): round_.mark})

    def _compare(self, round_: Round, name: str) -> None:
        agreed, where = self._journal.content["agreed"], self._journal.place("run.json")
        if agreed["terms"] != round_.terms_digest:
            raise DataError(f"{name}: its terms are not those that this site agreed to ({where})")
        for member, keys in round_.roster.items():
            if agreed["roster"].get(member) != keys.text:
                raise DataError(f"{name}: site {member!r} is not in the roster that this site agreed to ({where})")


@dataclass(frozen=True)
class Contribution:
    """What a site did: all of it public."""

    round: Round
    plan: RoundPlan
    site: str
    again: bool
    charged: bool


def join(folder: str | Path, *, site: str, keys: str | Path) -> PublicKeys:
    """Make this site's keys, if it has none, and put its card into the study's folder."""
    check_name(site, "site")
    own = PrivateKeys.open(keys, create=True)
    StudyFolder(folder).put_card(site, own)
    return own.public


def contribute(
    folder: str | Path,
    *,
    site: str,
    keys: str | Path,
    lake: Any,
    dataset: str,
    roster: str,
    ledger: str | Path | None = None,
    cluster: ClusterConfig | None = None,
    progress: Progress | None = None,
    pay_again: bool = False,
    blocks: Blocks | None = None,
) -> Contribution:
    """Sum this site's lake, add its share of noise, mask it and put it into the folder of the round that is open.

    The site's own ledger is debited before a row is read. With distributed noise every round costs: whether a failed
    round stays masked depends on other sites, so its price is paid in any case. With central noise, where the
    coordinator is trusted with one exact total, a site makes one vector for the study. A second call for a round
    sends the stored bytes again, and one after a crash goes on under the grant that the site had; only a share that
    may have been drawn and was not kept is refused, unless the site chooses to ``pay_again``. ``roster`` is the
    roster's fingerprint, as the other sites read it out. ``blocks`` are those of the lake that are read: each of
    them pays, and one that cannot refuses the contribution.
    """
    own, where, round_, terms = invited(folder, keys, pay_again=pay_again)
    if terms.descends:
        raise UsageError(f"study {round_.study!r} takes many steps: answer them with daskrado site serve")
    with Agreement(keys, round_.study) as agreement:
        agreement.agree(round_, site, own.public, roster, once=terms.central)
        plan = terms.plan(len(round_.roster), lake=lake, dataset=dataset, cluster=cluster, blocks=blocks)
        stored = agreement.stored(round_)
        charged = False
        if stored is None:
            if round_.number < (last := agreement.last()):
                raise DataError(
                    f"study {round_.study!r}: round {round_.number} is older than this site's last, {last}"
                )
            check_open(where, round_)
            with _vector(plan, round_, agreement, ledger, progress, pay_again) as (vector, charged, count):
                words = mask(vector, own, site, round_)
                reads = None if plan.job.blocks is None else str(plan.job.blocks)
                made = seal_bundle(round_, site, plan.job.domain.digest(), words, own, reads)
                count(made)
                agreement.store(round_, made)
        else:
            made = stored
            _check_stored(made, round_)
        check_open(where, round_, made)  # once more: reading a lake may take hours
        where.put_bundle(round_, site, hashlib.sha256(made).hexdigest()[:16], made)
    return Contribution(round_, plan, site, stored is not None, charged)


def invited(
    folder: str | Path, keys: str | Path, *, pay_again: bool
) -> tuple[PrivateKeys, StudyFolder, Round, Terms]:
    """This site's keys, and the round that is open, with its terms."""
    own, where = PrivateKeys.open(keys, create=False), StudyFolder(folder)
    round_ = where.latest()
    terms = terms_of(round_, where.mailbox.address)
    if terms.study != round_.study or terms.minimum != round_.minimum:
        raise DataError(
            f"{where.mailbox.address}: study, terms and minimum of round {round_.number} do not fit together"
        )
    if terms.central and pay_again:
        raise UsageError(f"study {round_.study!r}: noise is central: no site draws a share that it could pay again")
    return own, where, round_, terms


def check_open(where: StudyFolder, round_: Round, made: bytes | None = None) -> None:
    """A late bundle must not leave the site: it would complete the masks of a round that went on without it."""
    closing = where.closing(round_)
    if closing is not None and (made is None or hashlib.sha256(made).hexdigest() not in closing.counted.values()):
        raise DataError(f"study {round_.study!r}: late: round {round_.number} is closed; nothing was sent")
    if where.latest().number != round_.number:
        raise DataError(f"study {round_.study!r}: late: a newer round than {round_.number} is open; nothing was sent")


def _check_stored(data: bytes, round_: Round) -> None:
    """The same of a bundle that an older version stored, which remembered no more."""
    if Document(KIND, data).text("round_sha256") != round_.digest.hex():
        raise DataError(_another(round_))


def _another(round_: Round) -> str:
    return (
        f"study {round_.study!r}: this site contributed to another round {round_.number}, with another roster or "
        "other terms; it contributes once for each number"
    )


@contextlib.contextmanager
def _vector(
    plan: RoundPlan,
    round_: Round,
    agreement: Agreement,
    ledger_path: str | Path | None,
    progress: Progress | None,
    pay_again: bool,
) -> Iterator[tuple[NDArray[np.int64], bool, Callable[[bytes], None]]]:
    """The site's exact vector, with its share of noise where noise is distributed; the ledger is debited first.

    A share that was drawn is kept until the block ends well, which stores the bundle. An exact vector is never
    written down: it is summed again, and the ledger counts its bundle, as the third of what is yielded: for a study
    one and no other leaves, whatever copy of this site's memory is there.
    """
    job = plan.job
    lake = job.scan(len(round_.roster))  # each site keeps within its part of the range of int64
    for protect in job.whose:
        check_units(lake, protect, job.domain.id)
    with connect(job.cluster, lake.size) as client:

        def gather(account: Account | None = None) -> Summary:
            # Which rows of a unit are sampled stays the same after a crash.
            key = secrets.token_bytes(32) if account is None else account.row_key("units").key_bytes()
            return collect(
                job.summed,
                lake,
                job.domain,
                job.lattice,
                key=job.key,
                client=client,
                progress=progress,
                strict=not job.protects,
                secret_rows=not job.rows_public,
                units=units_of(lake, job.protect, key, job.domain.id, client=client),
            )

        if plan.mechanism is None:
            yield gather().vector, False, _nothing
            return
        shares = plan.shares
        with site_account(round_, ledger_path, job.ledger, pay_again, shared=shares is not None) as account:
            grant, charged = reserved(plan, round_, lake, account, exact=shares is None)
            if shares is None:
                yield gather(account).vector, charged, partial(count_exact, account, grant, round_)
            else:
                yield _shared(shares, account, grant, partial(gather, account)), charged, _nothing
            sent = agreement.stored(round_)
            assert sent is not None
            account.done(f"bundle sha256 {hashlib.sha256(sent).hexdigest()}")


@contextlib.contextmanager
def site_account(
    round_: Round, path: str | Path | None, config: LedgerConfig, pay_again: bool, *, shared: bool
) -> Iterator[Account]:
    """A site's account for a study, or, where it adds shares of noise, for one round of it."""
    run = f"study {round_.study} {round_.terms_digest[:16]}"
    if shared:
        run += f" round {round_.number} {round_.digest.hex()[:16]}"
    with opened_ledger(path, config) as ledger:
        runs = [run, *ledger.runs(f"{run} again ")]
        if pay_again:
            runs.append(f"{run} again {len(runs)}")
        finish = "the same command of daskrado site, as before"
        with named_account(ledger, runs[-1], finish, again=_AGAIN, charged_once=True) as account:
            yield account


def count_exact(account: Account, grant: Grant, round_: Round, made: bytes) -> None:
    """Count an exact vector by its masked bundle, before it is stored: the same bytes again, or none."""
    step = f"{_EXACT}{round_.step:05d}."
    account.count(grant, f"{step}{round_.mark}", hashlib.sha256(made).hexdigest(), place=step)


def _nothing(made: bytes) -> None:
    """A share of noise is counted as it is drawn, and a baseline by nobody."""
    del made


def _once(round_: Round, sent: str) -> str:
    return (
        f"study {round_.study!r}: this site gave {sent} and gives none to round {round_.number}: noise is central, "
        "and totals of two rosters, subtracted, are one site's exact vector; a new study is a new charge"
    )


def reserved(plan: RoundPlan, round_: Round, lake: Lake, account: Account, *, exact: bool) -> tuple[Grant, bool]:
    """This site's charge, and whether it is a new one; refused if it gave ``exact`` vectors to another round."""
    job, charge = plan.job, plan.charge
    assert charge is not None
    account.same_lake(job.lake, lake)
    before = account.ledger.entries_of_run(account.run)
    grant = replace(charge, role=SHARE).reserve(account, job.dataset, lake.fingerprint)
    given = {name for name in account.ledger.draws(grant.entry) if exact and name.startswith(_EXACT)}
    if others := {name for name in given if not name.endswith(f".{round_.mark}")}:
        raise DataError(_once(round_, f"{min(others)}, as its ledger knows,"))
    return grant, grant.entry not in before


def _shared(shares: GaussianShares, account: Account, grant: Grant, gather: Callable[[], Summary]) -> Any:
    return account.draw(SHARE, grant, gather, lambda summary: {"vector": shares.perturb(summary.vector)})["vector"]
