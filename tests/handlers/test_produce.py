"""Produce: what is taken, what is refused, and how."""

from __future__ import annotations

import random
import struct
import time
from dataclasses import replace
from pathlib import Path
from typing import Any
from uuid import uuid4

import lz4.frame
import pytest
from support.damaged_batches import T, around, bomb, sealed
from support.gateway import RawClient, batch, fetch_fields, gateway, produce_fields, run

from kop.errors import ErrorCode
from kop.records.batch import HEADER_SIZE, Record, build, iter_batches, iter_records, read_header
from kop.records.compression import Codec
from kop.records.validation import MOST_NAMED

NEWEST = 12
"""The newest version that goes by name."""


async def topic(serving: Any, name: str = "t", partitions: int = 1, **configs: str) -> Any:
    # The tests' timestamps are of 1970: retention would take the records.
    own = {"retention.ms": "-1"} | {key.replace("_", "."): value for key, value in configs.items()}
    return await serving.gateway.engine.topics.create(name, partitions, own)


async def produce(
    client: RawClient, records: bytes | None, *, version: int = NEWEST, name: Any = "t", **how: Any
) -> Any:
    answer = await client.call(0, version, **produce_fields(name, records, version=version, **how))
    return answer.responses[0].partition_responses[0]


async def fetched(client: RawClient, offset: int = 0, name: str = "t", max_wait_ms: int = 0) -> bytes:
    answer = await client.call(1, 12, **fetch_fields(name, offset, version=12, max_wait_ms=max_wait_ms))
    records: bytes = answer.responses[0].partitions[0].records
    return records


@pytest.mark.parametrize("version", range(3, 14))
def test_every_version_stores_and_answers_offsets(tmp_path: Path, version: int) -> None:
    async def main() -> None:
        async with gateway(tmp_path) as serving:
            made = await topic(serving)
            client = await RawClient.connect(serving)
            name = made.topic_id if version >= 13 else "t"
            for base in (0, 3):
                answer = await produce(client, batch([b"a", b"b", b"c"]), version=version, name=name)
                assert (answer.error_code, answer.base_offset) == (0, base)
                if version >= 5:
                    assert answer.log_start_offset == 0
                assert answer.log_append_time_ms == -1
            stored = await fetched(client)
            batches = [stored[pos : pos + header.size] for pos, header in iter_batches(stored)]
            values = [[record.value for record in iter_records(data, max_bytes=2**20)] for data in batches]
            assert values == [[b"a", b"b", b"c"]] * 2
            assert [h.base_offset for _, h in iter_batches(stored)] == [0, 3]

    run(main())


@pytest.mark.parametrize("version", range(3))
def test_versions_0_to_2_are_unsupported_version(tmp_path: Path, version: int) -> None:
    async def main() -> Any:
        async with gateway(tmp_path) as serving:
            await topic(serving)
            client = await RawClient.connect(serving)
            return await produce(client, batch([b"a"]), version=version)

    assert run(main()).error_code == ErrorCode.UNSUPPORTED_VERSION


@pytest.mark.parametrize("acks", [-2, 2, 3, 32767])
def test_other_acks_are_invalid_required_acks(tmp_path: Path, acks: int) -> None:
    async def main() -> None:
        async with gateway(tmp_path) as serving:
            await topic(serving)
            client = await RawClient.connect(serving)
            assert (await produce(client, batch([b"a"]), acks=acks)).error_code == ErrorCode.INVALID_REQUIRED_ACKS
            assert await fetched(client) == b""

    run(main())


def test_acks_0_is_not_answered_and_takes_effect_before_what_follows(tmp_path: Path) -> None:
    async def main() -> None:
        async with gateway(tmp_path) as serving:
            await topic(serving)
            client = await RawClient.connect(serving)
            for value in (b"a", b"b"):
                client.send(0, NEWEST, **produce_fields("t", batch([value]), version=NEWEST, acks=0))
            stored = await fetched(client)  # the first answer on this connection
            assert [header.base_offset for _, header in iter_batches(stored)] == [0, 1]

    run(main())


def test_an_error_with_acks_0_closes_the_connection(tmp_path: Path) -> None:
    async def main() -> None:
        async with gateway(tmp_path) as serving:
            client = await RawClient.connect(serving)
            client.send(0, NEWEST, **produce_fields("missing", batch([b"a"]), version=NEWEST, acks=0))
            assert await client.closed()

    run(main())


