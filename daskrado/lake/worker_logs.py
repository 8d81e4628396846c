"""A worker's log as text: Dask keeps its last records, and the traceback of one holds what its frames held.

A worker or driver that is killed while it fetches a sum, a key or rows leaves such a record on the worker that sent
them, for as long as that one lives.
"""

from __future__ import annotations

import logging
import sys


class _Text(logging.Filter):
    """Turns records into text, as they are written; exceptions and arguments are not kept."""

    def filter(self, record: logging.LogRecord) -> bool:
        record.msg, record.args = record.getMessage(), ()
        if record.exc_info:
            record.exc_text = logging.Formatter().formatException(record.exc_info)
            record.exc_info = None
        return True


_TEXT = _Text()


def keep_text_only() -> None:
    """Let the handlers that keep records in this process, a worker's or a scheduler's, keep their text alone."""
    utils = sys.modules.get("distributed.utils")
    if utils is None:  # no worker
        return
    for name in [None, *logging.root.manager.loggerDict]:
        for handler in logging.getLogger(name).handlers:
            if isinstance(handler, utils.DequeHandler):
                handler.addFilter(_TEXT)  # once, however often it is added
