"""Learners on one noisy release: post-processing."""

from __future__ import annotations
