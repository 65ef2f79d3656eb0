"""Produce of records that no consumer gets past: refused, and neither stored nor counted, by every engine."""

from __future__ import annotations

import gc
import tracemalloc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.damaged_batches import PLAIN, around, batches, bomb, sealed
from support.gateway import RawClient, batch, fetch_fields, gateway, produce_fields, run
from support.pulsar import Urls, fresh_namespace
from support.pulsar_gateway import PulsarGateway

from kop.cluster import topic_configs
from kop.errors import ErrorCode
from kop.handlers import produce as produce_handler
from kop.records.batch import iter_batches, iter_records
from kop.records.compression import Codec
from kop.wire.messages import CreateTopicsRequest, ListOffsetsRequest

NEWEST = 12
"""The newest version that goes by name."""
INVALID = (ErrorCode.INVALID_RECORD, -1)


async def produce(client: RawClient, name: str, records: bytes, version: int = NEWEST) -> Any:
    answer = await client.call(0, version, **produce_fields(name, records, version=version))
    return answer.responses[0].partition_responses[0]


async def make(client: RawClient, name: str, **configs: str) -> None:
    topic = CreateTopicsRequest.CreatableTopic
    rows = [
        topic.CreatableTopicConfig(version=4, name=key.replace("_", "."), value=value)
        for key, value in {"retention.ms": "-1", **configs}.items()
    ]
    made = topic(version=4, name=name, num_partitions=1, replication_factor=1, assignments=[], configs=rows)
    answer = await client.call(19, 4, topics=[made], timeout_ms=20_000, validate_only=False)
    assert answer.topics[0].error_code == 0, answer


async def log_end(client: RawClient, name: str) -> int:
    topic = ListOffsetsRequest.ListOffsetsTopic
    part = topic.ListOffsetsPartition(version=4, partition_index=0, current_leader_epoch=-1, timestamp=-1)
    wanted = topic(version=4, name=name, partitions=[part])
    answer = await client.call(2, 4, replica_id=-1, isolation_level=0, topics=[wanted])
    partition = answer.topics[0].partitions[0]
    assert partition.error_code == 0
    end: int = partition.offset
    return end


async def refuses_all(client: RawClient, name: str, codec: Codec, **configs: str) -> None:
    """Every damage gets its error, the log end stays, and good batches before and behind are read."""
    await make(client, name, **configs)
    assert (await produce(client, name, batch([b"before"], codec=codec))).base_offset == 0
    answers = {what: await produce(client, name, data) for what, data in batches(codec).items()}
    assert {what: (part.error_code, part.base_offset) for what, part in answers.items()} == dict.fromkeys(
        answers, INVALID
    )
    assert all(part.error_message for part in answers.values())
    assert await log_end(client, name) == 1
    assert (await produce(client, name, batch([b"behind"], codec=codec))).base_offset == 1
    assert await values(client, name) == [b"before", b"behind"]


async def values(client: RawClient, name: str) -> list[bytes | None]:
    answer = await client.call(1, NEWEST, **fetch_fields(name, 0, version=NEWEST, max_wait_ms=500))
    data: bytes = answer.responses[0].partitions[0].records
    return [
        record.value
        for pos, header in iter_batches(data)
        for record in iter_records(data[pos : pos + header.size], max_bytes=2**20)
    ]


@pytest.mark.parametrize("codec", Codec)
def test_damaged_records_are_refused(tmp_path: Path, codec: Codec) -> None:
    async def main() -> None:
        async with gateway(tmp_path) as serving:
            await refuses_all(await RawClient.connect(serving), "t", codec)

    run(main())


@pytest.fixture
def bounded_requests(monkeypatch: pytest.MonkeyPatch) -> None:
    """A request may decompress to 10 MiB, a batch to 4 MiB."""
    monkeypatch.setattr(produce_handler, "MOST_DECOMPRESSED", 10 << 20)
    monkeypatch.setattr(topic_configs, "WALK_AT_LEAST", 4 << 20)


async def has_room_for_so_much(client: RawClient, name: str, codec: Codec, **configs: str) -> None:
    """Bombs without end in one frame would hold the loop for as long as they like."""

    async def send(*records: bytes) -> list[tuple[int, int]]:
        parts = [produce_fields(name, data, version=9) for data in records]
        for more in parts[1:]:
            parts[0]["topic_data"][0].partition_data += more["topic_data"][0].partition_data
        answer = await client.call(0, 9, **parts[0])
        return [(part.error_code, part.base_offset) for part in answer.responses[0].partition_responses]

    await make(client, name, max_message_bytes="200000", **configs)
    later = (ErrorCode.KAFKA_STORAGE_ERROR, -1)
    bombs = [bomb(codec, 5 << 20)] * 5
    plain = batch([b"a"])
    assert await send(*bombs, plain) == [INVALID] * 3 + [later] * 2 + [(0, 0)]
    large = batch([bytes(3 << 20)], codec=codec)
    assert await send(*[large] * 5) == [(0, 1), (0, 2), (0, 3), (0, 4), later]
    small = batch([b"a" * 100], codec=codec)
    assert await send(*[small] * 100) == [(0, 5 + index) for index in range(100)]


