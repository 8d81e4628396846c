"""The examples in docstrings run, in every module of the package."""

from __future__ import annotations

import doctest
import importlib
import pkgutil

import pytest

import daskrado

MODULES = [
    found.name
    for found in pkgutil.walk_packages(daskrado.__path__, "daskrado.")
    if not found.name.endswith(".__main__")  # it runs the command line
]
FINDER = doctest.DocTestFinder(exclude_empty=True)


def examples(name: str) -> list[doctest.DocTest]:
    return [test for test in FINDER.find(importlib.import_module(name), name) if test.examples]


@pytest.mark.parametrize("name", MODULES)
def test_examples_give_what_they_say(name: str) -> None:
    said: list[str] = []
    runner = doctest.DocTestRunner(verbose=False)
    for test in examples(name):
        runner.run(test, out=said.append)
    assert runner.summarize(verbose=False).failed == 0, "".join(said)


def test_the_central_objects_have_examples() -> None:
    shown = {test.name.rpartition(".")[2] for name in MODULES for test in examples(name)}
    assert shown >= {
        *("Domain", "Lattice", "Relation", "PureEvent", "compose", "gaussian_sigma", "MeanOperator", "Moments"),
        *("LinearModel", "RadoSet", "make_odd_loss", "all_rados"),
    }
