"""The inner loops of a pass: compiled for large lakes, else in NumPy.

The NumPy forms say what is meant; the compiled ones make fewer trips through memory and give the same bits.
Compiling costs a worker a second or two for each loop, once per machine; :func:`compile_loops` is called where a lake
is large enough to repay it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

STEPS = 64  # entries for a unit in the tables of exp and log (losses/elementary)
REPAID_CELLS = 10_000_000  # rows times features of a lake from which on compiling pays

Loop = tuple[Callable[..., Any], Any]  # a function, and the signature that it is compiled for

_log = logging.getLogger(__name__)
_known: dict[str, Loop] = {}
_compiled: dict[str, Callable[..., Any] | None] = {}


def compile_loops() -> None:
    """Use the compiled forms from now on in this process, if they can be compiled."""
    if _known:
        return
    import numba  # half a second: only where it is needed

    if numba.config.DISABLE_JIT:
        return
    from daskrado.table.compiled_loops import LOOPS
    from daskrado.table.compiled_products import PRODUCTS
    from daskrado.table.compiled_sketch import SKETCH

    _known.update(LOOPS | PRODUCTS | SKETCH)


def compiled(name: str) -> Callable[..., Any] | None:
    """The compiled form of a loop, where there is one; it is compiled when it is first asked for."""
    if name not in _known:
        return None
    if name not in _compiled:
        _compiled[name] = _compile(name, *_known[name])
    return _compiled[name]


def _compile(name: str, loop: Callable[..., Any], signature: Any) -> Callable[..., Any] | None:
    import numba

    for keep in (True, False):  # nowhere to keep compiled code, or what is kept is damaged: compile it every time
        try:
            return numba.jit(signature, nogil=True, cache=keep)(loop)  # type: ignore[no-any-return]
        except Exception as error:  # a compiler that does not work here costs speed, not the run
            _log.info("inner loop %s is not compiled: %s", name, type(error).__name__)
    return None
