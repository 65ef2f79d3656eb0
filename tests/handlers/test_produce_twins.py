"""A Produce is answered the same, byte for byte, whether the compiled module reads it or the readable code does.

Well-formed requests of every version and the same with damage; what is compared is the header, what is read, and the
answers of two gateways with the same topics that are given the same requests in the same order.
"""

from __future__ import annotations

import random
import struct
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from support.gateway import gateway, run
from support.produce_requests import NOW, any_body, request
from support.waiting import until

from kop.compiled import compiled
from kop.errors import FrameError, KopError
from kop.handlers import produce_request
from kop.handlers.api import Answer, ConnectionInfo, Context
from kop.handlers.produce import produce
from kop.records import _pure
from kop.records.batch import HEADER_SIZE, check_produced, is_transactional
from kop.wire import frame as wire_frame
from kop.wire.primitives import DecodeError
from kop.wire.produce import parse

NATIVE = compiled(produce_request)


@pytest.mark.parametrize("seed", range(4))
def test_headers_of_requests(seed: int) -> None:
    rng = random.Random(seed)
    for _ in range(3000):
        client = rng.choice([None, b"", b"client", "é".encode(), b"\xff"])
        data = struct.pack(
            ">hhih",
            rng.choice([0, 0, 1, 3, 18, 99, -1, 300]),
            rng.randrange(-1, 20),
            7,
            -1 if client is None else len(client),
        )
        data += (client or b"") + rng.choice([b"", b"\0", b"\1\2\1x", b"\1\2\x05", b"\x80\x80\x80\x80\x80\1"]) + b"body"
        data = data[: rng.randrange(9, len(data) + 1)]
        try:
            expected = tuple(wire_frame.parse_header(memoryview(data)))
        except DecodeError:
            with pytest.raises(DecodeError):
                wire_frame.request_header(memoryview(data))
        else:
            assert wire_frame.request_header(memoryview(data)) == expected


def expected(body: memoryview, version: int, walks: bool) -> Any:
    """What the compiled function has to give, by the readable code."""
    try:
        call = parse(body, version)
    except DecodeError:
        return None
    parts = [part for topic in call.topics for part in topic.partitions]
    return (
        call.transactional_id,
        call.acks,
        call.timeout_ms,
        any(is_transactional(part.records) for part in parts if part.records is not None),
        [
            (
                topic.topic.bytes if isinstance(topic.topic, UUID) else topic.topic,
                [(part.partition, part.records, *checked(part.records, version, walks)) for part in topic.partitions],
            )
            for topic in call.topics
        ],
    )  # fmt: skip


def checked(records: memoryview | None, version: int, walks: bool) -> tuple[Any, Any]:
    if records is None:
        return None, None
    try:
        header = check_produced(records, max_message_bytes=1 << 30, zstd_allowed=version >= 7)
        if header.log_append_time:
            return None, None
        times = None
        if walks and not header.codec:
            earliest, latest, without_key = _pure.walk(
                records, HEADER_SIZE, header.record_count, header.base_timestamp, True
            )
            times = (earliest, latest, bool(without_key))
    except KopError:
        return None, None
    return tuple(header), times


@pytest.mark.parametrize("walks", [False, True])
@pytest.mark.parametrize("version", range(14))
def test_what_is_read(version: int, walks: bool) -> None:
    rng = random.Random(version)
    names: list[Any] = ["t", "ü" * 50, ""] if version < 13 else [bytes(16), bytes(range(16))]
    read = 0
    for _ in range(400):
        body = memoryview(any_body(rng, version, names, {}))
        copies = rng.random() < 0.5
        fields = NATIVE.read_produce(body, version, walks, copies)
        if NATIVE is produce_request:
            assert fields is None
            continue
        assert fields == expected(body, version, walks)
        for _, batches in fields[4] if fields is not None else ():
            for _, records, header, _ in batches:
                read += header is not None
                assert records is None or isinstance(records, bytearray) == (copies and header is not None)
    assert read > 100 or NATIVE is produce_request


async def answered(gw: Any, body: bytes, version: int, owned: bool) -> Any:
    """The frame, or the reason for which the connection is closed."""
    ctx = Context(0, version, "c", NOW, ConnectionInfo("1.2.3.4", "", 0), gw.access, 77, owned)
    try:
        result = produce(gw, ctx, memoryview(bytearray(body)))
        if isinstance(result, Answer):
            ready = result
            await until(lambda: ready.ready)
            if result.error is not None:
                raise result.error
            result = result.frame
    except FrameError as error:
        return str(error)
    return result and bytes(result[0])


def with_other_ids(data: bytes, ours: list[bytes], others: list[bytes]) -> bytes:
    for mine, other in zip(ours, others, strict=True):
        data = data.replace(mine, other)
    return data


@pytest.mark.parametrize("seed", range(3))
def test_what_is_answered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    rng = random.Random(seed)

    async def main() -> None:
        async with gateway(tmp_path / "a") as first, gateway(tmp_path / "b") as second:
            ids: list[list[bytes]] = [[], []]
            for serving, topic_ids in ((first, ids[0]), (second, ids[1])):
                for name, configs in (
                    ("t", {"retention.ms": "-1"}),
                    ("compacted", {"cleanup.policy": "compact"}),
                    ("timed", {"message.timestamp.type": "LogAppendTime", "retention.ms": "-1"}),
                    ("small", {"max.message.bytes": "100", "retention.ms": "-1"}),
                    ("lz4", {"compression.type": "lz4", "retention.ms": "-1"}),
                ):
                    made = await serving.gateway.engine.topics.create(name, 3, configs)
                    topic_ids.append(made.topic_id.bytes)
            names = ["t", "t", "t", "compacted", "timed", "small", "lz4", "missing", "__consumer_offsets"]
            sequences: dict[int, int] = {}
            closed = 0
            for _ in range(250):
                version = rng.choice([0, 3, 5, 7, 8, 9, 11, 12, 13])
                body = any_body(rng, version, names if version < 13 else [*ids[0], bytes(16)], sequences)
                body_of_two = with_other_ids(body, *ids)
                owned = rng.random() < 0.5
                monkeypatch.setattr(produce_request, "twin", NATIVE)
                compiled_answer = await answered(first.gateway, body, version, owned)
                monkeypatch.setattr(produce_request, "twin", produce_request)
                readable_answer = await answered(second.gateway, body_of_two, version, owned)
                if isinstance(compiled_answer, bytes):
                    compiled_answer = with_other_ids(compiled_answer, *ids)
                assert compiled_answer == readable_answer
                closed += isinstance(compiled_answer, str)
            assert 10 < closed < 150

    run(main())


def test_the_views_of_a_request_that_is_refused_are_let_go() -> None:
    body = memoryview(request(9, [("t", [(0, b"x" * 100)])]))
    fields = produce_request.read(body, 9, walks=True, copies=True)
    del fields
    body.release()
