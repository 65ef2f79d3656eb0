"""A reader of one topic, from an exact position.

Owns: the non-durable consumer behind it, its permits, how far it is in its topic, whatever connection it is on, and
coming back just behind the last entry delivered.
Must not know: what the entries mean, and which topic id is the right one (the caller of `before_attach` does).
"""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import TypeAlias, cast

from kop import clock
from kop.pulsar_client import wire
from kop.pulsar_client.attachment import BeforeAttach, BrokerAttachment, Find, OnLost
from kop.pulsar_client.connection import Connection
from kop.pulsar_client.errors import PulsarError
from kop.pulsar_client.outage import Outage
from kop.pulsar_client.proto import pulsar_pb2 as pb
from kop.pulsar_client.types import EARLIEST, LATEST, Entry, Message, Position, Received, position_in
from kop.turns import Turns


class ReaderPosition:
    """The progress of a reader: the last entry that it got, and the number of messages that the broker may still
    send.
    """

    __slots__ = ("_inclusive", "_start", "last", "permits")

    def __init__(self, start: Position, inclusive: bool, permits: int) -> None:
        self._start = start
        self._inclusive = inclusive
        self.last: Position | None = None
        """The position of the last entry that was delivered; None before the first."""
        self.permits = permits
        """The number of messages that the broker may send. Negative if its first read gave more, since that counts
        entries.
        """

    def start(self) -> Position:
        """Return the position to begin with at a subscription, the first or a later one. If that entry is not kept,
        reading begins at the next one that is.
        """
        behind = self.last
        if behind is None:
            if self._inclusive or self._start.entry < 0 or self._start.entry == 2**63 - 1:
                return self._start
            behind = self._start
        return Position(behind.ledger, behind.entry + 1)

    def pin(self, behind: Position) -> None:
        """Set the start of a reader that began at the end of the log behind the entry `behind`, so that it goes on from
        there even if nothing came yet. Without effect once an entry was delivered.
        """
        if self.last is None:
            self._start, self._inclusive = Position(behind.ledger, behind.entry + 1), True

    def take(self, position: Position, messages: int) -> bool:
        """Subtract the messages of an entry that came from the permits. Return true, and count it as the last one
        delivered, if it is wanted; false if it was delivered before or lies before the start.
        """
        self.permits -= messages
        if not self.wants(position):
            return False
        self.last = position
        return True

    def wants(self, position: Position) -> bool:
        """Return false for an entry that was delivered before, or that lies before the start; true for any other."""
        if self.last is not None:
            return position > self.last
        return self._start == EARLIEST or position >= self.start() or self._start.entry == 2**63 - 1

    def restored(self) -> int:
        """Return the number of messages that the broker may send, to be told at a new subscription; a negative one is
        set to 0.
        """
        self.permits = max(0, self.permits)
        return self.permits

    def seek(self, position: Position, inclusive: bool) -> None:
        """Set another position to read on from, and forget the last entry that was delivered."""
        self._start, self._inclusive, self.last = position, inclusive, None


_NO_CONSUMER = "Consumer not found"
"""A part of a broker's answer about a consumer that it has closed, as it does when the topic is unloaded."""
_MOST_DAMAGED = 3
"""The number of times that one entry is fetched again after its checksum did not match."""
_MOST_ALONE = 63
"""The number of entries until `on_many` is tried again after it has taken none several times: of a compressed topic it
takes none.
"""

OnMany: TypeAlias = Callable[[Sequence[Received], int], tuple[int, int]]

log = logging.getLogger(__name__)


