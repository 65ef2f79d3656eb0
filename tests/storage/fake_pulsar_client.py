"""A Pulsar without sockets for one `PulsarLog`: what is stored, told and delivered happens when the test says so."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from functools import partial
from typing import Any
from uuid import UUID

from storage.batches import batch

from kop.errors import ErrorCode, KopError
from kop.pulsar_client import EARLIEST, Entry, EntryRefusedError, Position, Producer, PulsarError
from kop.pulsar_client.admin import EntryHead
from kop.pulsar_client.outage import Outage
from kop.pulsar_client.pending import PendingEntry
from kop.pulsar_client.types import DUPLICATE, Message
from kop.read_budget import ReadBudget
from kop.records import transcode
from kop.records.batch import read_header
from kop.storage.base import LogPolicy, TopicInfo
from kop.storage.pulsar.context import PulsarContext
from kop.storage.pulsar.layout import ProducerNaming
from kop.storage.pulsar.offsets.mapping import offset_mapping
from kop.storage.pulsar.partition.appends import OpenBatches
from kop.storage.pulsar.partition.decompression import DecompressionTurns
from kop.storage.pulsar.partition.ended_transactions import EndedTransactions
from kop.storage.pulsar.partition.entry_sizes import EntrySizeLimit
from kop.storage.pulsar.partition.log import PulsarLog
from kop.storage.pulsar.partition.services import PartitionServices, PartitionView
from kop.storage.pulsar.partition.write_budget import WriteBudget
from kop.storage.pulsar.settings import PulsarSettings
from kop.storage.tail_cache import TailCache
from kop.turns import Turns

KEEPS_ALL = LogPolicy()
STAMP = 1_700_000_123_456
"""When the broker took each entry."""


class Sent:
    """What a producer handed over."""

    def __init__(self, producer: FakeProducer, entry: PendingEntry) -> None:
        self.producer = producer
        self.entry = entry
        self.metadata, self.payload = transcode.entry_in(entry.frame)
        self.sequence_id = entry.sequence_id
        self.count = entry.highest_sequence_id - entry.sequence_id + 1
        self.answered = False
        self.position: Position | None = None
        self.refused = False

    def fail(self, error: PulsarError) -> None:
        self.answered = True
        self.entry.failed(error)

    def answer(self, position: Position) -> None:
        self.answered = True
        self.entry.stored(position)


class FakeProducer:
    id = 77

    def __init__(self, broker: Broker, name: str, confirm: Any, on_lost: Callable[[PulsarError], None]) -> None:
        self.broker = broker
        self.name = name
        self.confirm = confirm
        self.on_lost = on_lost
        self.last_sequence_id = broker.sequences.get(name, -1)
        self.closed = self.dropped_connection = False
        self.connected = True

    def submit(self, entry: PendingEntry) -> None:
        sent = Sent(self, entry)
        assert transcode.parse_entry(sent.metadata).highest_sequence_id == entry.highest_sequence_id
        assert transcode.parse_entry(sent.metadata).producer_name == self.name
        assert entry.producer_id == self.id
        if entry.size > self.broker.refuse_over:
            sent.fail(PulsarError("MessageTooLarge", "too large"))
        else:
            self.broker.sent.append(sent)

    def unanswered(self) -> list[PendingEntry]:
        return [sent.entry for sent in self.broker.sent if sent.producer is self and not sent.answered]

    @property
    def pending(self) -> int:
        return len(self.unanswered())

    def withdraw(self, sequence_id: int) -> None:
        for sent in self.broker.sent:
            if sent.producer is self and sent.sequence_id == sequence_id:
                sent.answered = True

    async def come_back(self) -> list[int]:
        """Attach again. Returns the sequence ids of the entries that are sent again."""
        await self.confirm(self)
        return [entry.sequence_id for entry in self.unanswered()]

    def find(self, sequence_id: int) -> PendingEntry | None:
        return next((entry for entry in self.unanswered() if entry.sequence_id == sequence_id), None)

    async def close(self, *, drops_connection: bool = False) -> None:
        self.closed = True
        self.dropped_connection = drops_connection
        self.broker.open_names.discard(self.name)
        for sent in self.broker.sent:
            if sent.producer is self and not sent.answered:
                sent.fail(PulsarError("Closed", "closed"))


def message_of(entry: Entry) -> Message:
    """An entry as a connection hands it to a reader."""
    position, told = entry.position, (entry.index, entry.broker_timestamp, entry.num_messages)
    return (1, *position, *told, entry.metadata, entry.payload, entry.damaged)


class FakeReader:
    """Probes and searches get their entries at once, the tail when the test delivers."""

    permits = 1000

    def __init__(
        self,
        broker: Broker,
        start: Position,
        inclusive: bool,
        probe: bool,
        on_entry: Any,
        on_lost: Any,
        on_many: Any = None,
    ):
        self.broker = broker
        self.probe = probe
        self.on_entry = on_entry
        self.on_lost = on_lost
        self.on_many = on_many
        self.closed = False
        self.connected = True
        self.left_over = False
        """Whether the topic was opened anew without this reader: it is handed nothing, and has no cursor any more."""
        self.last_named: Position | None = None
        """What such a reader is named as the last entry; None: it is answered with an error."""
        self.cursor = f"reader-{len(broker.readers)}"
        self.acknowledged = Position(-1, -1)
        """What Pulsar holds for acknowledged: it moves readers by that."""
        self.sought: list[Position] = []
        self.seek_error: PulsarError | None = None
        self.asked = 0
        """Messages that were asked for after the beginning."""
        self.begins: Callable[[], object] | None = None
        """What is called with the first messages that are asked for."""
        self._begin(start, inclusive)

    def _begin(self, start: Position, inclusive: bool) -> None:
        entries = self.broker.entries
        self.next = 0
        while (
            start != EARLIEST
            and self.next < len(entries)
            and (entries[self.next].position < start or (not inclusive and entries[self.next].position == start))
        ):
            self.next += 1

    async def seek(self, position: Position, *, inclusive: bool) -> None:
        self.sought.append(position)
        self._begin(position, inclusive)
        if self.seek_error is not None:
            raise self.seek_error

    def deliver(self) -> None:
        received = [message_of(entry) for entry in self.broker.entries]
        while not self.closed and not self.left_over and self.next < len(self.broker.entries):
            begin = self.next
            if self.on_many is not None:
                self.next += self.on_many(received, begin)[0]
            if self.next == begin:
                self.next += 1
                self.on_entry(self.broker.entries[begin])

    def deliver_slowly(self) -> None:
        if not self.closed and self.next < len(self.broker.entries):
            self.next += 1
            self.on_entry(self.broker.entries[self.next - 1])
            asyncio.get_running_loop().call_later(0.02, self.deliver_slowly)

    def deliver_one_and_lose(self) -> None:
        if not self.closed:
            self.on_entry(self.broker.entries[self.next])
            self.closed = True
            self.on_lost(PulsarError("ConnectionLost", "so says the test"))

    def flow(self, messages: int) -> None:
        self.asked += messages
        begins, self.begins = self.begins, None
        if begins is not None:
            begins()

    def move_to_end(self) -> None:
        """As truncating a topic does, and message TTL: nobody tells that what lies before it was not handed out."""
        self.next = len(self.broker.entries)
        self.acknowledged = self.broker.entries[-1].position

    async def last_position(self, *, within: float | None = None) -> Position:
        await asyncio.sleep(0)  # what a probe gets comes before the answer
        if self.left_over:
            if self.last_named is None:
                raise PulsarError("MetadataError", "Failed to recover Transaction Buffer.")
            return self.last_named
        entries = self.broker.entries
        return entries[-1].position if entries else Position(-1, -1)

    async def mark_delete_position(self) -> Position | None:
        self.broker.mark_delete_asked += 1
        answer = self.broker.mark_delete
        await asyncio.sleep(0)
        return answer

    async def close(self) -> None:
        self.closed = True


class Broker:
    """One partition, and the client to it."""

    max_message_size = 5 << 20

    def __init__(self) -> None:
        self.outage = Outage()
        self.entries: list[Entry] = []
        self.sent: list[Sent] = []
        self.readers: list[FakeReader] = []
        self.producers: list[FakeProducer] = []
        self.open_names: set[str] = set()
        self.sequences: dict[str, int] = {}
        self.refuse_over = 1 << 30
        self.position = Position(7, -1)
        self.index = -1
        self.open_error: PulsarError | None = None
        self.opening_takes: asyncio.Event | None = None
        self.attach_error: PulsarError | None = None
        self.mark_delete: Position | None = EARLIEST
        """Of all readers; None: the broker does not say. Nobody moves them."""
        self.mark_delete_asked = 0
        self.asked: list[Position] = []
        """Entries that REST was asked for."""
        self.ask_error: PulsarError | None = None
        self.hanging_questions = 0
        """So many questions by REST are never answered."""
        self.holds_readers = False
        self.slow_readers = False
        """A reader of a search gets an entry every 20 ms."""
        self.hangs = False
        """Nothing that subscribes from now on is answered."""
        self.loses_search_readers = False
        """The connection of a search's reader is lost after its first entry."""
        self.stats: dict[str, Any] = {}
        self.keeps_cursors = False
        """Whether the statistics name the cursors of readers that are left over."""
        self.buffer: dict[str, Any] | None = None
        """The statistics of the transaction buffer; None: there are no transactions."""
        self.has_publish_rate = False
        self.lanes: list[str] = []
        """Of producers that were opened or moved."""
        self.accesses: list[str] = []
        """With which access producers were asked for."""
        self.exclusive_holder: str | None = None
        self.size_limit: int | None = None
        self.size_limit_error: PulsarError | None = None

    # --- the client

    def move_producer(self, producer: Producer, lane: str) -> None:
        self.lanes.append(lane)

    async def open_producer(
        self, topic: str, *, name: str, confirm: Any, on_lost: Any, lane: str, access: str, **_: Any
    ) -> FakeProducer:
        self.lanes.append(lane)
        self.accesses.append(access)
        if self.opening_takes is not None:
            await self.opening_takes.wait()
        if self.open_error is not None:
            raise self.open_error
        if self.exclusive_holder is not None and access != "exclusive_with_fencing":
            text = f"Topic has an existing exclusive producer: {self.exclusive_holder}"
            raise PulsarError("ProducerFenced" if access == "exclusive" else "ProducerBusy", text)
        if name in self.open_names:
            raise PulsarError("ProducerBusy", "somebody has it")
        self.open_names.add(name)
        self.producers.append(FakeProducer(self, name, confirm, on_lost))
        return self.producers[-1]

    async def open_reader(
        self,
        topic: str,
        start: Position,
        *,
        inclusive: bool = True,
        permits: int,
        on_entry: Any,
        on_lost: Any,
        on_many: Any = None,
        **_: Any,
    ) -> FakeReader:
        if self.attach_error is not None:
            raise self.attach_error
        if self.hangs:
            await asyncio.Event().wait()
        search = inclusive and start != EARLIEST
        reader = FakeReader(self, start, inclusive, permits == 1 or search, on_entry, on_lost, on_many)
        if reader.probe and self.holds_readers:
            reader.closed = True
        loop = asyncio.get_running_loop()
        if reader.probe and self.slow_readers:
            reader.begins = partial(loop.call_later, 0.02, reader.deliver_slowly)
        elif reader.probe and search and self.loses_search_readers:
            reader.begins = partial(loop.call_soon, reader.deliver_one_and_lose)
        elif reader.probe:
            reader.begins = partial(loop.call_soon, reader.deliver)
        else:
            self.readers.append(reader)
        if permits:
            reader.flow(0)
        return reader

    # --- the test's side

    @property
    def tail(self) -> FakeReader:
        return self.readers[-1]

    def put(self, metadata: bytes, payload: bytes, moves: int, count: int) -> Position:
        self.position = Position(self.position.ledger, self.position.entry + 1)
        self.index += moves
        entry = Entry(self.position, self.index, STAMP, count, memoryview(metadata), memoryview(payload))
        self.entries.append(entry)
        return self.position

    def store(self, moves: int | None = None) -> None:
        """Store the next entry that was sent."""
        sent = next(
            append for append in self.sent if append.position is None and not append.refused and not append.answered
        )
        sent.position = self.put(sent.metadata, sent.payload, sent.count if moves is None else moves, sent.count)
        self.sequences[sent.producer.name] = sent.sequence_id + sent.count - 1

    def refuse_next(self) -> None:
        """Of the next entry that was sent nothing is stored, and its receipt will say that it is refused for good."""
        sent = next(append for append in self.sent if append.position is None and not append.refused)
        sent.refused = True

    def tell(self, error: str | None = None, *, duplicate: bool = False) -> None:
        """The next receipt."""
        sent = next(append for append in self.sent if not append.answered)
        if error is not None:
            sent.fail(PulsarError(error, "so says the test"))
        elif sent.refused:
            refusal = PulsarError("NotAllowedError", "Exceed maximum message size")
            sent.fail(EntryRefusedError(refusal))
        elif duplicate:
            sent.answer(DUPLICATE)
        else:
            assert sent.position is not None
            sent.answer(sent.position)

    def tell_together(self) -> None:
        """The receipts of all that is stored, as one read of the socket brings them: producer by producer."""
        told: dict[FakeProducer, list[tuple[Any, int, int]]] = {}
        for sent in self.sent:
            if sent.position is not None and not sent.answered:
                sent.answered = True
                told.setdefault(sent.producer, []).append((sent.entry, *sent.position))
        for receipts in told.values():
            receipts[0][0].producer.received(receipts)

    def foreign(self, count: int = 3, name: str = "them", sequence_id: int = 0) -> None:
        """Somebody else's entry, or another gateway's under the name of one of our producers."""
        data = batch([f"foreign {i}" for i in range(count)])
        (entry,) = transcode.to_entries(
            data, read_header(data), producer_name=name, sequence_base=sequence_id, publish_time=0, max_size=1 << 20
        )
        self.put(entry.metadata, entry.payload, count, count)

    def new_ledger(self) -> None:
        self.position = Position(self.position.ledger + 1, -1)

    def gap(self, offsets: int) -> None:
        """A marker, or what was aborted: it has offsets, nobody sees it."""
        self.index += offsets
        self.position = Position(self.position.ledger, self.position.entry + 1)


