"""A Pulsar broker in memory, that refuses, forgets, stalls and hangs up when a test says so.

Owns: enough of the binary protocol to be a peer of `kop.pulsar_client`, written on protobuf alone, so that a mistake in
the client's own reading and writing of bytes is not made twice.
Must not know: the client's code, its generated messages aside.
"""

from __future__ import annotations

import asyncio
import struct
from collections import defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import ClassVar

from crc32c import crc32c

from kop.pulsar_client.proto import pulsar_pb2 as pb

Command = pb.BaseCommand
FAST_LEDGER = 100


def encode(command: Command, behind: bytes = b"") -> bytes:
    body = command.SerializeToString()
    return struct.pack(">II", 4 + len(body) + len(behind), len(body)) + body + behind


def entry_bytes(metadata: pb.MessageMetadata, payload: bytes, *, checksum: bool = True) -> bytes:
    """An entry as it is sent and stored."""
    meta = metadata.SerializeToString()
    tail = struct.pack(">I", len(meta)) + meta + payload
    return (b"\x0e\x01" + struct.pack(">I", crc32c(tail)) if checksum else b"") + tail


@dataclass
class Stored:
    ledger: int
    entry: int
    index: int
    messages: int
    data: bytes


@dataclass
class Topic:
    """One log, with who is attached to it."""

    ledger: int = FAST_LEDGER
    next_entry: int = 0
    index: int = -1
    log: list[Stored] = field(default_factory=list)
    producers: dict[str, tuple[Session, int]] = field(default_factory=dict)
    last_sequence: dict[str, int] = field(default_factory=dict)
    epoch: int | None = None
    exclusive: bool = False
    waiting: list[tuple[Session, pb.CommandProducer]] = field(default_factory=list)

    def append(self, data: bytes, messages: int) -> Stored:
        self.index += messages
        stored = Stored(self.ledger, self.next_entry, self.index, messages, data)
        self.next_entry += 1
        self.log.append(stored)
        return stored


@dataclass
class Consumer:
    topic: str
    next: int
    permits: int = 0

    def __post_init__(self) -> None:
        self.begin = self.next
        """It acknowledges nothing, and nobody moves it: its cursor is marked before that."""


