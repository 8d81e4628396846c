"""Bin edges from public facts: one mechanical rule for all tables, and classes that statistical offices publish.

The rule. A column of few whole numbers has one bin for each of them. Any other range is cut in 20 bins of equal
width. Amounts count from zero over several decades, so they are cut at preferred numbers as well (ISO 3, R10: ten in
a decade, from 1 on). From rows x epsilon = 10,000 on, where noise leaves room for more, it is 40 bins and R20; these
edges hold the others. The numbers were chosen on magic, covertype, diabetes130 and KDDCup99; gradient_rule.py --bins
compares them.

The classes. Where an office that collects such data publishes tables of them, it has cut the columns already, and an
owner would use its classes: CLASSES has them for Adult, which is an extract of a census survey.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

RENARD_20 = (1.0, 1.12, 1.25, 1.4, 1.6, 1.8, 2.0, 2.24, 2.5, 2.8, 3.15, 3.55, 4.0, 4.5, 5.0, 5.6, 6.3, 7.1, 8.0, 9.0)
COARSE, FINE = (20, RENARD_20[::2]), (40, RENARD_20)
FINE_FROM = 10_000  # rows x epsilon


def rule(rows: int, epsilon: float) -> tuple[int, tuple[float, ...]]:
    """Number of equal bins, and the series of preferred numbers: from public facts."""
    return FINE if rows * epsilon >= FINE_FROM else COARSE


class Range(NamedTuple):
    """What a column's owner can say without looking: its kind and its bounds."""

    kind: Literal["whole", "equal", "amount"]
    lower: float
    upper: float

    def edges(self, equal: int, series: tuple[float, ...]) -> list[float]:
        """Inner bin edges."""
        if self.kind == "whole":
            return [float(value) for value in range(int(self.lower) + 1, int(self.upper) + 1)]
        width = (self.upper - self.lower) / equal
        cuts = {round(self.lower + width * i, 9) for i in range(1, equal)}
        if self.kind == "amount":
            preferred = (round(10.0**power * step, 9) for power in range(12) for step in series)
            cuts |= {value for value in preferred if value < self.upper}
        return sorted(cuts)


def whole(lower: int, upper: int) -> Range:
    return Range("whole", lower, upper)


def equal(lower: float, upper: float) -> Range:
    return Range("equal", lower, upper)


def amount(upper: float) -> Range:
    return Range("amount", 0, upper)


def by_rule(name: str, equal: int, series: tuple[float, ...]) -> dict[str, list[float]]:
    """Edges of all columns of a table."""
    return {column: known.edges(equal, series) for column, known in RANGES[name].items()}


RANGES: dict[str, dict[str, Range]] = {
    "adult": {
        "age": equal(0, 100),
        "fnlwgt": amount(1_000_000),
        "education_num": whole(1, 16),
        "capital_gain": amount(100_000),
        "capital_loss": amount(5_000),
        "hours": equal(0, 100),
    },
    "magic": {
        "c00": amount(1_000),
        "c01": amount(1_000),
        "c02": equal(0, 10),
        "c03": equal(0, 1),
        "c04": equal(0, 1),
        "c05": equal(-500, 500),
        "c06": equal(-500, 500),
        "c07": equal(-500, 500),
        "c08": equal(0, 90),
        "c09": amount(500),
    },
    "covertype": {
        "Elevation": equal(0, 4_000),
        "Aspect": equal(0, 360),
        "Slope": equal(0, 90),
        "Horizontal_Distance_To_Hydrology": amount(2_000),
        "Vertical_Distance_To_Hydrology": equal(-1_000, 1_000),
        "Horizontal_Distance_To_Roadways": amount(10_000),
        "Hillshade_9am": equal(0, 256),
        "Hillshade_Noon": equal(0, 256),
        "Hillshade_3pm": equal(0, 256),
        "Horizontal_Distance_To_Fire_Points": amount(10_000),
    },
    "kdd": {
        "c00": amount(100_000),
        "c04": amount(1_000_000_000),
        "c05": amount(1_000_000_000),
        "c22": equal(0, 512),
        "c23": equal(0, 512),
        "c31": equal(0, 256),
        "c32": equal(0, 256),
    }
    | {f"c{i}": equal(0, 1) for i in (*range(24, 31), *range(33, 41))},
    # microvolts, about the level of 4,200 at which the headset's amplifier rests
    "eeg": {f"c{i:02d}": equal(3_500, 5_000) for i in range(14)},
    "diabetes130": {
        "admission_type_id": whole(1, 8),
        "discharge_disposition_id": whole(1, 30),
        "admission_source_id": whole(1, 30),
        "time_in_hospital": whole(1, 14),
        "num_lab_procedures": equal(0, 200),
        "num_procedures": whole(0, 10),
        "num_medications": equal(0, 100),
        "number_outpatient": whole(0, 50),
        "number_emergency": equal(0, 100),
        "number_inpatient": whole(0, 50),
        "number_diagnoses": whole(1, 20),
    },
}
DROPPED = {
    # a sampling weight is a fact about the survey, not about the person; and the same schooling in words
    "adult": ("fnlwgt", "education"),
}
CLASSES: dict[str, dict[str, list[float]]] = {
    "adult": {
        # five-year age groups of the Census Bureau
        "age": [float(age) for age in range(20, 90, 5)],
        # the survey's own 16 levels of schooling
        "education_num": whole(1, 16).edges(*COARSE),
        # Statistics of Income, size of adjusted gross income: none, $1 under $5,000, $5,000 under $10,000, ...
        "capital_gain": [1, 5e3, 10e3, 15e3, 20e3, 25e3, 30e3, 40e3, 50e3, 75e3],
        # 26 U.S.C. 1211(b): losses are deducted up to $3,000, or $1,500 of each spouse
        "capital_loss": [1, 1_500, 3_000],
        # Bureau of Labor Statistics, persons at work: 1 to 4 hours, 5 to 14, 15 to 29, 30 to 34, 35 to 39, 40, ...
        "hours": [5, 15, 30, 35, 40, 41, 49, 60],
    }
}