class FakeAdmin:
    def __init__(self, broker: Broker) -> None:
        self.broker = broker

    def now_ms(self) -> int:
        return int(time.time() * 1000)

    async def internal_stats(self, name: str) -> dict[str, Any]:
        entries, at = self.broker.entries, self.broker.position
        ledgers = sorted({at.ledger, *(entry.position.ledger for entry in entries)})
        return {
            "totalSize": 0,
            "numberOfEntries": len(entries),
            "lastConfirmedEntry": f"{at.ledger}:{at.entry}",
            "ledgers": [
                {
                    "ledgerId": ledger,
                    "entries": max(
                        [
                            stored_entry.position.entry + 1
                            for stored_entry in entries
                            if stored_entry.position.ledger == ledger
                        ]
                        or [0]
                    ),
                }
                for ledger in ledgers
            ],
            "cursors": {
                reader.cursor: {"markDeletePosition": f"{reader.acknowledged.ledger}:{reader.acknowledged.entry}"}
                for reader in self.broker.readers
                if not reader.left_over or self.broker.keeps_cursors
            },
        }

    async def closed_index(self, name: str) -> int | None:
        return None

    async def entry_head(self, name: str, ledger: int, entry: int) -> EntryHead:
        self.broker.asked.append(Position(ledger, entry))
        if self.broker.ask_error is not None:
            raise self.broker.ask_error
        if self.broker.hanging_questions:
            self.broker.hanging_questions -= 1
            await asyncio.Event().wait()
        stored_entry = next((stored for stored in self.broker.entries if stored.position == (ledger, entry)), None)
        if stored_entry is None:
            raise PulsarError("NotFound", "so says the test")
        info = transcode.parse_entry(stored_entry.metadata)
        return EntryHead(
            stored_entry.index, info.num_messages, info.producer_name, info.sequence_id, stored_entry.broker_timestamp
        )

    async def stats(self, name: str) -> dict[str, Any]:
        return self.broker.stats

    async def unload(self, topic: str) -> None:
        raise PulsarError("Forbidden", "so says the test")

    async def has_publish_rate(self, topic: str) -> bool:
        return self.broker.has_publish_rate

    async def transaction_buffer(self, name: str) -> dict[str, Any]:
        if self.broker.buffer is None:
            raise PulsarError("NotFound", "no transactions")
        return self.broker.buffer


