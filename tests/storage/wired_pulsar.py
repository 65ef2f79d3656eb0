"""A Pulsar without sockets whose producers are the real ones: their frames come in, in the order of the wire.

Owns: connections to one partition's broker, and what the broker does with frames when the test says so: deduplication,
refusals, receipts that come alone or together, lost connections.
Must not know: who makes the frames, compiled code or a producer.
"""

from __future__ import annotations

import asyncio
import itertools
import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from storage.fake_pulsar_client import Broker, FakeEngine

from kop.pulsar_client import Position, Producer, PulsarError
from kop.pulsar_client.connection import Connection
from kop.pulsar_client.outgoing import twin as outgoing_twin
from kop.pulsar_client.proto import pulsar_pb2 as pb
from kop.pulsar_client.types import DUPLICATE, Receipt
from kop.records import transcode
from kop.records.batch import BatchHeader, read_header
from kop.storage.base import AppendResult, LogPolicy
from kop.storage.pulsar.partition.log import PulsarLog

if TYPE_CHECKING:
    from kop._native import DirectWriter

FOREVER = sys.maxsize


class ArrivedFrame:
    """One SEND frame that a broker has received, and what it did with it."""

    def __init__(self, connection: WiredConnection, name: str, frame: bytes) -> None:
        size = int.from_bytes(frame[4:8], "big")
        told = pb.BaseCommand.FromString(frame[8 : 8 + size]).send
        self.connection = connection
        self.name = name
        self.producer_id = told.producer_id
        self.sequence_id = told.sequence_id
        self.highest = max(told.sequence_id, told.highest_sequence_id)
        self.metadata, self.payload = transcode.entry_in(frame)
        info = transcode.parse_entry(self.metadata)
        assert info.producer_name == name
        assert info.sequence_id == told.sequence_id
        assert info.num_messages == told.num_messages == self.count
        self.position: Position | None = None
        """Where it was stored; DUPLICATE where it was dropped."""
        self.refusal: str | None = None
        self.told = False
        """Its answer was sent, or never will be."""

    @property
    def count(self) -> int:
        return self.highest - self.sequence_id + 1

    @property
    def looked_at(self) -> bool:
        return self.position is not None or self.refusal is not None


class WiredConnection:
    """What a producer needs of a connection."""

    def __init__(self, broker: WiredBroker) -> None:
        self._broker = broker
        self.producers: dict[int, Producer] = {}
        self.names: dict[int, str] = {}
        self.closed = False
        self.max_message_size = broker.max_message_size
        self.outgoing = outgoing_twin.Outgoing(FOREVER, self._write, self._write)
        self._waiting: dict[int, Producer] = {}

    def _write(self) -> None:
        for frame in self.outgoing.take():
            size = int.from_bytes(frame[4:8], "big")
            producer_id = pb.BaseCommand.FromString(frame[8 : 8 + size]).send.producer_id
            name = self.names.get(producer_id)
            if name is not None:  # else of a producer that is closed, or was never there
                self._broker.frames.append(ArrivedFrame(self, name, frame))

    def pause(self) -> None:
        self.outgoing.paused = True

    def go_on(self) -> None:
        self.outgoing.paused = False
        waiting, self._waiting = self._waiting, {}
        for producer in waiting.values():
            producer.on_writable()

    def when_writable(self, number: int, producer: Producer) -> None:
        self._waiting[number] = producer

    def forget(self, number: int) -> None:
        pass

    def write_request(self, asked: pb.CommandCloseProducer) -> None:
        self._broker.close_producer(self, asked.producer_id)

    async def request(self, asked: Any, limit: float, what: str) -> Any:
        await asyncio.sleep(0)
        if self.closed:
            raise PulsarError("ConnectionLost", what)
        if isinstance(asked, pb.CommandCloseProducer):
            self._broker.close_producer(self, asked.producer_id)
            return None
        assert isinstance(asked, pb.CommandProducer)
        if asked.producer_name in self._broker.open_names:
            raise PulsarError("ProducerBusy", "somebody has it")
        self._broker.open_names.add(asked.producer_name)
        self.names[asked.producer_id] = asked.producer_name
        last = self._broker.sequences.get(asked.producer_name, -1)
        return pb.CommandProducerSuccess(producer_name=asked.producer_name, last_sequence_id=last), None

    def abort(self, error: PulsarError) -> None:
        self._broker.lose_connection(self)


