"""Functions with windows on a running broker: what comes out, what is committed, what survives a crash."""

from __future__ import annotations

import asyncio
import json
from base64 import b64encode
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path
from random import Random
from typing import Any

import pytest
from confluent_kafka import Producer
from functions.instance_kit import KilledError, Killer, produce, values
from kafka import KafkaAdminClient
from kafka.admin import NewPartitions
from support.waiting import wait_until

from kop.client.errors import ClientError
from kop.functions import windowing
from kop.functions.changelog import PREFIX
from kop.functions.windowing import MARK
from kop.testing import Broker
from kop.testing.functions import Functions

GROUP = "public/default/total"
GUARANTEES = ("ATLEAST_ONCE", "ATMOST_ONCE", "EFFECTIVELY_ONCE")


@pytest.fixture
def broker() -> Iterator[Broker]:
    with Broker(store="memory:") as made:
        yield made


@pytest.fixture
def functions(broker: Broker, tmp_path: Path) -> Iterator[Functions]:
    with Functions(broker.bootstrap, tmp_path) as made:
        yield made


def total(numbers: list[int], context: Any) -> str:
    """Say what is in a window, and its sum."""
    return f"{numbers}={sum(numbers)}"


def listed(texts: list[int]) -> str:
    return json.dumps(texts)


def config(**fields: Any) -> str:
    return json.dumps({"inputs": ["in"], "output": "out"} | fields)


def by_count(length: int, slide: int | None = None, **fields: Any) -> str:
    window = {"windowLengthCount": length} | ({"slidingIntervalCount": slide} if slide else {})
    return config(windowConfig=window, **fields)


def numbers(first: int, end: int) -> list[str]:
    return [str(number) for number in range(first, end)]


