"""Calls by themselves: functions without a context, what a failure keeps, and what waits for a message of its key."""

from __future__ import annotations

import asyncio
import gc
import logging
import time
import weakref
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from functions.function_kit import context_with, spec_with

from kop.client.record_columns import RecordColumns, StoredRecord
from kop.functions import calling
from kop.functions.calling import Calls
from kop.functions.function import of_object
from kop.functions.reading import Taken
from kop.functions.serdes import Serde, all_decoded, input_serde, output_serde
from kop.functions.spec import Guarantee
from kop.functions.stats import Stats
from kop.functions.triggers import Triggers
from kop.functions.watch import GENERATION, OFFSET

IN = "in", 0
ENDLESS = float("inf")
LOG = logging.getLogger("kop.functions.test")


class OutputsOfTest:
    """Keeps the results that it is given."""

    def __init__(self) -> None:
        self.results: list[tuple[int, bytes]] = []
        self.records: list[Any] = []

    def add_results(self, topic: str, source: Any, values: Sequence[bytes], offsets: Sequence[int]) -> None:
        """Keep results, each with the offset of its message."""
        self.results += zip(offsets, values, strict=True)

    def add(self, topic: str, source: int, record: Any) -> None:
        """Keep a publish."""
        self.records.append(record)

    def add_first_that_fits(self, topic: str, source: int, records: Sequence[Any]) -> bool:
        """Keep the first form of a dead letter."""
        self.records.append(records[0])
        return True


class World:
    """The calls of a function, and what they gave."""

    def __init__(self, function: Callable[..., Any], logger: logging.Logger = LOG, **fields: Any) -> None:
        spec = spec_with(**fields)
        code = of_object(function, "f.F")
        self.outputs = OutputsOfTest()
        self.places = places = [0] * 8
        self.stats = Stats([IN], places)
        self.calls = Calls(
            spec,
            code,
            self.outputs,
            context=lambda effects: context_with(effects, code, spec=spec),
            stopping=lambda: False,
            calling=places,
            partitions={IN: 0},
            logger=logger,
            stats=self.stats,
            triggers=Triggers(),
            inputs={"in": input_serde(spec, "in", code)},
            output=output_serde(spec, code),
        )

    def take(self, values: Sequence[bytes], deadline: float = ENDLESS) -> None:
        """Call the function with messages of these values, from offset 0 on, as a lane does."""
        records: list[StoredRecord] = [(offset, 1, None, value, ()) for offset, value in enumerate(values)]
        self.take_records(records, deadline)

    def take_records(self, records: Sequence[StoredRecord], deadline: float = ENDLESS) -> None:
        """Call the function with messages."""
        left: Any = RecordColumns.of(records)
        while left:
            done = self.calls.take(Taken(IN, left, left.offsets[-1] + 1), deadline)
            left = left[done:]


class KeyedWorld(World):
    """The calls of a function without output that keeps the order of each key; `act` is what it does with a message."""

    def __init__(self, act: Callable[[str, Any], None], **fields: Any) -> None:
        self.called: list[str] = []
        self.ids: dict[str, Any] = {}

        def function(text: str, context: Any) -> None:
            self.called.append(text)
            self.ids[text] = context.get_message_id()
            act(text, context)

        super().__init__(function, retain_key_ordering=True, output="", **fields)

    def take_keyed(self, texts: str, keys: Sequence[bytes]) -> None:
        """Call the function with a message for each letter, from offset 0 on, each with its key."""
        rows = enumerate(zip(texts, keys, strict=True))
        self.take_records([(offset, 1, key, text.encode(), ()) for offset, (text, key) in rows])


class Kept(Exception):
    """An error whose frames are looked for."""


