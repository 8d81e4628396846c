"""What leaves this house, before anything does: for those who have to allow it. Nothing is read, charged or sent."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

from daskrado.errors import DataError, NoLedgerError
from daskrado.jobs.report import Section, privacy_sections, render_page
from daskrado.jobs.show import budget_lines
from daskrado.lake.blocks import Blocks
from daskrado.lake.units import check_units
from daskrado.ledger.charging import own_ledger
from daskrado.ledger.ledger import Ledger
from daskrado.parties.rounds import Round
from daskrado.parties.site import invited
from daskrado.parties.status import asked
from daskrado.parties.study import RoundPlan, Terms


class Preview:
    """A contribution as it would be, from public facts: the round, the lake's footers and the ledger."""

    def __init__(
        self,
        folder: str | Path,
        *,
        site: str,
        keys: str | Path,
        lake: Any,
        dataset: str,
        ledger: str | Path | None = None,
        blocks: Blocks | None = None,
    ) -> None:
        own, self.where, self.round, self.terms = invited(folder, keys, pay_again=False)
        self.site, round_ = site, self.round
        if round_.roster.get(site) != own.public:
            raise DataError(
                f"study {round_.study!r}: the roster of round {round_.number} does not have site {site!r} with this "
                f"key: {', '.join(round_.roster)}"
            )
        self.plan = self.terms.plan(len(round_.roster), lake=lake, dataset=dataset, blocks=blocks)
        job = self.plan.job
        found = job.scan(len(round_.roster))
        for protect in job.whose:
            check_units(found, protect, job.domain.id)
        self.budget = _budget(self.plan, ledger)

    def sections(self) -> list[Section]:
        """The page's parts."""
        round_, plan = self.round, self.plan
        people = [
            (name, keys.fingerprint, "this site" if name == self.site else "") for name, keys in round_.roster.items()
        ]
        return [
            Section("What leaves this house", rows=_leaves(self.site, self.terms, plan)),
            Section("Who learns what", header=("who", "learns"), rows=_learns(self.terms, plan, round_)),
            Section(
                "With whom",
                text=f"Compare the roster's fingerprint {round_.roster_fingerprint} with the other sites, by "
                "telephone and not by the study's folder.",
                header=("site", "key", ""),
                rows=[*people, ("coordinator", round_.coordinator.fingerprint, "")],
            ),
            Section("Price", rows=self.budget),
            *privacy_sections(plan.statement),
        ]

    def lines(self) -> list[str]:
        """The same for a terminal."""
        found = [f"study {self.round.study}, round {self.round.number}, site {self.site}: nothing was read or sent"]
        for section in self.sections()[:4]:
            found += [section.title, *([f"  {section.text}"] if section.text else [])]
            found += [f"  {': '.join(cell for cell in row if cell)}" for row in section.rows]
        return [*found, self.plan.statement.sentence()]

    def page(self) -> str:
        """The page as HTML."""
        title = f"{self.round.study}: what leaves {self.site}"
        return render_page(title, "before the first contribution", {"": self.plan.statement}, self.sections())


def _leaves(site: str, terms: Terms, plan: RoundPlan) -> list[tuple[str, str]]:
    noise = "with this site's share of noise in it, " if plan.charge is not None and not terms.central else ""
    often = "one file for each of these steps" if terms.descends else "one file"
    found = [
        ("sums", f"{asked(plan)}: {often}, {noise}under masks that all other sites together take off, signed"),
        ("beside them", f"the study's and the site's name ({site}), digests of the round and of the domain"),
        ("of what", "all rows of the lake" if plan.job.blocks is None else str(plan.job.blocks)),
        ("columns", ", ".join([plan.job.domain.label.column, *plan.job.domain.columns])),
        ("what stays", "rows, identifiers, the number of rows, file names, noise, private keys, the ledger"),
    ]
    return found if plan.job.protects else [*found, ("NOT PRIVATE", "the total is published without noise")]


def _learns(terms: Terms, plan: RoundPlan, round_: Round) -> list[tuple[str, str]]:
    sums = "sums of every step" if terms.descends else "total"
    others = len(round_.roster) - 1
    exact = terms.central or plan.charge is None
    seen = ", the noisy sums of every step" if terms.descends else ""
    needed = getattr(terms.noise, "honest", 1)
    share = "" if exact else f" with its own share of noise alone; the guarantee needs those of {needed} honest sites"
    return [
        ("the coordinator", f"the {'exact' if exact else 'noisy'} {sums} over {others + 1} sites, no site's own"),
        ("the other sites", "the noisy sums of every step" if terms.descends else "nothing but what is published"),
        ("readers of the folder", f"who took part, when files came, how large they are{seen}"),
        ("all others together", f"if all of them and the coordinator tell each other all: this site's sums{share}"),
    ]


def _budget(plan: RoundPlan, path: str | Path | None) -> list[tuple[str, str]]:
    """What this site's ledger would pay, in the words of a plan."""
    if plan.charge is None:
        return [("price", "nothing: nobody is protected")]
    job = plan.job
    there = None
    with contextlib.suppress(NoLedgerError):
        there = own_ledger(create=False) if path is None else Ledger.open(path, create=False)
    lines = [line.partition(" ") for line in budget_lines(job, (plan.charge,), there)]
    once = "every round that it contributes to" if plan.shares is not None else "the whole study, once"
    return [("charged for", once), *((name, text.strip()) for name, _, text in lines)]