class Reader(BrokerAttachment):
    """A reader; made by `Client.open_reader`.

    `on_entry` is called in the event loop, in order, each entry once. A lost connection is followed by `before_attach`,
    a new connection, and the entry behind the last one that was delivered; the topic is never created by that.
    `on_lost` is called once when it is over for good: `before_attach` raised, the topic is gone, `on_entry` raised, an
    entry is damaged.

    With `borrow` the bytes of an entry are there during `on_entry` only (afterwards they raise ValueError); nothing is
    copied for those who copy or convert them anyway. With `damaged` an entry that stays damaged is handed out as one
    (`Entry.damaged`) instead of ending the reader.

    `on_many` is called first with what a read brought and the place of a message in it that is wanted. It takes as many
    as it can from there on, all of this reader and in the order of their positions, and returns how many it took, and
    how many messages by Pulsar's count those have; with 0 the first one goes to `on_entry`, and some behind it. Bytes
    are lent to it.
    """

    def __init__(
        self,
        ids: itertools.count[int],
        topic: str,
        find: Find,
        start: Position,
        *,
        inclusive: bool,
        read_compacted: bool,
        permits: int,
        on_entry: Callable[[Entry], None],
        on_many: OnMany | None,
        borrow: bool,
        damaged: bool,
        timeout: float,
        before_attach: BeforeAttach | None,
        on_lost: OnLost | None,
        turns: Turns | None,
        outage: Outage,
    ) -> None:
        super().__init__(
            f"reader of {topic}",
            find,
            timeout=timeout,
            before_attach=before_attach,
            on_lost=on_lost,
            turns=turns,
            outage=outage,
        )
        self._ids = ids
        self._read_compacted = read_compacted
        self._deliver = on_entry
        self._deliver_many = on_many
        self._alone = 0
        """The number of entries that are still delivered one by one before `on_many` is tried again."""
        self._alone_next = 1
        self._borrow = borrow
        self._hands_out_damaged = damaged
        self._position = ReaderPosition(start, inclusive, permits)
        self._at_end = start == LATEST
        self._id = 0
        self._subscription = f"kop-reader-{clock.token_hex(6)}"
        self._ready = asyncio.Event()
        self._damaged = 0
        self.topic = topic
        self.ended = False
        """True if the topic is terminated and read to its end."""

    @property
    def position(self) -> Position | None:
        """The position of the last entry that was delivered; None before the first."""
        return self._position.last

    @property
    def permits(self) -> int:
        """The number of messages that the broker may still send."""
        return self._position.permits

    @property
    def cursor(self) -> str:
        """The name of the reader's cursor, by which the broker's internal statistics show it. Each attaching makes
        another one.
        """
        return f"{self._subscription}-{self._id}"

    def flow(self, messages: int) -> None:
        """Permit the broker to send `messages` more messages; it is told when the reader is attached again if it is not
        now.
        """
        self._position.permits += messages
        if self._connection is not None:
            self._flow(self._connection, messages)

    async def last_position(self, *, within: float | None = None) -> Position:
        """Return the position of the topic's last entry, with entry -1 if the ledger that it names has none.
        PulsarError if Pulsar refuses it or does not answer.

        `within` is the time limit in seconds; None for that of any request of the client.
        """
        answer = await self._last_anywhere(self._timeout if within is None else within)
        return wire.read_position(answer.last_message_id)

    async def mark_delete_position(self) -> Position | None:
        """Return the position up to which the broker counts entries as acknowledged by this reader; None if it does not
        say. PulsarError if Pulsar refuses it or does not answer.

        A reader acknowledges nothing. Behind the place where it began only the broker moves that position: over the
        entries that it keeps from all readers, and over those past which it moves the reader, as expired ones.
        """
        answer = await self._last_anywhere(self._timeout)
        if not answer.HasField("consumer_mark_delete_position"):
            return None
        return wire.read_position(answer.consumer_mark_delete_position)

    async def seek(self, position: Position, *, inclusive: bool = True) -> None:
        """Go on at `position`; no entry from before is delivered once this returns. PulsarError if Pulsar refuses it or
        does not answer.

        The consumer is closed and another one subscribes: a broker's own SEEK does the same, at a time of its choice.
        """
        connection, self._connection = self._connection, None
        task, self._task = self._task, None
        if task is not None and not task.done():
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            connection = self._connection or connection
            self._connection = None
        if self._end is not None:
            raise self._end
        self._ready.clear()
        if connection is not None:
            self._leave(connection)
        self._at_end = position == LATEST
        self._position.seek(position, inclusive)
        self._task = self._loop.create_task(self._come_back(None, moved=True), name=f"pulsar seek {self.topic}")
        await self._until_ready()

    async def close(self) -> None:
        """Stop reading; `on_entry` is not called any more."""
        connection = await self._stop()
        if connection is not None and not connection.closed:
            connection.readers.pop(self._id, None)
            with suppress(PulsarError):  # the connection's end closes it too
                await connection.request(self._closing, self._timeout, f"closing {self._what}")
        self._over(PulsarError("Closed", ""))

    # --- what the connection tells

    def on_messages(self, received: Sequence[Received], at: int) -> int:
        """Deliver one message of those that a read of the socket brought, or as many as `on_many` takes; return their
        number.
        """
        message = cast(Message, received[at])
        if self._alone:
            self._alone -= 1
        elif self._deliver_many is not None and self._end is None and message[0] == self._id:
            taken = self._deliver_together(self._deliver_many, received, at)
            if taken:
                self._alone_next = 1
                return taken
            self._alone = self._alone_next
            self._alone_next = min(2 * self._alone_next + 1, _MOST_ALONE)
        self._on_message(message)
        return 1

    def _deliver_together(self, deliver: OnMany, received: Sequence[Received], at: int) -> int:
        position = position_in(received, at)
        if not self._position.wants(position):
            return 0
        try:
            taken, messages = deliver(received, at)
        except Exception as error:
            log.exception("%s: entries from %s on could not be handled", self._what, position)
            self._drop(PulsarError("HandlerFailed", f"{position}: {error!r}"))
            return 1
        if taken:
            self._damaged = 0
            self._position.take(position_in(received, at + taken - 1), messages)
        return taken

    def _on_message(self, message: Message) -> None:
        """Deliver the entry of a message, or fetch it again if it is damaged. An entry that was delivered before is
        dropped, and its permits are given back to the broker.
        """
        consumer_id, ledger, number, index, timestamp, num_messages, metadata, payload, damaged = message
        if self._end is not None or consumer_id != self._id:
            return
        position = Position(ledger, number)
        if damaged and not self._takes_damaged(position, damaged, index_known=num_messages > 0):
            return
        if self._position.take(position, num_messages):
            self._damaged = 0
            if not self._borrow:
                metadata, payload = memoryview(bytes(metadata)), memoryview(bytes(payload))
            try:
                self._deliver(Entry(position, index, timestamp, num_messages, metadata, payload, damaged))
            except Exception as error:
                log.exception("%s: entry %s could not be handled", self._what, position)
                self._drop(PulsarError("HandlerFailed", f"{position}: {error!r}"))
            if self._borrow:
                metadata.release()
                payload.release()
        else:
            self.flow(num_messages)

    def on_end(self) -> None:
        """Set `ended`: the topic is terminated and read to its end."""
        self.ended = True

    def _takes_damaged(self, position: Position, why: str, *, index_known: bool) -> bool:
        """Return true if a damaged entry is handed out as it is. The first three times it is fetched again instead, by
        attaching anew, since the stored copy may be whole. After that the reader ends, unless it hands damaged entries
        out and the entry's index is known.
        """
        error = PulsarError("ChecksumError", f"entry {position} is damaged: {why}")
        self._damaged += 1
        if self._damaged > _MOST_DAMAGED:
            log.error("%s: %s; it came damaged each time that it was fetched", self._what, error)
            if self._hands_out_damaged and index_known:
                return True
            self._drop(error)
            return False
        connection = self._connection
        if connection is not None:
            self._leave(connection)
            self.on_disconnect(PulsarError("ConnectionLost", error.message), None)
        return False

    def _drop(self, error: PulsarError) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            self._leave(connection)
        self._give_up(error)

    # --- attaching

    async def _attach(self, connection: Connection) -> None:
        self._id = next(self._ids)  # a new id each time, so that late messages for the former id are ignored
        start = self._position.start()
        command = pb.CommandSubscribe(
            topic=self.topic,
            subscription=self.cursor,
            subType=pb.CommandSubscribe.Exclusive,
            consumer_id=self._id,
            durable=False,
            read_compacted=self._read_compacted,
            force_topic_creation=False,
            start_message_id=pb.MessageIdData(ledgerId=start.ledger, entryId=start.entry),
        )
        connection.readers[self._id] = self
        try:
            await connection.request(command, self._timeout, self._what)
            if self._at_end:
                answer = await self._last(connection, self._timeout)
                if answer.HasField("consumer_mark_delete_position"):
                    self._position.pin(wire.read_position(answer.consumer_mark_delete_position))
                    self._at_end = False
        except BaseException as error:
            connection.readers.pop(self._id, None)
            if not isinstance(error, PulsarError) or error.code == "Timeout":
                self._leave(connection)  # it may be made later
            raise

    def _detached(self, error: PulsarError) -> None:
        self._ready.clear()

    def _resume(self) -> None:
        assert self._connection is not None
        self._ready.set()
        permits = self._position.restored()
        if permits:
            self._flow(self._connection, permits)

    def _over(self, error: PulsarError) -> None:
        self._ready.set()  # those who wait find that the reader has ended

    # --- inside

    async def _until_ready(self) -> Connection:
        try:
            async with asyncio.timeout(self._timeout):
                while self._connection is None:
                    if self._end is not None:
                        raise self._end
                    self._ready.clear()
                    await self._ready.wait()
        except TimeoutError:
            raise PulsarError("Timeout", f"Pulsar did not take {self._what} within {self._timeout:g} s") from None
        return self._connection

    async def _last_anywhere(self, seconds: float) -> pb.CommandGetLastMessageIdResponse:
        """Ask for the topic's last position; ask again, within so many seconds, each time that the topic has left the
        broker that was asked. PulsarError if Pulsar refuses it or does not answer in time.
        """
        try:
            async with asyncio.timeout(seconds):
                while True:
                    connection = await self._until_ready()
                    consumer_id = self._id
                    try:
                        return await self._last(connection, seconds)
                    except PulsarError as error:
                        if not error.retriable or self._end is not None:
                            raise
                        if self._connection is connection and self._id == consumer_id:
                            if _NO_CONSUMER not in error.message:
                                raise
                            connection.readers.pop(consumer_id, None)  # the word that it is closed is on its way
                            self.on_disconnect(PulsarError("ConnectionLost", error.message), None)
        except TimeoutError:
            raise PulsarError("Timeout", f"the last position of {self.topic} within {seconds:g} s") from None

    async def _last(self, connection: Connection, seconds: float) -> pb.CommandGetLastMessageIdResponse:
        answer: pb.CommandGetLastMessageIdResponse = await connection.request(
            pb.CommandGetLastMessageId(consumer_id=self._id), seconds, f"the last position of {self.topic}"
        )
        return answer

    def _flow(self, connection: Connection, messages: int) -> None:
        connection.write(pb.CommandFlow(consumer_id=self._id, messagePermits=messages))

    @property
    def _closing(self) -> pb.CommandCloseConsumer:
        return pb.CommandCloseConsumer(consumer_id=self._id)

    def _leave(self, connection: Connection) -> None:
        """Forget the reader on a connection, and tell the broker so, without waiting for its answer."""
        connection.readers.pop(self._id, None)
        connection.write_request(self._closing)