@pytest.mark.parametrize("with_context", [False, True])
def test_a_failed_call_keeps_nothing_of_the_messages(with_context: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Any] = []

    def noted(error: Kept) -> Kept:
        seen.append(weakref.ref(error))
        return error

    def plain(text: str) -> str:
        raise noted(Kept(text))

    def with_a_context(text: str, context: Any) -> str:
        return plain(text)

    logger = logging.getLogger("kop.functions.test.kept")
    monkeypatch.setattr(logger, "disabled", True)  # pytest keeps what is logged
    world = World(with_a_context if with_context else plain, logger, max_message_retries=0)
    gc.collect()
    gc.disable()
    try:
        world.take([b"a", b"b", b"c"])
        assert [ref() for ref in seen] == [None] * 3, "no collection was needed"
    finally:
        gc.enable()


def test_values_are_decoded_once_though_calls_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    decoded: list[int] = []

    def counted(serde: Serde, values: Sequence[Any]) -> Any:
        decoded.append(len(values))
        return all_decoded(serde, values)

    monkeypatch.setattr(calling, "all_decoded", counted)

    def plain(text: str) -> str:
        if text == "bad":
            raise ValueError(text)
        return text.upper()

    world = World(plain, max_message_retries=0)
    world.take([b"a", b"bad", b"b", b"bad", b"bad", b"c"])
    assert decoded == [6]
    assert world.outputs.results == [(0, b"A"), (2, b"B"), (5, b"C")]


def test_the_error_of_a_function_without_output_is_its_own() -> None:
    def plain(text: str) -> str:
        if text == "bad":
            raise ValueError("its own")
        return 7  # type: ignore[return-value]

    world = World(plain, output="", max_message_retries=0)
    world.take([b"a", b"bad", b"b"])
    told = world.stats.snapshot()
    assert (told.user_exceptions, told.system_exceptions, told.processed) == (1, 0, 2)


def test_results_that_are_missing_keep_the_others_at_their_offsets() -> None:
    def plain(text: str) -> str | None:
        return None if text in "bd" else text

    world = World(plain)
    world.take([b"a", b"b", b"c", b"d", b"e"])
    assert world.outputs.results == [(0, b"a"), (2, b"c"), (4, b"e")]
    assert world.calls.committable() == {IN: 5}


def test_a_released_message_that_refuses_an_earlier_one_holds_up_those_behind_it() -> None:
    def act(text: str, context: Any) -> None:
        if text == "b" and world.called.count("b") == 1:
            raise ValueError(text)
        if text == "c" and world.called.count("a") == 1:
            context.nack(world.ids["a"], "in")
        if text != "a" or world.called.count("a") > 1:
            context.ack(world.ids[text], "in")

    world = KeyedWorld(act, processing_guarantees=Guarantee.MANUAL)
    world.take_keyed("abcd", [b"k"] * 4)
    while (due := world.calls.next_due()) is not None:
        time.sleep(max(0.0, due - time.monotonic()))  # until it is due
        world.calls.retry()
    assert "".join(world.called) == "abbcad"


def test_a_refused_message_that_is_given_up_frees_those_that_wait_for_it() -> None:
    def act(text: str, context: Any) -> None:
        if text == "a":
            raise ValueError(text)
        if text == "c":
            context.nack(world.ids["a"], "in")

    world = KeyedWorld(act, max_message_retries=1)
    world.take_keyed("abc", [b"k", b"k", b"other"])
    assert world.called == ["a", "c"]
    assert world.calls.next_due() is not None
    world.calls.retry()
    assert world.called == ["a", "c", "b"]
    assert world.calls.committable() == {IN: 3}
    assert world.calls.next_due() is None


# -- exceptions that are unlike others


class NoText(Exception):
    """An error that has no text."""

    def __str__(self) -> str:
        return 404  # type: ignore[return-value]  # noqa: PLE0307


class NoRepr:
    """An argument of an error that cannot be shown."""

    def __repr__(self) -> str:
        raise RuntimeError("no")


ODD = [
    NoText(),
    ValueError(NoRepr()),
    BaseException("b"),
    KeyboardInterrupt(),
    GeneratorExit(),
    asyncio.CancelledError(),
]


