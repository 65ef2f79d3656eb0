"""Loops in the background go on, and work on one item waits for no other."""

from __future__ import annotations

import asyncio
import gc
import logging
import math
import weakref

import pytest
from support.waiting import SECONDS, until

from kop import background
from kop.background import cancel, every, failures, for_each, label_of, repeat, retried, tell
from kop.errors import BackendError


@pytest.mark.parametrize("error", [BackendError("storage is away"), ValueError("not thought of"), TimeoutError()])
def test_a_loop_outlasts_every_exception_and_says_it_once(error: Exception, caplog: pytest.LogCaptureFixture) -> None:
    what = f"the listing {type(error).__name__}"  # nobody else said the same

    async def main() -> None:
        rounds = 0
        enough = asyncio.Event()

        async def work() -> None:
            nonlocal rounds
            rounds += 1
            if rounds == 3:
                enough.set()
            raise error

        loop = asyncio.create_task(repeat(what, work, every=lambda: 0.001))
        async with asyncio.timeout(SECONDS):
            await enough.wait()
        loop.cancel()
        with pytest.raises(asyncio.CancelledError):
            await loop

    with caplog.at_level(logging.WARNING):
        asyncio.run(main())
    lines = [record for record in caplog.records if f"{what} failed: " in record.message]
    assert len(lines) == 1
    assert bool(lines[0].exc_info) == isinstance(error, ValueError)
    assert failures[label_of(what)] >= 3


def test_a_round_that_hangs_is_ended_and_reported_also_where_the_report_fails(
    caplog: pytest.LogCaptureFixture,
) -> None:
    heard: list[type[Exception]] = []

    async def main() -> None:
        enough = asyncio.Event()

        def failed(error: Exception) -> None:
            heard.append(type(error))
            if len(heard) == 2:
                enough.set()
            raise LookupError("the report fails")

        async def hang() -> None:
            await asyncio.Event().wait()

        loop = asyncio.create_task(repeat("the look", hang, every=0.001, limit=0.01, failed=failed))
        async with asyncio.timeout(SECONDS):
            await enough.wait()
        loop.cancel()
        await asyncio.gather(loop, return_exceptions=True)

    asyncio.run(main())
    assert heard[:2] == [TimeoutError, TimeoutError]
    assert "a failure of the look could not be reported" in caplog.text


def test_an_item_that_hangs_or_fails_keeps_no_other_from_its_turn() -> None:
    done: list[int] = []
    ended: dict[int, type[Exception]] = {}
    busy = most = 0

    async def work(item: int) -> None:
        nonlocal busy, most
        busy += 1
        most = max(most, busy)
        try:
            if item == 3:
                await asyncio.Event().wait()
            if item == 5:
                raise ValueError("as the test wants")
            await asyncio.sleep(0)
            done.append(item)
        finally:
            busy -= 1

    def failed(item: int, error: Exception) -> None:
        ended[item] = type(error)
        raise LookupError("the report fails")

    asyncio.run(for_each(range(50), work, at_once=4, limit=0.2, failed=failed))
    assert done == [item for item in range(50) if item not in {3, 5}]
    assert ended == {3: TimeoutError, 5: ValueError}
    assert most == 4


def test_nothing_of_a_failed_round_stays_in_memory() -> None:
    class Held:
        pass

    async def main() -> None:
        seen: list[weakref.ref[Held]] = []

        async def work() -> None:
            held = Held()
            seen.append(weakref.ref(held))
            raise BackendError("with the frame of this round")

        loop = asyncio.create_task(repeat("the round", work, every=0.001, failed=lambda error: None))
        await until(lambda: len(seen) >= 3)
        loop.cancel()
        await asyncio.gather(loop, return_exceptions=True)
        gc.collect()
        assert [reference() for reference in seen] == [None] * len(seen)

    asyncio.run(main())


def test_a_step_that_fails_for_a_time_is_tried_again_and_says_what_it_waits_for(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kop.background.FIRST_PAUSE", 0.001)
    said: list[str] = []
    tries = 0

    async def work(result: str) -> str:
        nonlocal tries
        tries += 1
        if tries < 4:
            raise BackendError(f"try {tries}")
        return result

    async def main() -> str:
        return await retried("do it", lambda: work("done"), passes=lambda error: True, seconds=60, waiting=said.append)

    assert asyncio.run(main()) == "done"
    assert said == [f"cannot do it: KAFKA_STORAGE_ERROR: try {number}; trying again" for number in (1, 2, 3)]
    assert [record.message for record in caplog.records] == said


def test_what_is_tried_without_end_is_a_line_once_and_only_if_it_lasts(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main(what: str, fails: int) -> None:
        left = [BackendError("away")] * fails

        async def work() -> None:
            if left:
                raise left.pop()

        await retried(what, work, passes=lambda error: True, seconds=math.inf)

    monkeypatch.setattr(background, "FIRST_PAUSE", 0.01)
    asyncio.run(main("end it", 4))
    assert not caplog.records, "it mended itself"
    monkeypatch.setattr(background, "LASTS_SECONDS", 0.0)
    asyncio.run(main("end another", 4))
    assert [record.levelname for record in caplog.records] == ["WARNING"]


def test_a_step_that_meets_a_wrong_setting_is_tried_once_and_one_that_lasts_ends(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("kop.background.FIRST_PAUSE", 0.001)
    tries = 0

    async def work() -> None:
        nonlocal tries
        tries += 1
        raise BackendError("always")

    async def main(passing: bool) -> None:
        await retried("do it", work, passes=lambda error: passing, seconds=0.05)

    with pytest.raises(BackendError, match="always"):
        asyncio.run(main(False))
    assert tries == 1
    with pytest.raises(BackendError, match="always"):
        asyncio.run(main(True))
    assert tries > 2


def test_a_timer_outlasts_every_exception_until_it_is_ended(caplog: pytest.LogCaptureFixture) -> None:
    rounds = 0

    async def main() -> None:
        nonlocal rounds
        enough = asyncio.Event()

        def work() -> None:
            nonlocal rounds
            rounds += 1
            if rounds == 3:
                enough.set()
            raise ValueError("not thought of")

        end = every(asyncio.get_running_loop(), 0.001, "the sweep of a test", work)
        async with asyncio.timeout(SECONDS):
            await enough.wait()
        end()
        before = rounds
        await asyncio.sleep(0.02)  # nothing is to come, so nothing can be waited for
        assert rounds == before

    asyncio.run(main())
    assert caplog.text.count("the sweep of a test failed: ValueError('not thought of')") == 1
    assert caplog.text.count("Traceback") == 1
    assert failures["sweep_of_a_test"] == rounds


def test_failures_of_many_items_are_one_count_and_a_line_for_each(caplog: pytest.LogCaptureFixture) -> None:
    for item in ("one", "other", "one"):
        tell(f"the look at {item}", ValueError("not thought of"), kind="the look of a test")
    assert [caplog.text.count(f"the look at {item} failed") for item in ("one", "other")] == [1, 1]
    assert failures["look_of_a_test"] == 3


def test_tasks_that_are_cancelled_have_ended_whatever_became_of_them() -> None:
    async def main() -> None:
        async def fails() -> None:
            raise ValueError("not thought of")

        failed = asyncio.ensure_future(fails())
        waits = asyncio.ensure_future(asyncio.Event().wait())
        await asyncio.sleep(0)
        await cancel(failed, None, waits)
        assert waits.cancelled()
        assert isinstance(failed.exception(), ValueError)
        await cancel()

    asyncio.run(main())
