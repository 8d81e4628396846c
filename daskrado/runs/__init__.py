"""Runs: pipelines, plans, the one forward path, and what it publishes."""

from __future__ import annotations
