"""A kind of set of rados of one's own: subsets of exactly two rows, which protect nobody."""

from __future__ import annotations

from typing import Literal

from daskrado.jobs.rado_sets import RadoSetKeys, SetPlan
from daskrado.statistics import FixedSupportRados
from daskrado.table.domain import Domain
from daskrado.table.lattice import Lattice


class PairSet(RadoSetKeys):
    """Sums over two rows each."""

    kind: Literal["pairs"]

    def planned(self, domain: Domain, bits: int | None) -> SetPlan:
        """No noise."""
        return SetPlan(self, FixedSupportRados(domain.width, self.count, 2), Lattice(domain.norm_bound, bits or 20))