def test_unknown_topics_and_partitions(tmp_path: Path) -> None:
    async def main() -> None:
        async with gateway(tmp_path) as serving:
            await topic(serving)
            client = await RawClient.connect(serving)
            missing = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            assert (await produce(client, batch([b"a"]), name="x")).error_code == missing
            assert (await produce(client, batch([b"a"]), partition=1)).error_code == missing
            assert (await produce(client, batch([b"a"]), partition=-1)).error_code == missing
            answer = await produce(client, batch([b"a"]), version=13, name=uuid4())
            assert answer.error_code == ErrorCode.UNKNOWN_TOPIC_ID

    run(main())


@pytest.mark.parametrize("name", ["__consumer_offsets", "__offsets"])
def test_internal_topics_are_refused(tmp_path: Path, name: str) -> None:
    async def main() -> Any:
        async with gateway(tmp_path) as serving:
            client = await RawClient.connect(serving)
            return await produce(client, batch([b"a"]), name=name)

    wanted = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION if name == "__offsets" else ErrorCode.INVALID_TOPIC_EXCEPTION
    assert run(main()).error_code == wanted


def test_a_wrong_crc_is_corrupt_message_and_not_stored(tmp_path: Path) -> None:
    async def main() -> None:
        async with gateway(tmp_path) as serving:
            await topic(serving)
            client = await RawClient.connect(serving)
            good = batch([b"value"])
            for index in range(17, len(good)):
                bad = bytearray(good)
                bad[index] ^= 0x40
                answer = await produce(client, bytes(bad))
                assert answer.error_code == ErrorCode.CORRUPT_MESSAGE, index
            assert await fetched(client) == b""
            assert (await produce(client, good)).base_offset == 0, "a refused batch takes no offset"

    run(main())


@pytest.mark.parametrize("magic", [0, 1, 3, -1])
def test_another_magic_is_refused(tmp_path: Path, magic: int) -> None:
    async def main() -> None:
        async with gateway(tmp_path) as serving:
            await topic(serving)
            client = await RawClient.connect(serving)
            bad = bytearray(batch([b"a"]))
            struct.pack_into(">b", bad, 16, magic)
            answer = await produce(client, bytes(bad))
            assert answer.error_code in (ErrorCode.INVALID_RECORD, ErrorCode.CORRUPT_MESSAGE)
            assert await fetched(client) == b""

    run(main())


@pytest.mark.parametrize(
    "records",
    [None, b"", b"\0" * 10, batch([b"a"]) + batch([b"b"]), batch([b"a"])[:-1], batch([b"a"]) + b"\0"],
    ids=["null", "empty", "short", "two batches", "truncated", "a byte too many"],
)
def test_anything_but_one_whole_batch_is_refused(tmp_path: Path, records: bytes | None) -> None:
    async def main() -> None:
        async with gateway(tmp_path) as serving:
            await topic(serving)
            client = await RawClient.connect(serving)
            assert (await produce(client, records)).error_code in (ErrorCode.INVALID_RECORD, ErrorCode.CORRUPT_MESSAGE)
            assert await fetched(client) == b""

    run(main())


def test_zstd_below_version_7_is_unsupported_compression_type(tmp_path: Path) -> None:
    async def main() -> None:
        async with gateway(tmp_path) as serving:
            await topic(serving)
            client = await RawClient.connect(serving)
            zstd = batch([b"a" * 100], codec=Codec.ZSTD)
            assert (await produce(client, zstd, version=6)).error_code == ErrorCode.UNSUPPORTED_COMPRESSION_TYPE
            assert await fetched(client) == b""
            assert (await produce(client, zstd, version=7)).error_code == 0

    run(main())


@pytest.mark.parametrize("codec", list(Codec))
def test_batches_are_stored_as_they_came(tmp_path: Path, codec: Codec) -> None:
    async def main() -> None:
        async with gateway(tmp_path) as serving:
            await topic(serving)
            client = await RawClient.connect(serving)
            sent = batch([b"x" * 1000] * 10, codec=codec)
            assert (await produce(client, sent)).error_code == 0
            stored = await fetched(client)
            assert stored[HEADER_SIZE - 40 :] == sent[HEADER_SIZE - 40 :]  # all that the CRC covers
            assert read_header(stored).codec == codec

    run(main())


