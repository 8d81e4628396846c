"""What a row is: the public Domain, its encoding, the integer grid, the inner loops."""

from __future__ import annotations
