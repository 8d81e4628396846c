"""Parquet files that look whole from their footers and cannot be read: what fails after the scan, before a draw."""

from __future__ import annotations

import shutil
from pathlib import Path

import pyarrow.parquet as pq


def damaged_copy(lake: Path, folder: Path) -> Path:
    """A copy of a lake's folder in which the first page of every column of the last file begins with zeros."""
    shutil.copytree(lake, folder)
    last = max(folder.glob("*.parquet"))
    group = pq.read_metadata(last).row_group(0)
    content = bytearray(last.read_bytes())
    for number in range(group.num_columns):
        column = group.column(number)
        start = column.dictionary_page_offset or column.data_page_offset
        content[start : start + 8] = bytes(8)
    last.write_bytes(content)
    return folder
