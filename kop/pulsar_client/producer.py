"""A producer of one topic.

Owns: pipelined sending, resending in order, and the modes of exclusive access.
Must not know: what the entries mean, and which topic id is the right one (the caller of `before_attach` does).

Entries may also be put on the wire by compiled code, which then holds them until their receipts (`DirectEntries`). It
does so behind all that was given to `submit`, and only while nothing unusual happens to the producer: whatever else is
asked of the producer, or happens to its connection, has the entries handed over first, and finds them among its own.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any, NamedTuple, Protocol

from kop import clock
from kop.pulsar_client import wire
from kop.pulsar_client.attachment import BeforeAttach, BrokerAttachment, Find, OnLost
from kop.pulsar_client.connection import Connection
from kop.pulsar_client.errors import QUOTA_EXCEEDED, EntryRefusedError, PulsarError, exclusive_holder
from kop.pulsar_client.outage import Outage
from kop.pulsar_client.outgoing import Outgoing
from kop.pulsar_client.pending import AwaitedEntry, PendingEntries, PendingEntry
from kop.pulsar_client.proto import pulsar_pb2 as pb
from kop.pulsar_client.types import Access, Buffer, Position, Receipt, TxnId
from kop.turns import Turns

MODES: dict[str, pb.ProducerAccessMode] = {
    "shared": pb.Shared,
    "exclusive": pb.Exclusive,
    "exclusive_with_fencing": pb.ExclusiveWithFencing,
    "wait_for_exclusive": pb.WaitForExclusive,
}

OnStored = Callable[[Sequence[tuple[Any, int, int]]], None]
"""The type of a callback for stored entries: those that were given to `Producer.submit`, each with its ledger and entry
number; both are -1 if the broker had the entry before.
"""
Confirm = Callable[["Producer"], Awaitable[None]]


class HandedEntries(NamedTuple):
    """The state of a producer that compiled code hands back when it ends its work for it."""

    entries: Sequence[PendingEntry]
    """The entries without a receipt, in order. The deadline of each is the time at which it was sent."""
    receipts: Sequence[Receipt]
    """The receipts of the first of them, which were taken and not used yet."""
    highest: int
    """The highest sequence id that was sent, or -1."""


class DirectEntries(Protocol):
    """The entries of a producer that compiled code holds between sending and their receipts."""

    @property
    def in_flight(self) -> int:
        """The number of entries that have no receipt."""

    @property
    def oldest(self) -> float | None:
        """The loop's time at which the oldest entry without a receipt was sent; None if there is none."""

    def received(self, receipts: Sequence[Receipt]) -> int:
        """Handle receipts of the first entries; return the number handled.

        If not all were handled, `Producer.end_direct` is called before this returns.
        """

    def hand_over(self) -> HandedEntries:
        """Stop for good, and return the entries and receipts that compiled code has."""


