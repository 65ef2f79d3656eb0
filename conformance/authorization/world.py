"""The topics, groups and transactions that recorded requests are about, and how an answer is written down.

Owns: the names; the way to make everything on any server of Kafka's protocol; what stands in a recorded frame for what
servers choose themselves; the codes and names in an answer.
Must not know: which requests are recorded, who may do what.
"""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

from crc32c import crc32c

from kop.records.batch import build
from kop.records.record import Record
from kop.wire import codec
from kop.wire.messages import REQUESTS, RESPONSES

CLIENT_ID = "somebody"
SEEN, HIDDEN, MISSING, ABSENT = "topic-seen", "topic-hidden", "topic-missing", "topic-absent"
"""The first two are there."""
GROUP, HIDDEN_GROUP, LIVELY_GROUP, MISSING_GROUP = "group-seen", "group-hidden", "group-lively", "group-missing"
"""The first two have committed offsets, the third one has a member."""
OPEN, CALM, MISSING_TXN = "txn-open", "txn-calm", "txn-missing"
"""The first one has a transaction under way, the second one has had none."""
USER, MISSING_USER = "user-new", "user-missing"
"""Users that are not there."""

SEEN_ID, HIDDEN_ID = UUID("7a7a7a7a-0001-7a7a-7a7a-7a7a7a7a7a7a"), UUID("7a7a7a7a-0002-7a7a-7a7a-7a7a7a7a7a7a")
"""In a recorded frame: the ids of the topics."""
UNKNOWN_ID = UUID("7a7a7a7a-0003-4a7a-8a7a-7a7a7a7a7a7a")
"""An id that no topic has."""
PRODUCER_ID, PRODUCER_EPOCH = 0x7A7A7A7A7A7A7A01, 0x7A7A
"""In a recorded frame: the producer of the open transaction."""
MEMBER = f"{CLIENT_ID}-" + "7a7a" * 9
"""In a recorded frame: the member of the lively group, as long as any member's id of this client."""

RETENTION = {SEEN: "999999999911", HIDDEN: "999999999922"}
"""Their retention.ms, which tells that a config was shown. The records are old, and have to stay."""
RECORDS = {SEEN: "record of the seen topic", HIDDEN: "record of the hidden topic"}
OFFSETS = {GROUP: "offset of the seen group", HIDDEN_GROUP: "offset of the hidden group"}
"""The metadata of their committed offsets."""
_TOLD: dict[bytes, str] = {
    text.encode(): text
    for text in (
        *(SEEN, HIDDEN, MISSING, ABSENT, GROUP, HIDDEN_GROUP, LIVELY_GROUP, MISSING_GROUP, OPEN, CALM, MISSING_TXN),
        *RECORDS.values(),
        *OFFSETS.values(),
    )
} | {value.encode(): f"config of {topic}" for topic, value in RETENTION.items()}
_PRODUCER = struct.Struct(">qh")
_AGAIN = {3, 5, 6, 14, 15, 16, 51, 100}
"""Codes of a server that is not so far yet."""
_TIMEOUT = 30.0


class Closed(Exception):
    """The server closed the connection."""


class Connection:
    """One connection, one request at a time."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, client_id: str = CLIENT_ID) -> None:
        self._reader, self._writer, self._client_id = reader, writer, client_id

    @classmethod
    async def open(cls, host: str, port: int, client_id: str = CLIENT_ID, *, source: str | None = None) -> Connection:
        """Connect, from the address `source` if one is given."""
        local = None if source is None else (source, 0)
        return cls(*await asyncio.open_connection(host, port, limit=2**24, local_addr=local), client_id)

    def close(self) -> None:
        """Close."""
        self._writer.close()

    def send(self, frame: bytes) -> None:
        """Send a frame, its size included."""
        self._writer.write(frame)

    async def receive(self) -> bytes:
        """Return the next answer without its size. Raises `Closed`."""
        try:
            async with asyncio.timeout(_TIMEOUT):
                (size,) = struct.unpack(">i", await self._reader.readexactly(4))
                return await self._reader.readexactly(size)
        except (asyncio.IncompleteReadError, ConnectionError):
            raise Closed from None

    async def call(self, key: int, version: int, /, **fields: Any) -> Any:
        """Send a request and return its answer."""
        self.send(request_frame(key, version, fields, self._client_id))
        return decoded(key, version, await self.receive())


def _values(struct_field: Any, version: int, fields: Mapping[str, Any]) -> dict[str, Any]:
    values = {}
    for each in struct_field.fields.values():
        if each.name not in fields or not each.for_version_q(version):
            continue
        value = fields[each.name]
        if value is not None and each.is_struct_array():
            value = [each.data_class(version=version, **_values(each.array_of, version, item)) for item in value]
        elif value is not None and each.is_struct():
            value = each.data_class(version=version, **_values(each, version, value))
        values[each.name] = value
    return values


def request_frame(key: int, version: int, fields: Mapping[str, Any], client_id: str = CLIENT_ID) -> bytes:
    """Return a request's frame. Fields that the version has not are left out."""
    request = REQUESTS[key](version=version, **_values(REQUESTS[key]._struct, version, fields))
    tags = b"\0" if type(request).flexible_version_q(version) else b""
    return codec.encode_request(1, client_id, request, tags)