class WiredBroker(Broker):
    """One partition, to which producers are attached by connections."""

    def __init__(self) -> None:
        super().__init__()
        self.frames: list[ArrivedFrame] = []
        self.connections: dict[str, WiredConnection] = {}
        """By lane."""
        self.reachable = asyncio.Event()
        self.reachable.set()
        self.opened: list[Producer] = []
        self._ids = itertools.count(1)

    # --- the client

    def _finder(self, lane: str) -> Callable[[str | None], Any]:
        async def find(assigned: str | None) -> Connection:
            await self.reachable.wait()
            connection = self.connections.get(lane)
            if connection is None or connection.closed:
                connection = self.connections[lane] = WiredConnection(self)
            made: Any = connection
            return made

        return find

    async def open_producer(self, topic: str, *, name: str, lane: str, access: Any, **how: Any) -> Any:
        self.lanes.append(lane)
        self.accesses.append(access)
        if self.open_error is not None:
            raise self.open_error
        producer = Producer(
            self._ids,
            topic,
            self._finder(lane),
            name=name,
            access=access,
            epoch=None,
            properties={},
            timeout=30.0,
            send_timeout=30.0,
            turns=None,
            outage=self.outage,
            **how,
        )
        await producer.open()
        self.opened.append(producer)
        return producer

    def move_producer(self, producer: Producer, lane: str) -> None:
        self.lanes.append(lane)
        producer.move(self._finder(lane))

    # --- the test's side

    @property
    def unseen(self) -> list[ArrivedFrame]:
        """Frames that nothing was done with."""
        return [frame for frame in self.frames if not frame.looked_at and not frame.connection.closed]

    @property
    def untold(self) -> list[ArrivedFrame]:
        """Frames whose answers were not sent yet, and may be."""
        return [frame for frame in self.frames if frame.looked_at and not frame.told and not frame.connection.closed]

    def store(self, moves: int | None = None) -> None:
        """Look at the next frame: store it, or drop it as a duplicate."""
        frame = self.unseen[0]
        if frame.sequence_id <= self.sequences.get(frame.name, -1):
            frame.position = DUPLICATE
        else:
            frame.position = self.put(
                frame.metadata, frame.payload, frame.count if moves is None else moves, frame.count
            )
            self.sequences[frame.name] = frame.highest

    def refuse_next(self, code: str = "NotAllowedError") -> None:
        """Look at the next frame, and refuse it; where that may pass, all that its producer has sent behind it, too."""
        self._refuse(self.unseen[0], code)

    def _refuse(self, frame: ArrivedFrame, code: str) -> None:
        frame.refusal = code
        if PulsarError(code).retriable:
            for other in self.unseen:
                if other.producer_id == frame.producer_id:
                    other.refusal = code

    def tell(self, error: str | None = None, *, duplicate: bool = False) -> None:
        """The next answer, alone; `error` instead of the true one."""
        frame = next(frame for frame in self.frames if not frame.told and not frame.connection.closed)
        if error is not None:
            self._refuse(frame, error)
        if duplicate:
            frame.position = DUPLICATE
        self.answer([frame])

    def tell_together(self, most: int = FOREVER) -> None:
        """The answers to all that was looked at, as one read of the socket brings them: producer by producer."""
        self.answer(self.untold[:most])

    def answer(self, frames: Sequence[ArrivedFrame]) -> None:
        receipts: dict[tuple[WiredConnection, int], list[Receipt]] = {}

        def tell_receipts() -> None:
            for (connection, producer_id), told in tuple(receipts.items()):
                producer = connection.producers.get(producer_id)
                if producer is not None:
                    producer.on_receipts(told)
            receipts.clear()

        for frame in frames:
            frame.told = True
            if frame.refusal is None:
                assert frame.position is not None
                receipt = (frame.producer_id, frame.sequence_id, frame.highest, *frame.position)
                receipts.setdefault((frame.connection, frame.producer_id), []).append(receipt)
                continue
            tell_receipts()
            producer = frame.connection.producers.get(frame.producer_id)
            if producer is not None:
                text = "Exceed maximum message size" if frame.refusal == "NotAllowedError" else "so says the test"
                producer.on_send_error(frame.highest, PulsarError(frame.refusal, text))
        tell_receipts()

    def deliver(self) -> None:
        """All readers get what is there."""
        for reader in tuple(self.readers):
            reader.deliver()

    def lose(self, *, reachable: bool = False) -> None:
        """All connections are lost, with the frames that nothing was done with, and all answers."""
        if not reachable:
            self.reachable.clear()
        for connection in tuple(self.connections.values()):
            self.lose_connection(connection)

    def lose_connection(self, connection: WiredConnection) -> None:
        connection.closed = True
        connection.outgoing.close()
        self.open_names -= set(connection.names.values())
        producers, connection.producers = connection.producers, {}
        for producer in producers.values():
            producer.on_disconnect(PulsarError("ConnectionLost", "so says the test"), None)

    def close_producer(self, connection: WiredConnection, producer_id: int) -> None:
        """A client closes a producer. What came in before that is looked at first."""
        name = connection.names.pop(producer_id, None)
        if name is None:
            return
        own = [number for number, frame in enumerate(self.unseen) if frame.producer_id == producer_id]
        for _ in range(own[-1] + 1 if own else 0):
            self.store()
        self.open_names.discard(name)


