"""The format of a line of the log: one line, whatever stands in it.

Owns: that what clients send begins no line of its own, and is no command for a terminal.
Must not know: who writes lines, and what about.
"""

from __future__ import annotations

import logging
import re
from typing import Any, Final

_UNSHOWN: Final = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069]")
"""Controls: of terminals, of lines, of the direction of text."""
_MARGIN: Final = "  "
"""The beginning of each line of a traceback."""


class LogFormat(logging.Formatter):
    """The format of records, with controls escaped as Python writes them."""

    def formatMessage(self, record: logging.LogRecord) -> str:
        """Return the line of a record, with control characters as Python escapes them."""
        return _escaped(super().formatMessage(record))

    def format(self, record: logging.LogRecord) -> str:
        """Return the line of a record, and behind it those of its traceback, made anew and indented."""
        record.exc_text = None  # what another handler has kept is of another form
        return super().format(record)

    def formatException(self, ei: Any) -> str:
        """Return the lines of a traceback, each indented and with control characters escaped, because an error may
        quote a client: no line of its text looks like one of the log.
        """
        return "\n".join(_MARGIN + _escaped(line) for line in super().formatException(ei).split("\n"))


def _escaped(text: str) -> str:
    return _UNSHOWN.sub(lambda match: match[0].encode("unicode_escape").decode(), text)