@pytest.mark.parametrize("kind", ["uncompressed", "gzip", "snappy", "lz4", "zstd"])
def test_compression_type_stores_batches_in_that_codec(tmp_path: Path, kind: str) -> None:
    async def main() -> None:
        async with gateway(tmp_path) as serving:
            await topic(serving, compression_type=kind)
            client = await RawClient.connect(serving)
            for codec in Codec:
                assert (await produce(client, batch([b"x" * 1000] * 3, codec=codec))).error_code == 0
            wanted = Codec.NONE if kind == "uncompressed" else Codec[kind.upper()]
            stored = await fetched(client)
            batches = [(header, stored[pos : pos + header.size]) for pos, header in iter_batches(stored)]
            assert [header.codec for header, _ in batches] == [wanted] * len(Codec)
            for _, data in batches:
                assert [record.value for record in iter_records(data, max_bytes=2**20)] == [b"x" * 1000] * 3

    run(main())


def test_lz4_of_linked_blocks_is_refused_since_java_does_not_read_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kop.records.batch.compress", lambda _, body: lz4.frame.compress(body, block_linked=True))
    linked = batch([random.Random(4).randbytes(100_000)], codec=Codec.LZ4)
    monkeypatch.undo()

    async def main() -> None:
        async with gateway(tmp_path) as serving:
            await topic(serving)
            client = await RawClient.connect(serving)
            assert (await produce(client, linked)).error_code == ErrorCode.INVALID_RECORD

    run(main())


def test_a_batch_over_max_message_bytes_is_message_too_large(tmp_path: Path) -> None:
    async def main() -> None:
        async with gateway(tmp_path) as serving:
            await topic(serving, max_message_bytes="1000")
            client = await RawClient.connect(serving)
            assert (await produce(client, batch([b"x" * 2000]))).error_code == ErrorCode.MESSAGE_TOO_LARGE
            assert (await produce(client, batch([b"x" * 500]))).error_code == 0

    run(main())


def test_log_append_time_rewrites_attributes_timestamps_and_crc(tmp_path: Path) -> None:
    async def main() -> None:
        async with gateway(tmp_path) as serving:
            await topic(serving, message_timestamp_type="LogAppendTime")
            client = await RawClient.connect(serving)
            answer = await produce(client, batch([b"a", b"b"], timestamp=5))
            assert answer.log_append_time_ms > 1_700_000_000_000
            stored = await fetched(client)
            header = read_header(stored)  # the next line checks the CRC
            assert [r.timestamp for r in iter_records(stored, max_bytes=2**20)] == [answer.log_append_time_ms] * 2
            assert (header.log_append_time, header.max_timestamp) == (True, answer.log_append_time_ms)
            (again,) = [h for _, h in iter_batches(stored)]
            assert again == header

    run(main())


def test_timestamps_are_judged_by_the_records_and_not_by_what_the_header_says(tmp_path: Path) -> None:
    async def main() -> None:
        async with gateway(tmp_path) as serving:
            now = int(time.time() * 1000)
            bounds: dict[str, Any] = {
                "message_timestamp_before_max_ms": "60000",
                "message_timestamp_after_max_ms": "60000",
            }
            await topic(serving, **bounds)
            client = await RawClient.connect(serving)
            for delta in (-120_000, 120_000):
                record = [Record(0, now, None, b"a"), Record(1, now + delta, None, b"b"), Record(2, now, None, b"c")]
                lying = sealed(bytes(build(record))[HEADER_SIZE:], 3, 0, now)
                assert read_header(lying).max_timestamp < now
                assert (await produce(client, lying)).error_code == ErrorCode.INVALID_TIMESTAMP
            without_time = [Record(0, -1, None, b"a"), Record(1, now, None, b"b")]
            assert (await produce(client, bytes(build(without_time)))).error_code == 0

    run(main())


