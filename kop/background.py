"""Work that goes on after a failure: loops in the background, many items side by side, steps of the start.

Owns: that an exception ends neither a loop nor the work on other items, time limits, tries, the log line about each.
Must not know: what the work is, which failures are worth another try.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable
from typing import TYPE_CHECKING, Any, Final, TypeAlias, TypeVar

from kop import clock
from kop.errors import KopError
from kop.repeats import LASTS_SECONDS, Repeats

if TYPE_CHECKING:
    from prometheus_client.core import Metric

T = TypeVar("T")
Failed: TypeAlias = Callable[[Exception], None]
"""The type of a callback that gets the exception with which a round failed. It must not keep the exception, which holds
the frames of the round.
"""

FIRST_PAUSE: Final = 0.2
_LONGEST_PAUSE: Final = 5.0

_log: Final = logging.getLogger(__name__)
log_lines: Final = Repeats()
failures: Final[Counter[str]] = Counter()
"""The number of failures of each kind of work in the background of this process."""


async def repeat(
    what: str,
    work: Callable[[], Awaitable[None]],
    *,
    every: float | Callable[[], float],
    limit: float | None = None,
    failed: Failed | None = None,
    kind: str | None = None,
) -> None:
    """Call `work` in rounds, each `every` seconds after the end of the last one, until the caller cancels this.

    No exception ends it. A round takes `limit` seconds at most; then it is cancelled and counts as failed with a
    TimeoutError. `failed` is called with each failure; without it `what` (such as "the listing of topics") is logged
    with the error: a KopError or a TimeoutError as one line, all else, which is a fault of this program, with its
    traceback. `kind` is given if `what` varies; see `tell`.
    """
    while True:
        await asyncio.sleep(every() if callable(every) else every)
        try:
            async with asyncio.timeout(limit):
                await work()
        except Exception as error:
            tell(what, error, failed, kind=kind)


async def for_each(
    items: Iterable[T],
    work: Callable[[T], Awaitable[None]],
    *,
    at_once: int,
    limit: float,
    failed: Callable[[T, Exception], None],
) -> None:
    """Call `work` for each item, `at_once` of them side by side, each within `limit` seconds.

    `failed` is called with an item whose work fails or takes longer (TimeoutError). The others go on.
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
    """Call `work` until it succeeds, and return its result. Raises its error if `passes` returns false for that, or if
    the tries have gone on for `seconds`.

    `what` completes "cannot ...". Pauses grow to 5 s. Each failure that is followed by another try is a line in the
    log; `waiting` gets the same text. With endless `seconds` nobody waits for it at a terminal: there is a line only if
    it has failed for half a minute, and now and then while that lasts.
    """
    began = clock.monotonic()

    def say(error: BaseException | None) -> None:
        text, now = f"cannot {what}: {error}; trying again", clock.monotonic()
        if math.isinf(seconds) and (now - began < LASTS_SECONDS or log_lines.say(text, now) is None):
            _log.debug("%s", text)
        else:
            _log.warning("%s", text)
        if waiting is not None:
            waiting(text)

    try:
        return await work()
    except Exception as error:
        if not passes(error):
            raise
        say(error)
    from tenacity import (  # noqa: PLC0415 - a tenth of what there is to import, and mostly nothing fails
        AsyncRetrying,
        RetryCallState,
        retry_if_exception,
        stop_after_delay,
        wait_random_exponential,
    )

    def failed(state: RetryCallState) -> None:
        assert state.outcome is not None
        say(state.outcome.exception())

    wait = wait_random_exponential(multiplier=FIRST_PAUSE, max=_LONGEST_PAUSE)
    retrying = AsyncRetrying(
        stop=stop_after_delay(seconds), wait=wait, retry=retry_if_exception(passes), before_sleep=failed, reraise=True
    )

    async def attempt() -> T:  # tenacity awaits the result of coroutine functions only
        return await work()

    await asyncio.sleep(FIRST_PAUSE)
    return await retrying(attempt)


async def cancel(*tasks: asyncio.Task[Any] | None) -> None:
    """Cancel tasks and wait until they have ended, however they end. None stands for a task that is not there."""
    present = [task for task in tasks if task is not None]
    for task in present:
        task.cancel()
    await asyncio.gather(*present, return_exceptions=True)


def every(loop: asyncio.AbstractEventLoop, seconds: float, what: str, work: Callable[[], None]) -> Callable[[], None]:
    """Call `work` every `seconds`, the first time after as many; an exception is reported by `tell` and ends nothing.

    Returns a function that ends the calls.
    """
    timer: asyncio.TimerHandle | None = None

    def due() -> None:
        nonlocal timer
        timer = loop.call_later(seconds, due)
        try:
            work()
        except Exception as error:
            tell(what, error)

    timer = loop.call_later(seconds, due)

    def end() -> None:
        if timer is not None:
            timer.cancel()

    return end


def tell(
    what: str,
    error: Exception,
    failed: Failed | None = None,
    *,
    kind: str | None = None,
    level: int = logging.WARNING,
) -> None:
    """Report that a round of work in the background failed: to `failed`, if it is given; see `repeat`.

    Else, or if `failed` itself fails, the failure is counted in kop_background_failures_total under `kind`, or under
    `what` if that does not vary, and logged: the first of those that say the same, and one again every five minutes
    while they last. `level` is that of a failure which is expected, such as one of storage; a fault of this program is
    an error, with its traceback.
    """
    if failed is not None:
        try:
            failed(error)
        except Exception:
            _log.exception("a failure of %s could not be reported", what)
        else:
            return
    failures[label_of(kind or what)] += 1
    expected = isinstance(error, KopError | TimeoutError)
    kept = log_lines.say((what, type(error), str(error) if expected else None), clock.monotonic())
    if kept is None:
        return
    more = f" ({kept} more since it was last said)" if kept else ""
    if expected:
        _log.log(level, "%s failed: %s; trying again%s", what, error if str(error) else "it took too long", more)
    else:
        _log.error("%s failed: %r; trying again%s", what, error, more, exc_info=error)


def label_of(what: str) -> str:
    """Return the value of the metric's label for a kind of work: `listing_of_topics` for "the listing of topics"."""
    return what.removeprefix("the ").replace(" ", "_")


def collect() -> Iterable[Metric]:
    """Return the failures as a Prometheus counter by kind of work."""
    from kop.metrics import counter_family  # noqa: PLC0415 - clients of Pulsar alone have no metrics

    family = counter_family(
        "kop_background_failures", "Failed rounds of work in the background; see the log.", ["work"]
    )
    for work, times in failures.items():
        family.add_metric([work], times)
    return (family,)