def decoded(key: int, version: int, answer: bytes) -> Any:
    """Return the message of an answer without its size."""
    begin = 5 if RESPONSES[key].flexible_version_q(version) and key != 18 else 4
    return codec.decode(RESPONSES[key], version, memoryview(answer), begin)


def batch(text: str, producer: tuple[int, int] | None = None) -> bytes:
    """Return a batch of one record; with a producer it is the first one of that in its transaction."""
    records = [Record(0, 1_700_000_000_000, None, text.encode(), [])]
    if producer is None:
        return bytes(build(records))
    producer_id, epoch = producer
    return bytes(build(records, producer_id=producer_id, producer_epoch=epoch, base_sequence=0, transactional=True))


@dataclass(slots=True)
class World:
    """What was made on one server, and what the server chose for it."""

    topic_ids: dict[str, UUID] = field(default_factory=dict)
    producer: tuple[int, int] = (-1, -1)
    """The producer of the open transaction: id and epoch."""
    member: str = ""
    """The member of the lively group."""

    async def make(self, conn: Connection) -> None:
        """Make everything on a server that has nothing of it."""
        topics = [
            {
                "name": name,
                "num_partitions": 2,
                "replication_factor": 1,
                "configs": [{"name": "retention.ms", "value": RETENTION[name]}],
            }
            for name in (SEEN, HIDDEN)
        ]
        made = await conn.call(19, 7, topics=topics, timeout_ms=30_000)
        self.topic_ids = {topic.name: topic.topic_id for topic in made.topics}
        await self._until_served(conn)
        data = [
            {"topic_id": topic_id, "partition_data": [{"index": 0, "records": batch(RECORDS[name])}]}
            for name, topic_id in self.topic_ids.items()
        ]
        # By id: by name they might go to the log of a topic of that name that is just being deleted.
        await _done(conn, 0, 13, transactional_id=None, acks=-1, timeout_ms=30_000, topic_data=data)
        for group in (GROUP, HIDDEN_GROUP):
            partition = {"partition_index": 0, "committed_offset": 1, "committed_metadata": OFFSETS[group]}
            topics = [{"name": name, "partitions": [partition]} for name in (SEEN, HIDDEN)]
            await _done(conn, 8, 9, group_id=group, generation_id_or_member_epoch=-1, member_id="", topics=topics)
        await self._join(conn)
        await _done(conn, 22, 4, transactional_id=CALM, **NEW_PRODUCER)
        producer = await _done(conn, 22, 4, transactional_id=OPEN, **NEW_PRODUCER)
        self.producer = producer.producer_id, producer.producer_epoch
        transaction = {"transactional_id": OPEN, "producer_id": self.producer[0], "producer_epoch": self.producer[1]}
        of_version_3 = {f"v3_and_below_{name}": value for name, value in transaction.items()}
        topics = [{"name": name, "partitions": [0]} for name in (SEEN, HIDDEN)]
        await _done(conn, 24, 3, **of_version_3, v3_and_below_topics=topics)
        await _done(conn, 25, 3, **transaction, group_id=GROUP)

    async def _until_served(self, conn: Connection) -> None:
        asked = [{"name": name, "topic_id": None} for name in (SEEN, HIDDEN)]
        for _ in range(200):
            answer = await conn.call(3, 12, topics=asked, allow_auto_topic_creation=False)
            if not any(codec.error_codes(answer)):
                return
            await asyncio.sleep(0.02)  # asked again and again: no request waits for a leader
        raise TimeoutError("the topics have no leaders")

    async def _join(self, conn: Connection) -> None:
        protocols = [{"name": "range", "metadata": b"\0\0\0\0\0\0\xff\xff\xff\xff"}]
        joined = await _done(
            conn,
            11,
            3,
            group_id=LIVELY_GROUP,
            session_timeout_ms=600_000,
            rebalance_timeout_ms=60_000,
            member_id="",
            protocol_type="consumer",
            protocols=protocols,
        )
        self.member = joined.member_id
        assert len(self.member) == len(MEMBER)
        assignments = [{"member_id": self.member, "assignment": b""}]
        await _done(
            conn,
            14,
            2,
            group_id=LIVELY_GROUP,
            generation_id=joined.generation_id,
            member_id=self.member,
            assignments=assignments,
        )

    def filled(self, frame: bytes) -> bytes:
        """Return a recorded frame with what this server chose."""
        for name, placeholder in ((SEEN, SEEN_ID), (HIDDEN, HIDDEN_ID)):
            frame = frame.replace(placeholder.bytes, self.topic_ids[name].bytes)
        frame = frame.replace(MEMBER.encode(), self.member.encode())
        producer = _PRODUCER.pack(PRODUCER_ID, PRODUCER_EPOCH)
        out = bytearray(frame.replace(producer, _PRODUCER.pack(*self.producer)))
        if frame[4:6] == b"\0\0":  # Produce: the checksums of its batches
            at = frame.find(producer)
            while at >= 0:
                begin = at - 43
                (size,) = struct.unpack_from(">i", out, begin + 8)
                struct.pack_into(">I", out, begin + 17, crc32c(bytes(out[begin + 21 : begin + 12 + size])))
                at = frame.find(producer, at + 1)
        return bytes(out)

    def described(self, key: int, version: int, sent: bytes, answer: bytes) -> dict[str, Any]:
        """Return what an answer says of rights: codes and operations by their places, and what it tells.

        Names that the request gave itself are not told.
        """
        ids = {self.topic_ids[name]: f"id of {name}" for name in (SEEN, HIDDEN)} | {UNKNOWN_ID: "unknown id"}
        places = dict(sorted(_places(decoded(key, version, answer), version, "", ids)))
        marks = _TOLD | {topic_id.bytes: text for topic_id, text in ids.items()} | {self.member.encode(): "member"}
        told = sorted(text for mark, text in marks.items() if mark in answer and mark not in sent)
        return {"codes": places, "told": told}