@pytest.mark.parametrize("codec", [Codec.NONE, Codec.GZIP])
def test_records_with_a_timestamp_that_is_not_allowed_are_named(tmp_path: Path, codec: Codec) -> None:
    async def main() -> None:
        async with gateway(tmp_path) as serving:
            await topic(serving, message_timestamp_before_max_ms="60000", message_timestamp_after_max_ms="60000")
            client = await RawClient.connect(serving)
            now = int(time.time() * 1000)
            times = [now - 3_600_000, now, -1, now + 3_600_000]
            records = [Record(index, timestamp, None, b"v") for index, timestamp in enumerate(times)]
            for version in (7, 8, NEWEST):
                part = await produce(client, bytes(build(records, codec=codec)), version=version)
                assert part.error_code == ErrorCode.INVALID_TIMESTAMP
                if version >= 8:
                    assert part.error_message == "One or more records have been rejected due to invalid timestamp"
                    refused = {row.batch_index: row.batch_index_error_message for row in part.record_errors}
                    assert list(refused) == [0, 3]
                    for index, text in refused.items():
                        start = f"Timestamp {times[index]} of message with offset {index} is out of range. "
                        assert text.startswith(start + "The timestamp should be within [")
            assert await fetched(client) == b""

    run(main())


@pytest.mark.parametrize("codec", [Codec.NONE, Codec.ZSTD])
def test_no_record_of_a_long_batch_is_named_for_its_timestamp(tmp_path: Path, codec: Codec) -> None:
    """Else the client takes those that are not named for innocent."""

    async def main() -> None:
        async with gateway(tmp_path) as serving:
            await topic(serving, message_timestamp_before_max_ms="60000")
            client = await RawClient.connect(serving)
            part = await produce(client, batch([b"v"] * (MOST_NAMED + 1), codec=codec))
            assert (part.error_code, part.record_errors) == (ErrorCode.INVALID_TIMESTAMP, [])
            assert "timestamps out of range" in part.error_message

    run(main())


@pytest.mark.parametrize("codec", [Codec.NONE, Codec.GZIP])
@pytest.mark.parametrize("store", ["sqlite", "memory:"])
def test_a_batch_copied_from_a_log_append_time_topic_gets_its_records_own_times(
    tmp_path: Path, store: str, codec: Codec
) -> None:
    async def main() -> None:
        async with gateway(tmp_path, **({} if store == "sqlite" else {"store": store})) as serving:
            await topic(serving)
            await topic(serving, "other codec", compression_type="zstd")
            client = await RawClient.connect(serving)
            honest = batch([b"a", b"b", b"c"], timestamp=5_000, codec=codec)
            copied = around(honest[HEADER_SIZE:], 3, codec | 8, 5_000, max_timestamp=T)
            assert (await produce(client, copied)).error_code == 0
            assert await fetched(client) == honest
            assert (await produce(client, copied, name="other codec")).error_code == 0
            stored = await fetched(client, name="other codec")
            header = read_header(stored)
            assert (header.attributes, header.max_timestamp) == (Codec.ZSTD, 5_002)
            assert [record.timestamp for record in iter_records(stored, max_bytes=1 << 20)] == [5_000, 5_001, 5_002]

    run(main())


@pytest.mark.parametrize("codec", [Codec.NONE, Codec.GZIP])
@pytest.mark.parametrize("engine_checks", [False, True])
def test_the_bit_of_log_append_time_is_refused_where_kafka_refuses_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, codec: Codec, engine_checks: bool
) -> None:
    async def main() -> None:
        async with gateway(tmp_path) as serving:
            engine = serving.gateway.engine
            monkeypatch.setattr(engine, "promises", replace(engine.promises, checks_records=engine_checks))
            await topic(serving)
            await topic(serving, "timed", message_timestamp_type="LogAppendTime")
            client = await RawClient.connect(serving)
            records = batch([b"a", b"b"], timestamp=5_000, codec=codec)[HEADER_SIZE:]
            for name, time_of_all in (("timed", T), ("timed", -1), ("t", -1), ("t", 2**62)):
                part = await produce(client, around(records, 2, codec | 8, 5_000, max_timestamp=time_of_all), name=name)
                assert part.error_code == ErrorCode.INVALID_TIMESTAMP, (name, time_of_all)
                named = [row.batch_index for row in part.record_errors]
                assert named == ([0, 1] if time_of_all > 0 and name == "t" else [])
            assert await fetched(client) + await fetched(client, name="timed") == b""

    run(main())


