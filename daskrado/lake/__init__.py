"""Lakes: scanning Parquet, encoding rows, and the one exact reduction over partitions."""

from __future__ import annotations
