"""``daskrado audit rados``: the reconstruction attacks on a file, with whatever the attacker is assumed to know."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from daskrado.audit.reconstruction import (
    expected_alone,
    invert_hadamard,
    matched,
    recoverable,
    solve_signatures,
    span_test,
    spannable,
)
from daskrado.errors import UsageError
from daskrado.lake.audit_rows import KeyedRows, read_rows
from daskrado.lake.seeds import SignatureKey
from daskrado.models.rados import RadoSet
from daskrado.statistics.base import Place
from daskrado.statistics.rados import BalancedRados, UniformRados
from daskrado.statistics.subsets import membership_matrix
from daskrado.table.lattice import Lattice

MOST_ROWS = 20_000  # a pseudo-inverse of more is no longer a quick check


@dataclass(frozen=True)
class Attack:
    """One attack: whether it applies, what it found, and in words."""

    name: str
    applies: bool
    text: str
    recovered: int | None = None
    of: int | None = None


@dataclass(frozen=True)
class AuditResult:
    """The verdict on a file."""

    path: str
    statement: str
    private: bool
    noisy: bool
    recoverable: bool
    attacks: tuple[Attack, ...]

    def to_json(self) -> dict[str, Any]:
        """Plain values."""
        content = {**vars(self), "attacks": [vars(attack) for attack in self.attacks]}
        return {"file": content.pop("path"), **content}

    def lines(self) -> Iterator[str]:
        """For a person."""
        yield self.statement
        for attack in self.attacks:
            yield f"{attack.name}: {attack.text}"
        if self.private and self.recoverable:
            yield (
                "verdict: RECOVERABLE in every column but those that the statement names; do not publish these rados "
                "where the others are private"
            )
        elif self.noisy:
            yield "verdict: the noise is the protection; attacks on exact sums do not apply to noisy columns"
        elif self.private:
            yield "verdict: only what the statement names is protected; all other columns are as open as plain rados"
        elif self.recoverable:
            yield "verdict: RECOVERABLE; do not publish these rados where the rows are private"
        else:
            yield "verdict: none of these attacks succeeds, which proves nothing: the rados are still not private"


def audit_file(path: str | Path, *, lake: Any = None, candidates: Any = None, seed: int | None = None) -> AuditResult:
    """Run every attack for which the knowledge is given. Counts are about private rows: for the owner's eyes."""
    rados = RadoSet.load(path)
    rows = None if lake is None else _read(lake, rados)
    attacks = [_sizes(rados, None if rows is None else len(rows.labels))]
    if _base(rados) == "hadamard":
        attacks.append(_hadamard(rados, rows))
    if candidates is not None:
        attacks.append(_span(rados, _read(candidates, rados)))
    if seed is not None:
        attacks.append(_lemma(rados, rows, seed))
    broken = any(attack.recovered for attack in attacks) or attacks[0].applies
    statement, noisy = rados.statement, rados.noisy
    facts = (statement.sentence(), statement.private, noisy, broken and not noisy)
    return AuditResult(str(path), *facts, tuple(attacks))


def _base(rados: RadoSet) -> str:
    """Which rados these are, under whatever was done to protect some of their columns."""
    if rados.kind == "noisy_column":
        return "balanced" if rados.facts.get("balanced", True) else "uniform"
    return str(rados.facts.get("base") or rados.kind)


def _read(lake: Any, rados: RadoSet) -> KeyedRows:
    """Rows on the grid that the rados were summed on."""
    return read_rows(lake, rados.domain, Lattice(rados.domain.norm_bound, rados.lattice_bits), most=MOST_ROWS)


def _edges(rados: RadoSet, rows: KeyedRows) -> NDArray[np.float64]:
    """Edge vectors in the columns that the rados sum exactly."""
    return rows.edges(rados.lattice_bits)[:, rados.exact_columns]


def _sizes(rados: RadoSet, counted: int | None) -> Attack:
    """The verdict from the kind and the sizes alone."""
    rows = rados.rows if rados.rows is not None else counted
    if rados.noisy:
        return Attack("sizes", False, "every column carries noise: no system of exact sums to solve")
    if rows is None:
        return Attack("sizes", False, "the number of rows is not known: give --lake")
    reason = recoverable(_base(rados), len(rados.rados), rows, rados.facts.get("support"))
    text = reason or f"{len(rados.rados)} rados of {rows} rows: no size rule broken"
    return Attack("sizes", reason is not None, text)


def _hadamard(rados: RadoSet, rows: KeyedRows | None) -> Attack:
    """The public inversion, and how many rows it shows up to their sign."""
    _, buckets = invert_hadamard(rados.rados[:, rados.exact_columns])
    if rows is None:
        text = f"gives {len(buckets)} bucket sums exactly"
        if rados.rows is not None:
            text += f"; about {expected_alone(len(rados.rados), rados.rows):.3g} rows stand alone"
        return Attack("hadamard inversion", not rados.noisy, text)
    edges = _edges(rados, rows)
    found = matched(buckets, edges)
    text = f"{found} of {len(edges)} examples read off the bucket sums, up to sign"
    return Attack("hadamard inversion", found > 0, text, found, len(edges))


def _span(rados: RadoSet, suspects: KeyedRows) -> Attack:
    if rados.noisy:
        return Attack("span", False, "says nothing of noisy rados", 0, len(suspects.labels))
    exact, dimension = rados.exact_columns, spannable(rados.domain, rados.rados, rados.exact_columns)
    test = span_test(rados.rados[:, exact], _edges(rados, suspects), dimension)
    if not test.applies:
        text = f"says nothing: the rados span all {dimension} dimensions that rows of this domain can"
        return Attack("span", False, text, 0, len(test.residuals))
    inside = int(test.inside.sum())
    text = f"{inside} of {len(test.residuals)} candidates lie in the rados' span of dimension {test.rank}"
    text += f", where rows of this domain can span {dimension}"
    return Attack("span", True, text, inside, len(test.residuals))


def _lemma(rados: RadoSet, rows: KeyedRows | None, seed: int) -> Attack:
    if rows is None:
        raise UsageError("--seed gives the signatures of the rows in --lake: give both")
    members = _members(rados, rows, SignatureKey.from_seed(seed).key_bytes())
    apart, size = np.abs(members @ rows.edges(rados.lattice_bits) - rados.rados).max(), np.abs(rados.rados).max()
    if apart > 1e-6 * max(1.0, float(size)):
        return Attack("lemma 9", False, f"seed {seed} and this lake do not give these rados", 0, len(rows.labels))
    found = solve_signatures(rados.rados, members)
    text = f"{len(found.indices)} of {found.examples} edge vectors are determined by the rados and their signatures"
    return Attack("lemma 9", len(found.indices) > 0, text, len(found.indices), found.examples)


def _members(rados: RadoSet, rows: KeyedRows, key: bytes) -> NDArray[np.float64]:
    """The 0/1 matrix of rados by rows, from a public key."""
    count, width = rados.rados.shape
    if rados.kind == "fixed_support":
        place = Place(key, 0, len(rows.labels))
        sizes = np.full(count, int(rados.facts["support"]))
        return membership_matrix(place, sizes, len(rows.labels)).astype(np.float64)
    if rados.kind in ("uniform", "balanced"):
        statistic = (UniformRados if rados.kind == "uniform" else BalancedRados)(width, count)
        return statistic.memberships(rows.seeds(key)).T.astype(np.float64)
    raise UsageError(f"signatures from a seed are known for uniform, balanced and fixed_support, not {rados.kind}")
