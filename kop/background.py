"""Work that a passing failure must not end: loops in the background, many items side by side, steps of the start.

Owns: that an exception ends neither a loop nor the work on other items, time limits, tries, the log line about each.
Must not know: what the work is, which failures pass.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable
from typing import Final, TypeAlias, TypeVar

from kop.errors import KopError

T = TypeVar("T")
Failed: TypeAlias = Callable[[Exception], None]
"""Called with what ended a round. The exception must not be kept: it holds the frames of the round."""

_FIRST_PAUSE: Final = 0.2
_LONGEST_PAUSE: Final = 5.0

_log: Final = logging.getLogger(__name__)


async def repeat(
    what: str,
    work: Callable[[], Awaitable[None]],
    *,
    every: float | Callable[[], float],
    limit: float | None = None,
    failed: Failed | None = None,
) -> None:
    """Do `work` again and again, `every` so many seconds after the last round has ended, until this is cancelled.

    No exception ends it. A round takes `limit` seconds at most; then it is cancelled and counts as failed with a
    TimeoutError. `failed` hears of each failure; without it, or where it fails itself, `what` (such as "the listing of
    topics") is logged with the error: a KopError or a TimeoutError as one line, all else, which is a fault of this
    program, with its traceback.
    """
    while True:
        await asyncio.sleep(every() if callable(every) else every)
        try:
            async with asyncio.timeout(limit):
                await work()
        except Exception as error:
            tell(what, error, failed)


async def for_each(
    items: Iterable[T],
    work: Callable[[T], Awaitable[None]],
    *,
    at_once: int,
    limit: float,
    failed: Callable[[T, Exception], None],
) -> None:
    """Do `work` for each item, `at_once` of them side by side, each within `limit` seconds.

    An item whose work fails or takes longer (TimeoutError) is told to `failed` and keeps no other one from its turn.
    """
    left = iter(items)

    async def some() -> None:
        for item in left:
            try:
                async with asyncio.timeout(limit):
                    await work(item)
            except Exception as error:
                try:
                    failed(item, error)
                except Exception:
                    _log.exception("a failure of work on %r could not be reported", item)

    async with asyncio.TaskGroup() as tasks:
        for _ in range(at_once):
            tasks.create_task(some())


async def retried(
    what: str,
    work: Callable[[], Awaitable[T]],
    *,
    passes: Callable[[BaseException], bool],
    seconds: float,
    waiting: Callable[[str], None] | None = None,
) -> T:
    """Do `work` until it succeeds; the error where it does not pass, or `seconds` after the first failure.

    `what` completes "cannot ...". Pauses grow to 5 s. Each failure is a line in the log; `waiting` gets the same text.
    """
    try:
        return await work()
    except Exception as error:
        if not passes(error):
            raise
        _say_why(what, error, waiting)
    from tenacity import (  # noqa: PLC0415 - a tenth of what there is to import, and mostly nothing fails
        AsyncRetrying,
        RetryCallState,
        retry_if_exception,
        stop_after_delay,
        wait_random_exponential,
    )

    def failed(state: RetryCallState) -> None:
        assert state.outcome is not None
        _say_why(what, state.outcome.exception(), waiting)

    wait = wait_random_exponential(multiplier=_FIRST_PAUSE, max=_LONGEST_PAUSE)
    retrying = AsyncRetrying(
        stop=stop_after_delay(seconds), wait=wait, retry=retry_if_exception(passes), before_sleep=failed, reraise=True
    )

    async def attempt() -> T:  # tenacity awaits the result of coroutine functions only
        return await work()

    await asyncio.sleep(_FIRST_PAUSE)
    return await retrying(attempt)


def _say_why(what: str, error: BaseException | None, waiting: Callable[[str], None] | None) -> None:
    text = f"cannot {what}: {error}; trying again"
    _log.warning("%s", text)
    if waiting is not None:
        waiting(text)


def tell(what: str, error: Exception, failed: Failed | None = None) -> None:
    """Report that a round of work in the background failed; see `repeat`."""
    if failed is not None:
        try:
            failed(error)
        except Exception:
            _log.exception("a failure of %s could not be reported", what)
        else:
            return
    if isinstance(error, KopError | TimeoutError):
        _log.warning("%s failed: %s; trying again", what, error if str(error) else "it took too long")
    else:
        _log.error("%s failed: %r; trying again", what, error, exc_info=error)
