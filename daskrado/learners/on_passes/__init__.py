"""Learners that read the lake several times."""

from __future__ import annotations
