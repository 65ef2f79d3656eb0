"""What may be written, in which form, and where it goes: columns, partitions and batches of the sink."""

from __future__ import annotations

import socket
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pytest
from kafka.partitioner.default import DefaultPartitioner
from spark.sink_kit import read

from kop.client.errors import ClientError, FencedError, NoTransactionsError, UnreachableError
from kop.client.write_client import WriteClient
from kop.spark import clients
from kop.spark.clients import naming_options, read_client, write_client
from kop.spark.exactly_once import SinkError, SinkTask
from kop.spark.producing import ClientTransactions, ProduceSettings, RowProducer, partitions_of
from kop.spark.sink_columns import SinkColumns, schema
from kop.testing import Broker

HEADERS = "array<struct<key:string,value:binary>>"
NOON = datetime(2026, 1, 31, 12, tzinfo=UTC)


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ([("value", "string"), ("customer", "bigint")], r"the column customer cannot be written: .*to_json"),
        ([("value", "string"), ("Keys", "string")], r"the column Keys cannot be written \(did you mean key\?\)"),
        ([("value", "string"), ("time_stamp", "timestamp")], r"did you mean timestamp\?"),
        ([("val", "string")], r"did you mean value\?"),
        ([("value", "bigint")], "the column value has the type bigint; it has to be binary or string: cast it"),
        ([("value", "string"), ("key", "int")], "the column key has the type int"),
        ([("value", "string"), ("headers", "map<string,binary>")], "the column headers has the type map"),
        ([("value", "string"), ("partition", "bigint")], "partition has the type bigint; it has to be int"),
        ([("value", "string"), ("timestamp", "timestamp_ntz")], "it has to be timestamp: cast it"),
        ([("key", "string")], "the column value is missing"),
        ([("value", "string"), ("VALUE", "string")], "there are two columns value"),
    ],
)
def test_columns_that_cannot_be_written(fields: list[tuple[str, str]], words: str) -> None:
    with pytest.raises(SinkError, match=words):
        SinkColumns.of(fields, "t")


def test_what_a_read_gives_beyond_a_record_is_left_out() -> None:
    fields = [
        ("offset", "bigint"),
        ("value", "string"),
        ("timestampType", "int"),
        ("metadata", "struct<message_id:string,publish_time:timestamp>"),
        ("decoded", "struct<id:bigint>"),
        ("decodeError", "string"),
        ("key", "string"),
    ]
    columns = SinkColumns.of(fields, "t")
    rows = [[7, "v", 0, ["1:2:-1", NOON], [1], None, "k"]]
    named = {name: [value] for (name, _), value in zip(fields, rows[0], strict=True)}
    named |= {"metadata": [{"message_id": "1:2:-1"}], "decoded": [{"id": 1}]}
    for written in (columns.batch(pa.record_batch(named)), *columns.batches(rows)):
        assert written.schema == schema()
        assert written.select(["topic", "key", "value"]).to_pylist() == [{"topic": "t", "key": b"k", "value": b"v"}]


def test_a_topic_has_to_come_from_somewhere() -> None:
    with pytest.raises(SinkError, match="set the option topic, or give each row its own in the column topic"):
        SinkColumns.of([("value", "string")], None)
    columns = SinkColumns.of([("value", "string"), ("topic", "string")], None)
    rows = pa.record_batch({"value": ["a", "b"], "topic": ["t", None]})
    with pytest.raises(SinkError, match="a row has no topic"):
        columns.batch(rows)
    assert (
        SinkColumns.of([("value", "string"), ("topic", "string")], "own").batch(rows)["topic"].to_pylist()
        == ["own"] * 2
    )


def test_batches_and_rows_take_the_same_form() -> None:
    fields = [
        ("Timestamp", "timestamp"),
        ("headers", HEADERS),
        ("KEY", "binary"),
        ("value", "string"),
        ("partition", "int"),
    ]
    columns = SinkColumns.of(fields, "t")
    rows: list[tuple[Any, ...]] = [
        (NOON, [("h", b"x"), ("empty", None)], b"k", "v", 1),
        (None, None, None, None, None),
    ]
    header = pa.struct([("key", pa.string()), ("value", pa.binary())])
    batch = pa.record_batch(
        [
            pa.array([NOON, None], pa.timestamp("us", tz="UTC")),
            pa.array([[{"key": "h", "value": b"x"}, {"key": "empty", "value": None}], None], pa.list_(header)),
            pa.array([b"k", None]),
            pa.array(["v", None]),
            pa.array([1, None], pa.int32()),
        ],
        names=[name for name, _ in fields],
    )
    (of_rows,) = columns.batches(rows)
    assert columns.batch(batch).schema == of_rows.schema == schema()
    assert columns.batch(batch).to_pylist() == of_rows.to_pylist()
    assert of_rows.to_pylist()[0]["timestamp"] == NOON


