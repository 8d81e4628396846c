"""A repeatable source of noise in place of OpenDP's and the operating system's: no test passes or fails by luck.

Laws and scales are those that the code asks for; only the generator is another. ``DASKRADO_TEST_SEED`` names another
seed, which shows the tests that lean on one draw.
"""

from __future__ import annotations

import os
import secrets
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path
from types import SimpleNamespace

import numpy as np

from daskrado.privacy import gamma, noise

# Two numbers, so that no test's own generator runs in step with this one.
SEED = (int(os.environ.get("DASKRADO_TEST_SEED", "20261118")), 1)
WIDE = 1000.0  # from here on a rounded normal is the discrete Gaussian up to one part in 10^7
Sampler = Callable[[list[int]], list[int]]

_draw = np.random.default_rng(SEED)
_keys = secrets.token_bytes
_genuine = {name: getattr(noise, name) for name in ("_laplace", "_gaussian", "_chooser", "os")}


def reseed() -> None:
    """Begin again: what follows is the same in every run."""
    global _draw
    _draw = np.random.default_rng(SEED)


def random_bytes(count: int = 32) -> bytes:
    """In place of ``os.urandom``."""
    return _draw.bytes(count)


def install() -> None:
    """Draw noise, coins, signature keys and keys of row noise from here; names and marks stay the system's."""
    system = SimpleNamespace(urandom=random_bytes)
    for name, value in (("_laplace", laplace), ("_gaussian", gaussian), ("_chooser", chooser), ("os", system)):
        setattr(noise, name, value)
    gamma.os = system
    secrets.token_bytes = lambda count=None: random_bytes(32) if count == 32 else _keys(count)


def uninstall() -> None:
    """Draw from OpenDP and the operating system again."""
    for name, value in _genuine.items():
        setattr(noise, name, value)
    gamma.os = os
    secrets.token_bytes = _keys


def command(script: Path, *options: str) -> list[str]:
    """The command that runs a script in a process of its own, with this source of noise."""
    code = (
        "import runpy, sys\n"
        f"sys.argv, sys.path[:0] = sys.argv[1:], [{str(Path(__file__).parent)!r}, {str(script.parent)!r}]\n"
        "import seeded_noise\nseeded_noise.install()\n"
        "runpy.run_path(sys.argv[0], run_name='__main__')\n"
    )
    return [sys.executable, "-c", code, str(script), *options]


def laplace(scale: float) -> Sampler:
    """The discrete Laplace law, exactly: the difference of two geometric draws with ratio exp(-1 / scale)."""
    stop = -np.expm1(-1 / scale)
    return lambda values: _added(values, _draw.geometric(stop, len(values)) - _draw.geometric(stop, len(values)))


def gaussian(scale: float) -> Sampler:
    """The discrete Gaussian law: by its table of sums where the scale is small, rounded where it is large."""
    if scale >= WIDE:
        return lambda values: _added(values, np.rint(_draw.normal(0, scale, len(values))).astype(np.int64))
    sums = _gaussian_sums(scale)
    return lambda values: _added(values, np.searchsorted(sums, _draw.random(len(values))) - len(sums) // 2)


def chooser(scale: float) -> Callable[[list[float]], int]:
    """The exponential mechanism: the largest of score + Gumbel noise."""
    return lambda scores: int(np.argmax(np.asarray(scores) + _draw.gumbel(0, scale, len(scores))))


@cache
def _gaussian_sums(scale: float) -> np.ndarray:
    k = np.arange(-int(40 * scale) - 2, int(40 * scale) + 3)
    weights = np.exp(-0.5 * (k / scale) ** 2)
    return np.cumsum(weights / weights.sum())


def _added(values: list[int], drawn: np.ndarray) -> list[int]:
    return [value + int(more) for value, more in zip(values, drawn, strict=True)]
