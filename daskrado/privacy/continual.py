"""Sums of all nights so far, released every night under one charge, with correlated noise.

Night t adds an integer vector x_t; wanted is S_t = x_1 + ... + x_t for every t up to a horizon. Released is
w_t = sum_j r_(t-j) x_j + z_t with fresh noise z_t, and S_t is estimated from w_1 ... w_t: all of that is
post-processing. With r_k = binom(2k, k) / 4^k the matrix R of the r is the square root of the matrix of prefix sums,
and the noise on S_t grows with log t, where noise that is drawn anew for each S_t grows with the root of the horizon.
"""

from __future__ import annotations

import math
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from typing import TYPE_CHECKING, ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray

from daskrado.errors import UsageError
from daskrado.privacy.accountant import Event, rounding_gap
from daskrado.privacy.gaussian_calibration import calibrate
from daskrado.privacy.keyed_noise import keyed_gaussian
from daskrado.privacy.mechanisms.base import Mechanism, Target
from daskrado.privacy.noise import gaussian_variance

if TYPE_CHECKING:
    from daskrado.statistics.base import Block, IntVector

FINE = 8  # bits of a coefficient: 2^FINE r_k is a whole number; at 365 nights that costs a ten-thousandth of accuracy
MOST = 1 << 54  # the most that a night adds to an entry; sums beyond it are cut there, which moves no two lakes apart


@dataclass(frozen=True)
class PrefixSums:
    """The matrix R of a horizon, with coefficients on a grid, and what can be estimated from its rows.

    *Reference*: Fichtenberger, Henzinger and Upadhyay (2022), "Constant matters: fine-grained complexity of
    differentially private continual observation"; Henzinger, Upadhyay and Upadhyay (2023).

    >>> PrefixSums(4).coefficients
    (256, 128, 96, 80)
    """

    horizon: int

    @cached_property
    def coefficients(self) -> tuple[int, ...]:
        """2^FINE binom(2k, k) / 4^k, rounded to whole numbers: sums of whole numbers stay whole before noise."""
        exact, found = Fraction(1 << FINE), []
        for k in range(self.horizon):
            found.append(round(exact))
            exact = exact * (2 * k + 1) / (2 * k + 2)
        return tuple(found)

    @property
    def column_norm(self) -> float:
        """How far a row of norm 1 of any night moves all releases together, rounded up.

        Night j is in the releases of night j and later with r_0, r_1, ...: the first night is in the most of them.
        """
        squares = sum(r * r for r in self.coefficients)
        return math.nextafter(math.sqrt(squares), math.inf) / (1 << FINE)

    def weights(self, nights: Sequence[int]) -> NDArray[np.float64]:
        """What each release counts for in the estimate of the sum of some nights, of which they are the releases.

        The one combination whose mean is that sum: 1' R^-1, with the rows and columns of those nights (a night whose
        release was lost is in no later one).
        """
        from scipy.linalg import solve_triangular

        r = np.array(self.coefficients, dtype=np.float64)
        apart = np.subtract.outer(np.array(nights), np.array(nights))
        matrix = np.where(apart >= 0, r[np.maximum(apart, 0)], 0.0)
        return np.asarray(solve_triangular(matrix, np.ones(len(nights)), lower=True, trans="T"))

    def error(self, night: int) -> float:
        """The noise on the sum of the first nights, against that of one release of it with the whole budget."""
        return self.column_norm * float(np.linalg.norm(self.weights(range(night)))) * (1 << FINE)

    @property
    def fresh_error(self) -> float:
        """The same for fresh noise every night: the first night's rows are in every release, each at its price."""
        return math.sqrt(self.horizon)

    def tree_error(self, night: int) -> float:
        """The same for the binary tree: each night is in one sum of every level; a prefix is the sum of a few.

        *Reference*: Dwork, Naor, Pitassi and Rothblum (2010); Chan, Shi and Song (2011).
        """
        return math.sqrt(self.horizon.bit_length() * night.bit_count())


class Night(NamedTuple):
    """A night: the name by which its noise comes from the secret key, and what was released."""

    name: str
    released: IntVector