def test_a_row_of_spark_has_the_local_time_of_the_process() -> None:
    columns = SinkColumns.of([("value", "string"), ("timestamp", "timestamp")], "t")
    (batch,) = columns.batches([("v", NOON.astimezone().replace(tzinfo=None))])
    assert batch["timestamp"].to_pylist() == [NOON]


def test_headers_need_names() -> None:
    columns = SinkColumns.of([("value", "string"), ("headers", HEADERS)], "t")
    for headers in ([(None, b"x")], [None]):
        with pytest.raises(SinkError, match="a header has no key"):
            list(columns.batches([("v", headers)]))


def test_partitions_are_those_of_kafkas_clients() -> None:
    kafkas = DefaultPartitioner()
    keys = [f"key-{number}".encode() for number in range(200)]
    for count in (1, 3, 16):
        wanted = [kafkas.partition("t", key, key, None, None, _Metadata(count)) for key in keys]
        chosen = partitions_of(pa.array(keys), pa.nulls(len(keys), pa.int32()), count, 0)
        assert chosen.to_pylist() == wanted


class _Metadata:
    """As much of kafka-python's metadata as its partitioner asks for."""

    def __init__(self, count: int) -> None:
        self.count = count

    def topics(self) -> set[str]:
        return {"t"}

    def partitions_for_topic(self, topic: str) -> set[int]:
        return set(range(self.count))

    def available_partitions_for_topic(self, topic: str) -> set[int]:
        return set(range(self.count))


def test_rows_without_a_key_go_to_one_partition_of_a_batch_and_then_to_the_next() -> None:
    keys, given = pa.nulls(4, pa.binary()), pa.array([None, None, 2, None], pa.int32())
    batches = [partitions_of(keys, given, 3, turn).to_pylist() for turn in range(4)]
    assert batches == [[0, 0, 2, 0], [1, 1, 2, 1], [2, 2, 2, 2], [0, 0, 2, 0]]


# -- against a broker


def rows(constant: str | None = None, /, **columns: Any) -> pa.RecordBatch:
    fields = {"key": "string", "value": "string", "partition": "int", "topic": "string", "timestamp": "timestamp"}
    kinds = [(name, HEADERS if name == "headers" else fields[name]) for name in columns]
    (batch,) = SinkColumns.of(kinds, constant).batches(list(zip(*columns.values(), strict=True)))
    return batch


def producer(client: WriteClient, **settings: Any) -> RowProducer:
    return RowProducer(client, client.init_producer(None, 60_000), ProduceSettings(**settings))


@pytest.fixture
def client(kop_shared_broker: Broker) -> Any:
    made = WriteClient({"bootstrap_servers": [kop_shared_broker.bootstrap], "client_id": "test"}, 20.0)
    yield made
    made.close()


def test_every_field_of_a_record_arrives(kop_shared_broker: Broker, client: WriteClient) -> None:
    kop_shared_broker.create_topic("fields", 2)
    written = rows(
        "fields",
        key=["k", None, None],
        value=["v", "", None],
        headers=[[("h", b"x"), ("h", None)], [], None],
        partition=[1, 1, 1],
        timestamp=[NOON, NOON, None],
    )
    producer(client).write(written)
    records = [record for _, record in read(kop_shared_broker.bootstrap, "fields")]
    assert [(r.partition, r.key, r.value, r.headers) for r in records] == [
        (1, b"k", b"v", [("h", b"x"), ("h", None)]),
        (1, None, b"", []),
        (1, None, None, []),
    ]
    assert [r.timestamp for r in records[:2]] == [int(NOON.timestamp() * 1000)] * 2
    assert records[2].timestamp > records[0].timestamp


@pytest.mark.parametrize("codec", range(5))
def test_many_batches_to_many_partitions_keep_their_order(
    kop_shared_broker: Broker, client: WriteClient, codec: int
) -> None:
    topics = [f"many-{codec}-{number}" for number in range(2)]
    for topic in topics:
        kop_shared_broker.create_topic(topic, 3)
    wanted = [f"{number:05}" for number in range(3000)]
    own = producer(client, codec=codec, max_batch_bytes=2_000)
    for start in (0, 1500):
        part = wanted[start : start + 1500]
        names = [topics[int(value) % 2] for value in part]
        own.write(rows(key=[value[-1] for value in part], value=part, topic=names))
    values = {topic: [value for value, _ in read(kop_shared_broker.bootstrap, topic)] for topic in topics}
    assert sorted(values[topics[0]] + values[topics[1]]) == wanted
    assert all(int(value) % 2 == number for number in (0, 1) for value in values[topics[number]])
    for topic in topics:
        for last in "0123456789":
            of_key = [value for value in values[topic] if value[-1] == last]
            assert of_key == sorted(of_key)


