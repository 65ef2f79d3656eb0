"""The text of an exception of a user's code, whatever its methods do.

Owns: how such an exception is written in one line of status, header, answer or log.
Must not know: who shows it.
"""

from __future__ import annotations

from typing import Final

CHARACTERS: Final = 10_000
"""The most characters of a text."""


def text_of(error: BaseException) -> str:
    """Return `TYPE: TEXT`, cut at 10,000 characters, with backslashes for what is no UTF-8. An exception whose
    `__str__` raises, or returns no str, is told with that in the place of its text.
    """
    name = type(error).__name__
    try:
        text = str(error)
    except BaseException as failure:
        text = f"<its text cannot be had: {type(failure).__name__}>"
    return f"{name}: {text[:CHARACTERS]}".encode(errors="backslashreplace").decode()
