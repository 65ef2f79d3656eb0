"""Kafka requests as bytes, made once and patched for every send, and the little that a load reads of the answers.

Owns: the layouts of InitProducerId 4, Produce 12, Fetch 12 and OffsetCommit 8, all in the flexible form.
Must not know: sockets, rows of the benchmark.
"""

from __future__ import annotations

import random
import string
import struct
import time
from collections.abc import Iterable

import crc32c

from kop.records.batch import build
from kop.records.compression import Codec
from kop.records.record import Record

PRODUCE, FETCH, OFFSET_COMMIT, FIND_COORDINATOR, INIT_PRODUCER_ID = 0, 1, 8, 10, 22
VERSIONS = {PRODUCE: 12, FETCH: 12, OFFSET_COMMIT: 8, FIND_COORDINATOR: 4, INIT_PRODUCER_ID: 4}
CORRELATION_AT = 8
"""Where the correlation id lies in a request that has its length in front."""
BODY_AT = 9
"""Where the body of an answer begins: after its length, the correlation id and no tags."""
SEQUENCES = 2**31


def uvarint(value: int) -> bytes:
    """An unsigned varint."""
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    out.append(value)
    return bytes(out)


def read_uvarint(data: bytes, pos: int) -> tuple[int, int]:
    """The value at `pos`, and where the next field begins."""
    value = shift = 0
    while True:
        byte = data[pos]
        value |= (byte & 127) << shift
        pos, shift = pos + 1, shift + 7
        if byte < 128:
            return value, pos


def text(value: str | None) -> bytes:
    """A compact string, or null."""
    return b"\0" if value is None else uvarint(len(value) + 1) + value.encode()


def array(items: Iterable[bytes]) -> bytes:
    """A compact array of encoded items."""
    encoded = list(items)
    return uvarint(len(encoded) + 1) + b"".join(encoded)


def request(api: int, body: bytes) -> bytearray:
    """A whole request with its length in front and correlation id 0."""
    head = struct.pack(">hhi", api, VERSIONS[api], 0) + struct.pack(">h", 5) + b"bench" + b"\0"
    return bytearray(struct.pack(">i", len(head) + len(body)) + head + body)


# --- Produce


