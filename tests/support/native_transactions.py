"""A Pulsar producer with transactions, which the Python client has not: one connection to a standalone broker.

The few commands are put together by hand, by the field numbers of Pulsar's protocol:
https://github.com/apache/pulsar/blob/master/pulsar-common/src/main/proto/PulsarApi.proto
"""

from __future__ import annotations

import asyncio
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from types import TracebackType
from typing import Any, Self
from urllib.parse import urlsplit

from crc32c import crc32c

from kop.pulsar_client.proto import pulsar_pb2 as pb
from support.waiting import SECONDS, until

COORDINATOR = "persistent://pulsar/system/transaction_coordinator_assign-partition-0"
_CONNECT, _CONNECTED, _PRODUCER, _SEND, _RECEIPT = 2, 3, 5, 6, 7
_ERROR, _PRODUCER_SUCCESS, _PING, _PONG = 14, 17, 18, 19
_LOOKUP, _LOOKED_UP = 23, 24
_NEW, _ADD, _END, _COORDINATE = 50, 52, 56, 62
_REFUSAL = 4
"""The field of an answer to `_NEW`, `_ADD` and `_END` that says why not."""


def _varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes(out) + bytes([value])


def _message(fields: dict[int, Any]) -> bytes:
    out = b""
    for number, value in fields.items():
        if isinstance(value, int):
            out += _varint(number << 3) + _varint(value)
        else:
            data = value.encode() if isinstance(value, str) else _message(value) if isinstance(value, dict) else value
            out += _varint(number << 3 | 2) + _varint(len(data)) + data
    return out


def _fields(data: bytes) -> dict[int, Any]:
    fields: dict[int, Any] = {}
    at = 0

    def number() -> int:
        nonlocal at
        value = shift = 0
        while True:
            byte = data[at]
            at += 1
            value |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                return value

    while at < len(data):
        key = number()
        if key & 7 == 0:
            fields[key >> 3] = number()
        else:
            size = number()
            fields[key >> 3] = data[at : at + size]
            at += size
    return fields


