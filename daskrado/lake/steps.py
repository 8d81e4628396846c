"""Long steps by their true names, for whoever shows progress."""

from __future__ import annotations

from typing import Any


def begin_step(progress: Any, name: str) -> None:
    """What is counted from now on, such as "descent step"; a progress function without ``stage`` need not know."""
    stage = getattr(progress, "stage", None)
    if stage is not None:
        stage(name)
