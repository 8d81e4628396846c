"""Measurements of speed and memory."""

from __future__ import annotations