@pytest.mark.parametrize("error", ODD, ids=lambda error: type(error).__name__)
@pytest.mark.parametrize("kind", ["plain", "context", "async"])
def test_an_odd_exception_is_a_failed_call(error: BaseException, kind: str) -> None:
    def plain(text: str) -> str:
        if text == "bad":
            raise error
        return text

    def with_context(text: str, context: Any) -> str:
        return plain(text)

    async def awaited(text: str) -> str:
        await asyncio.sleep(0)
        return plain(text)

    functions: dict[str, Callable[..., Any]] = {"plain": plain, "context": with_context, "async": awaited}
    world = World(functions[kind], max_message_retries=0)
    with ThreadPoolExecutor(1) as pool:  # on the main thread KeyboardInterrupt may be Ctrl-C
        pool.submit(world.take, [b"a", b"bad", b"c"]).result()
    world.calls.close()
    assert world.outputs.results == [(0, b"a"), (2, b"c")]
    (failure,) = world.stats.snapshot().latest_user_exceptions
    assert failure["text"].startswith(type(error).__name__)
    ((_, _, headers, _),) = world.outputs.records
    assert dict(headers)["__pfn_exception__"].startswith(type(error).__name__.encode())


@pytest.mark.parametrize("error", [SystemExit, KeyboardInterrupt])
@pytest.mark.parametrize("kind", ["plain", "async"])
def test_sys_exit_and_ctrl_c_end_the_instance(kind: str, error: type[BaseException]) -> None:
    def plain(text: str) -> str:
        raise error

    async def awaited(text: str) -> str:
        raise error

    functions: dict[str, Callable[..., Any]] = {"plain": plain, "async": awaited}
    world = World(functions[kind])
    with pytest.raises(error):
        world.take([b"a"])
    world.calls.close()


@pytest.mark.parametrize("way", ["cancel", "cancel later", "cancel all", "stop"])
def test_code_that_cancels_its_task_or_stops_the_loop_fails_alone(way: str) -> None:
    async def process(text: str) -> str:
        task = asyncio.current_task()
        assert task is not None
        if text == "bad":
            if way == "stop":
                asyncio.get_running_loop().stop()
            elif way == "cancel all":
                for other in asyncio.all_tasks() - {task}:
                    other.cancel()
            else:
                task.cancel()
            if way != "cancel later":
                await asyncio.sleep(0)
        return text

    world = World(process, max_message_retries=0)
    world.take([b"a", b"bad", b"c"])
    world.calls.close()
    done = {"stop": [0, 1, 2], "cancel all": [0, 1]}.get(way, [0, 2])
    assert [offset for offset, _ in world.outputs.results] == done


def test_the_watch_sees_each_of_the_calls_that_run_together() -> None:
    seen: list[tuple[int, int]] = []

    async def process(text: str) -> None:
        seen.append((world.places[GENERATION], world.places[OFFSET]))
        if text == "long":
            await asyncio.sleep(0.01)  # the calls behind it end meanwhile
            seen.append((world.places[GENERATION], world.places[OFFSET]))

    world = World(process)
    world.take([b"a", b"long", b"c", b"d"])
    world.calls.close()
    generations, offsets = zip(*seen, strict=True)
    assert sorted(set(generations)) == list(generations), "each begin and end of a call counts"
    assert offsets == (0, 1, 1, 1, 1), "the first call that has not ended"


def test_a_background_task_cannot_publish_once_its_call_has_ended() -> None:
    errors: list[Exception] = []

    async def later(context: Any) -> None:
        await asyncio.sleep(0.001)  # a call that does not wait has ended
        try:
            context.publish("there", "late")
        except RuntimeError as error:
            errors.append(error)

    async def process(text: str, context: Any) -> None:
        task = asyncio.create_task(later(context))
        if text == "waits":
            await task
        elif text == "last":
            await asyncio.sleep(0.02)  # the loop runs until the others have published

    world = World(process)
    world.take([b"leaves", b"waits", b"last"])
    world.calls.close()
    assert len(errors) == 1
    assert [value for _, value, _, _ in world.outputs.records] == [b"late", b"late"], "those whose call went on"
