"""The calls of a function that takes no context, one message after the other; the specification of the compiled twin.

Owns: this loop. Must not know: where messages come from, what becomes of results and errors.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, MutableSequence
from typing import Any

from kop.functions.output_sizes import RECORD_BYTES, too_large
from kop.functions.watch import OFFSET


def call_each(
    offsets: Iterator[int],
    results: Iterator[Any],
    encode: Callable[[Any], bytes] | None,
    is_text: bool,
    calling: MutableSequence[int],
    values: list[bytes],
    silent: list[int],
) -> None:
    """Take as many results as there are offsets: taking one calls the function with the message at that offset, which
    is noted in `calling` before (kop.functions.watch). Raises the first error of a call or of `encode`; then both
    iterators go on behind that message. A call that raises StopIteration has failed, too.

    The bytes that `encode` makes of a result are added to `values`. `is_text`: True if it makes UTF-8 of text, and
    refuses all else. If there is no result, or `encode` is None, the offset is added to `silent`. Raises OutputError
    for a result with more bytes than a record may have.
    """
    for offset in offsets:
        calling[OFFSET] = offset
        result = next(results)
        if result is None or encode is None:
            silent.append(offset)
            continue
        data = _encoded(result, encode) if is_text else encode(result)
        if len(data) > RECORD_BYTES:
            raise too_large("the result", len(data))
        values.append(data)


def _encoded(result: Any, encode: Callable[[Any], bytes]) -> bytes:
    """Return the UTF-8 of text; raise the error of `encode` for a result that is none."""
    try:
        return str.encode(result)
    except (TypeError, UnicodeEncodeError):
        pass
    return encode(result)
