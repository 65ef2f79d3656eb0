"""The size that an output may have, and the error of one that cannot be written.

Owns: the bound.
Must not know: what the outputs of a function are, who writes them.
"""

from __future__ import annotations

from typing import Final

from kop.client.batches import BATCH_BYTES
from kop.client.record_columns import Headers

RECORD_BYTES: Final = BATCH_BYTES - 10_000
"""The most bytes of key, value and headers of an output together."""
HEADER_BYTES: Final = 10
"""The most bytes that a header takes beside its name and its value."""


class OutputError(Exception):
    """A result that cannot be written; the text says why."""


def too_large(what: str, size: int) -> OutputError:
    """Return the error of an output that has too many bytes; `what` names the output, `size` is its bytes."""
    return OutputError(f"{what} has {size} bytes, and {RECORD_BYTES} are the most")


def record_bytes(key: bytes | None, value: bytes | None, headers: Headers) -> int:
    """Return the bytes of a record, at least as many as it takes in a batch."""
    size = len(key or b"") + len(value or b"")
    return size + sum(len(name.encode()) + len(content or b"") + HEADER_BYTES for name, content in headers)
