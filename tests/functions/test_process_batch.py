"""Functions that take record batches of Arrow."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from functions.instance_kit import KilledError, Killer, consume, no_retries, values
from support.waiting import wait_until

from kop.client.errors import ClientError
from kop.functions.function import FunctionLoadError
from kop.testing import Broker, KafkaRecord
from kop.testing.functions import Functions

pa = pytest.importorskip("pyarrow")
pc = pytest.importorskip("pyarrow.compute")

GROUP = "public/default/batches"
GUARANTEES = ("ATLEAST_ONCE", "ATMOST_ONCE", "EFFECTIVELY_ONCE")


@pytest.fixture
def broker() -> Iterator[Broker]:
    with Broker(store="memory:") as made:
        yield made


@pytest.fixture
def functions(broker: Broker, tmp_path: Path) -> Iterator[Functions]:
    with Functions(broker.bootstrap, tmp_path) as made:
        yield made


class Batches:
    """Calls something with each batch."""

    def __init__(self, call: Callable[[Any, Any], Any]) -> None:
        self.call = call

    def process_batch(self, batch: Any, context: Any) -> Any:
        return self.call(batch, context)


def exclaimed(batch: Any, context: Any) -> Any:
    return pc.binary_join_element_wise(batch.column("value").cast(pa.string()), "!", "")


def start(functions: Functions, call: Callable[[Any, Any], Any], **flags: Any) -> Any:
    return functions(Batches(call), name="batches", **({"inputs": "in", "output": "out"} | flags))


@pytest.mark.parametrize("guarantee", GUARANTEES)
def test_values_come_out_once_and_in_order(broker: Broker, functions: Functions, guarantee: str) -> None:
    function = start(functions, exclaimed, processing_guarantees=guarantee)
    sent = [str(number) for number in range(2_000)]
    broker.produce("in", sent)
    got = consume(broker.bootstrap, "out", 2_000)
    assert [record.value().decode() for record in got] == [f"{text}!" for text in sent]
    function.stop()
    assert function.processed == 2_000
    assert broker.committed(GROUP) == {("in", 0): 2_000}


def test_a_batch_has_all_columns_and_a_result_may_have_most(broker: Broker, functions: Functions) -> None:
    schemas = []

    def copy(batch: Any, context: Any) -> Any:
        schemas.append(batch.schema.names)
        assert context.get_current_message_topic_name() == "in"
        return batch.select(["key", "value", "headers", "timestamp"])

    broker.create_topic("out", partitions=5)
    start(functions, copy)
    sent = [(b"k", b"a"), (b"other", b"b"), (None, b"c")]
    broker.produce("in", [KafkaRecord(key=key, value=value, headers=(("h", b"x"),)) for key, value in sent])
    wait_until(lambda: len(broker.records("out")) == 3)
    assert schemas[0] == ["key", "value", "topic", "partition", "offset", "timestamp", "timestampType", "headers"]
    came, went = broker.records("in"), broker.records("out")
    assert sorted((r.key or b"", r.value, r.timestamp) for r in went) == sorted(
        (r.key or b"", r.value, r.timestamp) for r in came
    )
    assert all([*record.headers] == [("h", b"x")] for record in went)


def test_rows_go_to_the_topics_that_they_name(broker: Broker, functions: Functions) -> None:
    def route(batch: Any, context: Any) -> Any:
        text = batch.column("value").cast(pa.string())
        topics = pc.if_else(pc.starts_with(text, "a"), "to-a", None)
        return pa.RecordBatch.from_arrays([text, topics], ["value", "topic"])

    function = start(functions, route)
    broker.produce("in", ["a1", "b1", "a2"])
    wait_until(lambda: function.processed == 3)
    wait_until(lambda: (values(broker, "to-a"), values(broker, "out")) == (["a1", "a2"], ["b1"]))


def test_a_batch_may_have_state(broker: Broker, functions: Functions) -> None:
    def count(batch: Any, context: Any) -> Any:
        context.incr_counter("rows", len(batch))
        return pa.array([str(context.get_counter("rows"))])

    function = start(functions, count)
    broker.produce("in", ["a", "b"])
    wait_until(lambda: function.processed == 2)
    broker.produce("in", ["c"])
    wait_until(lambda: values(broker, "out") == ["2", "3"])


def test_a_batch_fails_as_a_whole_and_is_tried_again(broker: Broker, functions: Functions) -> None:
    tries: list[int] = []

    def second(batch: Any, context: Any) -> Any:
        context.publish("told", f"{len(batch)}")
        tries.append(len(batch))
        if len(tries) == 1:
            raise ValueError("the first time")
        return exclaimed(batch, context)

    broker.produce("in", ["a", "b"])
    function = start(functions, second, subs_position="Earliest")
    wait_until(lambda: function.processed == 2)
    function.stop()
    assert (tries, function.failures) == ([2, 2], 1)
    assert (values(broker, "out"), values(broker, "told")) == (["a!", "b!"], ["2"])
    assert broker.committed(GROUP) == {("in", 0): 2}


def with_header(batch: Any, name: str | None) -> Any:
    """Return the values with a header of this name each."""
    kind = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
    headers = pa.array([[{"key": name, "value": b"v"}]] * len(batch), kind)
    return pa.RecordBatch.from_arrays([batch.column("value"), headers], ["value", "headers"])


@pytest.mark.parametrize("guarantee", GUARANTEES)
@pytest.mark.parametrize(
    ("bad", "told"),
    [
        (lambda batch: 7, "returned a int"),
        (lambda batch: batch, "has the columns key, value, topic"),
        (lambda batch: batch.select(["key"]), "select value"),
        (lambda batch: pa.array([1.0] * len(batch)), "not binary or string"),
        (lambda batch: pa.array(["x" * 900_000]), "900000 bytes"),
        (lambda batch: with_header(batch, "x" * 900_000), "the headers of the result cannot be written: a record of 9"),
        (lambda batch: with_header(batch, None), "the headers of the result cannot be written: "),
    ],
)
def test_a_result_that_cannot_be_written_fails_its_batch(
    broker: Broker, functions: Functions, guarantee: str, bad: Callable[[Any], Any], told: str
) -> None:
    broker.produce("in", [("k", "a"), ("k", "b")])
    function = start(
        functions,
        lambda batch, context: bad(batch),
        subs_position="Earliest",
        processing_guarantees=guarantee,
        **no_retries(guarantee, "dead"),
    )
    wait_until(lambda: broker.committed(GROUP) == {("in", 0): 2})
    wait_until(lambda: function.failures == 1)
    function.stop()
    assert values(broker, "out") == []
    if guarantee != "ATMOST_ONCE":
        dead = broker.records("dead", isolation_level="read_committed")
        assert [(record.key, record.value) for record in dead] == [(b"k", b"a"), (b"k", b"b")]
        headers = [dict(record.headers) for record in dead]
        assert all(told in (header["__pfn_exception__"] or b"").decode() for header in headers)


@pytest.mark.parametrize(("when", "method"), [("before", "produce_all"), ("after", "produce_all")])
@pytest.mark.parametrize("guarantee", ["ATLEAST_ONCE", "EFFECTIVELY_ONCE"])
def test_a_killed_instance_loses_nothing(
    broker: Broker, functions: Functions, monkeypatch: pytest.MonkeyPatch, guarantee: str, when: str, method: str
) -> None:
    killer = Killer(monkeypatch)
    first = start(functions, exclaimed, processing_guarantees=guarantee)
    killer.arm(when, method)
    broker.produce("in", ["a", "b"])
    with pytest.raises(KilledError):
        first.wait()
    killer.heal()
    start(functions, exclaimed, processing_guarantees=guarantee)
    wait_until(lambda: broker.committed(GROUP) == {("in", 0): 2})
    got = values(broker, "out")
    assert got == ["a!", "b!"] if guarantee == "EFFECTIVELY_ONCE" else set(got) == {"a!", "b!"}


def test_what_cannot_be_asked_of_batches_is_refused(functions: Functions) -> None:
    for flags in ({"processing_guarantees": "MANUAL"}, {"custom_schema_inputs": {"in": "string"}, "inputs": ""}):
        with pytest.raises(ClientError, match="of public/default/batches"):
            start(functions, exclaimed, **flags)

    class Later:
        async def process_batch(self, batch: Any) -> None: ...

    with pytest.raises(FunctionLoadError, match="without async"):
        functions(Later, inputs="in")
