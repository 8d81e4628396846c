"""Three sites with a third of a clinic each, their own keys and ledgers, and a coordinator."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import daskrado
from daskrado.jobs.outcome import Result
from daskrado.ledger.ledger import Ledger
from daskrado.parties.coordinator import combine, open_study
from daskrado.parties.rounds import Round
from daskrado.parties.site import contribute, join
from daskrado.parties.study_folder import StudyFolder
from daskrado.table.domain import Domain

Clinic = Callable[..., tuple[Path, Domain]]
SITES = ("east", "north", "west")
PROTECT = {"relation": "add_remove", "unit": "one patient"}
BUDGET = {"epsilon": 1.0, "delta": 1e-6}


class Parties:
    """Three sites with a third of a clinic each, their own keys and ledgers, and a coordinator."""

    def __init__(self, place: Path, clinic: Clinic) -> None:
        self.place = place
        self.box = place / "box"
        self.path, self.domain = clinic(3000, 7)
        files = sorted(self.path.glob("*.parquet"))
        self.lakes = {name: [str(f) for f in files[i::3]] for i, name in enumerate(SITES)}

    def keys(self, name: str) -> Path:
        return self.place / name

    def ledger(self, name: str) -> Path:
        path = self.place / f"{name}.sqlite"
        if not path.exists():
            with Ledger.open(path) as opened:
                opened.set_limit("clinic", "add_remove", 3.0, 1e-5)
                opened.set_limit("clinic", "replace_one", 3.0, 1e-5)
        return path

    def states(self, name: str) -> list[str]:
        with Ledger.open(self.ledger(name)) as opened:
            return [str(entry.state) for entry in opened.entries()]

    def open(self, **terms: Any) -> Round:
        for name in SITES:
            join(self.box, site=name, keys=self.keys(name))
        content = {"study": "clinics", "domain": self.domain, "minimum": 2, "sites": dict.fromkeys(SITES), **terms}
        return open_study(content, self.box, keys=self.keys("boss"))

    def send(self, *names: str, **options: Any) -> None:
        for name in names or SITES:
            given = {"lake": self.lakes[name], "ledger": self.ledger(name), "roster": self.roster, **options}
            contribute(self.box, site=name, keys=self.keys(name), dataset="clinic", **given)

    @property
    def roster(self) -> str:
        """The fingerprint that the sites read out to each other."""
        return StudyFolder(self.box).latest().roster_fingerprint

    def combine(self, **options: Any) -> Result:
        done = combine(self.box, keys=self.keys("boss"), ledger=self.place / "boss.sqlite", **options)
        assert isinstance(done, Result)
        return done

    def pooled(self, **options: Any) -> daskrado.RunResult:
        return daskrado.fit(self.path, self.domain, dataset="pooled", private=False, workers=0, **options)


DISTRIBUTED = {"protect": PROTECT, "budget": BUDGET, "noise": {"kind": "distributed", "honest": 2}}
CENTRAL = {"protect": PROTECT, "budget": BUDGET, "noise": {"kind": "central"}}