class FakeEngine(PulsarContext):
    """What a log is given: the context, over a broker and its admin REST that are not there, and the services."""

    def __init__(
        self, broker: Broker, offsets: str = "index", rest: FakeAdmin | None = None, *, open_bytes: int = 1 << 20
    ) -> None:
        self.rest = FakeAdmin(broker) if rest is None else rest
        client: Any = broker
        admin: Any = self.rest
        super().__init__(client, admin, PulsarSettings())
        self.broker = broker
        self.gone = False
        self.raw_marked = False
        self.live_leaders: dict[str, bool] = {}
        """What is known of brokers, by the names of their leaders' producers."""
        self.counts_as_live = True
        self.services = PartitionServices(
            mapping=offset_mapping(offsets, self.faults),
            cache=TailCache(1 << 20),
            open_batches=OpenBatches(open_bytes),
            read_budget=ReadBudget(1 << 30),
            attaching=Turns(64),
            over_quota=lambda _, __: None,
            write_budget=WriteBudget(self),
            ended_transactions=EndedTransactions(self.loop.time),
            decompression=DecompressionTurns(self.loop),
            producer_naming=lambda: FakeProducerNaming("c", "i"),
            leader_is_live=self.live_leaders.get,
            counts_as_live=lambda: self.counts_as_live,
            may_attach=self.may_attach,
            confirm=self.confirm,
            retains=self.checked,
            deduplicates=self.checked,
            knows_all_producers=lambda topic_id: False,
            mark_raw=self.mark_raw,
            may_write_raw=lambda topic_id: self.raw_marked,
            entry_size_limit=self.entry_size_limit,
            kept_number=lambda topic_id, index, kind: 0,
            keep_number=self.keep_number,
        )

    def log(self, policy: LogPolicy = KEEPS_ALL) -> PulsarLog:
        """The log of the only partition of topic t."""
        name = "persistent://public/default/t-partition-0"
        return PulsarLog(self, self.services, TopicInfo("t", UUID(int=1 << 70), 1), 0, name, policy)

    @property
    def queued_bytes(self) -> int:
        return self.services.write_budget.bytes

    async def may_attach(self, log: PartitionView) -> bool:
        return not self.gone

    async def confirm(self, log: PartitionView, producer: Producer) -> None:
        pass

    async def checked(self, topic_id: UUID) -> None:
        pass

    async def mark_raw(self, topic_id: UUID) -> None:
        self.raw_marked = True

    def entry_size_limit(self, topic_id: UUID) -> EntrySizeLimit:
        async def ask() -> int | None:
            if self.broker.size_limit_error is not None:
                raise self.broker.size_limit_error
            return self.broker.size_limit

        return EntrySizeLimit(self.loop.time, ask, self.spawn)

    async def keep_number(self, topic: TopicInfo, index: int, kind: str, value: int) -> None:
        pass


class FakeProducerNaming(ProducerNaming):
    """Short names."""

    def of(self, producer_id: int) -> str:
        return f"pid-{producer_id}" if producer_id >= 0 else "gateway"

    @property
    def leader(self) -> str:
        return "leader"


async def settle() -> None:
    """Let what is due happen."""
    for _ in range(30):
        await asyncio.sleep(0)


def outcome(future: asyncio.Future[Any]) -> int | ErrorCode | None:
    """The base offset, the error's code, or None for what has not ended."""
    if not future.done():
        return None
    error = future.exception()
    if error is None:
        return int(future.result().base_offset)
    assert isinstance(error, KopError), error
    return error.code