class Producer(BrokerAttachment):
    """A producer; made by `Client.open_producer`.

    A lost connection is followed by `before_attach`, a new connection and all that is pending, in order; the topic's
    epoch of an exclusive producer is shown again, so that a successor is not robbed. `on_lost` is called once when that
    is over for good: `before_attach` or `confirm` raised, the topic is gone, the producer is fenced, or another one
    wrote under its name meanwhile (ProducerFenced, too): the sequence ids that the owner goes on with would not fit any
    more. Without `resend` it is over, too, where entries were under way when the connection was lost.
    """

    def __init__(
        self,
        ids: itertools.count[int],
        topic: str,
        find: Find,
        *,
        name: str | None,
        access: Access,
        epoch: int | None,
        properties: Mapping[str, str],
        timeout: float,
        send_timeout: float,
        before_attach: BeforeAttach | None,
        confirm: Confirm | None,
        on_lost: OnLost | None,
        turns: Turns | None,
        resend: bool,
        on_stored: OnStored | None = None,
        outage: Outage,
    ) -> None:
        what = f"producer {name or 'without a name'} of {topic}"
        super().__init__(
            what, find, timeout=timeout, before_attach=before_attach, on_lost=on_lost, turns=turns, outage=outage
        )
        self._ids = ids
        self._id = 0
        self._access = access
        self._properties = properties
        self._named = name is not None
        self._send_timeout = send_timeout
        self._confirm = confirm
        self._resend = resend
        self._on_stored = on_stored
        self._pending = PendingEntries()
        self._direct: DirectEntries | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._turn: asyncio.Future[Any] | None = None
        self._attempts = 0
        self._moving = False
        """True while nothing more is written to this connection, because the producer moves to another one."""
        self._max_size = 0
        self.topic = topic
        self.name = name or ""
        """The producer's name, chosen by the broker if none was given."""
        self.last_sequence_id = -1
        """The highest sequence id stored under this name when it was last attached (-1: none, or no deduplication)."""
        self.topic_epoch = epoch
        """The topic's epoch that an exclusive producer holds."""
        self._highest = -1
        """The highest sequence id of this producer: of an entry that was sent or waits, or that was stored before it
        was first attached.
        """
        self.attach_seconds = 0.0
        """The seconds that the broker took to answer when the producer was last attached."""
        self.sure_at = float("-inf")
        """The loop's time of the last question to the broker after which it was certain that the producer is
        attached.
        """

    @property
    def pending(self) -> int:
        """The number of entries without an answer."""
        return len(self._pending) + (0 if self._direct is None else self._direct.in_flight)

    @property
    def id(self) -> int:
        """The producer's number on its connection, which frames name; another one each time that it is attached."""
        return self._id

    def send(
        self,
        metadata: Buffer,
        payload: Buffer,
        *,
        sequence_id: int,
        highest_sequence_id: int | None = None,
        num_messages: int = 1,
        txn: TxnId | None = None,
    ) -> asyncio.Future[Position]:
        """Send an entry behind all earlier ones; the future has its position (DUPLICATE if it was known already).

        `metadata` is a serialized MessageMetadata that carries the producer's name, `sequence_id` and the publish time.
        With `txn` the entry is sent in that transaction: its metadata has to name it, too, and the partition must have
        been added to it. The future fails with the PulsarErrors of `submit`. Raises ValueError if the sequence id is
        pending already.
        """
        head = wire.send_head(self._id, sequence_id, highest_sequence_id, num_messages, metadata, payload, txn)
        highest = sequence_id if highest_sequence_id is None else highest_sequence_id
        future: asyncio.Future[Position] = self._loop.create_future()
        size = len(metadata) + len(payload)
        frame = b"".join((head, metadata, payload))
        self.submit(AwaitedEntry(frame, size, self._id, sequence_id, highest, future))
        return future

    def send_marker(self, marker_type: int, *, sequence_id: int, txn: TxnId) -> asyncio.Future[Position]:
        """Send an entry of this marker type without a payload in a transaction; readers do not get it. The future is
        that of `send`: the entry's position, or its error.
        """
        metadata = pb.MessageMetadata(
            producer_name=self.name,
            sequence_id=sequence_id,
            publish_time=clock.wall_ms(),
            marker_type=marker_type,
            txnid_most_bits=txn.most,
            txnid_least_bits=txn.least,
        )
        return self.send(metadata.SerializeToString(), b"", sequence_id=sequence_id, txn=txn)

    def submit(self, entry: PendingEntry) -> None:
        """Send an entry behind all earlier ones. The entry's `stored` or its `failed` is called once, `failed` perhaps
        before this returns. If the producer has `on_stored`, that is called instead of `stored`, with all entries that
        one read of the socket confirmed.

        `failed` gets a PulsarError: EntryRefusedError if the broker has refused the entry for good, MessageTooLarge,
        Timeout if the entry is not stored within `send_timeout` (all entries behind it fail, too),
        ProducerBlockedQuotaExceededError, or the error that has ended the producer. Raises ValueError, and calls
        neither, if the sequence id is pending already.
        """
        if self._direct is not None:
            self.end_direct()
        if self._end is not None:
            entry.failed(self._end)
            return
        pending = self._pending
        if entry.sequence_id in pending:
            raise ValueError(f"sequence id {entry.sequence_id} is pending already")
        if entry.size > self._max_size:
            text = f"an entry of {entry.size} bytes; the broker takes {self._max_size}"
            entry.failed(PulsarError("MessageTooLarge", text))
            return
        entry.deadline = self._loop.time() + self._send_timeout
        self._highest = max(self._highest, entry.highest_sequence_id)
        if self._timer is None:
            self._timer = self._loop.call_at(entry.deadline, self._expire)
        connection = self._connection
        at_once = (
            connection is not None
            and not connection.outgoing.paused
            and pending.all_sent
            and entry.producer_id == self._id
            and not self._moving
        )
        pending.add(entry, sent=at_once)
        if connection is not None and at_once:
            connection.outgoing.push(entry.frame)
        else:
            self._flush()

    def find(self, sequence_id: int) -> PendingEntry | None:
        """Return the entry without a receipt whose first message has this sequence id; None if there is none. Entries
        that compiled code holds are taken over first.
        """
        self.end_direct()
        return self._pending.find(sequence_id)

    def unanswered(self) -> list[PendingEntry]:
        """Return the entries without a receipt, in order. Those that compiled code holds are taken over first."""
        self.end_direct()
        return self._pending.all()

    def withdraw(self, sequence_id: int) -> None:
        """Drop the entry whose first message has this sequence id, without a call of `stored` or `failed`: it is not
        sent again.

        For `confirm`, which may find that an entry is stored already.
        """
        self._pending.take(sequence_id)

    def move(self, find: Find) -> None:
        """Use the connections that `find` gives, now and after each loss, once all that was written to the present one
        has its receipts.

        What is submitted until then waits. The broker sees the producer leave, and come back on the other connection.
        """
        self.end_direct()
        self._find = find
        self._moving = self._connection is not None
        self._change_connection()

    async def verify(self) -> None:
        """Ask the broker if it still has this exclusive producer; if so, set `sure_at` to the time of the question.
        PulsarError if it has not, if Pulsar does not answer, or if the producer is not attached.

        A broker does not tell a producer that it was fenced out, until that sends something. Asked for a producer that
        it has, it says yes and changes nothing. One that is fenced out is over then.
        """
        connection = self._connection
        if connection is None:
            raise PulsarError("ConnectionLost", f"{self._what} is not attached")
        asked = self._loop.time()
        command = self._producer_command(pb.Exclusive)  # with fencing it would push its successor out
        try:
            await connection.request(command, self._timeout, self._what)
        except PulsarError as error:
            if error.code == "ProducerFenced" and connection is self._connection:
                self._connection = None
                connection.producers.pop(self._id, None)
                self._give_up(error)
            raise
        self.sure_at = asked

    async def close(self, *, drops_connection: bool = False) -> None:
        """Close the producer. Pending entries may still be answered until the broker confirms; then they fail.

        With `drops_connection` its connection ends instead, by which the broker knows it: all others of its lane come
        back on a new one. This is for an exclusive producer that another may push out at this moment: docs/quirks.md,
        "A broker that pushes a producer out may block two threads for ever".
        """
        self.end_direct()
        connection = await self._stop()
        if connection is not None and not connection.closed:
            if drops_connection:
                connection.producers.pop(self._id, None)
                connection.abort(PulsarError("ConnectionLost", f"dropped, as the way to close {self._what}"))
            else:
                with suppress(PulsarError):  # the connection's end closes it too
                    await self._close_request(connection)
                connection.producers.pop(self._id, None)
        self._over(PulsarError("Closed", f"{self._what} is closed"))

    # --- entries that compiled code sends

    @property
    def direct_outgoing(self) -> Outgoing | None:
        """The object into which compiled code may put frames behind all others now; None if entries have to go through
        `submit`.

        Compiled code may do so while `begin_direct` lasts and the object is not paused.
        """
        connection = self._connection
        if connection is None or self._end is not None or self._moving or not self._pending.all_sent:
            return None
        return None if connection.outgoing.paused else connection.outgoing

    def begin_direct(self, direct: DirectEntries) -> None:
        """Allow compiled code (`direct`) to send entries itself, until a method of the producer is called, or its
        connection changes.
        """
        self._direct = direct
        if self._timer is None:
            self._timer = self._loop.call_later(self._send_timeout, self._expire)

    def end_direct(self) -> None:
        """Take over the entries that compiled code holds, and wait for their receipts here."""
        direct, self._direct = self._direct, None
        if direct is None:
            return
        handed = direct.hand_over()
        self._highest = max(self._highest, handed.highest)
        for entry in handed.entries:
            entry.deadline += self._send_timeout
            self._pending.add(entry, sent=True)
        if handed.receipts:
            self._on_receipts(handed.receipts)

    # --- what the connection tells

    def on_receipts(self, receipts: Sequence[Receipt]) -> None:
        """Call `stored` of the entries, or `on_stored`, for the receipts that one read of the socket brought; those of
        entries that compiled code holds are given to it.
        """
        if self._direct is not None:
            earlier = 0
            while earlier < len(receipts) and receipts[earlier][1] in self._pending:
                earlier += 1
            if earlier:
                self._on_receipts(receipts[:earlier])
                receipts = receipts[earlier:]
            if self._direct is not None and receipts:
                receipts = receipts[self._direct.received(receipts) :]
            if not receipts:
                return
        self._on_receipts(receipts)

    def _on_receipts(self, receipts: Sequence[Receipt]) -> None:
        stored = self._pending.take_stored(receipts)
        if self._on_stored is not None:
            try:
                self._on_stored(stored)
            except Exception:  # the connection ends by that: what was not told is sent again, and told then
                self._pending.put_back(item for item, _, _ in stored if item.frame)
                raise
        else:
            for item, ledger, entry in stored:
                item.stored(Position(ledger, entry))
        if self._moving:
            self._change_connection()

    def on_send_error(self, sequence_id: int, error: PulsarError) -> None:
        """Fail an entry that is refused for good; for any other reason attach again and send all that is pending.

        A topic that is being unloaded refuses what is under way (PersistenceError, "fenced"). Were that entry given up
        and those behind it sent again, its own retry would be dropped as a duplicate, and nobody would have it. The
        same code is said of an entry whose first copy the broker has not finished with.
        """
        self.end_direct()
        item = self._pending.refused(sequence_id)
        if item is None:
            return
        if error.retriable:
            self._attach_anew(error)
            return
        self._pending.take(item.sequence_id)
        item.failed(EntryRefusedError(error))
        if self._moving:
            self._change_connection()

    def on_disconnect(self, error: PulsarError, assigned: str | None) -> None:
        """Come back on another connection, with all that has no receipt; see `BrokerAttachment.on_disconnect`."""
        self.end_direct()
        super().on_disconnect(error, assigned)

    def on_writable(self) -> None:
        """Write entries that wait: the connection takes more."""
        self._flush()

    # --- attaching

    async def _attach(self, connection: Connection) -> None:
        if self._access == "shared" or not self.attached_times:
            await self._ask(connection, MODES[self._access])
            return
        # Coming back it is ours until somebody has a later epoch: docs/quirks.md, "Fencing looks at the mode before the
        # epoch"
        try:
            await self._ask(connection, pb.Exclusive)
        except PulsarError as error:
            if error.code != "ProducerFenced" or self._names_another(error):
                raise
            # It still sees our connection that was lost, or somebody who came in without an epoch.
            await self._ask(connection, pb.ExclusiveWithFencing)

    def _names_another(self, error: PulsarError) -> bool:
        return exclusive_holder(error) not in {self.name, None}

    async def _ask(self, connection: Connection, mode: pb.ProducerAccessMode) -> None:
        # A new one each time: docs/quirks.md, "Entries for an id that was closed are ignored"
        self._id = next(self._ids)
        command = self._producer_command(mode)
        self._attempts += 1
        connection.producers[self._id] = self
        asked = self._loop.time()
        try:
            answer: tuple[pb.CommandProducerSuccess, asyncio.Future[Any] | None] = await connection.request(
                command, self._timeout, self._what
            )
            success, follow = answer
            while follow is not None:  # another holds the topic: our turn comes when it comes
                self._turn = follow
                success, follow = await follow
        except BaseException as error:
            connection.producers.pop(self._id, None)
            connection.forget(command.request_id)
            if not isinstance(error, PulsarError) or error.code == "Timeout":
                self._leave(connection)  # it may be made later
            raise
        finally:
            self._turn = None
        self.attach_seconds = self._loop.time() - asked
        self.name = success.producer_name
        self.last_sequence_id = success.last_sequence_id
        if self.attached_times and success.last_sequence_id > self._highest:
            self._leave(connection)
            text = f"another producer of this name stored up to {success.last_sequence_id}, this one sent up to"
            raise PulsarError("ProducerFenced", f"{self._what}: {text} {self._highest}")
        self._highest = max(self._highest, success.last_sequence_id)
        if success.HasField("topic_epoch"):
            self.topic_epoch = success.topic_epoch
        self._max_size = connection.max_message_size
        self.sure_at = asked

    def _producer_command(self, mode: pb.ProducerAccessMode) -> pb.CommandProducer:
        command = pb.CommandProducer(
            topic=self.topic,
            producer_id=self._id,
            epoch=self._attempts,
            user_provided_producer_name=self._named,
            producer_access_mode=mode,
            metadata=[pb.KeyValue(key=key, value=value) for key, value in self._properties.items()],
        )
        if self.name:
            command.producer_name = self.name
        if self.topic_epoch is not None:
            command.topic_epoch = self.topic_epoch
        return command

    async def _confirmed(self, connection: Connection) -> None:
        if self._confirm is None:
            return
        try:
            await self._confirm(self)
        except BaseException:
            self._leave(connection)
            raise

    def _interrupted(self, error: PulsarError) -> None:
        if self._turn is not None and not self._turn.done():
            self._turn.set_exception(error)

    def _detached(self, error: PulsarError) -> None:
        self._moving = False
        self._pending.rewind()

    @property
    def _ends_with_connection(self) -> bool:
        return not self._resend and not self._pending.none_on_wire

    def _in_vain(self, error: PulsarError) -> None:
        if error.code == QUOTA_EXCEEDED:  # may last for hours: say so at once
            self._fail(self._pending.clear(), error)

    def _resume(self) -> None:
        self._pending.rewind()
        self._flush()

    def _over(self, error: PulsarError) -> None:
        self.end_direct()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._fail(self._pending.clear(), error)

    # --- inside

    def _flush(self) -> None:
        connection = self._connection
        if connection is None or self._moving:
            return
        pending = self._pending
        outgoing = connection.outgoing
        while not outgoing.paused:
            item = pending.next_unsent()
            if item is None:
                return
            if item.producer_id != self._id:
                item.frame, item.producer_id = wire.readdressed(item.frame, self._id), self._id
            outgoing.push(item.frame)
        if not pending.all_sent:
            connection.when_writable(self._id, self)

    def _expire(self) -> None:
        self._timer = None
        now = self._loop.time()
        oldest = None if self._direct is None else self._direct.oldest
        deadline = self._pending.deadline()  # of what was sent before all that is held elsewhere
        if deadline is None and oldest is not None:
            deadline = oldest + self._send_timeout
        if deadline is not None and deadline <= now:
            self.end_direct()
        text = f"{self._what}: no receipt in {self._send_timeout:g} s" + ("" if self.connected else ", not connected")
        expired = self._pending.expire(now)
        self._fail(expired, PulsarError("Timeout", text))
        if expired:
            self._attach_anew(PulsarError("Timeout", text))  # whatever the broker does with this producer: a new one
        deadline = self._pending.deadline()
        if deadline is None and self._direct is not None:
            deadline = (now if oldest is None else oldest) + self._send_timeout
        if deadline is not None:
            self._timer = self._loop.call_at(deadline, self._expire)

    @staticmethod
    def _fail(items: list[PendingEntry], error: PulsarError) -> None:
        for item in items:
            item.failed(error)

    def _attach_anew(self, error: PulsarError) -> None:
        """Close the producer at the broker, then attach it anew."""
        connection = self._connection
        if connection is not None:
            self._leave(connection)
            self.on_disconnect(error, None)

    def _change_connection(self) -> None:
        connection = self._connection
        if self._moving and connection is not None and self._pending.none_on_wire:
            self._moving = False
            self._connection = None
            connection.producers.pop(self._id, None)
            self._task = self._loop.create_task(self._come_over(connection), name=f"pulsar move {self._what}")

    async def _come_over(self, connection: Connection) -> None:
        with suppress(PulsarError):  # the broker may have it still: then it refuses another of that name, for a while
            await self._close_request(connection)
        await self._come_back(None, moved=True)

    def _leave(self, connection: Connection) -> None:
        """Forget the producer on a connection, and tell the broker so, without waiting for its answer."""
        connection.producers.pop(self._id, None)
        connection.write_request(pb.CommandCloseProducer(producer_id=self._id))

    async def _close_request(self, connection: Connection) -> None:
        closing = pb.CommandCloseProducer(producer_id=self._id)
        await connection.request(closing, self._timeout, f"closing {self._what}")
