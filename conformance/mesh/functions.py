"""The functions of the crash test's mesh: a random number, a count of each key, the end."""

from __future__ import annotations

import random
from typing import Any


def dice(text: str) -> str:
    """Append a number that another attempt would not give."""
    return f"{text} {random.random()}"


def count(text: str, context: Any) -> str:
    """Append how many messages of this key have come."""
    key = text.split(maxsplit=1)[0]
    context.incr_counter(key, 1)
    return f"{text} {context.get_counter(key)}"


def end(text: str) -> str:
    """Give out what came in."""
    return text


def blind(text: str) -> str:
    """Do the same in a process that sees no committed offset from here on: the crash test has to find duplicates."""
    from kop.client.write_client import WriteClient

    WriteClient.committed = lambda *_, **__: {}  # type: ignore[method-assign]
    return dice(text)
