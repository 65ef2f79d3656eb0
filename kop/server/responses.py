"""Answers in the order of their requests, whichever is ready first. No sockets, no clock.

Owns: the order of answers of one connection.
Must not know: what an answer holds, how it is written.

Kafka's protocol has no other way to tell answers apart: clients take them in the order of their requests.
"""

from __future__ import annotations

from collections import deque

from kop.handlers.api import Answer


class ResponseOrder(deque[Answer]):
    """The answers of one connection that are not written yet, in the order of their requests."""

    __slots__ = ()

    def take_ready(self) -> list[Answer]:
        """Remove and return the answers whose turn has come, in the order of their requests."""
        ready: list[Answer] = []
        while self and self[0].ready:
            ready.append(self.popleft())
        return ready

    def abandon(self) -> None:
        """Drop all answers, and cancel the work for them: nobody is there to read them."""
        for answer in self:
            answer.taker = None
            if answer.waiting is not None:
                answer.waiting.cancel()
        self.clear()