class OutcomeNote:
    """An `AppendWaiter` of one batch, which has to be told once."""

    def __init__(self) -> None:
        self.results: list[AppendResult | Exception] = []
        self.reserved = 0

    def reserve(self, size: int) -> None:
        self.reserved += size

    def appended(self, place: int, result: AppendResult) -> None:
        self.results.append(result)

    def append_failed(self, place: int, error: Any) -> None:
        self.results.append(error)

    @property
    def outcome(self) -> Any:
        """The base offset, the error's code, or None."""
        assert len(self.results) <= 1, self.results
        if not self.results:
            return None
        result = self.results[0]
        return result.base_offset if isinstance(result, AppendResult) else getattr(result, "code", result)


class WiredPlay:
    """A log over a `WiredBroker`, with its batches and what became of them."""

    def __init__(self, policy: LogPolicy | None = None, *, direct: bool = True) -> None:
        self.broker = WiredBroker()
        self.broker.foreign()
        self.engine = FakeEngine(self.broker)
        self.log: PulsarLog = self.engine.log() if policy is None else self.engine.log(policy)
        self.direct = direct
        """Whether compiled code may take batches."""
        self.notes: list[OutcomeNote] = []
        self.writers: dict[int, DirectWriter] = {}
        """The last compiled writer of each producer id."""

    def submit(self, data: bytearray, *, offered: bool = True) -> OutcomeNote:
        """Give a batch to the log, after it was asked for a compiled writer where `offered`."""
        header: BatchHeader = read_header(data)
        writer: Any = self.log.direct_writer(header) if offered and self.direct else None
        if writer is not None:
            self.writers[header.producer_id] = writer
        note = OutcomeNote()
        self.notes.append(note)
        self.log.submit(bytearray(data), header, now_ms=0, waiter=note, place=0)
        return note

    @property
    def outcomes(self) -> list[Any]:
        return [note.outcome for note in self.notes]

    @property
    def direct_bytes(self) -> int:
        budget = self.engine.services.write_budget.direct
        assert budget is not None
        return budget.used

    def stored(self) -> list[tuple[Position, str, int, int]]:
        """What lies in the topic: position, producer, sequence id, records."""
        infos = [(entry, transcode.parse_entry(entry.metadata)) for entry in self.broker.entries]
        return [(entry.position, info.producer_name, info.sequence_id, info.num_messages) for entry, info in infos]


async def turns(count: int = 8) -> None:
    """Let what is due happen."""
    for _ in range(count):
        await asyncio.sleep(0)
