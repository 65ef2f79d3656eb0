"""The functions of meshes by chance. What they give depends on their message, and on how many of its word there were.

Each is the same whichever way it is run, so that topics can be compared.
"""

from __future__ import annotations

from typing import Any
from zlib import crc32


def _name(context: Any) -> str:
    """The name of the function within its mesh."""
    return str(context.get_function_name()).rpartition("-")[2]


def mark(text: str, context: Any) -> str:
    """Append the name of the function."""
    return f"{text}/{_name(context)}"


def some(text: str, context: Any) -> str | None:
    """Let two of three messages through."""
    return mark(text, context) if crc32(text.encode()) % 3 else None


def two(text: str, context: Any) -> str:
    """Publish one message beside the result, with a key of its own."""
    key = f"k{crc32(text.encode()) % 5}"
    context.publish(context.get_output_topic(), f"{text}/{_name(context)}+", message_conf={"partition_key": key})
    return mark(text, context)


def count(text: str, context: Any) -> str:
    """Count the messages of the word in front."""
    word = text.partition("/")[0]
    context.incr_counter(word, 1)
    return f"{word}/{_name(context)}={context.get_counter(word)}"
