"""Several parties: studies of sites, and the two-agent label protocol."""

from __future__ import annotations