NEW_PRODUCER = {"transaction_timeout_ms": 600_000, "producer_id": -1, "producer_epoch": -1}
_KEYS = (
    *("name", "user", "topic", "topic_name", "topic_id", "group_id", "key", "transactional_id", "producer_id"),
    *("resource_type", "resource_name", "partition", "partition_index", "index", "partition_id"),
)
"""Fields that tell one row of an answer from the others."""


async def _done(conn: Connection, key: int, version: int, /, **fields: Any) -> Any:
    """Return the answer to a request that has to succeed, once it does."""
    for _ in range(500):
        answer = await conn.call(key, version, **fields)
        codes = set(codec.error_codes(answer)) if key != 22 else {answer.error_code} - {0}
        if not codes:
            return answer
        assert codes <= _AGAIN, f"{type(answer).__name__}: {codes}"
        await asyncio.sleep(0.02)  # asked again and again: no request waits for a coordinator
    raise TimeoutError(f"API {key} is answered {codes}")


def _places(part: Any, version: int, place: str, ids: Mapping[UUID, str]) -> Iterator[tuple[str, Any]]:
    rows: dict[str, list[Any]] = {}
    for each in part._struct.fields.values():
        if not each.for_version_q(version):
            continue
        value = getattr(part, each.name, None)
        if each.name.endswith("error_code"):
            yield f"{place}{each.name}", value
        elif each.name.endswith("authorized_operations"):
            yield f"{place}{each.name}", _operations(value)
        elif each.is_struct_array():
            for index, row in enumerate(value or ()):
                keys = [text for name in _KEYS if (text := _key(getattr(row, name, None), name, ids))]
                rows.setdefault(f"{place}{each.name}[{' '.join(keys) or index}]", []).append(row)
        elif each.is_struct() and value is not None:
            yield from _places(value, version, f"{place}{each.name}.", ids)
    for at, same in rows.items():
        for number, row in enumerate(same):
            yield from _places(row, version, f"{at}{f'#{number}' if number else ''}.", ids)


def _operations(value: Any) -> list[int] | None:
    """Return what the bits say, which some schemas call a number; None if they were not asked for."""
    if isinstance(value, int):
        value = None if value == -(2**31) else {bit for bit in range(31) if value & 1 << bit}
    return None if value is None else sorted(value)


def _key(value: Any, name: str, ids: Mapping[UUID, str]) -> str:
    if isinstance(value, UUID):
        return ids.get(value, "" if value.int == 0 else "another id")
    if isinstance(value, bool) or value is None:
        return ""
    if isinstance(value, int):
        return "producer" if name == "producer_id" else str(value)
    return str(value)
