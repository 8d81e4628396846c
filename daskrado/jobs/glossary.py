"""Words of a report that not every reader knows: a tooltip where they head a column, and a list at the end."""

from __future__ import annotations

import re
from collections.abc import Iterable

from markupsafe import Markup, escape

WORDS = {
    "accountant": "The theorem by which the losses of several releases were added up.",
    "AUC": "The chance that a positive row is ranked above a negative one: 0.5 is a coin, 1 is perfect.",
    "budget": "The most that all releases about a data set may tell of one person; its owner sets it once.",
    "calibration": "Whether, of the rows that are given a probability of 30 %, about 30 % are positive.",
    "delta": "A small chance with which the guarantee may say less than epsilon does; 0 where there is none.",
    "domain": "The public description of the columns: bounds and categories, not found by looking at these rows.",
    "epsilon": "How much a release may tell of one person: 0 is nothing, 1 is little, 10 is much.",
    "false alarms": "Cases in which an attacker says yes although the answer is no.",
    "interval": "95 of 100 such intervals hold the number that ever more rows of the same kind would give.",
    "intercept": "The weight of the constant feature: what a row has before its other features count.",
    "learner": "The method that made weights from sums over rows.",
    "margin": "The weighted sum of a row's features: its sign is the predicted label, its size the certainty.",
    "mean operator": "The sum of label times row: what a linear model can learn in one look.",
    "mechanism": "How the noise was made that hides each single person.",
    "neighbouring lakes": "The two versions of the data that a release must not tell apart.",
    "noise": "Random numbers, added once to sums over rows, so that no single person shows in them.",
    "norm bound": "Rows are scaled down to this length, so that none weighs more than others.",
    "rados": "Rademacher observations: sums over random halves of the rows, from which a model can be learned.",
    "right alarms": "Cases in which an attacker says yes and the answer is yes.",
    "share": "The part of a budget that a run takes; shares of all runs add up to at most 100 %.",
    "statistic": "The sums over rows that were released with noise.",
    "weight": "How far a feature moves the margin towards the positive label.",
}
_ANY = re.compile(r"\b(" + "|".join(sorted(map(re.escape, WORDS), key=len, reverse=True)) + r")\b")


class Glossary:
    """Marks known words in headings and remembers which a page used."""

    def __init__(self) -> None:
        self.used: set[str] = set()

    def __call__(self, text: str) -> Markup:
        """The text, escaped, with a tooltip on each word that the glossary has."""
        parts = _ANY.split(text)
        return Markup("").join(self._told(part) if place % 2 else escape(part) for place, part in enumerate(parts))

    def _told(self, word: str) -> Markup:
        self.used.add(word)
        return Markup('<abbr title="{}" tabindex="0">{}</abbr>').format(WORDS[word], word)

    def listed(self, text: Iterable[str]) -> list[tuple[str, str]]:
        """The words that were marked, or that these texts use, with what they mean."""
        for one in text:
            self.used.update(_ANY.findall(one))
        return [(word, WORDS[word]) for word in sorted(self.used, key=str.lower)]
