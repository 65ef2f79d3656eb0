"""What Apache Kafka's own classes said of record batches (vectors.json, made by make_vectors.py) holds of ours."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kop.errors import KopError
from kop.records.batch import (
    BatchHeader,
    Record,
    build,
    check_produced,
    iter_batches,
    iter_records,
    read_header,
    rewrite,
    stamp,
    stamp_log_append_time,
)
from kop.records.validation import check_records
from kop.storage.idempotence import ProducerStates

VECTORS: dict[str, Any] = json.loads((Path(__file__).parent / "vectors.json").read_text())
LIMIT = 1 << 20

# Kafka's answer is another one here, on purpose. No real client sends any of these.
OURS = {
    "base offset in a damaged second batch": "INVALID_RECORD",  # more than one batch is refused before it is looked at
    "byte behind the batch": "INVALID_RECORD",  # Kafka cuts it off in silence
    "compression type 5": "UNSUPPORTED_COMPRESSION_TYPE",  # Kafka fails with an unexpected exception
    "transactional without producer id": "INVALID_RECORD",  # Kafka stores a transaction of nobody
    "offset deltas 0 and 0": "INVALID_RECORD",  # Kafka stores two records with one offset
    "offset delta 5": "INVALID_RECORD",
    "key length -4": "INVALID_RECORD",  # Kafka reads it as null, other clients take it for a size
    "varint of 35 bits": "INVALID_RECORD",  # Kafka drops the upper bits
    "damaged GZIP": "INVALID_RECORD",  # Kafka fails with an unexpected exception
    "damaged SNAPPY": "INVALID_RECORD",
    "damaged LZ4": "INVALID_RECORD",
    "damaged ZSTD": "INVALID_RECORD",
    "gzip and then junk": "INVALID_RECORD",  # Kafka stops reading before it
}


def kafka_records() -> list[Record]:
    def data(text: str | None) -> bytes | None:
        return None if text is None else bytes.fromhex(text)

    return [
        Record(offset, timestamp, data(key), data(value), tuple((bytes.fromhex(k), data(v)) for k, v in headers))
        for offset, timestamp, key, value, headers in VECTORS["records"]
    ]


def produce(case: dict[str, Any]) -> str:
    data = memoryview(bytes.fromhex(case["hex"]))
    config = case.get("config", {})
    try:
        header = check_produced(
            data,
            max_message_bytes=int(config.get("max.message.bytes", LIMIT)),
            zstd_allowed=case.get("version", 9) >= 7,
        )
        check_records(data, header, "cleanup.policy" in config, LIMIT)
    except KopError as error:
        return error.code.name
    return "NONE"


@pytest.mark.parametrize("name", VECTORS["produce"])
def test_a_produced_batch_gets_kafkas_answer(name: str) -> None:
    case = VECTORS["produce"][name]
    assert produce(case) == OURS.get(name, case["kafka"])


def test_the_list_of_differences_holds_nothing_else() -> None:
    assert all(OURS[name] != VECTORS["produce"][name]["kafka"] for name in OURS)


@pytest.mark.parametrize("case", VECTORS["built_by_kafka"], ids=lambda case: f"codec{case['codec']}")
def test_batches_built_by_kafka_are_read(case: dict[str, Any]) -> None:
    data = bytes.fromhex(case["hex"])
    header = read_header(data)
    assert list(iter_records(data, max_bytes=LIMIT)) == kafka_records()
    assert header.codec == case["codec"]
    assert header.producer_id == case.get("producer_id", -1)
    assert header.transactional == case.get("transactional", False)
    assert (header.base_offset, header.last_offset) == (10, 14)


def test_without_compression_we_build_the_same_bytes_as_kafka() -> None:
    for case in VECTORS["built_by_kafka"]:
        if case["codec"] == 0:
            options = {name: value for name, value in case.items() if name not in ("hex", "codec")}
            assert build(kafka_records(), **options).hex() == case["hex"]


@pytest.mark.parametrize("codec", range(5))
def test_what_kafka_read_of_ours_is_what_was_written(codec: int) -> None:
    data = bytes.fromhex(VECTORS["read_by_kafka"][codec])
    assert read_header(data).codec == codec
    assert list(iter_records(data, max_bytes=LIMIT)) == kafka_records()


@pytest.mark.parametrize("case", VECTORS["append_time"], ids=lambda case: f"offset{case['first']}")
def test_append_time_is_stamped_as_kafka_stamps_it(case: dict[str, Any]) -> None:
    batch = bytearray.fromhex(case["before"])
    stamp(batch, case["first"])
    stamp_log_append_time(batch, case["append_time"])
    assert batch.hex() == case["stored"]


def comparable(header: BatchHeader) -> BatchHeader:
    """Without what may differ: the base timestamp (ours stays, Kafka takes the first kept record's) and its effects."""
    return header._replace(crc=0, batch_length=0, base_timestamp=header.base_timestamp if header.delete_horizon else 0)


def one_of(offsets: frozenset[int]) -> Callable[[Record], bool]:
    """Whether a record has one of these offsets."""
    return lambda record: record.offset in offsets


def test_compaction_writes_what_kafkas_cleaner_writes() -> None:
    unchanged = with_horizon = 0
    for case in VECTORS["filter"]:
        if case["keep_empty"]:
            continue  # Kafka keeps producers in batches without records, engines keep them elsewhere
        data, theirs = bytes.fromhex(case["hex"]), bytes.fromhex(case["kafka"])
        header = read_header(data)
        ours = rewrite(
            data,
            header,
            one_of(frozenset(case["keep"])),
            max_bytes=LIMIT,
            delete_horizon=case["now"] + case["delete_retention"],
        )
        if ours is None:
            assert theirs == b""
            continue
        ((_, written),) = iter_batches(theirs)
        result = read_header(ours)
        assert list(iter_records(ours, max_bytes=LIMIT)) == list(iter_records(theirs, max_bytes=LIMIT))
        assert comparable(result) == comparable(written)
        if ours is data:
            assert theirs == data
            unchanged += 1
        if result.delete_horizon:
            with_horizon += 1
            if not result.codec:
                assert bytes(ours) == theirs
        again = rewrite(ours, result, lambda _: True, max_bytes=LIMIT, delete_horizon=1)
        assert again is not None
        assert bytes(again) == bytes(ours)
    assert with_horizon > 20
    assert unchanged == 0  # every case that keeps all keeps a tombstone, which sets the horizon


def test_sequences_get_kafkas_answers() -> None:
    states, end = ProducerStates(), 0
    for producer_id, epoch, sequence, count, kafka in VECTORS["sequences"]:
        records = [Record(n, 1, b"k", b"v") for n in range(count)]
        batch = build(records, producer_id=producer_id, producer_epoch=epoch, base_sequence=sequence)
        header = read_header(batch)
        original, error = states.check(header)
        if original is None and error is None:
            entry = states.append(header, end, 0)
            assert entry is not None
            states.commit(entry)
            assert kafka == end
            end += count
        elif original is not None:
            assert kafka == original.base_offset
        else:
            assert error is not None
            assert kafka == error.code.name
