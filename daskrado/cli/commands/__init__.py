"""Commands, each imported when it is called."""

from __future__ import annotations