class ContinualGaussian(Mechanism):
    """Discrete Gaussian noise for every night of a horizon, within one event, all of it from one secret key.

    Sensitivity
        A row lies in one night j, and moves x_j by at most s in L2 norm. Night t's release moves by r_(t-j) times
        that, all releases together by at most s times the norm of a column of R, of the rounded coefficients; that
        of the first night is the longest. k rows of a unit, on whatever nights, move them by at most k times that.
        The noise of different nights is independent, so this is adaptive composition: rows of a night may depend on
        what was released before. Sums are cut at ``MOST``, entry by entry, which moves no two of them apart, and
        are added modulo 2^64, which is post-processing.

    Reference
        As for :class:`PrefixSums`; Canonne, Kamath and Steinke (2020).
    """

    name: ClassVar[str] = "continual_gaussian"

    def __init__(self, target: Target, epsilon: float, delta: float, sums: PrefixSums) -> None:
        if not delta > 0:
            raise UsageError(f"continual release has Gaussian noise and needs delta above 0, got {delta}")
        self.sums = sums
        noisy = [block for block in target.statistic.blocks if block.name not in target.sensitivity.public]
        grids = [(block.size * sums.horizon, _step(target, block)) for block in noisy]
        l2 = target.sensitivity.l2 * sums.column_norm
        self._event, mu, theorem = calibrate(
            epsilon, delta, lambda mu: math.fsum(rounding_gap(size, l2 / mu / step) for size, step in grids)
        )
        self.theorem = f"square root of prefix sums (Fichtenberger, Henzinger and Upadhyay 2022); {theorem}"
        super().__init__(target, l2 / mu)

    @property
    def event(self) -> Event:
        """What all nights of the horizon cost together."""
        return self._event

    def grid_scale(self, block: Block) -> float:
        """Noise scale of a block in its integer steps, which are 2^-FINE of the statistic's own."""
        return self.scale / _step(self.target, block)

    def release(self, key: bytes, name: str, night: int, sums: IntVector, earlier: Mapping[int, IntVector]) -> Night:
        """What this night and the earlier ones come to, with the noise of a name that no other release has."""
        known = {**earlier, night: np.clip(sums, -MOST, MOST)}
        return Night(name, self._mixed(night, known) + self.noise_of(key, name))

    def noise_of(self, key: bytes, name: str) -> IntVector:
        """The noise of a night: the same whenever it is asked for, and of no use without the key."""
        parts, public = [], self.target.sensitivity.public
        for block in self.target.statistic.blocks:
            scale = self.grid_scale(block)
            quiet = np.zeros(block.size, dtype=np.int64)
            own = quiet if block.name in public else keyed_gaussian(key, f"{name} {block.name}", scale, block.size)
            parts.append(own)
        return np.concatenate(parts)

    def exact(self, key: bytes, nights: Mapping[int, Night]) -> dict[int, IntVector]:
        """The exact sums of nights, from their releases and noise: secret."""
        found: dict[int, IntVector] = {}
        for night in sorted(nights):
            kept = nights[night]
            noise = self.noise_of(key, kept.name)
            found[night] = (kept.released - noise - self._mixed(night, found)) >> FINE
        return found

    def _mixed(self, night: int, sums: Mapping[int, IntVector]) -> IntVector:
        total = np.zeros(self.target.statistic.size, dtype=np.int64)
        for other, vector in sums.items():
            total += self.sums.coefficients[night - other] * vector
        return total

    def estimate(self, nights: Mapping[int, Night]) -> tuple[dict[str, NDArray[np.float64]], dict[str, float]]:
        """The sum of all nights, in the units of the features, and the noise on each block of it."""
        weights = self.sums.weights(sorted(nights))
        total = np.zeros(self.target.statistic.size)
        for weight, night in zip(weights, sorted(nights), strict=True):
            total += weight * nights[night].released
        grown = float(np.linalg.norm(weights))
        parts, lattice, at = {}, self.target.lattice, 0
        for block in self.target.statistic.blocks:
            parts[block.name] = total[at : at + block.size].reshape(block.shape) * block.step(lattice)
            at += block.size
        return parts, {name: std * grown for name, std in self.noise_std().items()}

    def _noisy(self, values: IntVector, grid_scale: float) -> IntVector:
        return values + keyed_gaussian(secrets.token_bytes(32), self.name, grid_scale, len(values))

    def _variance(self, grid_scale: float) -> float:
        return gaussian_variance(grid_scale)


def _step(target: Target, block: Block) -> float:
    return block.normalised_step(target.lattice) / (1 << FINE)
