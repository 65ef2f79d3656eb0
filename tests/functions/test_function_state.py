"""Functions with state on a running broker: what is in the changelog, what survives a crash, what is refused."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from functions.function_kit import spec_with
from functions.instance_kit import KilledError, Killer, produce, values
from kafka import KafkaAdminClient, errors
from kafka.admin import ConfigResource, ConfigResourceType
from support.waiting import wait_until

from kop.client.errors import ClientError
from kop.functions.changelog import PREFIX, topic_of
from kop.functions.state import StateError, StateValue
from kop.testing import Broker
from kop.testing.functions import Functions, TestFunction

CHANGELOG = f"{PREFIX}public.default.count"
GUARANTEES = ("ATLEAST_ONCE", "ATMOST_ONCE", "EFFECTIVELY_ONCE", "MANUAL")


@pytest.fixture
def broker() -> Iterator[Broker]:
    with Broker(store="memory:") as made:
        yield made


@pytest.fixture
def functions(broker: Broker, tmp_path: Path) -> Iterator[Functions]:
    with Functions(broker.bootstrap, tmp_path) as made:
        yield made


def count(text: str, context: Any) -> str:
    """Count a text, and return it with its count."""
    context.incr_counter(text, 1)
    context.ack(context.get_message_id(), "in")
    return f"{text}{context.get_counter(text)}"


def changelog(broker: Broker, topic: str = CHANGELOG) -> list[tuple[int | None, str, bytes | None]]:
    records = broker.records(topic, isolation_level="read_committed")
    return [(record.partition, (record.key or b"").decode(), record.value) for record in records]


def number(value: int) -> bytes:
    return value.to_bytes(8, "big", signed=True)


@pytest.mark.parametrize("guarantee", GUARANTEES)
def test_counters_outlive_the_function(broker: Broker, functions: Functions, guarantee: str) -> None:
    def run(texts: list[str], processed: int) -> None:
        function = functions(count, inputs="in", output="out", processing_guarantees=guarantee)
        broker.produce("in", texts)
        wait_until(lambda: function.processed == processed)
        function.stop()

    run(["a", "b", "a"], 3)
    run(["a"], 1)
    assert values(broker, "out") == ["a1", "b1", "a2", "a3"]
    assert changelog(broker)[-1] == (0, "a", number(3))
    assert broker.committed("public/default/count") == {("in", 0): 4}
    admin = KafkaAdminClient(bootstrap_servers=broker.bootstrap)
    try:
        described = admin.describe_configs([ConfigResource(ConfigResourceType.TOPIC, CHANGELOG)])
    finally:
        admin.close()
    assert "compact" in str(described)


def test_a_batch_writes_each_key_once(broker: Broker, functions: Functions) -> None:
    first = functions(count, inputs="in", processing_guarantees="EFFECTIVELY_ONCE")
    first.stop()
    produce(broker.bootstrap, "in", [(None, f"{n % 5}") for n in range(1_000)])
    function = functions(count, inputs="in", processing_guarantees="EFFECTIVELY_ONCE")
    wait_until(lambda: function.processed == 1_000)
    function.stop()
    written = changelog(broker)
    assert {key: value for _, key, value in written} == {f"{n}": number(200) for n in range(5)}
    assert len(written) < 200


def test_a_call_that_raises_changes_nothing(broker: Broker, functions: Functions) -> None:
    left = [1]

    def count(text: str, context: Any) -> str:
        context.incr_counter(text, 1)
        context.put_state("last", text)
        if text == "b" and left[0]:
            left[0] -= 1
            raise ValueError(text)
        return f"{text}{context.get_counter(text)}"

    function = functions(count, inputs="in", output="out", processing_guarantees="EFFECTIVELY_ONCE")
    broker.produce("in", ["a", "b", "a"])
    wait_until(lambda: function.processed == 3)
    assert function.failures == 1
    function.stop()
    assert values(broker, "out") == ["a1", "b1", "a2"]


def test_asynchronous_calls_count_together(broker: Broker, functions: Functions) -> None:
    async def count(text: str, context: Any) -> None:
        await asyncio.sleep(0)  # lets the other calls run
        context.incr_counter(text, 1)
        await asyncio.sleep(0)  # the same

    function = functions(count, inputs="in", processing_guarantees="EFFECTIVELY_ONCE")
    broker.produce("in", ["a"] * 100)
    wait_until(lambda: function.processed == 100)
    function.stop()
    assert changelog(broker)[-1] == (0, "a", number(100))


@pytest.mark.parametrize("guarantee", GUARANTEES)
def test_asynchronous_calls_that_do_not_fit_together_fail_by_themselves(
    broker: Broker, functions: Functions, guarantee: str
) -> None:
    async def count(text: str, context: Any) -> str:
        context.ack(context.get_message_id(), "in")
        if text == "put":
            context.put_state("a", "v")
        elif text != "other":
            context.incr_counter("b", 1)
            context.incr_counter("a" if text == "add" else "large", 2**62)
        await asyncio.sleep(0.05)  # the other calls see nothing of this one
        return text

    dead: dict[str, Any] = {"max_message_retries": 1, "dead_letter_topic": "dead"}
    if guarantee == "ATMOST_ONCE":
        dead = {}
    broker.produce("in", ["put", "add", "large", "large", "other"])
    function = functions(
        count, inputs="in", output="out", processing_guarantees=guarantee, subs_position="Earliest", **dead
    )
    wait_until(lambda: broker.committed("public/default/count") == {("in", 0): 5})
    function.stop()
    assert values(broker, "out") == ["put", "large", "other"]
    if dead:
        assert values(broker, "dead") == ["add", "large"]
    assert function.failures == (4 if dead else 2)
    assert {key: value for _, key, value in changelog(broker)} == {"a": b"v", "b": number(1), "large": number(2**62)}


@pytest.mark.parametrize("guarantee", ["ATLEAST_ONCE", "EFFECTIVELY_ONCE"])
@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("method", ["add_partitions", "produce_all", "commit_in_transaction", "end_transaction"])
def test_state_fits_the_outputs_after_a_kill(
    broker: Broker, functions: Functions, monkeypatch: pytest.MonkeyPatch, guarantee: str, when: str, method: str
) -> None:
    """State, outputs and offsets are one transaction, also for ATLEAST_ONCE once there is state."""
    killer = Killer(monkeypatch)
    first = functions(count, inputs="in", output="out", processing_guarantees=guarantee)
    broker.produce("in", ["a"])
    wait_until(lambda: values(broker, "out") == ["a1"])
    killer.arm(when, method)
    broker.produce("in", ["a"] * 9)
    with pytest.raises(KilledError):
        first.wait()
    killer.heal()
    second = functions(count, inputs="in", output="out", processing_guarantees=guarantee)
    wait_until(lambda: len(values(broker, "out")) >= 10)
    second.stop()
    assert values(broker, "out") == [f"a{n + 1}" for n in range(10)]
    assert changelog(broker)[-1] == (0, "a", number(10))


def test_record_batches_have_state_too(broker: Broker, functions: Functions) -> None:
    class Count:
        def process_batch(self, batch: Any, context: Any) -> None:
            for value in batch.column("value").to_pylist():
                context.incr_counter(value.decode(), 1)

    function = functions(Count, name="count", inputs="in")
    broker.produce("in", ["a", "b", "a"])
    wait_until(lambda: function.processed == 3)
    assert function.query_state("a") == StateValue("a", 2, None)
    function.stop()


def test_state_belongs_to_partitions_if_that_is_said(broker: Broker, functions: Functions) -> None:
    broker.create_topic("in", partitions=3)
    config = "stateScope: partition\nparallelism: 2"

    def run(partitions: list[int]) -> TestFunction:
        function = functions(count, config, inputs="in", output="out", processing_guarantees="EFFECTIVELY_ONCE")
        for partition in partitions:
            produce(broker.bootstrap, "in", [(None, "a")], partition)
        wait_until(lambda: function.processed == len(partitions))
        return function

    run([0, 0, 2]).stop()
    assert sorted(values(broker, "out")) == ["a1", "a1", "a2"]
    topic = f"{CHANGELOG}.partition"
    assert {(partition, key): value for partition, key, value in changelog(broker, topic)} == {
        (0, "a"): number(2),
        (2, "a"): number(1),
    }
    function = run([2])
    assert function.query_state("a", 2) == StateValue("a", 2, None)
    with pytest.raises(StateError, match="name one of the partitions"):
        function.query_state("a")


def test_other_threads_ask_and_put(broker: Broker, functions: Functions) -> None:
    function = functions(count, inputs="in", output="out")
    assert function.query_state("a") is None
    function.put_state("a", 41)
    function.put_state("v", "ä")
    assert function.query_state("a") == StateValue("a", 41, None)
    assert function.query_state("v") == StateValue("v", None, "ä".encode())
    assert changelog(broker) == [(0, "a", number(41)), (0, "v", "ä".encode())]
    broker.produce("in", ["a"])
    wait_until(lambda: values(broker, "out") == ["a42"])
    with pytest.raises(StateError, match="has no room"):
        function.put_state("a", 2**63)
    asked: list[Any] = []
    threads = [threading.Thread(target=lambda: asked.append(function.query_state("a"))) for _ in range(10)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert asked == [StateValue("a", 42, None)] * 10
    function.stop()
    with pytest.raises(StateError, match="has ended"):
        function.query_state("a")


def test_a_pattern_does_not_mean_the_changelog(broker: Broker, functions: Functions) -> None:
    broker.create_topic("in")

    def run() -> TestFunction:
        function = functions(count, topics_pattern=".*", output="out")
        broker.produce("in", ["a"])
        return function

    first = run()
    wait_until(lambda: first.query_state("a") == StateValue("a", 1, None))
    first.stop()
    second = run()
    wait_until(lambda: values(broker, "out") == ["a1", "a2"])
    second.stop()
    assert broker.committed("public/default/count") == {("in", 0): 2}


def test_state_of_several_instances_has_to_be_of_partitions(broker: Broker, functions: Functions) -> None:
    function = functions(count, parallelism=2, inputs="in", output="out")
    broker.produce("in", ["a"])
    with pytest.raises(ClientError, match="set stateScope of public/default/count to partition, or parallelism to 1"):
        function.wait()


def test_state_needs_transactions(broker: Broker, functions: Functions) -> None:
    broker.fail("InitProducerId", "TRANSACTIONAL_ID_AUTHORIZATION_FAILED")
    function = functions(count, inputs="in", output="out")
    broker.produce("in", ["a"])
    with pytest.raises(ClientError, match="transactionCoordinatorEnabled=true"):
        function.wait()
    assert values(broker, "out") == []


def test_a_changelog_whose_records_would_be_deleted_is_refused(broker: Broker, functions: Functions) -> None:
    """As one is that a consumer's first use has made."""
    broker.create_topic(CHANGELOG)
    with pytest.raises(ClientError, match=f"set cleanup.policy of the topic {CHANGELOG} to compact"):
        functions(count, inputs="in", output="out")


