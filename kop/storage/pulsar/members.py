"""The live gateways on the same data: each holds a producer of one topic, whose broker knows who is connected.

Owns: that topic, this gateway's place in it, what is known of the others.
Must not know: what membership is used for.

A producer's name is its gateway's id, so an id is taken once; its properties tell where clients find the gateway. The
broker drops it when the connection ends, or does not answer any more. By itself it finds out about a gateway that
stands still after 30 to 60 s; asked for a name that is taken, it first looks whether the holder still answers, within
5 s (connectionLivenessCheckTimeoutMillis). So each gateway asks for the name of the next one now and then, and lets it
go where it should get it. What is sent are names of topics whose properties one of them changed: Pulsar's watchers do
not tell of those.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, Sequence
from typing import Any, Final

from kop.errors import BackendError, ErrorCode, KopError
from kop.pulsar_client import LATEST, Client, Entry, Position, Producer, PulsarError, Reader
from kop.pulsar_client.admin import Admin
from kop.records import transcode
from kop.records.batch import build, iter_records, read_header
from kop.records.record import Record
from kop.storage.base import Member
from kop.storage.pulsar.troubles import Troubles

TOPIC: Final = "__gateways"
_NAME: Final = "kop-broker-"
_POLL_SECONDS: Final = 1.0
_LONGEST: Final = 1 << 20
_PROBE_SECONDS: Final = 10.0
_FRESH_SECONDS: Final = 15.0
_AWAY_SECONDS: Final = 5.0
"""After so long without a look others may have taken this one's place and given it back."""
_BUSY_SECONDS: Final = 12.0
"""A gateway that was killed leaves its name at once, a stopped one when the broker has missed its answer."""

log = logging.getLogger(__name__)


