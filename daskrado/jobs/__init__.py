"""Kinds of jobs: one file a kind, one forward path for all of them."""

from __future__ import annotations
