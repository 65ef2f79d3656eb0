"""Reads stored record batches off a partition with nothing but a socket: Fetch version 11, written out by hand.

Owns: an independent look at what the server stored (codec bits, timestamp type, producer id, sequences), so that a
client that quietly stops compressing is noticed although it reads its own records back happily.

Must not know: any client library.
"""

from __future__ import annotations

import socket
import struct
from dataclasses import dataclass

CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
_FETCH, _METADATA = 1, 3


@dataclass(slots=True, frozen=True)
class Batch:
    """The header of one stored batch."""

    base_offset: int
    length: int
    magic: int
    attributes: int
    last_offset_delta: int
    base_timestamp: int
    max_timestamp: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    count: int

    @property
    def codec(self) -> str:
        return CODECS[self.attributes & 7]

    @property
    def log_append_time(self) -> bool:
        return bool(self.attributes & 8)

    @property
    def transactional(self) -> bool:
        return bool(self.attributes & 16)


class FetchError(Exception):
    """The partition answered with an error code."""

    def __init__(self, code: int) -> None:
        super().__init__(f"Fetch answered error code {code}")
        self.code = code


def _string(text: str) -> bytes:
    raw = text.encode()
    return struct.pack(">h", len(raw)) + raw


def call(host: str, port: int, api_key: int, version: int, body: bytes, timeout: float = 10) -> bytes:
    """One request with header version 1 on a connection of its own; the body of its answer."""
    frame = struct.pack(">hhi", api_key, version, 7) + _string("conformance-rawlog") + body
    with socket.create_connection((host, port), timeout) as sock:
        sock.sendall(struct.pack(">i", len(frame)) + frame)
        size = struct.unpack(">i", _exactly(sock, 4))[0]
        answer = _exactly(sock, size)
    if struct.unpack(">i", answer[:4])[0] != 7:
        raise FetchError(-1)
    return answer[4:]


def _exactly(sock: socket.socket, size: int) -> bytes:
    parts = bytearray()
    while len(parts) < size:
        chunk = sock.recv(size - len(parts))
        if not chunk:
            raise ConnectionError("closed in the middle of an answer")
        parts += chunk
    return bytes(parts)


def fetch_records(host: str, port: int, topic: str, partition: int, offset: int, max_bytes: int = 8 << 20) -> bytes:
    """The raw records of one Fetch at `offset`."""
    # replica, max wait, min bytes, max bytes, isolation, session id and epoch (none), one topic of one partition
    body = struct.pack(">iiiibiii", -1, 500, 1, max_bytes, 0, 0, -1, 1) + _string(topic)
    # leader epoch unknown, log start of a follower; then no forgotten topics, no rack
    body += struct.pack(">iiiqqi", 1, partition, -1, offset, -1, max_bytes) + struct.pack(">i", 0) + _string("")
    answer = call(host, port, _FETCH, 11, body)
    error = struct.unpack_from(">h", answer, 4)[0]
    if error:
        raise FetchError(error)
    at = 14  # after throttle time, error, session id and number of topics
    at += 2 + struct.unpack_from(">h", answer, at)[0] + 4
    _, error, _, _, _, aborted = struct.unpack_from(">ihqqqi", answer, at)
    if error:
        raise FetchError(error)
    at += 34 + max(aborted, 0) * 16 + 4  # and the preferred replica
    size = struct.unpack_from(">i", answer, at)[0]
    return answer[at + 4 : at + 4 + max(size, 0)]


def leader(host: str, port: int, topic: str, partition: int) -> tuple[str, int]:
    """The address of a partition's leader, by Metadata version 1; the one given where none is named."""
    answer = call(host, port, _METADATA, 1, struct.pack(">i", 1) + _string(topic))
    at = 0

    def take(form: str) -> int:
        nonlocal at
        value: int = struct.unpack_from(form, answer, at)[0]
        at += struct.calcsize(form)
        return value

    def text() -> str:
        nonlocal at
        size = max(take(">h"), 0)
        at += size
        return answer[at - size : at].decode()

    brokers = {}
    for _ in range(take(">i")):
        node = take(">i")
        brokers[node] = (text(), take(">i"))
        text()  # the rack
    take(">i")  # the controller
    for _ in range(take(">i")):
        take(">h")
        text()
        take(">b")
        for _ in range(take(">i")):
            take(">h")
            index, node = take(">i"), take(">i")
            for _ in ("replicas", "in sync"):
                count = take(">i")
                at += 4 * count
            if index == partition and node in brokers:
                return brokers[node]
    return host, port


def batches(host: str, port: int, topic: str, partition: int = 0, offset: int = 0) -> list[Batch]:
    """Every batch stored from `offset` to the end of the partition."""
    host, port = leader(host, port, topic, partition)
    batches: list[Batch] = []
    while True:
        raw = fetch_records(host, port, topic, partition, offset)
        before, at = offset, 0
        while at + 61 <= len(raw):
            batch = _header(raw, at)
            if at + 12 + batch.length > len(raw):
                break
            batches.append(batch)
            at += 12 + batch.length
            offset = batch.base_offset + batch.last_offset_delta + 1
        if offset == before:
            return batches


def _header(raw: bytes, at: int) -> Batch:
    base_offset, length, _, magic, _, attributes, last_delta, base_ts, max_ts, pid, epoch, sequence, count = (
        struct.unpack_from(">qiibIhiqqqhii", raw, at)
    )
    return Batch(base_offset, length, magic, attributes, last_delta, base_ts, max_ts, pid, epoch, sequence, count)
