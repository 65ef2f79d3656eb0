"""The questions of one request to storage about many partitions: side by side, and no longer than its client waits.

Owns: how many questions of one request are under way, their deadline, the log line about those that were late.
Must not know: what is asked, and what is answered for a partition whose answer was late.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

from kop.turns import Turns

T = TypeVar("T")

ANSWER_SECONDS = 20.0
"""The seconds that a request waits for storage, less than clients wait for an answer (30 s), however many partitions
have to be attached first.
"""

log = logging.getLogger(__name__)


async def all_in_time(
    questions: Sequence[Callable[[], Awaitable[T]]], *, at_once: int, what: str, then: str
) -> list[T | None]:
    """Call the questions side by side, and return their answers in the order of the questions; None for those that did
    not come within 20 s, which is logged.

    `at_once` questions are under way at a time; one without an answer for a second no longer counts (`Turns`). For the
    log, `what` names what was asked for, and `then` says what happens to the partitions without an answer.
    """
    turns = Turns(at_once)
    end = asyncio.get_running_loop().time() + ANSWER_SECONDS
    late = 0

    async def answer(question: Callable[[], Awaitable[T]]) -> T | None:
        nonlocal late
        try:
            async with asyncio.timeout_at(end), turns.turn():
                return await question()
        except TimeoutError:
            late += 1
            return None

    answers = await asyncio.gather(*map(answer, questions))
    if late:
        log.warning(
            "%s of %d of %d partitions were not known within %.0f s; %s. "
            "Where it happens often, the storage is slow to open partitions",
            what,
            late,
            len(questions),
            ANSWER_SECONDS,
            then,
        )
    return answers