def values(count: int, size: int, compressible: bool) -> list[bytes]:
    """Values of records: random bytes, or lines of text that compress to about a third."""
    dice = random.Random(count)
    if not compressible:
        return [dice.randbytes(size) for _ in range(count)]
    words = ["".join(dice.choices(string.ascii_lowercase, k=dice.randint(2, 10))) for _ in range(500)]
    return [" ".join(dice.choices(words, k=size // 3)).encode()[:size] for _ in range(count)]


def batch(records: int, size: int, codec: str = "none", producer: tuple[int, int] = (-1, -1)) -> bytes:
    """A batch of `records` values of `size` bytes by a producer (id and epoch), sequences from 0."""
    now = int(time.time() * 1000)
    made = [Record(i, now, None, value) for i, value in enumerate(values(records, size, codec != "none"))]
    producer_id, epoch = producer
    sequence = 0 if producer_id >= 0 else -1
    return bytes(
        build(
            made,
            codec=Codec[codec.upper()],
            producer_id=producer_id,
            producer_epoch=epoch,
            base_sequence=sequence,
        )
    )


class ProduceRequest:
    """One Produce request with a batch for each of `partitions`, to be sent over and over.

    An idempotent one gets the next sequences and its checksum before every send.
    """

    def __init__(self, topic: str, partitions: list[int], batch: bytes) -> None:
        inside = uvarint(len(batch) + 1) + batch + b"\0"
        data = array(struct.pack(">i", number) + inside for number in partitions)
        body = text(None) + struct.pack(">hi", -1, 30_000) + array([text(topic) + data + b"\0"]) + b"\0"
        self._frame = request(PRODUCE, body)
        self._batches = []
        end = len(self._frame) - 2  # the tags of the topic and of the request
        for _ in partitions:
            self._batches.append(end - 1 - len(batch))
            end -= 4 + len(inside)
        self._view = memoryview(self._frame)
        self._size = len(batch)
        self._records = struct.unpack_from(">i", batch, 57)[0]
        self._idempotent = struct.unpack_from(">q", batch, 43)[0] >= 0
        self._sequence = 0
        self._errors_at = BODY_AT + 1 + len(text(topic)) + len(uvarint(len(partitions) + 1)) + 4
        self._answers = len(partitions)

    def next(self, correlation: int) -> bytes:
        """The bytes to send."""
        struct.pack_into(">i", self._frame, CORRELATION_AT, correlation)
        if self._idempotent:
            for at in self._batches:
                struct.pack_into(">i", self._frame, at + 53, self._sequence)
                checksum = crc32c.crc32c(self._view[at + 21 : at + self._size])
                struct.pack_into(">I", self._frame, at + 17, checksum)
            self._sequence = (self._sequence + self._records) % SEQUENCES
        return bytes(self._frame)

    def error(self, answer: bytes) -> int:
        """The first error code of an answer with its length in front, 0 for none."""
        for i in range(self._answers):
            at = self._errors_at + 33 * i  # as long as it is when there is no error
            if answer[at : at + 2] != b"\0\0":
                return int(struct.unpack_from(">h", answer, at)[0])
        return 0


# --- the others


def find_coordinator(group: str) -> bytearray:
    """Ask for the coordinator of a group; it is made by the answer where groups have not been used."""
    return request(FIND_COORDINATOR, b"\0" + array([text(group)]) + b"\0")


def init_producer_id() -> bytearray:
    """Ask for the id of an idempotent producer."""
    return request(INIT_PRODUCER_ID, text(None) + struct.pack(">iqh", 60_000, -1, -1) + b"\0")


def producer_of(answer: bytes) -> tuple[int, int, int]:
    """The error code, the producer's id and its epoch."""
    error, producer_id, epoch = struct.unpack_from(">hqh", answer, BODY_AT + 4)
    return error, producer_id, epoch


class CommitRequest:
    """OffsetCommit of one partition by a consumer that is alone in its group and no member of it."""

    def __init__(self, group: str, topic: str, partition: int) -> None:
        self._offset = 0
        self._head = text(group) + struct.pack(">i", -1) + text("") + text(None)
        self._topic = text(topic)
        self._partition = partition
        self._error_at = BODY_AT + 4 + 1 + len(self._topic) + 1 + 4

    def next(self, correlation: int) -> bytes:
        """The bytes to send: another offset every time."""
        self._offset += 1
        partition = struct.pack(">iqi", self._partition, self._offset, -1) + text("") + b"\0"
        frame = request(OFFSET_COMMIT, self._head + array([self._topic + array([partition]) + b"\0"]) + b"\0")
        struct.pack_into(">i", frame, CORRELATION_AT, correlation)
        return bytes(frame)

    def error(self, answer: bytes) -> int:
        """The error code."""
        return int(struct.unpack_from(">h", answer, self._error_at)[0])


class FetchRequest:
    """Fetch of one partition from an offset that every answer moves on, as a consumer without a session sends it."""

    def __init__(self, topic: str, partition: int, most_bytes: int) -> None:
        self.offset = 0
        self._topic, self._partition, self._most = text(topic), partition, most_bytes
        self._error_at = BODY_AT + 4 + 2 + 4 + 1 + len(self._topic) + 1 + 4

    def next(self, correlation: int) -> bytes:
        """The bytes to send."""
        partition = struct.pack(">iiqiqi", self._partition, -1, self.offset, -1, -1, self._most) + b"\0"
        body = (
            struct.pack(">iiiibii", -1, 500, 1, self._most, 0, 0, -1)
            + array([self._topic + array([partition]) + b"\0"])
            + array([])
            + text("")
            + b"\0"
        )
        frame = request(FETCH, body)
        struct.pack_into(">i", frame, CORRELATION_AT, correlation)
        return bytes(frame)

    def error(self, answer: bytes) -> int:
        """The error code of the answer; without one `offset` moves behind its last whole batch."""
        if answer[BODY_AT + 10] != 2:  # no topic in it: the request failed as a whole
            return int(struct.unpack_from(">h", answer, BODY_AT + 4)[0])
        error = int(struct.unpack_from(">h", answer, self._error_at)[0])
        if error:
            return error
        pos = self._error_at + 2 + 3 * 8
        aborted, pos = read_uvarint(answer, pos)
        assert aborted <= 1, "the topic has transactions"
        size, pos = read_uvarint(answer, pos + 4)
        end = pos + size - 1
        while pos + 61 <= end:
            base, length = struct.unpack_from(">qi", answer, pos)
            if pos + 12 + length > end:
                break
            self.offset = base + struct.unpack_from(">i", answer, pos + 23)[0] + 1
            pos += 12 + length
        return 0