class Gateways:
    """Join, and hear of the others."""

    def __init__(
        self,
        client: Client,
        admin: Admin,
        topic: str,
        on_announced: Callable[[Sequence[str]], None],
        troubles: Troubles,
    ) -> None:
        self.members: Sequence[Member] = ()
        self._client = client
        self._admin = admin
        self._topic = topic
        self._partition = f"{topic}-partition-0"
        self._on_announced = on_announced
        self._troubles = troubles
        self._reader: Reader | None = None
        self._sequence = 0
        self._own: Member | None = None
        self._producer: Producer | None = None
        self._tasks: list[asyncio.Task[None]] = []
        self._seen = 0.0
        self._listeners: list[Callable[[], None]] = []

    @property
    def own(self) -> Member | None:
        """This gateway; None before it joins."""
        return self._own

    @property
    def fresh(self) -> bool:
        """Whether the others were looked for in these last seconds; True before this gateway joins."""
        return self._own is None or asyncio.get_running_loop().time() - self._seen < _FRESH_SECONDS

    def on_change(self, callback: Callable[[], None]) -> None:
        """Call `callback` after each change of `members`."""
        self._listeners.append(callback)

    async def join(self, member: Member) -> None:
        """Take the id. BROKER_ID_NOT_REGISTERED where a live gateway has it."""
        try:
            await self._admin.create_partitioned(self._topic, 1, {})
            await self._admin.keep_when_idle(self._topic)
        except PulsarError as error:
            if error.code != "Conflict":
                raise
        loop = asyncio.get_running_loop()
        end = loop.time() + _BUSY_SECONDS
        told = False
        while self._producer is None:
            try:
                await self._take_place(member)
            except PulsarError as error:
                if error.code != "ProducerBusy":
                    raise
                if loop.time() > end:
                    raise BackendError(
                        f"node.id {member.node_id} is taken by another live gateway: give this one an id of its own "
                        "(--set node.id=N)",
                        ErrorCode.BROKER_ID_NOT_REGISTERED,
                    ) from None
                if not told:
                    told = True
                    log.warning(
                        "node.id %d is held by another gateway; waiting up to %.0f s for it to go, if it was stopped",
                        member.node_id,
                        _BUSY_SECONDS,
                    )
                await asyncio.sleep(0.5)
        await self._listen()
        self._own = member
        await self._look()
        self._tasks = [loop.create_task(self._look_again()), loop.create_task(self._probe_again())]

    async def _take_place(self, member: Member) -> None:
        """Hold the producer of our id. PulsarError ProducerBusy where another has it."""
        self._producer = await self._client.open_producer(
            self._partition,
            name=f"{_NAME}{member.node_id}",
            lane="members",
            properties={"host": member.host, "port": str(member.port)},
            on_lost=self._out,
        )
        self._sequence = self._producer.last_sequence_id + 1

    async def _listen(self) -> None:
        self._reader = await self._client.open_reader(
            self._partition, LATEST, permits=1000, on_entry=self._took, on_lost=self._deaf
        )

    def _out(self, error: PulsarError) -> None:
        """Pulsar does not have us any more, such as with credentials that have run out: we come back when it will."""
        self._producer = None

    def _deaf(self, error: PulsarError) -> None:
        self._reader = None

    def announce(self, topic: str) -> None:
        """Tell the others to look at a topic again. Who misses it finds the change with the next full listing."""
        if self._producer is None:
            return
        batch = build([Record(0, 0, None, topic.encode())])
        (entry,) = transcode.to_entries(
            batch,
            read_header(batch),
            producer_name=self._producer.name,
            sequence_base=self._sequence,
            publish_time=int(time.time() * 1000),
            max_size=self._client.max_message_size,
        )
        sent = self._producer.send(
            entry.metadata,
            entry.payload,
            sequence_id=self._sequence,
            highest_sequence_id=self._sequence,
            num_messages=1,
        )
        self._sequence += 1
        sent.add_done_callback(_announced)

    def _heard(self, entry: Entry) -> None:
        try:
            data = transcode.to_batch(entry.metadata, entry.payload, base_offset=0, log_append_time=None)
            assert isinstance(data, bytes)
            names = [record.value for record in iter_records(data, max_bytes=_LONGEST) if record.value]
        except KopError as error:
            log.warning("an announcement of another gateway cannot be read: %s", error)
            return
        self._on_announced([name.decode() for name in names])

    async def close(self) -> None:
        """Leave."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._reader is not None:
            await self._reader.close()
        if self._producer is not None:
            await self._producer.close()

    def _took(self, entry: Entry) -> None:
        if self._reader is not None:
            self._reader.flow(1)
        self._heard(entry)

    async def _look_again(self) -> None:
        assert self._own is not None
        while True:
            await asyncio.sleep(_POLL_SECONDS)
            try:
                if self._producer is None:
                    await self._take_place(self._own)
                if self._reader is None:
                    await self._listen()
                await self._look()
            except PulsarError as error:
                self._troubles.refused(error, "membership", "cannot see the other gateways, trying again")

    async def _probe_again(self) -> None:
        while True:
            await asyncio.sleep(_PROBE_SECONDS)
            next_one = self._next_one()
            if next_one is None or self._producer is None:
                continue
            try:
                probe = await self._client.open_producer(self._partition, name=f"{_NAME}{next_one}", lane="members")
            except PulsarError:
                continue  # ProducerBusy: it is alive. Of all else `_look_again` tells.
            await probe.close()
            self._troubles.count("gateways that did not answer")
            log.warning("gateway %d left or does not answer Pulsar: others take over what it led", next_one)
            with contextlib.suppress(PulsarError):
                await self._look()

    def _next_one(self) -> int | None:
        """The gateway after this one, in a ring by id: each is looked after by one other."""
        assert self._own is not None
        ids = [member.node_id for member in self.members]
        if len(ids) < 2:
            return None
        return next((node_id for node_id in ids if node_id > self._own.node_id), ids[0])

    async def _look(self) -> None:
        assert self._own is not None
        stats = await self._admin.stats(self._partition)
        found = {member.node_id: member for member in map(_member, stats.get("publishers", ())) if member is not None}
        found[self._own.node_id] = self._own
        members = [found[node_id] for node_id in sorted(found)]
        now = asyncio.get_running_loop().time()
        away, self._seen = now - self._seen > _AWAY_SECONDS, now
        if members != self.members:
            self.members = members
            log.info("gateways: %s", ", ".join(f"{one.node_id} at {one.host}:{one.port}" for one in members))
        elif not away:
            return
        for callback in self._listeners:
            callback()


def _announced(sent: asyncio.Future[Position]) -> None:
    if not sent.cancelled() and (error := sent.exception()) is not None:
        log.warning("the other gateways could not be told of a change, they find it within a minute: %s", error)


def _member(publisher: dict[str, Any]) -> Member | None:
    name, told = publisher.get("producerName", ""), publisher.get("metadata", {})
    if not name.startswith(_NAME) or "host" not in told:
        return None
    return Member(int(name.removeprefix(_NAME)), told["host"], int(told["port"]))