@pytest.mark.usefixtures("bounded_requests")
def test_a_request_may_decompress_to_so_much_and_the_rest_is_to_be_sent_again(tmp_path: Path) -> None:
    async def main() -> None:
        async with gateway(tmp_path) as serving:
            await has_room_for_so_much(await RawClient.connect(serving), "t", Codec.ZSTD)

    run(main())


@pytest.fixture(scope="module")
def over_pulsar(pulsar_urls: Urls) -> Iterator[PulsarGateway]:
    with fresh_namespace(pulsar_urls) as pulsar:
        served = PulsarGateway(pulsar)
        try:
            yield served.start()
        finally:
            served.stop()


@pytest.mark.parametrize("entry_format", ["pulsar", "kafka"])
@pytest.mark.parametrize("codec", Codec)
def test_damaged_records_are_refused_over_pulsar(over_pulsar: PulsarGateway, codec: Codec, entry_format: str) -> None:
    name = f"damaged-{codec.name}-{entry_format}"

    async def main() -> None:
        client = await RawClient.open(*over_pulsar.address)
        try:
            await refuses_all(client, name, codec, kop_entry_format=entry_format)
        finally:
            await client.close()

    run(main())


@pytest.mark.usefixtures("bounded_requests")
@pytest.mark.parametrize("entry_format", ["pulsar", "kafka"])
def test_a_request_may_decompress_to_so_much_over_pulsar(over_pulsar: PulsarGateway, entry_format: str) -> None:
    async def main() -> None:
        client = await RawClient.open(*over_pulsar.address)
        try:
            await has_room_for_so_much(client, f"bombs-{entry_format}", Codec.ZSTD, kop_entry_format=entry_format)
        finally:
            await client.close()

    run(main())


LIMIT = 4 << 20
"""Bytes that a batch may decompress to in these tests."""


@pytest.fixture
def small_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(topic_configs, "WALK_AT_LEAST", LIMIT)


async def refused_without_a_trace(client: RawClient, name: str, **configs: str) -> None:
    """Ten refusals take no more memory than one batch at a time, and leave none of it taken.

    The cyclic garbage collector stands still: an error that is kept with its frames waits for it.
    """
    await make(client, name, max_message_bytes="200000", **configs)
    for codec in (Codec.GZIP, Codec.LZ4, Codec.ZSTD):
        for data in (bomb(codec, LIMIT + 1), sealed(bytes(LIMIT), 1, codec)):
            assert (await produce(client, name, data)).error_code == ErrorCode.INVALID_RECORD
            gc.collect()
            gc.disable()
            tracemalloc.start()
            try:
                before, _ = tracemalloc.get_traced_memory()
                for _ in range(10):
                    assert (await produce(client, name, data)).error_code == ErrorCode.INVALID_RECORD
                after, peak = tracemalloc.get_traced_memory()
            finally:
                tracemalloc.stop()
                gc.enable()
            assert after - before < LIMIT // 2
            assert peak - before < 3 * LIMIT
    assert await log_end(client, name) == 0


@pytest.mark.usefixtures("small_limit")
@pytest.mark.parametrize("configs", [{}, {"cleanup_policy": "compact"}, {"compression_type": "zstd"}], ids=str)
def test_memory_is_as_before_when_hostile_batches_were_refused(tmp_path: Path, configs: dict[str, str]) -> None:
    async def main() -> None:
        async with gateway(tmp_path) as serving:
            await refused_without_a_trace(await RawClient.connect(serving), "t", **configs)

    run(main())


@pytest.mark.usefixtures("small_limit")
@pytest.mark.parametrize("configs", [{}, {"kop_entry_format": "kafka"}, {"compression_type": "zstd"}], ids=str)
def test_memory_is_as_before_when_hostile_batches_were_refused_over_pulsar(
    over_pulsar: PulsarGateway, configs: dict[str, str]
) -> None:
    async def main() -> None:
        client = await RawClient.open(*over_pulsar.address)
        try:
            await refused_without_a_trace(client, "-".join(("hostile", *configs)).replace("_", "-"), **configs)
        finally:
            await client.close()

    run(main())


@pytest.mark.parametrize("bits", [5, 6, 7])
def test_an_unknown_codec_is_refused(tmp_path: Path, bits: int) -> None:
    async def main() -> None:
        async with gateway(tmp_path) as serving:
            client = await RawClient.connect(serving)
            await make(client, "t")
            answer = await produce(client, "t", around(PLAIN, 1, bits))
            assert answer.error_code == ErrorCode.UNSUPPORTED_COMPRESSION_TYPE
            assert await log_end(client, "t") == 0

    run(main())


@pytest.mark.parametrize("version", range(3, 13))
def test_every_version_says_as_much_as_it_can(tmp_path: Path, version: int) -> None:
    async def main() -> None:
        async with gateway(tmp_path) as serving:
            client = await RawClient.connect(serving)
            await make(client, "t")
            await make(client, "compacted", cleanup_policy="compact")
            part = await produce(client, "t", sealed(PLAIN * 2, 2), version)
            assert part.error_code == ErrorCode.INVALID_RECORD
            without_key = await produce(
                client, "compacted", batch([b"a", b"b", b"c"], keys=[None, b"k", None]), version
            )
            assert without_key.error_code == ErrorCode.INVALID_RECORD
            if version >= 8:
                assert "record 1 of 2" in part.error_message
                assert part.record_errors == []
                assert [error.batch_index for error in without_key.record_errors] == [0, 2]

    run(main())
