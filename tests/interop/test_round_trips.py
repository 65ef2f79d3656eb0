"""Anything, both ways: hypothesis makes the records, each side's own client is the judge."""

from __future__ import annotations

import base64
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from interop.interop_kit import NOW, Interop

from kop.records.batch import Codec
from kop.records.record import Record

FEW = settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
MANY = settings(FEW, max_examples=400)

text = st.text(max_size=10)
some_bytes = st.one_of(text.map(str.encode), st.binary(max_size=10))
names = st.one_of(some_bytes, st.sampled_from([b"a", b"b", b"", b"__kop_headers", b"__kop_timestamp", b"entry.format"]))
records = st.lists(
    st.builds(
        Record,
        st.just(0),
        st.one_of(st.sampled_from([-1, 0, 1, NOW]), st.integers(0, NOW)),
        st.one_of(st.none(), some_bytes),
        st.one_of(st.none(), some_bytes, st.binary(min_size=200, max_size=3000)),
        st.lists(st.tuples(names, st.one_of(st.none(), some_bytes)), max_size=4).map(tuple),
    ),
    min_size=1,
    max_size=8,
)
messages = st.lists(
    st.fixed_dictionaries(
        {"content": st.binary(max_size=2000)},
        optional={
            "partition_key": text.filter(bool),
            "ordering_key": text.filter(bool),
            "event_timestamp": st.integers(1, 2**53),
            "properties": st.dictionaries(text.filter(lambda name: not name.startswith("__kop_")), text, max_size=4),
        },
    ),
    min_size=1,
    max_size=8,
)


def out_and_back(interop: Interop, topics: list[str], batch: list[Record], codec: Codec) -> None:
    """Kafka -> Pulsar, seen by a native consumer, and back by a gateway that did not write it."""
    if not topics:
        topics.append(interop.known(interop.create(interop.name("out")), interop.other))
    topic, begin = topics[0], interop.ends(topics[0])[1]
    batch = [record._replace(offset=index) for index, record in enumerate(batch)]
    assert interop.write(topic, batch, codec=codec) == [begin]
    expected = [record._replace(offset=begin + record.offset) for record in batch]
    end = interop.ended(topic, begin + len(batch), interop.other)[1]
    interop.other.engine.loop.call_soon_threadsafe(
        interop.other.engine.cache.drop, interop.other.log(topic).tail.cached
    )
    assert interop.read(topic, begin, end) == expected
    messages = interop.receive_from(topic, begin, end)
    for record, message in zip(batch, messages, strict=True):
        assert message.has_null_value() == (record.value is None)
        assert message.data() == (record.value or b"")
        assert message.event_timestamp() == max(record.timestamp, 0)
        key = message.partition_key()
        try:
            assert key == (record.key or b"").decode()
        except UnicodeDecodeError:
            assert base64.b64decode(key) == record.key


def in_and_back(interop: Interop, topics: list[str], sent: list[dict[str, Any]], how: dict[str, Any]) -> None:
    """Pulsar -> Kafka, by the tail of one gateway and from storage by the other."""
    if not topics:
        topics.append(interop.known(interop.create(interop.name("in")), interop.other))
    topic, begin = topics[0], interop.ends(topics[0])[1]
    interop.send(interop.partition(topic), sent, **how)
    end = begin + len(sent)
    interop.ended(topic, end)
    tail = interop.read(topic, begin, end, interop.gateway)
    assert [record.offset for record in tail] == list(range(begin, end))
    for record, message in zip(tail, sent, strict=True):
        key = message.get("partition_key", message.get("ordering_key"))
        assert record.key == (None if key is None else key.encode())
        assert record.value == message["content"]
        if "event_timestamp" in message:
            assert record.timestamp == message["event_timestamp"]
        headers = {name.encode(): value.encode() for name, value in message.get("properties", {}).items()}
        assert dict(record.headers) == headers
    assert interop.read(topic, begin, end, interop.other) == tail


def rounds(few: settings, many: settings) -> pytest.MarkDecorator:
    return pytest.mark.parametrize(
        "amount", [few, pytest.param(many, marks=[pytest.mark.slow, pytest.mark.timeout(400)])], ids=["few", "many"]
    )


@rounds(FEW, MANY)
def test_whatever_kafka_writes_comes_back_and_is_seen_by_pulsar(interop: Interop, amount: settings) -> None:
    topics: list[str] = []
    amount(
        given(records, st.sampled_from(list(Codec)))(lambda batch, codec: out_and_back(interop, topics, batch, codec))
    )()


BATCHED = {"batching_enabled": True, "batching_max_publish_delay_ms": 50}


@rounds(FEW, MANY)
def test_whatever_pulsar_writes_is_read_by_kafka(interop: Interop, amount: settings) -> None:
    topics: list[str] = []
    how = st.sampled_from([{}, BATCHED])
    amount(given(messages, how)(lambda sent, how: in_and_back(interop, topics, sent, how)))()