def test_windows_that_have_too_much_in_memory_end_the_function(
    broker: Broker, functions: Functions, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(windowing, "WINDOW_BYTES", 3 * windowing.ELEMENT_BYTES + 100)
    function = functions(total, by_count(3))
    broker.produce("in", numbers(0, 9))  # three windows, one after the other, have room
    wait_until(lambda: len(values(broker, "out")) == 3)
    function.stop()
    longer = functions(total, by_count(4))
    broker.produce("in", numbers(0, 9))
    with pytest.raises(ClientError, match="let windows of public/default/total be shorter"):
        longer.wait()


@pytest.mark.parametrize("guarantee", GUARANTEES)
def test_the_topic_keeps_open_windows(broker: Broker, functions: Functions, guarantee: str) -> None:
    given = by_count(4, 2, processingGuarantees=guarantee)
    function = functions(total, given)
    broker.produce("in", numbers(0, 5))
    wait_until(lambda: values(broker, "out") == ["[0, 1]=1", "[0, 1, 2, 3]=6"])
    function.stop()
    assert broker.committed(GROUP) == {("in", 0): 2}
    function = functions(total, given)
    broker.produce("in", numbers(5, 8))
    wait_until(lambda: values(broker, "out")[2:] == ["[2, 3, 4, 5]=14", "[4, 5, 6, 7]=22"])
    function.stop()
    assert broker.committed(GROUP) == {("in", 0): 6}


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("method", ["add_partitions", "produce_all", "commit_in_transaction", "end_transaction"])
def test_a_window_fires_once(
    broker: Broker, functions: Functions, monkeypatch: pytest.MonkeyPatch, when: str, method: str
) -> None:
    killer = Killer(monkeypatch)
    given = by_count(4, 2, processingGuarantees="EFFECTIVELY_ONCE")
    first = functions(total, given)
    broker.produce("in", numbers(0, 5))
    wait_until(lambda: len(values(broker, "out")) == 2)
    killer.arm(when, method)
    broker.produce("in", numbers(5, 9))
    with pytest.raises(KilledError):
        first.wait()
    killer.heal()
    second = functions(total, given)
    broker.produce("in", numbers(9, 12))
    wait_until(lambda: len(values(broker, "out")) == 6)
    second.stop()
    ends = range(2, 13, 2)
    windows = [list(range(max(0, end - 4), end)) for end in ends]
    assert values(broker, "out") == [f"{window}={sum(window)}" for window in windows]


def test_windows_by_time(broker: Broker, functions: Functions) -> None:
    function = functions(total, config(windowConfig={"windowLengthDurationMs": 100}))
    broker.produce("in", ["1", "2", "3"])
    wait_until(lambda: sum(int(text.rpartition("=")[2]) for text in values(broker, "out")) == 6)
    wait_until(lambda: broker.committed(GROUP) == {("in", 0): 3})
    function.stop()


FILE = """
class When:
    def extract_timestamp(self, value):
        if value[1] < 0:
            raise ValueError(f"no time in {value}")
        return value[0]


def when(value):
    return value[0]


def process(events: list[list[int]], context):
    context.incr_counter("windows", 1)
    return f"{events}, window {context.get_counter('windows')}"
"""


def by_events(**fields: Any) -> str:
    window = {
        "windowLengthDurationMs": 10_000,
        "timestampExtractorClassName": "events.When",
        "maxLagMs": 1_000,
        "watermarkEmitIntervalMs": 20,
    }
    return config(windowConfig=window | fields.pop("window", {}), name="total", **fields)


@pytest.mark.parametrize("extractor", ["events.When", "events.when"])
@pytest.mark.parametrize("guarantee", GUARANTEES)
def test_windows_by_the_time_of_events(
    broker: Broker, functions: Functions, tmp_path: Path, guarantee: str, extractor: str
) -> None:
    (tmp_path / "events.py").write_text(FILE)
    window = {"lateDataTopic": "late", "timestampExtractorClassName": extractor}
    given = by_events(window=window, processingGuarantees=guarantee)
    function = functions("events", given, py="events.py")
    broker.produce("in", ["[2000, 1]", "[12000, 2]", "[1000, 3]"])
    wait_until(lambda: values(broker, "out") == ["[[1000, 3], [2000, 1]], window 1"])
    broker.produce("in", [("k", "[9000, 4]"), "[11000, 5]", "[21000, 6]"])
    wait_until(lambda: values(broker, "out")[1:] == ["[[11000, 5], [12000, 2]], window 2"])
    function.stop()
    (late,) = broker.records("late", isolation_level="read_committed")
    assert (late.key, late.value) == (b"k", b"[9000, 4]")
    assert broker.committed(GROUP) == {("in", 0): 5}
    second = functions("events", given, py="events.py")
    broker.produce("in", ["[9000, 7]", "[31000, 8]"])
    wait_until(lambda: values(broker, "out")[2:] == ["[[21000, 6]], window 3"])
    wait_until(lambda: values(broker, "late") == ["[9000, 4]", "[9000, 7]"])
    second.stop()


def test_a_late_message_is_as_large_as_its_topic_takes(
    broker: Broker, functions: Functions, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "events.py").write_text(FILE)
    broker.create_topic("late", configs={"max.message.bytes": 960_000})
    window = {"lateDataTopic": "late", "timestampExtractorClassName": "events.when"}
    function = functions("events", by_events(window=window), py="events.py")
    broker.produce("in", ["[2000, 1]", "[12000, 2]"])
    wait_until(lambda: len(values(broker, "out")) == 1)
    keys = [b64encode(Random(1).randbytes(size)).decode() for size in (712_500, 750_000, 3)]
    broker.produce("in", [(key, f"[9000, {number}]") for number, key in enumerate(keys)])
    wait_until(lambda: values(broker, "late") == ["[9000, 0]", "[9000, 2]"])
    function.stop()
    assert "the message at in-0 offset 3 is dropped: its 1000009 bytes are more than late takes" in caplog.text


def test_late_messages_without_a_topic_are_dropped_and_counted(
    broker: Broker, functions: Functions, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "events.py").write_text(FILE)
    function = functions("events", by_events(), py="events.py")
    broker.produce("in", ["[2000, 1]", "[12000, 2]"])
    wait_until(lambda: len(values(broker, "out")) == 1)
    broker.produce("in", ["[9000, 3]"])
    wait_until(lambda: "1 late messages were dropped, the last one of in-0 offset 2" in caplog.text)
    function.stop()


def test_a_window_that_fails_is_tried_again_and_holds_up_the_next_ones(broker: Broker, functions: Functions) -> None:
    left = [1]

    def total(numbers: list[int], context: Any) -> str:
        context.incr_counter("windows", 1)
        if 3 in numbers and left[0]:
            left[0] -= 1
            raise ValueError("not now")
        return f"{numbers}, window {context.get_counter('windows')}"

    function = functions(total, by_count(2))
    broker.produce("in", numbers(0, 6))
    wait_until(lambda: values(broker, "out") == ["[0, 1], window 1", "[2, 3], window 2", "[4, 5], window 3"])
    assert function.failures == 1
    function.stop()


def test_all_triggers_of_a_window_that_fails_are_told(broker: Broker, functions: Functions) -> None:
    def total(numbers: list[int]) -> str:
        raise ValueError("never")

    function = functions(total, by_count(3, maxMessageRetries=0, deadLetterTopic="dead"))
    with ThreadPoolExecutor(3) as pool:
        answers = list(pool.map(lambda text: function.trigger(text, seconds=10), numbers(0, 3)))
    assert [answer.status for answer in answers] == [422] * 3
    assert all("ValueError: never" in str(answer.error) for answer in answers)
    assert function.failures == 1
    function.stop()


@pytest.mark.parametrize("guarantee", GUARANTEES)
def test_a_window_that_fails_too_often_is_put_aside(broker: Broker, functions: Functions, guarantee: str) -> None:
    def total(numbers: list[int]) -> str:
        if 3 in numbers:
            raise ValueError("never")
        return f"{numbers}"

    dead = {} if guarantee == "ATMOST_ONCE" else {"maxMessageRetries": 0, "deadLetterTopic": "dead"}
    function = functions(total, by_count(4, 2, processingGuarantees=guarantee, **dead))
    broker.produce("in", [*numbers(0, 6), "x", *numbers(6, 8)])
    wait_until(lambda: values(broker, "out") == ["[0, 1]", "[4, 5, 6, 7]"])
    function.stop()
    put_aside = values(broker, "dead") if guarantee != "ATMOST_ONCE" else []
    assert put_aside == ([*numbers(0, 4), *numbers(2, 6), "x"] if guarantee != "ATMOST_ONCE" else [])
    assert broker.committed(GROUP) == {("in", 0): 7}
    functions(total, by_count(4, 2, processingGuarantees=guarantee, **dead)).stop()
    assert values(broker, "out") == ["[0, 1]", "[4, 5, 6, 7]"]


def test_each_partition_has_windows_of_its_own_if_that_is_said(broker: Broker, functions: Functions) -> None:
    broker.create_topic("in", partitions=2)
    broker.create_topic("out", partitions=1)
    function = functions(total, by_count(2, stateScope="partition", parallelism=2))
    for partition, number in ((0, 1), (1, 2), (0, 3), (1, 4)):
        produce(broker.bootstrap, "in", [(None, str(number))], partition)
    wait_until(lambda: sorted(values(broker, "out")) == ["[1, 3]=4", "[2, 4]=6"])
    function.stop()


def test_windows_of_several_partitions_go_on_where_they_were(broker: Broker, functions: Functions) -> None:
    broker.create_topic("in", partitions=3)
    given = by_count(6, 3, processingGuarantees="EFFECTIVELY_ONCE")
    sent = 0
    for _ in range(4):
        function = functions(listed, given, name="total")
        for _ in range(10):
            produce(broker.bootstrap, "in", [(None, str(sent))], sent % 3)
            sent += 1
        wait_until(lambda: len(values(broker, "out")) == sent // 3)  # noqa: B023
        function.stop()
    windows = [json.loads(text) for text in values(broker, "out")]
    new = [number for window in windows for number in window[-3:]]
    assert len(new) == len(set(new)) == 39
    for before, after in pairwise(windows[1:]):
        assert before[3:] == after[:3]


@pytest.mark.parametrize("scope", ["function", "partition"])
def test_partitions_that_come_later_have_windows_and_state(broker: Broker, functions: Functions, scope: str) -> None:
    def total(numbers: list[int], context: Any) -> str:
        context.incr_counter("windows", 1)
        return f"{sum(numbers)}, window {context.get_counter('windows')}"

    function = functions(total, by_count(2, stateScope=scope, processingGuarantees="EFFECTIVELY_ONCE"))
    broker.produce("in", numbers(0, 2))
    wait_until(lambda: values(broker, "out") == ["1, window 1"])
    with KafkaAdminClient(bootstrap_servers=broker.bootstrap) as admin:
        admin.create_partitions({"in": NewPartitions(2)})
    produce(broker.bootstrap, "in", [(None, "5"), (None, "6")], partition=1)
    number = 2 if scope == "function" else 1
    wait_until(lambda: values(broker, "out") == ["1, window 1", f"11, window {number}"])
    function.stop()


def test_a_topic_that_was_made_anew_has_nothing_that_was_taken(broker: Broker, functions: Functions) -> None:
    given = by_count(2, processingGuarantees="EFFECTIVELY_ONCE", subscriptionPosition="Earliest")
    function = functions(total, given)
    broker.produce("in", numbers(0, 5))
    wait_until(lambda: len(values(broker, "out")) == 2)
    function.stop()
    with KafkaAdminClient(bootstrap_servers=broker.bootstrap) as admin:
        admin.delete_topics(["in"])
    wait_until(lambda: "in" not in broker.topics() and not broker.committed(GROUP))
    broker.create_topic("in")
    broker.produce("in", numbers(5, 7))
    functions(total, given)
    wait_until(lambda: values(broker, "out")[2:] == ["[5, 6]=11"])


def test_asynchronous_functions_have_windows_too(broker: Broker, functions: Functions) -> None:
    async def total(numbers: list[float]) -> float:
        return sum(numbers)

    functions(total, by_count(2))
    broker.produce("in", ["1.5", "2"])
    wait_until(lambda: values(broker, "out") == ["3.5"])


def test_windows_need_transactions(broker: Broker, functions: Functions) -> None:
    broker.fail("InitProducerId", "TRANSACTIONAL_ID_AUTHORIZATION_FAILED")
    with pytest.raises(ClientError, match="transactionCoordinatorEnabled=true"):
        functions(total, by_count(2))


def test_a_mark_that_another_wrote_ends_the_function(broker: Broker, functions: Functions) -> None:
    function = functions(total, by_count(2))
    broker.produce("in", numbers(0, 2))
    wait_until(lambda: len(values(broker, "out")) == 1)
    function.stop()
    producer = Producer({"bootstrap.servers": broker.bootstrap})
    producer.produce(f"{PREFIX}public.default.total", b'{"version": 9}', MARK, headers=[("kop.state", b"mark")])
    assert producer.flush(10) == 0
    with pytest.raises(ClientError, match="what it says of the windows of public/default/total cannot be read"):
        functions(total, by_count(2))


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("", "events has no class or function When"),
        ("When = 5", "it has to be a function or a class"),
        ("class When: pass", "has to be a function, or a class without arguments that has"),
    ],
)
def test_an_extractor_that_cannot_be_had(
    broker: Broker, functions: Functions, tmp_path: Path, text: str, told: str
) -> None:
    (tmp_path / "events.py").write_text(f"def process(values): pass\n{text}")
    with pytest.raises(ClientError, match=f"timestamp extractor events.When.*{told}"):
        functions("events", by_events(), py="events.py")


def test_a_window_of_an_asynchronous_function_that_is_cancelled_has_failed(
    broker: Broker, functions: Functions
) -> None:
    async def total(numbers: list[int]) -> int:
        if 0 in numbers:
            raise asyncio.CancelledError
        await asyncio.sleep(0)
        return sum(numbers)

    given = config(windowConfig={"windowLengthCount": 2}, maxMessageRetries=0, deadLetterTopic="dead", name="total")
    function = functions(total, given)
    broker.produce("in", ["1", "2", "0", "3", "4", "5"])
    wait_until(lambda: values(broker, "out") == ["3", "9"])
    function.stop()
    assert values(broker, "dead") == ["0", "3"]