class Session:
    """One client connection."""

    def __init__(self, broker: FakePulsar, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.broker = broker
        self.reader = reader
        self.writer = writer
        self.connect = pb.CommandConnect()
        self.producers: dict[int, tuple[str, str]] = {}
        self.consumers: dict[int, Consumer] = {}
        self.watches: dict[int, str] = {}
        self.seen: list[Command] = []
        self.auth: list[pb.CommandAuthResponse] = []

    def send(self, command: Command, behind: bytes = b"") -> None:
        if not self.writer.is_closing():
            self.writer.write(encode(command, behind))

    def fail(self, request_id: int, error: pb.ServerError, message: str = "as the test wants it") -> None:
        refusal = pb.CommandError(request_id=request_id, error=error, message=message)
        self.send(Command(type=Command.ERROR, error=refusal))

    def success(self, request_id: int) -> None:
        self.send(Command(type=Command.SUCCESS, success=pb.CommandSuccess(request_id=request_id)))

    def hang_up(self) -> None:
        self.writer.transport.abort()

    def count(self, kind: int) -> int:
        return sum(command.type == kind for command in self.seen)


Hook = Callable[[Session, Command], bool]
"""Sees each command first; True means that it was dealt with."""


class FakePulsar:
    """The broker. A topic must be made with `create`; nothing is created by use."""

    def __init__(self) -> None:
        self.topics: dict[str, Topic] = {}
        self.partitions: dict[str, int] = {}
        self.sessions: list[Session] = []
        self.ever: list[Session] = []
        self.refusals: dict[int, list[pb.ServerError]] = defaultdict(list)
        """ServerErrors for the next commands of a type."""
        self.silent: set[int] = set()
        """Types of commands that are not answered."""
        self.hook: Hook | None = None
        self.tokens: set[bytes] | None = None
        self.redirects: list[tuple[str, bool]] = []
        """Answers to the next lookups: an address and whether it is authoritative."""
        self.owner: str | None = None
        """The broker that lookups name, if not this one."""
        self.through_proxy = False
        self.max_message_size = 5 * 1024 * 1024
        self.with_index = True
        self.watchers = True
        self.hold_receipts = False
        self.held: list[tuple[Session, Command]] = []
        self.damage: int = 0
        """So many of the next entries sent are damaged on their way."""
        self.url = ""
        self._server: asyncio.Server | None = None

    # --- for tests

    def create(self, name: str) -> Topic:
        topic = self.topics[name] = Topic()
        self._changed([name], [])
        return topic

    def delete(self, name: str) -> None:
        self.unload(name)
        del self.topics[name]
        self._changed([], [name])

    def store(self, name: str, payload: bytes, *, messages: int = 1, checksum: bool = True) -> Stored:
        """Append an entry, as if another client had sent it."""
        meta = pb.MessageMetadata(producer_name="other", sequence_id=0, publish_time=1)
        if messages != 1:
            meta.num_messages_in_batch = messages
        stored = self.topics[name].append(entry_bytes(meta, payload, checksum=checksum), messages)
        self._dispatch(name)
        return stored

    def payloads(self, name: str) -> list[bytes]:
        """What is stored, in order."""
        payloads = []
        for stored in self.topics[name].log:
            size = struct.unpack(">I", stored.data[6:10])[0]
            payloads.append(stored.data[10 + size :])
        return payloads

    def unload(self, name: str, assigned: str | None = None) -> None:
        """Give the topic a new ledger and send everybody away."""
        topic = self.topics[name]
        topic.ledger, topic.next_entry = topic.ledger + 1, 0
        topic.producers.clear()
        topic.exclusive = False
        for session in self.sessions:
            for producer_id, (owned, _) in list(session.producers.items()):
                if owned == name:
                    del session.producers[producer_id]
                    gone = pb.CommandCloseProducer(producer_id=producer_id, request_id=2**64 - 1)
                    if assigned is not None:
                        gone.assignedBrokerServiceUrl = gone.assignedBrokerServiceUrlTls = assigned
                    session.send(Command(type=Command.CLOSE_PRODUCER, close_producer=gone))
            for consumer_id, consumer in list(session.consumers.items()):
                if consumer.topic == name:
                    del session.consumers[consumer_id]
                    left = pb.CommandCloseConsumer(consumer_id=consumer_id, request_id=2**64 - 1)
                    if assigned is not None:
                        left.assignedBrokerServiceUrl = left.assignedBrokerServiceUrlTls = assigned
                    session.send(Command(type=Command.CLOSE_CONSUMER, close_consumer=left))

    def release(self) -> None:
        """Send the receipts that were held."""
        self.hold_receipts = False
        held, self.held = self.held, []
        for session, receipt in held:
            session.send(receipt)

    def hang_up(self) -> None:
        """Close every connection."""
        for session in list(self.sessions):
            session.hang_up()

    def challenge(self) -> None:
        """Ask everybody for fresh credentials."""
        asked = pb.CommandAuthChallenge(challenge=pb.AuthData(auth_method_name="token", auth_data=b"PulsarAuthRefresh"))
        for session in self.sessions:
            session.send(Command(type=Command.AUTH_CHALLENGE, authChallenge=asked))

    def count(self, kind: int) -> int:
        """How many commands of a type ever came."""
        return sum(session.count(kind) for session in self.ever)

    # --- the server

    async def start(self, port: int = 0) -> None:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", port, limit=2**20)
        self.port = self._server.sockets[0].getsockname()[1]
        self.url = f"pulsar://127.0.0.1:{self.port}"

    async def stop(self) -> None:
        assert self._server is not None
        self._server.close()
        self.hang_up()
        while self.sessions:  # noqa: ASYNC110 - their tasks end by themselves
            await asyncio.sleep(0.001)  # they have no event

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        session = Session(self, reader, writer)
        self.sessions.append(session)
        self.ever.append(session)
        try:
            while True:
                size = struct.unpack(">I", await reader.readexactly(4))[0]
                frame = await reader.readexactly(size)
                length = struct.unpack_from(">I", frame)[0]
                command = Command.FromString(frame[4 : 4 + length])
                session.seen.append(command)
                self._handle(session, command, frame[4 + length :])
        except (asyncio.IncompleteReadError, ConnectionError, asyncio.CancelledError):
            pass
        finally:
            self.sessions.remove(session)
            for name, _ in list(session.producers.values()):
                self._free(name, session)
            writer.close()

    def _free(self, name: str, session: Session) -> None:
        topic = self.topics.get(name)
        if topic is None:
            return
        for producer, (owner, _) in list(topic.producers.items()):
            if owner is session:
                del topic.producers[producer]
        if not topic.producers:
            topic.exclusive = False
            if topic.waiting:
                waiting, command = topic.waiting.pop(0)
                self.produce(waiting, command, topic)

    def _handle(self, session: Session, command: Command, behind: bytes) -> None:
        kind = command.type
        if self.hook is not None and self.hook(session, command):
            return
        if kind in self.silent:
            return
        if self.refusals[kind]:
            self._refuse(session, command, self.refusals[kind].pop(0))
            return
        handler = self._HANDLERS.get(kind)
        if handler is not None:
            handler(self, session, command, behind)

    def _refuse(self, session: Session, command: Command, error: pb.ServerError) -> None:
        kind = command.type
        if kind == Command.SEND:
            told = pb.CommandSendError(
                producer_id=command.send.producer_id,
                sequence_id=max(command.send.sequence_id, command.send.highest_sequence_id),  # as brokers have it
                error=error,
                message="as the test wants it",
            )
            session.send(Command(type=Command.SEND_ERROR, send_error=told))
        elif kind == Command.LOOKUP:
            failed = pb.CommandLookupTopicResponse(
                request_id=command.lookupTopic.request_id,
                response=pb.CommandLookupTopicResponse.Failed,
                error=error,
                message="as the test wants it",
            )
            session.send(Command(type=Command.LOOKUP_RESPONSE, lookupTopicResponse=failed))
        else:
            body = next(value for descriptor, value in command.ListFields() if descriptor.name != "type")
            session.fail(getattr(body, "request_id", 0), error)

    def _on_connect(self, session: Session, command: Command, behind: bytes) -> None:
        session.connect = command.connect
        if self.tokens is not None and command.connect.auth_data not in self.tokens:
            session.fail(2**64 - 1, pb.AuthenticationError, "no such token")
            return
        features = pb.FeatureFlags(
            supports_topic_watchers=self.watchers,
            supports_get_partitioned_metadata_without_auto_creation=True,
            supports_auth_refresh=True,
        )
        connected = pb.CommandConnected(
            server_version="fake", protocol_version=21, max_message_size=self.max_message_size, feature_flags=features
        )
        session.send(Command(type=Command.CONNECTED, connected=connected))

    def _on_lookup(self, session: Session, command: Command, behind: bytes) -> None:
        answer = pb.CommandLookupTopicResponse(request_id=command.lookupTopic.request_id)
        if self.redirects:
            answer.brokerServiceUrl, answer.authoritative = self.redirects.pop(0)
            answer.response = pb.CommandLookupTopicResponse.Redirect
        else:
            url = self.owner or self.url
            if url.startswith("pulsar+ssl"):
                answer.brokerServiceUrlTls = url
            else:
                answer.brokerServiceUrl = url
            answer.response = pb.CommandLookupTopicResponse.Connect
            answer.proxy_through_service_url = self.through_proxy
        session.send(Command(type=Command.LOOKUP_RESPONSE, lookupTopicResponse=answer))

    def _on_partitions(self, session: Session, command: Command, behind: bytes) -> None:
        asked = command.partitionMetadata
        assert not asked.metadata_auto_creation_enabled
        answer = pb.CommandPartitionedTopicMetadataResponse(request_id=asked.request_id)
        if asked.topic in self.partitions or asked.topic in self.topics:
            answer.partitions = self.partitions.get(asked.topic, 0)
            answer.response = pb.CommandPartitionedTopicMetadataResponse.Success
        else:
            answer.response = pb.CommandPartitionedTopicMetadataResponse.Failed
            answer.error = pb.TopicNotFound
        session.send(Command(type=Command.PARTITIONED_METADATA_RESPONSE, partitionMetadataResponse=answer))

    def _on_topics(self, session: Session, command: Command, behind: bytes) -> None:
        asked = command.getTopicsOfNamespace
        names = [name for name in self.topics if f"/{asked.namespace}/" in name]
        answer = pb.CommandGetTopicsOfNamespaceResponse(request_id=asked.request_id, topics=names)
        session.send(Command(type=Command.GET_TOPICS_OF_NAMESPACE_RESPONSE, getTopicsOfNamespaceResponse=answer))

    # --- producers

    def _on_producer(self, session: Session, command: Command, behind: bytes) -> None:
        asked = command.producer
        topic = self.topics.get(asked.topic)
        if topic is None:
            session.fail(asked.request_id, pb.TopicNotFound)
            return
        mode = asked.producer_access_mode
        if asked.producer_id in session.producers:  # it has that one: nothing changes
            again = pb.CommandProducerSuccess(request_id=asked.request_id, producer_name=asked.producer_name)
            session.send(Command(type=Command.PRODUCER_SUCCESS, producer_success=again))
        elif asked.HasField("topic_epoch") and topic.epoch is not None and asked.topic_epoch < topic.epoch:
            if mode == pb.ExclusiveWithFencing:  # brokers look at the epochs only then
                self._fence_out(topic)
                session.fail(asked.request_id, pb.ProducerFenced, "Topic epoch has already moved")
            else:
                session.fail(asked.request_id, pb.ProducerFenced, self._held_by(topic))
        elif mode == pb.Shared and topic.exclusive:
            session.fail(asked.request_id, pb.ProducerBusy)
        elif mode == pb.Exclusive and topic.producers:
            session.fail(asked.request_id, pb.ProducerFenced, self._held_by(topic))
        elif mode == pb.WaitForExclusive and topic.producers:
            topic.waiting.append((session, asked))
            answer = pb.CommandProducerSuccess(
                request_id=asked.request_id, producer_name=asked.producer_name or "waiting", producer_ready=False
            )
            session.send(Command(type=Command.PRODUCER_SUCCESS, producer_success=answer))
        elif asked.producer_name in topic.producers and not self._own(session, asked, topic):
            session.fail(asked.request_id, pb.ProducerBusy)
        else:
            self.produce(session, asked, topic)

    def _held_by(self, topic: Topic) -> str:
        held = next(iter(topic.producers), "null") if topic.exclusive else "null"
        return f"Topic has an existing exclusive producer: {held}"

    def _fence_out(self, topic: Topic) -> None:
        """Without a word to those that are."""
        for other, producer_id in topic.producers.values():
            other.producers.pop(producer_id, None)
        topic.producers.clear()

    def _own(self, session: Session, asked: pb.CommandProducer, topic: Topic) -> bool:
        """The same producer, come back on a newer connection."""
        return asked.epoch > 0 and asked.producer_name in topic.producers

    def produce(self, session: Session, asked: pb.CommandProducer, topic: Topic) -> None:
        """Give a client the producer that it asks for."""
        name = asked.producer_name or f"fake-{len(self.ever)}-{asked.producer_id}"
        answer = pb.CommandProducerSuccess(
            request_id=asked.request_id,
            producer_name=name,
            last_sequence_id=topic.last_sequence.get(name, -1),
            producer_ready=True,
        )
        if asked.producer_access_mode != pb.Shared:
            if asked.producer_access_mode == pb.ExclusiveWithFencing:
                self._fence_out(topic)
            if not asked.HasField("topic_epoch"):
                topic.epoch = 0 if topic.epoch is None else topic.epoch + 1
            topic.exclusive = True
            assert topic.epoch is not None
            answer.topic_epoch = topic.epoch
        topic.producers[name] = (session, asked.producer_id)
        session.producers[asked.producer_id] = (asked.topic, name)
        session.send(Command(type=Command.PRODUCER_SUCCESS, producer_success=answer))

    def _on_send(self, session: Session, command: Command, behind: bytes) -> None:
        told = command.send
        if told.producer_id not in session.producers:
            session.hang_up()  # as a broker does with one that is fenced
            return
        name, producer = session.producers[told.producer_id]
        topic = self.topics[name]
        assert behind[:2] == b"\x0e\x01"
        receipt = pb.CommandSendReceipt(producer_id=told.producer_id, sequence_id=told.sequence_id)
        if struct.unpack(">I", behind[2:6])[0] != crc32c(behind[6:]):
            self._refuse(session, command, pb.ChecksumError)
            return
        highest = max(told.highest_sequence_id, told.sequence_id)
        if told.sequence_id <= topic.last_sequence.get(producer, -1):
            receipt.message_id.ledgerId = receipt.message_id.entryId = -1
        else:
            topic.last_sequence[producer] = highest
            stored = topic.append(behind, told.num_messages)
            receipt.message_id.ledgerId, receipt.message_id.entryId = stored.ledger, stored.entry
        answer = Command(type=Command.SEND_RECEIPT, send_receipt=receipt)
        if self.hold_receipts:
            self.held.append((session, answer))
        else:
            session.send(answer)
        self._dispatch(name)

    def _on_close_producer(self, session: Session, command: Command, behind: bytes) -> None:
        owned = session.producers.pop(command.close_producer.producer_id, None)
        session.success(command.close_producer.request_id)
        if owned is not None:
            name, producer = owned
            topic = self.topics[name]
            topic.producers.pop(producer, None)
            self._free(name, session)

    # --- consumers

    def on_subscribe(self, session: Session, command: Command, behind: bytes) -> None:
        """Give a client the consumer that it asks for."""
        asked = command.subscribe
        assert not asked.durable
        assert not asked.force_topic_creation
        topic = self.topics.get(asked.topic)
        if topic is None:
            session.fail(asked.request_id, pb.TopicNotFound)
            return
        start = (asked.start_message_id.ledgerId, asked.start_message_id.entryId)
        first = next((at for at, stored in enumerate(topic.log) if (stored.ledger, stored.entry) >= start), None)
        session.consumers[asked.consumer_id] = Consumer(asked.topic, len(topic.log) if first is None else first)
        session.success(asked.request_id)

    def _on_flow(self, session: Session, command: Command, behind: bytes) -> None:
        consumer = session.consumers.get(command.flow.consumer_id)
        if consumer is not None:
            consumer.permits += command.flow.messagePermits
            self._dispatch(consumer.topic)

    def _on_last(self, session: Session, command: Command, behind: bytes) -> None:
        asked = command.getLastMessageId
        consumer = session.consumers.get(asked.consumer_id)
        if consumer is None:
            session.fail(asked.request_id, pb.MetadataError, "Consumer not found")
            return
        topic = self.topics[consumer.topic]
        answer = pb.CommandGetLastMessageIdResponse(request_id=asked.request_id)
        last = topic.log[-1] if topic.log else None
        answer.last_message_id.ledgerId = last.ledger if last else -1
        answer.last_message_id.entryId = last.entry if last else -1
        before = topic.log[consumer.begin - 1] if consumer.begin else None
        answer.consumer_mark_delete_position.ledgerId = before.ledger if before else topic.ledger
        answer.consumer_mark_delete_position.entryId = before.entry if before else -1
        session.send(Command(type=Command.GET_LAST_MESSAGE_ID_RESPONSE, getLastMessageIdResponse=answer))

    def _on_close_consumer(self, session: Session, command: Command, behind: bytes) -> None:
        session.consumers.pop(command.close_consumer.consumer_id, None)
        session.success(command.close_consumer.request_id)

    def _dispatch(self, name: str) -> None:
        topic = self.topics[name]
        for session in self.sessions:
            for consumer_id, consumer in session.consumers.items():
                while consumer.topic == name and consumer.permits > 0 and consumer.next < len(topic.log):
                    stored = topic.log[consumer.next]
                    consumer.next += 1
                    consumer.permits -= stored.messages
                    message = pb.CommandMessage(consumer_id=consumer_id)
                    message.message_id.ledgerId, message.message_id.entryId = stored.ledger, stored.entry
                    session.send(Command(type=Command.MESSAGE, message=message), self._on_the_way(stored))

    def _on_the_way(self, stored: Stored) -> bytes:
        data = stored.data
        if self.damage:
            self.damage -= 1
            data = data[:-1] + bytes((data[-1] ^ 1,))
        if not self.with_index:
            return data
        told = pb.BrokerEntryMetadata(broker_timestamp=7, index=stored.index).SerializeToString()
        return b"\x0e\x02" + struct.pack(">I", len(told)) + told + data

    # --- watchers

    def _on_watch(self, session: Session, command: Command, behind: bytes) -> None:
        asked = command.watchTopicList
        session.watches[asked.watcher_id] = asked.namespace
        names = [name for name in self.topics if f"/{asked.namespace}/" in name]
        answer = pb.CommandWatchTopicListSuccess(
            request_id=asked.request_id, watcher_id=asked.watcher_id, topic=names, topics_hash="h"
        )
        session.send(Command(type=Command.WATCH_TOPIC_LIST_SUCCESS, watchTopicListSuccess=answer))

    def _on_watch_close(self, session: Session, command: Command, behind: bytes) -> None:
        session.watches.pop(command.watchTopicListClose.watcher_id, None)
        session.success(command.watchTopicListClose.request_id)

    def _changed(self, added: list[str], removed: list[str]) -> None:
        for session in self.sessions:
            for watcher_id in session.watches:
                told = pb.CommandWatchTopicUpdate(
                    watcher_id=watcher_id, new_topics=added, deleted_topics=removed, topics_hash="h"
                )
                session.send(Command(type=Command.WATCH_TOPIC_UPDATE, watchTopicUpdate=told))

    def _on_ping(self, session: Session, command: Command, behind: bytes) -> None:
        session.send(Command(type=Command.PONG, pong=pb.CommandPong()))

    def _on_auth_response(self, session: Session, command: Command, behind: bytes) -> None:
        session.auth.append(command.authResponse)

    _HANDLERS: ClassVar = {
        Command.CONNECT: _on_connect,
        Command.LOOKUP: _on_lookup,
        Command.PARTITIONED_METADATA: _on_partitions,
        Command.GET_TOPICS_OF_NAMESPACE: _on_topics,
        Command.PRODUCER: _on_producer,
        Command.SEND: _on_send,
        Command.CLOSE_PRODUCER: _on_close_producer,
        Command.SUBSCRIBE: on_subscribe,
        Command.FLOW: _on_flow,
        Command.GET_LAST_MESSAGE_ID: _on_last,
        Command.CLOSE_CONSUMER: _on_close_consumer,
        Command.WATCH_TOPIC_LIST: _on_watch,
        Command.WATCH_TOPIC_LIST_CLOSE: _on_watch_close,
        Command.PING: _on_ping,
        Command.AUTH_RESPONSE: _on_auth_response,
    }
    """What is done for each type of command."""


@asynccontextmanager
async def fake_pulsar() -> AsyncIterator[FakePulsar]:
    """A broker on a free port, for the length of a block."""
    broker = FakePulsar()
    await broker.start()
    try:
        yield broker
    finally:
        await broker.stop()


async def fails(waiting: Awaitable[object]) -> str:
    """The code of the PulsarError that `waiting` ends with."""
    from kop.pulsar_client.errors import PulsarError

    try:
        result = await waiting
    except PulsarError as error:
        return error.code
    raise AssertionError(f"no error but {result!r}")
