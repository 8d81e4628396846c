"""A person's forty rows, in or out of the lake: nobody tells more than was charged, and a planted bug is seen."""

from __future__ import annotations

import json

import numpy as np
import pytest
from click.testing import CliRunner

from daskrado.audit.people import audit_person, lower_mu
from daskrado.cli.main import cli
from daskrado.jobs.person_audit import audit_units, bound_people


@pytest.mark.parametrize("mu", [0.5, 1.0, 2.0])
def test_an_attack_shows_nearly_the_mu_of_gaussians_and_never_more(mu: float) -> None:
    draw = np.random.default_rng(3)
    found = audit_person(lambda: draw.normal(mu, 1, 1), lambda: draw.normal(0, 1, 1), 4000)
    assert 0.6 * mu < found.mu <= mu < found.reach
    assert lower_mu(np.ones(10, bool), np.ones(10, bool)) == -np.inf


@pytest.mark.slow
@pytest.mark.parametrize("forgets", [False, True])
def test_moments_and_gradient_of_people_hide_forty_rows(forgets: bool) -> None:
    """``forgets``: the rows of a person are summed as they are, with noise for one."""
    found = audit_units(4000, 6.0, (lambda lake, job: None) if forgets else bound_people)
    for name, least in (("moments", 0.5), ("gradient", 0.1)):
        facts = found[name]
        assert facts["most_that_could_be_shown"] > facts["charged_mu"]
        assert facts["holds"] is not forgets
        assert (facts["shown_mu"] > facts["charged_mu"]) is forgets
        assert facts["shown_mu"] > least * facts["charged_mu"]


@pytest.mark.slow
def test_the_command_says_what_was_shown() -> None:
    said = CliRunner().invoke(cli, ["audit", "units", "--releases", "200"], catch_exceptions=False)
    assert said.exit_code == 0
    assert said.output.count("holds") == 2
    found = json.loads(CliRunner().invoke(cli, ["audit", "units", "--releases", "200", "--json"]).output)
    assert set(found) == {"moments", "gradient"}