@pytest.mark.parametrize("bits", [0x40, 0x80, 0x100, 0x4000, -0x8000])
def test_bits_without_a_meaning_go_if_the_header_is_written_anew(tmp_path: Path, bits: int) -> None:
    """That of a delete horizon stays, as in Kafka."""

    async def main() -> None:
        async with gateway(tmp_path) as serving:
            await topic(serving)
            client = await RawClient.connect(serving)
            records = batch([b"a", b"b"], timestamp=5_000)[HEADER_SIZE:]
            for offset, (largest, kept) in enumerate(((5_001, bits), (-1, bits & 0x40), (T, bits & 0x40))):
                sent = around(records, 2, bits, 5_000, max_timestamp=largest)
                assert (await produce(client, sent)).error_code == 0
                header = read_header(await fetched(client, 2 * offset))
                assert (header.attributes, header.max_timestamp) == (kept, 5_001)
            control = around(records, 2, 0x20, 5_000)
            assert (await produce(client, control)).error_code == ErrorCode.INVALID_RECORD

    run(main())


@pytest.mark.parametrize("codec", list(Codec))
@pytest.mark.parametrize("claimed", [-1, 0, 2**62])
def test_the_largest_timestamp_is_that_of_the_records_as_in_kafka(tmp_path: Path, codec: Codec, claimed: int) -> None:
    async def main() -> None:
        async with gateway(tmp_path) as serving:
            await topic(serving)
            client = await RawClient.connect(serving)
            honest = batch([b"a", b"b", b"c"], timestamp=5_000, codec=codec)
            lying = around(honest[HEADER_SIZE:], 3, codec, 5_000, max_timestamp=claimed)
            assert (await produce(client, lying)).error_code == 0
            assert await fetched(client) == honest, "its checksum is renewed, too"

    run(main())


@pytest.mark.parametrize("codec", [Codec.GZIP, Codec.LZ4, Codec.ZSTD])
def test_a_bomb_on_a_topic_with_a_codec_of_its_own_is_invalid_record(tmp_path: Path, codec: Codec) -> None:
    """CORRUPT_MESSAGE would make clients send it again and again."""

    async def main() -> None:
        async with gateway(tmp_path) as serving:
            await topic(serving, compression_type="snappy")
            client = await RawClient.connect(serving)
            answer = await produce(client, bomb(codec, 65 << 20))
            assert answer.error_code == ErrorCode.INVALID_RECORD
            assert "decompress to more than 67108864 bytes" in answer.error_message
            assert await fetched(client) == b""

    run(main())


def test_null_keys_on_a_compacted_topic_are_invalid_record(tmp_path: Path) -> None:
    async def main() -> None:
        async with gateway(tmp_path) as serving:
            await topic(serving, cleanup_policy="compact")
            client = await RawClient.connect(serving)
            assert (await produce(client, batch([b"a"]))).error_code == ErrorCode.INVALID_RECORD
            assert (await produce(client, batch([b"a"], keys=[b"k"]))).error_code == 0

    run(main())


def test_a_transactional_id_with_plain_batches_is_no_transaction(tmp_path: Path) -> None:
    async def main() -> None:
        async with gateway(tmp_path) as serving:
            await topic(serving)
            client = await RawClient.connect(serving)
            fields = produce_fields("t", batch([b"a"]), version=9) | {"transactional_id": "tx"}
            answer = await client.call(0, 9, **fields)
            part = answer.responses[0].partition_responses[0]
            assert (part.error_code, part.base_offset) == (0, 0)

    run(main())


def test_a_transactional_batch_without_a_transactional_id_refuses_the_whole_request(tmp_path: Path) -> None:
    async def main() -> None:
        async with gateway(tmp_path) as serving:
            await topic(serving, partitions=2)
            client = await RawClient.connect(serving)
            of_transaction = batch([b"a"], transactional=True, producer_id=5, producer_epoch=0, base_sequence=0)
            fields = produce_fields("t", batch([b"plain"]), version=9)
            also = produce_fields("t", of_transaction, version=9, partition=1)["topic_data"][0].partition_data
            fields["topic_data"][0].partition_data += also
            answer = await client.call(0, 9, **fields)
            codes = [part.error_code for part in answer.responses[0].partition_responses]
            assert codes == [ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED] * 2
            assert await fetched(client) == b""
            assert (await produce(client, batch([b"plain"]))).base_offset == 0
            assert (await produce(client, batch([b"plain"]), partition=1)).base_offset == 0

    run(main())


