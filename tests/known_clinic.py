"""A population of a few kinds of rows, so that the true weights of any learner are known exactly."""

from __future__ import annotations

import itertools
import math

import numpy as np
from scipy.optimize import minimize

from daskrado.losses.margin import Loss
from daskrado.table.domain import Domain

LABEL = {"column": "sick", "positive": True, "negative": False}
WARDS = {"kind": "categorical", "values": ["a", "b", "c"]}  # and other, which nobody has
COLUMNS = {
    "age": {"kind": "numeric", "lower": -1, "upper": 1},
    "ward": WARDS,
    "smoker": {"kind": "boolean"},
    "visits": {"kind": "numeric", "lower": 0, "upper": 9, "bins": [2, 5]},
}
AGES, SHARES = (-0.8, -0.2, 0.1, 0.7), ((0.2, 0.3, 0.3, 0.2), (0.5, 0.35, 0.15), (0.7, 0.3), (0.5, 0.3, 0.2))


class Clinic:
    """A population of 72 kinds of rows, so that true weights are exact; columns depend on each other."""

    def __init__(self, intercept: float, shift: float) -> None:
        self.domain = Domain(label=LABEL, columns=COLUMNS, intercept=intercept)  # type: ignore[arg-type]
        rows, chances, logits = [], [], []
        for places in itertools.product(*(range(len(share)) for share in SHARES)):
            age, ward, smoker, visits = places
            row = [AGES[age], *np.eye(4)[ward], 2.0 * smoker - 1, *np.eye(3)[visits]]
            rows.append([*row, intercept] if intercept else row)
            tilt = 1 + 0.5 * (ward == age % 3) + 0.4 * smoker * (visits == 2)
            chances.append(tilt * math.prod(share[place] for share, place in zip(SHARES, places, strict=True)))
            logits.append(shift + 1.5 * AGES[age] + (0.0, 0.8, -1.0)[ward] + 0.5 * smoker + 0.3 * visits)
        x = np.array(rows)
        bound = self.domain.norm_bound
        self.x = x / np.maximum(1, np.linalg.norm(x, axis=1) / bound)[:, None] / bound
        self.chance = np.array(chances) / sum(chances)
        self.yes = 1 / (1 + np.exp(-np.array(logits)))

    def sums(self, counts: np.ndarray, sick: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        return self.x.T @ (2 * sick - counts), (self.x * counts[:, None]).T @ self.x

    def truth(self) -> np.ndarray:
        """The weights of least squares on the population itself."""
        mean, second = self.sums(self.chance, self.chance * self.yes)
        return self.centred(np.linalg.pinv(second, rcond=1e-10) @ mean)

    def best(self, loss: Loss) -> np.ndarray:
        """The weights of the population under a loss: those that descent from 0 ends at."""
        positive, negative = self.chance * self.yes, self.chance * (1 - self.yes)

        def risk(u: np.ndarray) -> float:
            return float(positive @ loss.value(self.x @ u) + negative @ loss.value(-self.x @ u))

        def slope(u: np.ndarray) -> np.ndarray:
            margin = self.x @ u
            return np.asarray(self.x.T @ (positive * loss.slope(margin) - negative * loss.slope(-margin)))

        start = np.zeros(self.domain.width)
        return self.centred(minimize(risk, start, jac=slope, method="BFGS", options={"gtol": 1e-10}).x)

    def centred(self, theta: np.ndarray) -> np.ndarray:
        """Weights with each one-hot column against its mean, in the units of the features."""
        _, second = self.sums(self.chance, self.chance)
        theta, last = theta / self.domain.norm_bound, slice(6, 9)
        for where in (slice(1, 5), last) if self.domain.intercept else (last,):
            share = np.diag(second)[where] / np.diag(second)[where].sum()
            middle = share @ theta[where]
            theta[where] -= middle
            if self.domain.intercept:
                theta[-1] += middle / self.domain.intercept
            else:
                theta[1:5] += middle
        return theta
