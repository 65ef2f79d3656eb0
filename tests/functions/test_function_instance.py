"""Functions from topic to topic on a running broker, with clients of others on both sides."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from typing import Any

import pytest
from confluent_kafka import Producer
from functions.instance_kit import KilledError, Killer, consume, no_retries, produce, values
from kafka import KafkaAdminClient, TopicPartition
from kafka.admin import NewPartitions
from kafka.errors import MessageSizeTooLargeError
from support.waiting import wait_until

from kop.client.errors import ClientError
from kop.functions import acks, committing
from kop.functions.config_reading import from_flags
from kop.functions.instance import ReplacedError
from kop.functions.stats import Stats
from kop.functions.triggers import LATE, RAISED, TriggerAnswer, TriggerError, fate, place_for
from kop.records.partitioning import partition_of
from kop.testing import Broker
from kop.testing.functions import Functions

GUARANTEES = ("ATLEAST_ONCE", "ATMOST_ONCE", "EFFECTIVELY_ONCE")
ALL_GUARANTEES = (*GUARANTEES, "MANUAL")
GROUP = "public/default/exclaim"


def exclaim(text: str) -> str:
    return text + "!"


def exclaim_and_ack(text: str, context: Any) -> str:
    context.ack(context.get_message_id(), context.get_current_message_topic_name())
    return text + "!"


def failing_all(data: bytes) -> None:
    raise ValueError("no " + "x" * 5_000)


def add_one(number: int) -> int:
    return number + 1


def numbered(count: int) -> list[str]:
    return [str(number) for number in range(count)]


@pytest.fixture(autouse=True)
def quick_retries(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(acks, "FIRST_SECONDS", 0.02)


@pytest.fixture(params=["memory:", pytest.param("sqlite", marks=pytest.mark.slow)])
def broker(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Broker]:
    store = request.param if request.param != "sqlite" else f"sqlite:{tmp_path / 'kop.db'}"
    with Broker(store=store) as made:
        yield made


@pytest.fixture
def functions(broker: Broker, tmp_path: Path) -> Iterator[Functions]:
    with Functions(broker.bootstrap, tmp_path) as made:
        yield made


@pytest.mark.parametrize("guarantee", GUARANTEES)
def test_each_record_comes_out_once_and_in_order(broker: Broker, functions: Functions, guarantee: str) -> None:
    function = functions(exclaim, inputs="in", output="out", processing_guarantees=guarantee)
    produce(broker.bootstrap, "in", [(None, text) for text in numbered(5_000)])
    records = consume(broker.bootstrap, "out", 5_000)
    assert [record.value().decode() for record in records] == [text + "!" for text in numbered(5_000)]
    assert dict(records[0].headers())["__pfn_input_topic__"] == b"in"
    function.stop()
    assert broker.committed(GROUP) == {("in", 0): 5_000}


@pytest.mark.parametrize("guarantee", GUARANTEES)
def test_results_stay_in_the_order_of_each_partition(broker: Broker, functions: Functions, guarantee: str) -> None:
    for topic in ("one", "two", "out"):
        broker.create_topic(topic, partitions=3)
    function = functions(exclaim, inputs="one,two", output="out", processing_guarantees=guarantee)
    for topic in ("one", "two"):
        for partition in range(3):
            sent = [(None, f"{topic}-{partition}-{number}") for number in range(100)]
            produce(broker.bootstrap, topic, sent, partition)
    got = [record.value().decode() for record in consume(broker.bootstrap, "out", 600, partitions=3)]
    for topic in ("one", "two"):
        for partition in range(3):
            start = f"{topic}-{partition}-"
            assert [text for text in got if text.startswith(start)] == [f"{start}{number}!" for number in range(100)]
    function.stop()
    assert set(broker.committed(GROUP).values()) == {100}


def test_a_function_misses_nothing_that_is_produced_after_its_start(broker: Broker, functions: Functions) -> None:
    broker.produce("in", ["before"])
    functions(exclaim, inputs="in", output="out").stop()
    assert broker.committed(GROUP) == {("in", 0): 1}
    broker.produce("in", ["while it was away"])
    functions(exclaim, inputs="in", output="out")
    wait_until(lambda: values(broker, "out") == ["while it was away!"])


def test_a_function_may_begin_at_the_first_record(broker: Broker, functions: Functions) -> None:
    broker.produce("in", ["before"])
    functions(exclaim, inputs="in", output="out", subs_position="Earliest")
    wait_until(lambda: values(broker, "out") == ["before!"])


def test_a_function_without_an_output_and_one_that_gives_nothing(broker: Broker, functions: Functions) -> None:
    seen: list[Any] = []

    def odd(number: int) -> int | None:
        seen.append(number)
        return number if number % 2 else None

    quiet = functions(seen.append, name="quiet", inputs="in")
    loud = functions(odd, inputs="in", output="out")
    broker.produce("in", numbered(6))
    wait_until(lambda: quiet.processed == loud.processed == 6)
    quiet.stop()
    loud.stop()
    assert values(broker, "out") == ["1", "3", "5"]
    assert sorted(seen, key=int) == [number for number in range(6) for _ in range(2)]


@pytest.mark.parametrize("guarantee", GUARANTEES)
def test_publishes_go_where_the_function_says(broker: Broker, functions: Functions, guarantee: str) -> None:
    def route(text: str, context: Any) -> None:
        context.publish(f"to-{text[0]}", text, message_conf={"partition_key": text})

    broker.create_topic("to-a", partitions=4)
    function = functions(route, inputs="in", processing_guarantees=guarantee)
    broker.produce("in", ["a1", "b1", "a2", "a1"])
    wait_until(lambda: function.processed == 4)
    function.stop()
    assert sorted(values(broker, "to-a")) == ["a1", "a1", "a2"]
    assert len({record.partition for record in broker.records("to-a") if record.value == b"a1"}) == 1
    assert values(broker, "to-b") == ["b1"]


# -- failures of the function


def failing(times: int, text: str = "1") -> Callable[[str, Any], str]:
    """A function that fails so many times at a text, and acknowledges what it takes."""
    left = [times]

    def exclaim(given: str, context: Any) -> str:
        if given == text and left[0]:
            left[0] -= 1
            raise ValueError(f"not {given}")
        return exclaim_and_ack(given, context)

    return exclaim


@pytest.mark.parametrize(
    ("config", "order"),
    [
        ({"processing_guarantees": "EFFECTIVELY_ONCE"}, ["0!", "1!", "2!", "3!"]),
        ({"retain_ordering": True}, ["0!", "1!", "2!", "3!"]),
        ({"retain_key_ordering": True}, ["0!", "2!", "1!", "3!"]),
        ({}, ["0!", "2!", "3!", "1!"]),
    ],
)
def test_a_failed_message_is_tried_again(
    broker: Broker, functions: Functions, config: dict[str, Any], order: list[str]
) -> None:
    function = functions(failing(2), inputs="in", output="out", **config)
    broker.produce("in", [("k", "0"), ("k", "1"), ("other", "2"), ("k", "3")])
    wait_until(lambda: function.processed == 4)
    function.stop()
    assert values(broker, "out") == order
    assert function.failures == 2
    assert broker.committed(GROUP) == {("in", 0): 4}


def test_a_message_that_fails_at_most_once_is_lost(broker: Broker, functions: Functions) -> None:
    function = functions(failing(1), inputs="in", output="out", processing_guarantees="ATMOST_ONCE")
    broker.produce("in", numbered(3))
    wait_until(lambda: function.processed == 2)
    function.stop()
    assert values(broker, "out") == ["0!", "2!"]


@pytest.mark.parametrize("guarantee", ["ATLEAST_ONCE", "EFFECTIVELY_ONCE", "MANUAL"])
def test_a_message_that_fails_too_often_is_a_dead_letter(broker: Broker, functions: Functions, guarantee: str) -> None:
    function = functions(
        failing(-1),
        inputs="in",
        output="out",
        max_message_retries=1,
        dead_letter_topic="dead",
        processing_guarantees=guarantee,
    )
    broker.produce("in", [("k", "0"), ("k", "1"), ("k", "2")])
    wait_until(lambda: broker.committed(GROUP) == {("in", 0): 3})
    assert function.failures == 2
    assert values(broker, "out") == ["0!", "2!"]
    (dead,) = broker.records("dead", isolation_level="read_committed")
    assert (dead.key, dead.value) == (b"k", b"1")
    headers = {str(name): value for name, value in dead.headers}
    assert headers["REAL_TOPIC"] == b"in"
    assert headers["__pfn_exception__"] == b"ValueError: not 1"


def test_a_failed_message_holds_its_offset_until_it_is_done(broker: Broker, functions: Functions) -> None:
    function = functions(failing(-1), inputs="in", output="out")
    broker.produce("in", numbered(1500))
    wait_until(lambda: function.processed == 1001)
    wait_until(lambda: broker.committed(GROUP) == {("in", 0): 1})
    function.stop()
    assert function.processed == 1001
    assert broker.committed(GROUP) == {("in", 0): 1}


@pytest.mark.parametrize("guarantee", ALL_GUARANTEES)
def test_an_input_that_the_serde_refuses_is_as_a_call_that_fails(
    broker: Broker, functions: Functions, guarantee: str
) -> None:
    function = functions(add_one, inputs="in", output="out", processing_guarantees=guarantee, **no_retries(guarantee))
    broker.produce("in", ["1", "one", "2"])
    wait_until(lambda: function.processed == 2 and function.failures == 1)
    function.stop()
    assert values(broker, "out") == ["2", "3"]
    if guarantee != "ATMOST_ONCE":
        assert values(broker, "in-public-default-add_one-DLQ") == ["one"]


@pytest.mark.parametrize("guarantee", ALL_GUARANTEES)
@pytest.mark.parametrize("result", [object(), "x" * 900_000])
def test_a_result_that_cannot_be_written_is_as_a_call_that_fails(
    broker: Broker, functions: Functions, guarantee: str, result: object
) -> None:
    def wide(text: str) -> Any:
        return result if text == "1" else text

    function = functions(
        wide,
        inputs="in",
        output="out",
        processing_guarantees=guarantee,
        **no_retries(guarantee, "dead"),
    )
    broker.produce("in", ["a", "1", "b"])
    wait_until(lambda: function.processed == 2 and function.failures == 1)
    function.stop()
    assert values(broker, "out") == ["a", "b"]
    if guarantee != "ATMOST_ONCE":
        assert values(broker, "dead") == ["1"]


@pytest.mark.parametrize("guarantee", ALL_GUARANTEES)
def test_an_output_that_the_server_refuses_ends_the_function(
    broker: Broker, functions: Functions, guarantee: str
) -> None:
    def wide(text: str, context: Any) -> str:
        context.ack(context.get_message_id(), context.get_current_message_topic_name())
        return text * 1_000

    broker.create_topic("out", configs={"max.message.bytes": 1_000})
    function = functions(wide, name="exclaim", inputs="in", output="out", processing_guarantees=guarantee)
    broker.produce("in", ["ab"])
    with pytest.raises(MessageSizeTooLargeError):
        function.wait()
    assert values(broker, "out") == []
    assert broker.committed(GROUP) == {("in", 0): 1 if guarantee == "ATMOST_ONCE" else 0}


@pytest.mark.parametrize("guarantee", ["ATLEAST_ONCE", "EFFECTIVELY_ONCE"])
def test_what_a_failed_call_has_published_is_dropped(broker: Broker, functions: Functions, guarantee: str) -> None:
    tries: list[str] = []

    def once(text: str, context: Any) -> None:
        context.publish("out", text)
        tries.append(text)
        if len(tries) == 1:
            raise ValueError("the first time")

    function = functions(once, inputs="in", processing_guarantees=guarantee)
    broker.produce("in", ["a"])
    wait_until(lambda: function.processed == 1)
    function.stop()
    assert (values(broker, "out"), len(tries)) == (["a"], 2)


def test_manual_commits_what_was_acknowledged(broker: Broker, functions: Functions) -> None:
    held: list[Any] = []

    def every_third(text: str, context: Any) -> None:
        held.append((context.get_message_id(), context.get_current_message_topic_name()))
        if text == "2":
            for message_id, topic in held[1:]:
                context.ack(message_id, topic)
        if text == "3":
            context.ack(*held[0])

    function = functions(every_third, name="exclaim", inputs="in", auto_ack=False, processing_guarantees="MANUAL")
    broker.produce("in", numbered(3))
    wait_until(lambda: function.processed == 3)
    assert broker.committed(GROUP) == {("in", 0): 0}
    broker.produce("in", ["3"])
    wait_until(lambda: broker.committed(GROUP) == {("in", 0): 3})


def test_an_attempt_may_acknowledge_another_message_that_is_due(broker: Broker, functions: Functions) -> None:
    ids: dict[str, Any] = {}
    tries: list[str] = []

    def exclaim(text: str, context: Any) -> None:
        ids[text] = context.get_message_id()
        tries.append(text)
        if text != "c" and tries.count(text) == 1:
            raise ValueError(text)
        if text == "c":
            time.sleep(0.2)  # both others are due then
        for each in ("a", "b") if text == "a" else (text,):
            context.ack(ids[each], "in")

    broker.produce("in", ["a", "b", "c"])
    function = functions(exclaim, inputs="in", processing_guarantees="MANUAL", subs_position="Earliest")
    function.wait_until(lambda: broker.committed(GROUP) == {("in", 0): 3})
    function.stop()
    assert tries == ["a", "b", "c", "a"]


def test_what_waits_for_a_message_goes_on_once_another_call_acknowledges_that(
    broker: Broker, functions: Functions, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(acks, "FIRST_SECONDS", 30.0)  # it is never tried again
    ids: dict[str, Any] = {}

    def exclaim(text: str, context: Any) -> str:
        ids[text] = context.get_message_id()
        if text == "a":
            raise ValueError(text)
        for each in ("a", "d") if text == "d" else (text,):
            context.ack(ids[each], "in")
        return text

    broker.produce("in", [("k", "a"), ("k", "b"), ("k", "c"), ("other", "d"), ("k", "e")])
    function = functions(
        exclaim,
        inputs="in",
        output="out",
        processing_guarantees="MANUAL",
        retain_key_ordering=True,
        subs_position="Earliest",
    )
    function.wait_until(lambda: broker.committed(GROUP) == {("in", 0): 5})
    function.stop()
    assert sorted(values(broker, "out")) == ["b", "c", "d", "e"]
    assert [text for text in values(broker, "out") if text != "d"] == ["b", "c", "e"]


def test_a_message_that_was_refused_is_tried_again(broker: Broker, functions: Functions) -> None:
    tries: list[str] = []

    def refuse(text: str, context: Any) -> None:
        tries.append(text)
        if len(tries) == 1:
            context.nack(context.get_message_id(), context.get_current_message_topic_name())

    function = functions(refuse, inputs="in")
    broker.produce("in", ["a"])
    wait_until(lambda: function.processed == 1)
    assert tries == ["a", "a"]


# -- triggers


@pytest.mark.parametrize("guarantee", ALL_GUARANTEES)
def test_a_trigger_answers_when_its_message_is_done(broker: Broker, functions: Functions, guarantee: str) -> None:
    function = functions(exclaim_and_ack, name="exclaim", inputs="in", output="out", processing_guarantees=guarantee)
    assert function.trigger("a", b"key") == TriggerAnswer(b"a!")
    # The transaction is decided then; its marker is written a moment later.
    wait_until(lambda: values(broker, "out") == ["a!"], "the output")
    (sent,) = broker.records("in")
    assert (sent.key, sent.value) == (b"key", b"a")


def test_a_trigger_answers_with_nothing_and_with_the_exception(broker: Broker, functions: Functions) -> None:
    def strict(number: int) -> None:
        if number < 0:
            raise ValueError(f"{number} is negative")

    function = functions(strict, inputs="in")
    assert function.trigger("1") == TriggerAnswer()
    again = "; the message stays in in, and is tried again until it is done: maxMessageRetries would bound that"
    assert function.trigger("-1") == TriggerAnswer(None, "ValueError: -1 is negative" + again, RAISED)
    assert function.trigger("one").error == "SerdeError: the value is no int: b'one'" + again


def test_a_trigger_says_if_it_is_not_done_in_time(broker: Broker, functions: Functions) -> None:
    go_on = threading.Event()
    function = functions(lambda text: go_on.wait(30) and None, name="slow", inputs="in")
    try:
        answer = function.trigger("a", seconds=0.2)
    finally:
        go_on.set()
    assert answer == TriggerAnswer(None, "not done in 0.2 s; the message stays in in, and is called in its turn", LATE)


def test_a_trigger_goes_to_the_partition_of_its_key(broker: Broker, functions: Functions) -> None:
    broker.create_topic("in", partitions=4)
    function = functions(exclaim, inputs="in", output="out")
    keys = [f"key-{number}" for number in range(8)]
    for key in keys:
        assert function.trigger("a", key.encode(), topic="persistent://public/default/in") == TriggerAnswer(b"a!")
    places = {(record.key or b"").decode(): record.partition for record in broker.records("in")}
    assert places == {key: partition_of(key.encode(), 4) for key in keys}
    assert len({*places.values()}) > 1


PLACES = [("a", 0), ("a", 1), ("b", 0)]


@pytest.mark.parametrize(
    ("topic", "partitions", "told"),
    [
        (None, PLACES, r"name the input of public/default/f that gets the message \(--topic\): a, b"),
        ("c", PLACES, "name an input of public/default/f: c is none, but a, b"),
        ("persistent://acme/shop/a", PLACES, "is a topic of acme/shop"),
        ("a-partition-1/x/y/z", PLACES, "must be TOPIC"),
    ],
)
def test_a_trigger_for_no_input_is_refused(topic: str | None, partitions: list[tuple[str, int]], told: str) -> None:
    spec, _ = from_flags({"py": "f.py", "classname": "f", "inputs": "a,b"})
    with pytest.raises(TriggerError, match=told):
        place_for(spec, topic, None, partitions)


@pytest.mark.parametrize(
    ("flags", "told"),
    [
        ({}, "tried again until it is done"),
        ({"max-message-retries": 3}, "tried 3 times again, then goes to the dead letters"),
        ({"max-message-retries": 0}, "and goes to the dead letters"),
        ({"processing-guarantees": "ATMOST_ONCE"}, "is not called again"),
    ],
)
def test_what_becomes_of_a_trigger_that_fails_is_said(flags: dict[str, Any], told: str) -> None:
    spec, _ = from_flags({"py": "f.py", "classname": "f", "inputs": "a", **flags})
    assert told in fate(spec, "a")


# -- statistics


@pytest.mark.parametrize("asks", ["", "publish", "ack", "publish at the second"])
def test_the_time_of_each_call_counts(
    broker: Broker, functions: Functions, monkeypatch: pytest.MonkeyPatch, asks: str
) -> None:
    counted: list[tuple[int, float]] = []
    called = Stats.called

    def noted(stats: Stats, count: int, seconds: float) -> None:
        counted.append((count, seconds))
        called(stats, count, seconds)

    monkeypatch.setattr(Stats, "called", noted)

    def slow(text: str, context: Any) -> None:
        time.sleep(0.02)  # its time is what is counted
        if asks == "publish" or (asks and text == "1"):
            context.publish("told", text)
        if asks == "ack":
            context.ack(context.get_message_id(), "in")

    broker.produce("in", numbered(4))
    function = functions(slow, inputs="in", subs_position="Earliest")
    function.wait_until(lambda: function.processed == 4)
    function.stop()
    assert sum(count for count, _ in counted) == 4
    assert sum(seconds for _, seconds in counted) >= 0.08


# -- asynchronous functions


def test_asynchronous_calls_run_side_by_side_and_give_their_results_in_order(
    broker: Broker, functions: Functions
) -> None:
    running = [0, 0]

    async def slow(number: int) -> int:
        running[0] += 1
        running[1] = max(running)
        await asyncio.sleep(0.001 * (20 - number))  # the later, the sooner done
        running[0] -= 1
        return number

    broker.produce("in", numbered(20))
    function = functions(slow, "maxPendingAsyncRequests: 4", inputs="in", output="out", subs_position="Earliest")
    wait_until(lambda: function.processed == 20)
    function.stop()
    assert values(broker, "out") == numbered(20)
    assert running == [0, 4]


# -- the end of an instance


KILLS = [
    ("before", "produce_all"),
    ("after", "produce_all"),
    ("after", "commit_in_transaction"),
    ("after", "end_transaction"),
]
"""Between any two requests of a batch; with EFFECTIVELY_ONCE another one is before them."""


@pytest.mark.parametrize(("when", "method"), [("before", "add_partitions"), *KILLS])
def test_effectively_once_a_killed_instance_changes_nothing(
    broker: Broker, functions: Functions, monkeypatch: pytest.MonkeyPatch, method: str, when: str
) -> None:
    killer = Killer(monkeypatch)
    broker.produce("in", numbered(100))
    config = {"inputs": "in", "output": "out", "processing_guarantees": "EFFECTIVELY_ONCE"}
    functions(exclaim, subs_position="Earliest", **config).stop()
    for _ in range(2):
        first = functions(exclaim, **config)
        killer.arm(when, method)
        broker.produce("in", numbered(100))
        with pytest.raises(KilledError):
            first.wait()
        killer.heal()
    last = functions(exclaim, **config)
    wait_until(lambda: broker.committed(GROUP) == {("in", 0): 300})
    last.stop()
    assert values(broker, "out") == [text + "!" for text in numbered(100)] * 3


@pytest.mark.parametrize("guarantee", ["ATLEAST_ONCE", "MANUAL"])
@pytest.mark.parametrize(("when", "method"), KILLS)
def test_at_least_once_a_killed_instance_loses_nothing(
    broker: Broker, functions: Functions, monkeypatch: pytest.MonkeyPatch, method: str, when: str, guarantee: str
) -> None:
    killer = Killer(monkeypatch)
    config = {"name": "exclaim", "inputs": "in", "output": "out", "processing_guarantees": guarantee}
    first = functions(exclaim_and_ack, **config)
    killer.arm(when, method)
    broker.produce("in", numbered(100))
    with pytest.raises(KilledError):
        first.wait()
    killer.heal()
    functions(exclaim_and_ack, **config)
    wait_until(lambda: broker.committed(GROUP) == {("in", 0): 100})
    assert set(values(broker, "out")) == {text + "!" for text in numbered(100)}


@pytest.mark.parametrize(("when", "method"), [("before", "commit_in_transaction"), *KILLS])
def test_at_most_once_a_killed_instance_repeats_nothing(
    broker: Broker, functions: Functions, monkeypatch: pytest.MonkeyPatch, method: str, when: str
) -> None:
    killer = Killer(monkeypatch)
    config = {"inputs": "in", "output": "out", "processing_guarantees": "ATMOST_ONCE"}
    first = functions(exclaim, **config)
    killer.arm(when, method)
    broker.produce("in", numbered(100))
    with pytest.raises(KilledError):
        first.wait()
    killer.heal()
    functions(exclaim, **config)
    wait_until(lambda: broker.committed(GROUP) == {("in", 0): 100})
    broker.produce("in", ["last"])
    wait_until(lambda: values(broker, "out")[-1:] == ["last!"])
    came = values(broker, "out")[:-1]
    was_written = (when, method) == ("after", "produce_all")
    was_committed = method in {"end_transaction", "produce_all"}
    assert came == [text + "!" for text in numbered(100)] if was_written or not was_committed else came == []


@pytest.mark.parametrize("guarantee", ALL_GUARANTEES)
def test_a_second_instance_fences_the_first(broker: Broker, functions: Functions, guarantee: str) -> None:
    config = {"name": "exclaim", "inputs": "in", "output": "out", "processing_guarantees": guarantee}
    first = functions(exclaim_and_ack, **config)
    second = functions(exclaim_and_ack, **config)
    broker.produce("in", ["a"])
    with pytest.raises(ReplacedError, match=r"another one has begun with .*kop\.functions/public/default/exclaim/0"):
        first.wait()
    wait_until(lambda: broker.committed(GROUP) == {("in", 0): 1} and values(broker, "out"))
    second.stop()
    got = values(broker, "out")
    assert got == ["a!"] if guarantee in {"EFFECTIVELY_ONCE", "ATMOST_ONCE"} else set(got) == {"a!"}


@pytest.mark.parametrize("guarantee", ALL_GUARANTEES)
def test_an_idle_instance_that_was_replaced_notices_it(
    broker: Broker, functions: Functions, monkeypatch: pytest.MonkeyPatch, guarantee: str
) -> None:
    monkeypatch.setattr(committing, "RENEW_SECONDS", 0.2)
    config = {"name": "exclaim", "inputs": "in", "output": "out", "processing_guarantees": guarantee}
    first = functions(exclaim_and_ack, **config)
    functions(exclaim_and_ack, **config)
    with pytest.raises(ReplacedError):
        first.wait()


@pytest.mark.parametrize("guarantee", GUARANTEES)
def test_a_stop_finishes_the_message_and_commits_it(broker: Broker, functions: Functions, guarantee: str) -> None:
    begun, go_on = threading.Event(), threading.Event()

    def exclaim(text: str) -> str:
        begun.set()
        assert go_on.wait(30)
        return text + "!"

    function = functions(exclaim, inputs="in", output="out", processing_guarantees=guarantee)
    broker.produce("in", numbered(3))
    assert begun.wait(30)
    stopping = threading.Thread(target=function.stop)
    stopping.start()
    wait_until(lambda: function.is_stopping)
    go_on.set()
    stopping.join(30)
    assert values(broker, "out") == ["0!"]
    assert broker.committed(GROUP) == {("in", 0): 1}
    functions(exclaim, inputs="in", output="out", processing_guarantees=guarantee)
    wait_until(lambda: values(broker, "out") == ["0!", "1!", "2!"])


@pytest.mark.parametrize("guarantee", ALL_GUARANTEES)
def test_without_transactions_at_least_once_works_and_the_rest_is_refused(
    broker: Broker, functions: Functions, guarantee: str
) -> None:
    broker.fail("InitProducerId", "TRANSACTIONAL_ID_AUTHORIZATION_FAILED")
    if guarantee != "ATLEAST_ONCE":
        with pytest.raises(ClientError, match=r"set processingGuarantees of public/default/exclaim to ATLEAST_ONCE"):
            functions(exclaim, inputs="in", output="out", processing_guarantees=guarantee)
        return
    function = functions(exclaim, inputs="in", output="out")
    broker.produce("in", ["a"])
    wait_until(lambda: broker.committed(GROUP) == {("in", 0): 1})
    function.stop()
    assert values(broker, "out") == ["a!"]


def test_records_of_aborted_transactions_are_not_called(broker: Broker, functions: Functions) -> None:
    function = functions(exclaim, inputs="in", output="out")
    producer = Producer({"bootstrap.servers": broker.bootstrap, "transactional.id": "t"})
    producer.init_transactions(30)
    for text, ends in (("a", producer.abort_transaction), ("b", producer.commit_transaction)):
        producer.begin_transaction()
        producer.produce("in", text)
        assert producer.flush(30) == 0
        ends(30)
    wait_until(lambda: broker.committed(GROUP) == {("in", 0): 4})
    function.stop()
    assert values(broker, "out") == ["b!"]


def test_an_offset_that_is_gone_is_read_on_from_the_first(broker: Broker, functions: Functions) -> None:
    broker.produce("in", numbered(3))
    functions(exclaim, inputs="in", output="out", subs_position="Earliest").stop()
    broker.produce("in", numbered(5))
    with KafkaAdminClient(bootstrap_servers=broker.bootstrap) as admin:
        admin.delete_records({TopicPartition("in", 0): 7})
    functions(exclaim, inputs="in", output="out")
    wait_until(lambda: broker.committed(GROUP) == {("in", 0): 8})
    assert values(broker, "out")[-1] == "4!"


# -- partitions that come later


def test_partitions_and_topics_that_come_later_are_read_from_their_beginning(
    broker: Broker, functions: Functions
) -> None:
    broker.produce("in-1", ["before"])
    function = functions(exclaim, topics_pattern="in-.*", output="out")
    broker.produce("in-2", numbered(3))
    wait_until(lambda: function.processed == 3)
    with KafkaAdminClient(bootstrap_servers=broker.bootstrap) as admin:
        admin.create_partitions({"in-1": NewPartitions(2)})
    produce(broker.bootstrap, "in-1", [(None, "late")], partition=1)
    wait_until(lambda: function.processed == 4)
    function.stop()
    assert broker.committed(GROUP) == {("in-1", 0): 1, ("in-1", 1): 1, ("in-2", 0): 3}
    assert sorted(values(broker, "out")) == ["0!", "1!", "2!", "late!"]


def test_partitions_that_came_while_the_function_was_away_are_read_from_their_beginning(
    broker: Broker, functions: Functions
) -> None:
    functions(exclaim, inputs="in", output="out").stop()
    with KafkaAdminClient(bootstrap_servers=broker.bootstrap) as admin:
        admin.create_partitions({"in": NewPartitions(2)})
    produce(broker.bootstrap, "in", [(None, "late")], partition=1)
    functions(exclaim, inputs="in", output="out")
    wait_until(lambda: values(broker, "out") == ["late!"])


# -- secrets


def test_a_secret_that_is_missing_is_said_before_anything_is_made(kop_broker: Broker, kop_functions: Functions) -> None:
    secrets = '{"KEY": {"env": "NO_SUCH_VARIABLE"}}'
    with pytest.raises(ClientError, match="set the variable NO_SUCH_VARIABLE: it has the secret KEY"):
        kop_functions(lambda text: text, inputs="never-made", secrets=secrets)
    assert "never-made" not in kop_broker.topics()


def test_an_input_that_was_deleted_is_named_and_other_functions_go_on(
    kop_broker: Broker, kop_functions: Functions, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kop.client.connection.SETTLE_SECONDS", 0.1)
    deleted = kop_functions(lambda text: text, name="deleted", inputs="going")
    other = kop_functions(lambda text: text, name="other", inputs="staying", output="out")
    admin = KafkaAdminClient(bootstrap_servers=kop_broker.bootstrap)
    admin.delete_topics(["going"])
    admin.close()
    with pytest.raises(ClientError, match="create the topic going again: it, or its partition 0, is gone"):
        deleted.wait_until(lambda: False)
    kop_broker.produce("staying", ["on"])
    other.wait_until(lambda: other.processed == 1)


@pytest.mark.parametrize("fails_again", [False, True])
@pytest.mark.parametrize("refused", ["ab", "ba"])
def test_messages_of_a_key_that_another_call_refuses_are_tried_again_in_their_order(
    broker: Broker, functions: Functions, refused: str, fails_again: bool
) -> None:
    ids: dict[str, Any] = {}
    calls: list[str] = []

    def exclaim(text: str, context: Any) -> None:
        ids[text] = context.get_message_id()
        calls.append(text)
        if text == "c":
            for each in refused:
                context.nack(ids[each], "in")
        elif text in "ab" and calls.count(text) == 1:
            return  # nobody has acknowledged it
        elif text == "a" and fails_again and calls.count("a") == 2:
            raise ValueError(text)
        context.ack(ids[text], "in")

    broker.produce("in", [("k", "a"), ("k", "b"), ("other", "c"), ("k", "d")])
    function = functions(
        exclaim, inputs="in", processing_guarantees="MANUAL", retain_key_ordering=True, subs_position="Earliest"
    )
    function.wait_until(lambda: broker.committed(GROUP) == {("in", 0): 4})
    function.stop()
    assert "".join(calls[3:]) == ("aabd" if fails_again else "abd")


# -- dead letters that are large


@pytest.mark.parametrize("guarantee", ["ATLEAST_ONCE", "EFFECTIVELY_ONCE"])
def test_a_dead_letter_is_as_large_as_its_topic_takes(
    broker: Broker,
    functions: Functions,
    guarantee: str,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    counted: list[str] = []
    monkeypatch.setattr(Stats, "metric", lambda _stats, name, _value: counted.append(name))
    broker.create_topic("in", configs={"max.message.bytes": 3_000_000})
    sizes = [10, 1_040_000, 1_048_510, 1_100_000, 950_000, 20]
    random = Random(1)
    functions(
        failing_all,
        name="exclaim",
        inputs="in",
        max_message_retries=0,
        dead_letter_topic="dead",
        processing_guarantees=guarantee,
    )
    sent = [random.randbytes(size) for size in sizes]
    producer = Producer({"bootstrap.servers": broker.bootstrap, "message.max.bytes": 4_000_000})
    for value in sent:
        producer.produce("in", value)
    assert producer.flush(30) == 0
    wait_until(lambda: broker.committed(GROUP) == {("in", 0): 6})
    dead = broker.records("dead", isolation_level="read_committed")
    assert [record.value for record in dead] == [value for value in sent if len(value) != 1_100_000]
    named = {len(record.value or b""): {str(name) for name, _ in record.headers} for record in dead}
    assert "__pfn_exception__" in named[10] & named[950_000]
    assert not named[1_048_510], "as it was: no header had room"
    (dropped,) = (text for text in caplog.messages if "dropped" in text)
    assert "in-0 offset 3 is dropped: its 1100000 bytes are more than dead takes" in dropped
    assert counted == ["dropped_dead_letters"]


def test_a_dead_letter_topic_that_takes_little_gets_small_batches(broker: Broker, functions: Functions) -> None:
    broker.create_topic("dead", configs={"max.message.bytes": 2_000})
    functions(failing_all, name="exclaim", inputs="in", max_message_retries=0, dead_letter_topic="dead")
    sent = [Random(number).randbytes(1_000) for number in range(20)]
    broker.produce("in", [*sent, Random(1).randbytes(3_000), b"x" * 3_000, b"last"])
    wait_until(lambda: broker.committed(GROUP) == {("in", 0): 23})
    assert [record.value for record in broker.records("dead")] == [*sent, b"x" * 3_000, b"last"]