def test_a_partition_that_there_is_not(kop_shared_broker: Broker, client: WriteClient) -> None:
    kop_shared_broker.create_topic("narrow", 2)
    for partition in (2, -1):
        with pytest.raises(SinkError, match=f"the column partition says {partition}, and the topic narrow has 2"):
            producer(client).write(rows("narrow", value=["v"], partition=[partition]))


def test_a_row_that_is_too_large(kop_shared_broker: Broker, client: WriteClient) -> None:
    kop_shared_broker.create_topic("small", 1)
    with pytest.raises(SinkError, match=r"a row for small-0 cannot be written.*kafka\.max\.request\.size"):
        producer(client, max_batch_bytes=1000).write(rows("small", value=["v" * 2000]))


def test_a_topic_is_made_by_its_first_row(kop_shared_broker: Broker, client: WriteClient) -> None:
    producer(client).write(rows("made-by-use", value=["v"]))
    assert [value for value, _ in read(kop_shared_broker.bootstrap, "made-by-use")] == ["v"]


def test_rows_for_many_partitions_are_sent_in_requests_that_a_server_takes(
    kop_broker_factory: Callable[..., Broker],
) -> None:
    broker = kop_broker_factory(socket_request_max_bytes=1 << 20)
    broker.create_topic("wide", 24)
    client = WriteClient({"bootstrap_servers": [broker.bootstrap], "client_id": "test"}, 20.0)
    wanted = [f"{number:03}" for number in range(240)]
    own = producer(client, max_batch_bytes=300_000)
    own.write(rows("wide", value=[value * 10_000 for value in wanted], partition=[int(v) % 24 for v in wanted]))
    client.close()
    records = [record for _, record in read(broker.bootstrap, "wide")]
    assert sorted(record.value[:3].decode() for record in records) == wanted
    for partition in range(24):
        of_partition = [record.value[:3].decode() for record in records if record.partition == partition]
        assert of_partition == wanted[partition::24]


@pytest.mark.parametrize(
    ("topic", "said"),
    [
        ("not-made", "create the topic not-made, or name another one"),
        ("no name", "name another topic than no name: none can have this name"),
    ],
)
def test_a_topic_that_is_not_there(kop_broker_factory: Callable[..., Broker], topic: str, said: str) -> None:
    broker = kop_broker_factory(auto_create_topics_enable=False)
    # In this time it has to connect, too.
    client = WriteClient({"bootstrap_servers": [broker.bootstrap], "client_id": "test"}, 3.0)
    with pytest.raises(SinkError, match=said):
        producer(client).write(rows(topic, value=["v"]))
    client.close()


def test_nobody_answers() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        settings = {"bootstrap_servers": [f"127.0.0.1:{silent.getsockname()[1]}"], "client_id": "test"}
        for connect in (lambda: write_client(settings, 0.3), lambda: read_client(settings, 300)):
            with pytest.raises(UnreachableError, match=r"set kafka\.bootstrap\.servers to servers that answer"):
                connect()


@pytest.mark.parametrize(
    ("error", "kind", "text"),
    [
        (FencedError("EndTxn"), FencedError, "EndTxn: a newer attempt of this task.* kafka.transaction.timeout.ms: "),
        (NoTransactionsError("x."), SinkError, "^x. Without them use deliveryGuarantee=at-least-once.$"),
        (ClientError("set transaction.timeout.ms."), SinkError, "^set kafka.transaction.timeout.ms.$"),
        (ClientError("(bootstrap.servers)"), SinkError, r"^\(kafka.bootstrap.servers\)$"),
        (ClientError("kafka.sasl.mechanism"), SinkError, "^kafka.sasl.mechanism$"),
        (ClientError("transaction.max.timeout.ms"), SinkError, "^transaction.max.timeout.ms$"),
    ],
)
def test_errors_of_clients_name_options(error: Exception, kind: type[Exception], text: str) -> None:
    with pytest.raises(kind, match=text), naming_options(), naming_options():
        raise error


def test_no_error_of_a_read_is_one_of_a_write(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*arguments: Any) -> None:
        raise ClientError("leave it out")

    monkeypatch.setattr(clients, "ReadClient", refuse)
    with pytest.raises(ClientError, match="leave it out"):
        read_client({}, 0)


def test_a_marker_topic_that_may_not_be_made(kop_broker: Broker) -> None:
    kop_broker.fail("CreateTopics", "TOPIC_AUTHORIZATION_FAILED")
    client = write_client({"bootstrap_servers": [kop_broker.bootstrap], "client_id": "test"}, 20.0)
    with pytest.raises(
        SinkError, match=r"make the topic __kop_spark_markers with 2 .*: an exactly-once sink keeps its"
    ):
        ClientTransactions(client, SinkTask("s", 0, 0, 2), ProduceSettings()).fence()
    client.close()
