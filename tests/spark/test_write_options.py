"""The options of a write: what they mean, and what is said to those that cannot be kept."""

from __future__ import annotations

import pytest

from kop.spark.given import OptionError
from kop.spark.write_options import ExactlyOnce, WriteOptions, write_options

SERVERS = {"kafka.bootstrap.servers": "127.0.0.1:9092"}
EXACTLY = {"deliveryGuarantee": "exactly-once", "exactlyOnceTasks": "8"}


def stream(**options: str) -> WriteOptions:
    return write_options(SERVERS | {name.replace("__", "."): value for name, value in options.items()}, streaming=True)


def test_what_is_not_said() -> None:
    options = stream()
    assert (options.topic, options.exactly_once, options.patience) == (None, None, 120.0)
    assert (options.produce.codec, options.produce.acks, options.produce.max_batch_bytes) == (0, -1, (1 << 20) - 1024)
    assert options.produce.max_request_bytes == 1 << 20


def test_names_in_any_case() -> None:
    options = write_options(
        {
            "KAFKA.BOOTSTRAP.SERVERS": "a:1",
            "Topic": "t",
            "kafka.compression.type": "ZSTD",
            "kafka.delivery.timeout.ms": "5000",
            "kafka.max.request.size": "5000",
            "kafka.transaction.timeout.ms": "1234",
        },
        streaming=True,
    )
    assert (options.topic, options.produce.codec, options.patience) == ("t", 4, 5.0)
    assert (options.produce.max_batch_bytes, options.produce.transaction_timeout_ms) == (5000 - 1024, 1234)
    assert options.produce.max_request_bytes == 5000


def test_options_of_sparks_kafka_sink_may_stay() -> None:
    stream(kafka__linger__ms="5", kafka__retries="3", kafka__acks="all", checkpointLocation="/c", path="p")


def test_exactly_once() -> None:
    assert stream(**EXACTLY).exactly_once == ExactlyOnce(8)
    named = EXACTLY | {"exactlyOnceId": "orders", "exactlyOnceFrom": "7"}
    assert stream(**named).exactly_once == ExactlyOnce(8, "orders", 7)
    assert write_options(SERVERS | named, streaming=False).exactly_once == ExactlyOnce(8, "orders", 7, 0)
    batch = write_options(SERVERS | named | {"exactlyOnceBatch": "9"}, streaming=False)
    assert batch.exactly_once == ExactlyOnce(8, "orders", 7, 9)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"kafka__acks": "1"}, "leave kafka.acks out"),
        ({"kafka__enable__idempotence": "false"}, "leave kafka.enable.idempotence out"),
        ({"kafka__transactional__id": "x"}, "set deliveryGuarantee=exactly-once"),
        ({"kafka__key__serializer": "x"}, "set keyFormat instead"),
        ({"kafka__compression__type": "brotli"}, "is none of none, gzip, snappy, lz4, zstd"),
        ({"deliveryGuarantee": "at-most-once"}, "is none of at-least-once, exactly-once"),
        ({"deliveryGuarantee": "exactly-once"}, r"set exactlyOnceTasks.*repartition"),
        (EXACTLY | {"exactlyOnceTasks": "0"}, "is below 1"),
        (EXACTLY | {"exactlyOnceId": "a b"}, "is not 1 to 200 letters"),
        (EXACTLY | {"exactlyOnceBatch": "1"}, "leave exactlyOnceBatch out: a streaming query numbers its batches"),
        ({"pulsar__admin__url": "http://a"}, "set valueFormat or keyFormat.*, or leave pulsar.admin.url out"),
        ({"valueFormat": "string", "pulsar__auth": "x"}, "set valueFormat or keyFormat.*, or leave pulsar.auth out"),
        (
            {"valueFormat": "json", "pulsar__tls__ca__file": "x"},
            "set pulsar.admin.url as well, or leave pulsar.tls.ca.file out",
        ),
        ({"exactlyOnceTasks": "2"}, "set deliveryGuarantee to exactly-once, or leave exactlyOnceTasks out"),
        ({"topik": "t"}, "did you mean topic"),
        ({"subscribe": "t"}, "none of the options of a write"),
    ],
)
def test_what_cannot_be_kept(options: dict[str, str], words: str) -> None:
    with pytest.raises(OptionError, match=words):
        stream(**options)


def test_a_batch_that_is_written_once_needs_a_name() -> None:
    with pytest.raises(OptionError, match="set exactlyOnceId to a name of this write"):
        write_options(SERVERS | EXACTLY, streaming=False)
