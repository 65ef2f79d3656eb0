"""Messages that somebody sends to a function and waits for.

Owns: how such a message is known, and who is told of it.
Must not know: who sends it, what a call is.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Final, NamedTuple

from kop import clock

HEADER: Final = "__kop_trigger__"


class TriggerAnswer(NamedTuple):
    """What became of a message: its output, None if there is none, or the error of its first call."""

    output: bytes | None = None
    error: str | None = None


class Triggers:
    """The messages that are waited for; for any thread."""

    def __init__(self) -> None:
        self._waiting: dict[bytes, tuple[threading.Event, list[TriggerAnswer]]] = {}

    def __bool__(self) -> bool:
        return bool(self._waiting)

    def expect(self) -> bytes:
        """Return a fresh id, the value of the header of a message that is going to be sent."""
        number = clock.uuid4().hex.encode()
        self._waiting[number] = (threading.Event(), [])
        return number

    def wait(self, number: bytes, seconds: float) -> TriggerAnswer | None:
        """Return what became of the message; None if it is not known in time. It is not waited for any more."""
        event, answers = self._waiting[number]
        event.wait(seconds)
        self._waiting.pop(number, None)
        return answers[0] if answers else None

    def number_of(self, headers: Sequence[tuple[str, bytes | None]]) -> bytes | None:
        """Return the id of a message that is waited for; None for all others."""
        return next((value for name, value in headers if name == HEADER and value in self._waiting), None)

    def answer(self, number: bytes, answer: TriggerAnswer) -> None:
        """Tell who waits; the first answer counts."""
        waiting = self._waiting.get(number)
        if waiting is not None:
            waiting[1].append(answer)
            waiting[0].set()