def test_a_changelog_that_another_wrote_ends_the_function(broker: Broker, functions: Functions) -> None:
    function = functions(count, inputs="in", output="out")
    broker.produce("in", ["a"])
    wait_until(lambda: values(broker, "out") == ["a1"])
    function.stop()
    broker.produce(CHANGELOG, [("k", "of another")])
    with pytest.raises(ClientError, match=f"delete the topic {CHANGELOG}, or .* is no entry of one: offset 2 has no"):
        functions(count, inputs="in", output="out")


def test_a_changelog_that_another_wrote_before_state_is_used(
    broker: Broker, functions: Functions, caplog: pytest.LogCaptureFixture
) -> None:
    """It ends the instance, and is no failure of the call."""
    function = functions(count, inputs="in", output="out")
    broker.create_topic(CHANGELOG, configs={"cleanup.policy": "compact"})
    broker.produce(CHANGELOG, [("k", "of another")])
    broker.produce("in", ["a"])
    with pytest.raises(ClientError, match=r"public\.default\.count-0 is the changelog of public/default/count"):
        function.wait()
    assert function.failures == 0
    assert "the function failed" not in caplog.text


@pytest.mark.parametrize(
    ("fqfn", "topic"),
    [
        ("public/default/word-count_2", f"{PREFIX}public.default.word-count_2"),
        ("a.b/c/d", f"{PREFIX}a..db.c.d"),
        ("a/b.c/d", f"{PREFIX}a.b..dc.d"),
        ("a/b/c=d:e", f"{PREFIX}a.b.c..ed..ce"),
    ],
)
def test_names_of_changelogs(fqfn: str, topic: str) -> None:
    tenant, namespace, name = fqfn.split("/")
    assert topic_of(spec_with(tenant=tenant, namespace=namespace, name=name)) == topic


def test_an_end_does_not_wait_for_a_changelog_that_cannot_be_made(
    broker: Broker, functions: Functions, monkeypatch: pytest.MonkeyPatch
) -> None:
    error = "LEADER_NOT_AVAILABLE"
    monkeypatch.setattr("kop.functions.instance.HURRY_SECONDS", 0.1)
    function = functions(count, inputs="in")
    broker.fail("CreateTopics", error, times=None)
    broker.produce("in", ["a"])
    wait_until(lambda: any((seen.api, seen.outcome) == ("CreateTopics", error) for seen in broker.requests()))
    began = time.monotonic()
    with pytest.raises(errors.RetriableError, match=CHANGELOG):
        function.stop()
    assert time.monotonic() - began < 9, "not by the patience of its requests, 10 s"
    broker.heal()