@pytest.mark.parametrize("epoch", [-1, -2, -32768])
def test_a_negative_epoch_of_an_idempotent_producer_is_invalid_producer_epoch(tmp_path: Path, epoch: int) -> None:
    async def main() -> None:
        async with gateway(tmp_path) as serving:
            await topic(serving)
            client = await RawClient.connect(serving)
            sent = batch([b"a"], producer_id=5, producer_epoch=epoch, base_sequence=0)
            assert (await produce(client, sent)).error_code == ErrorCode.INVALID_PRODUCER_EPOCH
            assert await fetched(client) == b""
            without_id = batch([b"a"], producer_id=-1, producer_epoch=epoch, base_sequence=7)
            assert (await produce(client, without_id)).base_offset == 0, "epochs mean nothing without a producer id"

    run(main())


def test_a_duplicate_of_an_idempotent_producer_gets_the_first_ones_offset(tmp_path: Path) -> None:
    async def main() -> None:
        async with gateway(tmp_path) as serving:
            await topic(serving)
            client = await RawClient.connect(serving)
            producer = (await client.call(22, 4, transactional_id=None, transaction_timeout_ms=0)).producer_id
            sent = batch([b"a", b"b"], producer_id=producer, producer_epoch=0, base_sequence=0)
            # A retry sent before the first copy is answered, and one after it.
            first = client.send(0, NEWEST, **produce_fields("t", sent, version=NEWEST))
            second = client.send(0, NEWEST, **produce_fields("t", sent, version=NEWEST))
            for wanted in (first, second):
                correlation, answer = await client.receive(0, NEWEST)
                part = answer.responses[0].partition_responses[0]
                assert (correlation, part.error_code, part.base_offset) == (wanted, 0, 0)
            again = await produce(client, sent)
            assert (again.error_code, again.base_offset) == (0, 0)
            gap = batch([b"c"], producer_id=producer, producer_epoch=0, base_sequence=5)
            assert (await produce(client, gap)).error_code == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
            after = batch([b"c"], producer_id=producer, producer_epoch=0, base_sequence=2)
            assert (await produce(client, after)).base_offset == 2

    run(main())


def test_the_window_survives_a_restart(tmp_path: Path) -> None:
    sent = batch([b"a"], producer_id=7, producer_epoch=0, base_sequence=0)

    async def once(wanted: tuple[int, int]) -> None:
        async with gateway(tmp_path) as serving:
            if serving.gateway.topics.get("t") is None:
                await topic(serving)
            client = await RawClient.connect(serving)
            answer = await produce(client, sent)
            assert (answer.error_code, answer.base_offset) == wanted
            stored = await fetched(client, max_wait_ms=60_000)  # after the restart it is read from the file
            assert len([h for _, h in iter_batches(stored)]) == 1

    run(once((0, 0)))
    run(once((0, 0)))


def test_a_change_of_a_topic_or_of_a_broker_setting_holds_for_the_next_request(tmp_path: Path) -> None:
    """What a request looked up of a topic is kept for the next one, until something changed."""

    async def main() -> None:
        async with gateway(tmp_path) as serving:
            made = await topic(serving)
            topics = serving.gateway.engine.topics
            client = await RawClient.connect(serving)
            large = batch([b"x" * 500])

            async def code(partition: int = 0) -> ErrorCode:
                return ErrorCode((await produce(client, large, partition=partition)).error_code)

            assert await code() == ErrorCode.NONE
            assert await code(1) == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            await topics.grow(made.topic_id, 2)
            assert await code(1) == ErrorCode.NONE
            await topics.set_configs(made.topic_id, {"max.message.bytes": "100", "retention.ms": "-1"})
            assert await code() == ErrorCode.MESSAGE_TOO_LARGE
            await topics.set_configs(made.topic_id, {"retention.ms": "-1"})
            assert await code() == ErrorCode.NONE
            await serving.gateway.broker_configs.alter("", lambda _: {"message.max.bytes": "100"})
            assert await code() == ErrorCode.MESSAGE_TOO_LARGE
            await serving.gateway.broker_configs.alter("", lambda _: {})
            assert await code() == ErrorCode.NONE
            await topics.delete(made.topic_id)
            assert await code() == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            await topic(serving)
            assert (await produce(client, large)).base_offset == 0

    run(main())
