"""The lines of the log: what a client sends makes no line of its own, and nothing that a terminal obeys."""

from __future__ import annotations

import logging
import sys

from kop.log_format import LogFormat


def formatted(text: str, *values: object, error: Exception | None = None) -> str:
    info = None if error is None else (type(error), error, error.__traceback__)
    return LogFormat("%(levelname)s %(message)s").format(
        logging.LogRecord("kop", logging.INFO, __file__, 1, text, values, info)
    )


def test_a_line_stays_a_line() -> None:
    assert formatted("client %s at %s", "evil\n2026-01-01 ERROR\r\x1b[31m\x85\u2028\u202e", "192.0.2.1") == (
        "INFO client evil\\n2026-01-01 ERROR\\r\\x1b[31m\\x85\\u2028\\u202e at 192.0.2.1"
    )
    assert formatted("é 漢 😀 \\ \"'") == "INFO é 漢 😀 \\ \"'"


def test_the_lines_of_a_traceback_begin_with_spaces() -> None:
    try:
        raise ValueError("evil\n2026-01-01 ERROR\x1b[31m")
    except ValueError as error:
        first, *rest = formatted("failed", error=error).split("\n")
    assert first == "INFO failed"
    assert rest[0] == "  Traceback (most recent call last):"
    assert all(line.startswith("  ") for line in rest)
    assert rest[-1] == "  2026-01-01 ERROR\\x1b[31m"
    assert sys.exc_info() == (None, None, None)
