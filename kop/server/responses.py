"""Answers in the order of their requests, whichever is ready first. No sockets, no clock.

Owns: the order of answers of one connection.
Must not know: what an answer holds, how it is written.

Kafka's protocol has no other way to tell answers apart: clients take them in the order of their requests.
"""

from __future__ import annotations

from collections import deque

from kop.handlers.api import Answer


class ResponseOrder:
    """The answers of one connection that are not written yet."""

    __slots__ = ("_answers",)

    def __init__(self) -> None:
        self._answers: deque[Answer] = deque()

    def __len__(self) -> int:
        return len(self._answers)

    def add(self, answer: Answer) -> None:
        """Keep the next place for an answer."""
        self._answers.append(answer)

    def take_ready(self) -> list[Answer]:
        """The answers whose turn has come, in order; they leave."""
        answers = self._answers
        ready: list[Answer] = []
        while answers and answers[0].ready:
            ready.append(answers.popleft())
        return ready

    def abandon(self) -> None:
        """Forget all answers, and end what they wait for: nobody is there to read them."""
        answers, self._answers = self._answers, deque()
        for answer in answers:
            answer.taker = None
            if answer.waiting is not None:
                answer.waiting.cancel()
