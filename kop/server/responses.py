"""Answers in the order of their requests, whichever is ready first. No sockets, no clock.

Owns: the order of answers of one connection.
Must not know: what an answer holds, how it is written.

Kafka's protocol has no other way to tell answers apart: clients take them in the order of their requests.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence

from kop.handlers.api import Frame


class Slot:
    """The place of one answer. `observe` is called when the answer's turn to be written has come."""

    __slots__ = ("frame", "observe", "ready")

    def __init__(self, observe: Callable[[], None]) -> None:
        self.frame: Frame | None = None
        self.ready = False
        self.observe = observe


class ResponseOrder:
    """The answers of one connection that may not be written yet."""

    __slots__ = ("_slots",)

    def __init__(self) -> None:
        self._slots: deque[Slot] = deque()

    def reserve(self, observe: Callable[[], None]) -> Slot:
        """Keep the next place for an answer that is to come."""
        slot = Slot(observe)
        self._slots.append(slot)
        return slot

    def add(self, frame: Frame | None, observe: Callable[[], None]) -> Sequence[Frame]:
        """Take the answer of the newest request; returns what may be written now. None is no answer at all."""
        if self._slots:
            slot = self.reserve(observe)
            slot.frame, slot.ready = frame, True
            return ()
        observe()
        return () if frame is None else (frame,)

    def settle(self, slot: Slot, frame: Frame | None) -> Sequence[Frame]:
        """Take the answer for which `slot` was kept; returns what may be written now, in order."""
        slot.frame, slot.ready = frame, True
        slots = self._slots
        ready: list[Frame] = []
        while slots and slots[0].ready:
            head = slots.popleft()
            head.observe()
            if head.frame is not None:
                ready.append(head.frame)
        return ready

    def clear(self) -> None:
        """Forget all answers: nobody is there to read them."""
        self._slots.clear()
