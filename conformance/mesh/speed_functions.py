"""The functions whose speed is measured: three that append a letter, the same as one, counters, nothing."""

from __future__ import annotations

from typing import Any


def first(text: str) -> str:
    """Append a letter."""
    return text + "a"


def second(text: str) -> str:
    """Append a letter."""
    return text + "b"


def third(text: str) -> str:
    """Append a letter."""
    return text + "c"


def together(text: str) -> str:
    """Do what the three do."""
    return third(second(first(text)))


def count(text: str, context: Any) -> None:
    """Count each word of a message."""
    for word in text.split():
        context.incr_counter(word, 1)
