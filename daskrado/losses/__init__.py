"""Losses: margin losses, linear-odd losses, proper losses."""

from __future__ import annotations