class NativeTransactions:
    """`async with NativeTransactions(service_url, topic)`: the topic (a partition) is written to by transactions."""

    def __init__(self, service_url: str, topic: str) -> None:
        self.url = service_url
        self.topic = topic
        self.sequence = -1
        self._producer = 0
        self._request = 0
        self._waiting: dict[tuple[int, int], asyncio.Future[dict[int, Any]]] = {}

    async def __aenter__(self) -> Self:
        address = urlsplit(self.url)
        self._reader, self._writer = await asyncio.open_connection(address.hostname, address.port)
        self._task = asyncio.create_task(self._read())
        await self._ask(_CONNECT, {1: "test", 4: 21}, _CONNECTED, 0)
        for step in (self._coordinator_is_there, self._topic_is_there, self._produces):  # again where a topic moves
            await until(step)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
        self._writer.close()
        await self._writer.wait_closed()

    async def write(self, *values: bytes, commit: bool = True) -> None:
        """One transaction with an entry for each value."""
        async with self.written(*values, commit=commit):
            pass

    @asynccontextmanager
    async def written(self, *values: bytes, commit: bool = True) -> AsyncIterator[None]:
        """A transaction that has an entry for each value and stays open until the end of the block."""
        answer = await self._coordinated(_NEW, {2: 60_000, 3: 0})
        txn = answer.get(2, 0), answer.get(3, 0)
        await self._coordinated(_ADD, {2: txn[0], 3: txn[1], 4: self.topic})
        await asyncio.gather(*[self._send(value, txn) for value in values])
        try:
            yield
        finally:
            await self._coordinated(_END, {2: txn[0], 3: txn[1], 4: 0 if commit else 1})

    async def plain(self, value: bytes) -> None:
        """An entry outside transactions."""
        await self._send(value, None)

    # --- inside

    async def _coordinator_is_there(self) -> bool:
        if (await self._look_up(COORDINATOR)).get(3) != 1:
            return False
        return not {2, _ERROR} & (await self._call(_COORDINATE, {2: 0})).keys()

    async def _topic_is_there(self) -> bool:
        return bool((await self._look_up(self.topic)).get(3) == 1)

    async def _produces(self) -> bool:
        """Whether the broker has a producer for us, one with transactions: it makes that when it knows which of them
        are open on the topic. A topic of which it cannot find that out is closed, with all of its other producers.
        """
        self._producer += 1
        fields: dict[int, Any] = {1: self.topic, 2: self._producer, 12: 1}
        return _ERROR not in await self._call(_PRODUCER, fields, number=3, answer=_PRODUCER_SUCCESS)

    async def _look_up(self, topic: str) -> dict[int, Any]:
        """The broker's last answer. It loads the topic, unless it says otherwise."""
        answer: dict[int, Any] = {}
        while answer.get(3, 0) == 0 and _ERROR not in answer:  # the broker sends itself a redirect
            answer = await self._call(_LOOKUP, {1: topic, 3: answer.get(5, 0)}, number=2)
        return answer

    async def _coordinated(self, command: int, fields: dict[int, Any]) -> dict[int, Any]:
        """Ask the coordinator, again where it was unloaded meanwhile: tests beside this one do that.

        The end that it refused first may have been carried out all the same: then it does not know the transaction.
        """
        refusals: list[int] = []

        async def taken() -> dict[int, Any]:
            answer = await self._call(command, fields)
            if not {_REFUSAL, _ERROR} & answer.keys():
                return answer
            if command == _END and refusals and answer.get(_REFUSAL) == pb.TransactionNotFound:
                return answer
            refusals.append(answer.get(_REFUSAL, _ERROR))
            await self._coordinator_is_there()
            return {}

        return await until(taken, f"the coordinator takes command {command}")

    async def _send(self, value: bytes, txn: tuple[int, int] | None) -> None:
        self.sequence += 1
        about: dict[str, Any] = {"producer_name": "native", "sequence_id": self.sequence, "publish_time": 1}
        command: dict[int, Any] = {1: self._producer, 2: self.sequence, 3: 1}
        if txn is not None:
            about |= {"txnid_least_bits": txn[0], "txnid_most_bits": txn[1]}
            command |= {4: txn[0], 5: txn[1]}
        metadata = pb.MessageMetadata(**about).SerializeToString()
        tail = struct.pack(">I", len(metadata)) + metadata + value
        entry = b"\x0e\x01" + struct.pack(">I", crc32c(tail)) + tail
        await self._ask(_SEND, command, _RECEIPT, self.sequence, entry)

    async def _call(
        self, command: int, fields: dict[int, Any], *, number: int = 1, answer: int | None = None
    ) -> dict[int, Any]:
        self._request += 1
        fields = dict(sorted({**fields, number: self._request}.items()))
        return await self._ask(command, fields, answer or command + 1, self._request)

    async def _ask(
        self, command: int, fields: dict[int, Any], answer: int, key: int, entry: bytes = b""
    ) -> dict[int, Any]:
        future: asyncio.Future[dict[int, Any]] = asyncio.get_running_loop().create_future()
        self._waiting[answer, key] = future
        data = _message({1: command, command: fields})
        self._writer.write(struct.pack(">II", len(data) + 4 + len(entry), len(data)) + data + entry)
        async with asyncio.timeout(SECONDS):
            return await future

    async def _read(self) -> None:
        while True:
            size, length = struct.unpack(">II", await self._reader.readexactly(8))
            command = _fields((await self._reader.readexactly(size - 4))[:length])
            kind = command[1]
            fields = _fields(command.get(kind, b""))
            if kind == _PING:
                data = _message({1: _PONG, _PONG: {}})
                self._writer.write(struct.pack(">II", len(data) + 4, len(data)) + data)
                continue
            key = 0 if kind == _CONNECTED else fields.get({_RECEIPT: 2, _LOOKED_UP: 4}.get(kind, 1), 0)
            if kind == _ERROR:  # it names the request, and not of which kind that was
                kind = next((answer for answer, number in self._waiting if number == key and answer != _RECEIPT), kind)
                fields = {_ERROR: fields}
            future = self._waiting.pop((kind, key), None)
            assert future is not None, f"not asked for: {kind} {fields}"
            if not future.done():
                future.set_result(fields)
