"""Stateful answerers: votes of teachers, sparse vector, counting queries."""

from __future__ import annotations
