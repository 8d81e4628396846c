"""Random Fourier features: a kernel machine as a linear one, with frequencies that no row has touched."""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from daskrado.table.domain import Kernel

_ROW_BITS = 20  # the encoded columns, in [-1, 1], are rounded to so many bits
Matrix = NDArray[np.float64]


@lru_cache(maxsize=8)
def frequencies(kernel: Kernel, width: int) -> tuple[Matrix, int]:
    """(whole numbers, bits): the frequencies are the numbers times 2^-bits, one column for each pair of features.

    They are drawn from the kernel's Fourier transform, with a public seed: normal of variance 2 gamma for the
    Gaussian kernel, Cauchy of scale gamma for the Laplacian one, Laplace of scale gamma for the Cauchy one. On this
    grid a projection is a whole number below 2^53, so that it has the same bits on any processor.

    *Reference*: Rahimi and Recht (2007), "Random features for large-scale kernel machines".
    """
    pairs = kernel.features // 2
    raw = np.random.Philox(key=[kernel.seed, 0x6B65726E656C]).random_raw(width * pairs) >> np.uint64(11)
    uniform = (raw.astype(np.float64) + 0.5) * 2.0**-53
    if kernel.kind == "gaussian":
        from scipy.special import ndtri

        drawn = math.sqrt(2 * kernel.gamma) * ndtri(uniform)
    elif kernel.kind == "laplacian":
        drawn = kernel.gamma * np.tan(math.pi * (uniform - 0.5))
    else:
        drawn = kernel.gamma * np.sign(uniform - 0.5) * -np.log1p(-2 * np.abs(uniform - 0.5))
    bits = 52 - _ROW_BITS - math.ceil(math.log2(width * float(np.abs(drawn).max()) + 1.0))
    whole = np.rint(np.ldexp(drawn, bits)).reshape(width, pairs)
    whole.setflags(write=False)
    return whole, bits


def fourier_features(kernel: Kernel, rows: Matrix, out: Matrix) -> None:
    """Write sqrt(2/D) [cos(w.x), sin(w.x)] for D/2 frequencies w: every row of ``out`` has norm 1.

    *Sensitivity*: norm exactly 1, up to rounding that clipping takes care of, where one cosine with a random phase
    for each feature reaches sqrt(2).
    """
    whole, bits = frequencies(kernel, rows.shape[1])
    pairs = kernel.features // 2
    turned = np.rint(np.ldexp(rows, _ROW_BITS)) @ whole
    np.ldexp(turned, -bits - _ROW_BITS, out=turned)
    scale = math.sqrt(1.0 / pairs)
    np.cos(turned, out=out[:, :pairs])
    np.sin(turned, out=out[:, pairs : 2 * pairs])
    out[:, : 2 * pairs] *= scale
