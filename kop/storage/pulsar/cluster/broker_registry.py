"""The live brokers on the same data: each holds a producer of one topic, whose Pulsar broker knows who is connected.

Owns: that topic, this broker's place in it, how the others are asked about.
Must not know: what the registry is used for, and which missing brokers still count as live (`live_brokers.py`).

A producer's name is its broker's id, so an id is taken once; its properties tell where clients find the broker, and its
`instance`, which is another one after each start. The Pulsar broker drops it when the connection ends, or does not
answer any more. By itself it notices a stopped process after 30 to 60 s. When it is asked for a name that is taken, it
first checks whether the holder still answers, within 5 s (connectionLivenessCheckTimeoutMillis). So each broker asks
for the name of the next one now and then, and gives the name back where it gets it.

Brokers ask over REST who is connected. While REST does not answer, a broker that dies is still noticed by its name,
over the binary protocol. A new broker is not noticed then, but it cannot start then either.

Messages of the topic name, as their values, topics whose properties a broker changed, because Pulsar's watchers do not
tell of those. A broker that stops sends a message without a value; the key names the broker.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Final, TypeAlias
from zlib import crc32

from kop.background import cancel, for_each, repeat, tell
from kop.errors import BackendError, ErrorCode, KopError
from kop.pulsar_client import LATEST, Entry, Position, Producer, PulsarError, Reader
from kop.pulsar_client.errors import Ignoring
from kop.records import transcode
from kop.records.batch import iter_records
from kop.records.record import Record
from kop.storage.base import LiveBroker
from kop.storage.pulsar.cluster.live_brokers import AWAY_SECONDS, LiveBrokers
from kop.storage.pulsar.context import PulsarContext
from kop.storage.pulsar.faults import Fault, Refused
from kop.storage.pulsar.layout import BROKER_PRODUCER, is_full_name
from kop.storage.pulsar.own_records import send_records

POLL_SECONDS: Final = 1.0
_LONGEST: Final = 1 << 20
PROBE_SECONDS: Final = 10.0
_TAKEN_SECONDS: Final = 1.0
"""The seconds above which the Pulsar broker, to give a name away, must have asked the holder in vain."""
FRESH_SECONDS: Final = 15.0
BUSY_SECONDS: Final = 12.0
"""The seconds that a start waits for its name: a killed broker gives it up at once, a stopped one only when it does not
answer.
"""
_SNAPSHOT_SECONDS: Final = 20.0
"""The seconds that a broker that joins waits for a Pulsar broker that knows of it."""
_LEAVE_SECONDS: Final = 2.0
_ASKED_AT_ONCE: Final = 8
_ANSWER_SECONDS: Final = 3.0
_LEAVES: Final = b"leaves:"
_MOST_DIGITS: Final = 10
"""The digits of the largest broker id, which has 32 bits."""
_INSTANCE: Final = "instance"
"""The property of a broker's producer that names its instance."""

Answers: TypeAlias = Callable[[LiveBroker], Awaitable[bool]]
"""The type of a check that returns true if a broker answers Kafka clients at its address, within two or three
seconds.
"""

log = logging.getLogger(__name__)


async def _nobody_asks(broker: LiveBroker) -> bool:
    return False


class BrokerRegistry:
    """The live brokers, and this one's place among them from `join` to `close`."""

    def __init__(
        self,
        context: PulsarContext,
        instance: str,
        on_announced: Callable[[Sequence[str]], None],
        answers: Answers | None = None,
    ) -> None:
        """Prepare the registry. `instance` tells this run of the broker from all others.

        `on_announced` is called with Pulsar's names of topics whose properties another broker has changed. `answers` is
        asked about brokers that are missing: without it they count as gone sooner.
        """
        self.brokers: Sequence[LiveBroker] = ()
        self._loop = context.loop
        self._client = context.client
        self._admin = context.admin
        self._topic = context.naming.brokers_topic
        self._partition = f"{self._topic}-partition-0"
        self._instance = instance
        self._instances: dict[str, int] = {}
        """The broker ids of all instances that were seen."""
        self._newest: dict[int, str] = {}
        """The instance of each broker id that was seen last."""
        self._on_announced = on_announced
        self._faults = context.faults
        self._reader: Reader | None = None
        self._sequence = 0
        self._answers = answers or _nobody_asks
        self._live: LiveBrokers | None = None
        self._producer: Producer | None = None
        self._tasks: list[asyncio.Task[None]] = []
        self._seen = 0.0
        self._listeners: list[Callable[[], None]] = []

    @property
    def own(self) -> LiveBroker | None:
        """This broker as the others see it; None before it joins."""
        return None if self._live is None else self._live.own

    @property
    def fresh(self) -> bool:
        """True if Pulsar told within the last 15 seconds which brokers are attached; also true before this broker
        joins.
        """
        # Asked with each commit of offsets; in Python 3.11 it costs a system call to find out which loop runs.
        return self._live is None or self._loop.time() - self._seen < FRESH_SECONDS

    @property
    def counts_as_live(self) -> bool:
        """True if the others surely count this broker as live now; true before it joins, when they do not know it.

        If it is false they may be about to take over what this broker leads.
        """
        if self._live is None:
            return True
        attached = self._producer is not None and self._producer.connected
        return attached and self._live.own_counts(self._loop.time())

    def is_live(self, instance: str) -> bool | None:
        """Return true if the broker whose run has this `instance` is live; false if it is gone, or its id was started
        anew since. None if that instance was never seen, as one that has just started.
        """
        node_id = self._instances.get(instance)
        if node_id is None:
            return None
        return self._newest[node_id] == instance and any(broker.node_id == node_id for broker in self.brokers)

    def is_chosen(self, key: str) -> bool:
        """Return true if this broker is the one of all that does the piece of work which `key` names, such as giving a
        topic an id.

        True while this broker knows of no others.
        """
        brokers, own = self.brokers, self.own
        return own is None or not brokers or brokers[crc32(key.encode()) % len(brokers)].node_id == own.node_id

    def on_change(self, callback: Callable[[], None]) -> None:
        """Call `callback` from now on after each change of `brokers`, and after a look at them that follows more than 5
        seconds without one.
        """
        self._listeners.append(callback)

    async def join(self, broker: LiveBroker) -> None:
        """Register this broker's id, wait until the Pulsar broker shows that to the others, and follow them until
        `close`.

        BROKER_ID_NOT_REGISTERED if another live broker keeps the id for 12 seconds; PulsarError if Pulsar refuses it,
        or does not show this broker within 20 seconds.
        """
        with Ignoring("Conflict"):
            await self._admin.create_partitioned(self._topic, 1, {})
        await self._admin.keep_when_idle(self._topic)
        loop = asyncio.get_running_loop()
        end = loop.time() + BUSY_SECONDS
        warned = False
        while self._producer is None:
            try:
                await self._take_place(broker)
            except PulsarError as error:
                if error.code != "ProducerBusy":
                    raise
                if loop.time() > end:
                    raise BackendError(
                        f"node.id {broker.node_id} is taken by another live broker: give this one its own id "
                        "(--set node.id=N)",
                        ErrorCode.BROKER_ID_NOT_REGISTERED,
                    ) from None
                if not warned:
                    warned = True
                    log.info(
                        "node.id %d is held by another broker; waiting up to %.0f s for it to go, if it was stopped",
                        broker.node_id,
                        BUSY_SECONDS,
                    )
                await asyncio.sleep(0.5)
        if self._reader is None:
            await self._listen()
        live = LiveBrokers(broker)
        end = loop.time() + _SNAPSHOT_SECONDS
        while not await self._look(live):
            if loop.time() > end:
                text = f"{self._partition}: the Pulsar broker does not show this broker's producer"
                raise PulsarError("Timeout", text, retriable=True)
            await asyncio.sleep(0.2)
        self._tasks = [
            loop.create_task(repeat("broker registry", self._look_again, every=POLL_SECONDS, failed=self._cannot_see)),
            loop.create_task(repeat("the look after the next broker", self._probe_next, every=PROBE_SECONDS)),
        ]

    async def _take_place(self, broker: LiveBroker) -> None:
        """Open and keep the producer that is named by this broker's id and tells its addresses. PulsarError
        ProducerBusy if another broker has the name.
        """
        self._producer = await self._client.open_producer(
            self._partition,
            name=f"{BROKER_PRODUCER}{broker.node_id}",
            lane="broker_registry",
            properties={
                "host": broker.host,
                "port": str(broker.port),
                "listeners": ",".join(f"{name}:{port}:{host}" for name, host, port in broker.endpoints),
                _INSTANCE: self._instance,
            },
            on_lost=self._out,
        )
        self._sequence = self._producer.last_sequence_id + 1

    async def _listen(self) -> None:
        self._reader = await self._client.open_reader(
            self._partition, LATEST, permits=1000, on_entry=self._took, on_lost=self._deaf
        )

    def _out(self, error: PulsarError) -> None:
        """Forget this broker's producer, which Pulsar closed, perhaps because credentials ran out. The look at the
        other brokers, once a second, opens it again.
        """
        self._producer = None

    def _deaf(self, error: PulsarError) -> None:
        self._reader = None

    def announce(self, topic: str) -> None:
        """Send the other brokers the name of a topic (Pulsar's full name) whose properties have changed, without
        waiting for that. Nothing is sent before this broker joins, and a failure is only logged: a broker that misses
        the message sees the change when it lists all topics.
        """
        if self._producer is None:
            return
        self._publish(Record(0, 0, None, topic.encode())).add_done_callback(self._announced)

    def _publish(self, record: Record) -> asyncio.Future[Position]:
        assert self._producer is not None
        sent = send_records(self._client, self._producer, [record], self._sequence)
        self._sequence += 1
        return sent

    def _announced(self, sent: asyncio.Future[Position]) -> None:
        if not sent.cancelled() and (error := sent.exception()) is not None and not self._faults.takes(error):
            log.warning("the other brokers could not be told of a change, they find it within a minute: %s", error)

    def _heard(self, entry: Entry) -> None:
        """Take up what another broker says in an entry. What no broker writes is passed over, counted and logged."""
        try:
            data = transcode.to_batch(entry.metadata, entry.payload, base_offset=0, log_append_time=None)
            records = list(iter_records(data, max_bytes=_LONGEST))
        except KopError as error:
            self._pass_over_entry(entry, error.message)
            return
        topics = [topic for record in records if (topic := _topic_in(record)) is not None]
        leavers = [node_id for record in records if (node_id := _leaver_in(record)) is not None]
        if len(topics) + len(leavers) < len(records):
            self._pass_over_entry(entry, "it names no topic and no broker that leaves")
        if self._live is not None:
            for node_id in leavers:
                self._live.leaves(node_id, self._loop.time())
        if topics:
            self._on_announced(topics)

    def _pass_over_entry(self, entry: Entry, why: str) -> None:
        self._faults.count(Fault.ENTRIES_UNREADABLE_ANNOUNCEMENT)
        text = (
            f"the entry {entry.position.ledger}:{entry.position.entry} of {self._topic} is not what a gateway writes "
            f"there and is passed over: {why}: see that nobody but gateways may produce to that topic"
        )
        self._faults.tell("no announcement", text)

    async def close(self) -> None:
        """Announce that this broker stops, then leave: so the others need not wait for it to come back."""
        await cancel(*self._tasks)
        if self._producer is not None and self._live is not None:
            with contextlib.suppress(PulsarError, TimeoutError):
                async with asyncio.timeout(_LEAVE_SECONDS):
                    await self._publish(Record(0, 0, _LEAVES + str(self._live.own.node_id).encode(), None))
        if self._reader is not None:
            await self._reader.close()
        if self._producer is not None:
            await self._producer.close()

    def _took(self, entry: Entry) -> None:
        if self._reader is not None:
            self._reader.flow(max(entry.num_messages, 1))
        self._heard(entry)

    async def _look_again(self) -> None:
        assert self._live is not None
        if self._producer is None:
            await self._take_place(self._live.own)
        if self._reader is None:
            await self._listen()
        if await self._look(self._live):
            await for_each(
                self._live.absent,
                self._ask,
                at_once=_ASKED_AT_ONCE,
                limit=_ANSWER_SECONDS,
                failed=lambda broker, _: self._answered(broker, False),
            )

    def _cannot_see(self, error: Exception) -> None:
        if isinstance(error, PulsarError):
            self._faults.refused(error, Refused.BROKER_REGISTRY, "cannot see the other brokers, trying again")
        else:
            tell("broker registry", error)

    async def _ask(self, broker: LiveBroker) -> None:
        self._answered(broker, await self._answers(broker))

    def _answered(self, broker: LiveBroker, answers: bool) -> None:
        if self._live is not None:
            self._live.answered(broker.node_id, answers)

    async def _probe_next(self) -> None:
        """Ask Pulsar for the producer name of the next broker, and give the name back if it is given. The next broker
        is dead if Pulsar waited more than a second for it in vain, or the list of brokers is not fresh, and it does not
        answer Kafka requests either: then it is counted, logged and removed from the live ones at once.
        """
        next_one = self._next_one()
        if next_one is None or self._producer is None or self._live is None:
            return
        loop = asyncio.get_running_loop()
        asked = loop.time()
        try:
            probe = await self._client.open_producer(
                self._partition, name=f"{BROKER_PRODUCER}{next_one.node_id}", lane="broker_registry"
            )
        except PulsarError:
            return  # ProducerBusy means that the broker is alive; `_look_again` logs other errors
        took = loop.time() - asked
        await probe.close()
        if took < _TAKEN_SECONDS and self.fresh:
            return  # nobody held the name, as after an unload, so that the snapshots decide
        if await self._answers(next_one):
            return  # the broker is alive, and takes its name again
        self._faults.count(Fault.OUTAGES_GATEWAY)
        log.warning("broker %d left or does not answer Pulsar: others take over what it led", next_one.node_id)
        self._live.is_dead(next_one.node_id)
        self._set_brokers(self._live)

    def _next_one(self) -> LiveBroker | None:
        """Return the live broker after this one in a ring by id, so that each is looked after by one other; None if
        there is no other. Brokers that the last list lacked are passed over while the list is fresh.
        """
        assert self._live is not None
        own, absent = self._live.own.node_id, {broker.node_id for broker in self._live.absent}
        others = [
            other for other in self.brokers if other.node_id != own and (not self.fresh or other.node_id not in absent)
        ]
        return next((other for other in others if other.node_id > own), others[0] if others else None)

    async def _look(self, live: LiveBrokers) -> bool:
        """Ask the Pulsar broker which brokers are attached, keep their instances, and update the live ones. Return
        false, with the live ones as they were, if this broker itself is not in the answer: the Pulsar broker does not
        know all yet. PulsarError if it does not answer.
        """
        asked = self._loop.time()
        stats = await self._admin.stats(self._partition)
        attached: dict[int, LiveBroker] = {}
        for publisher in stats.get("publishers", ()):
            name, properties = publisher.get("producerName", ""), publisher.get("metadata", {})
            if not name.startswith(BROKER_PRODUCER) or "host" not in properties:
                continue  # one without a host only asks for the name, see `_probe_next`
            if _INSTANCE not in properties:
                self._pass_over(name, "is of an unreleased kop and does not count as a broker: stop that one")
                continue
            broker = _broker_of(name, properties)
            if broker is None:
                self._pass_over(name, "names no broker by its name and properties, and does not count as one")
                continue
            attached[broker.node_id] = broker
            self._instances[properties[_INSTANCE]] = broker.node_id
            self._newest[broker.node_id] = properties[_INSTANCE]
        now = self._loop.time()
        if not live.snapshot(attached, now):
            return False
        live.own_attached(asked)
        away, self._seen = now - self._seen > AWAY_SECONDS, now
        self._set_brokers(live, tell_anyway=away)
        return True

    def _pass_over(self, producer: str, why: str) -> None:
        self._faults.tell(("broker", producer), f"the producer {producer} of {self._topic} {why}")

    def _set_brokers(self, live: LiveBrokers, *, tell_anyway: bool = False) -> None:
        """Set `brokers` to the live ones of `live`. If that is a change it is logged, and the callbacks of `on_change`
        are called; with `tell_anyway` these are called in any case.
        """
        self._live = live
        if live.brokers != self.brokers:
            self.brokers = live.brokers
            log.info(
                "live brokers: %s",
                ", ".join(f"{broker.node_id} at {broker.host}:{broker.port}" for broker in live.brokers),
            )
        elif not tell_anyway:
            return
        for callback in self._listeners:
            callback()


def _topic_in(record: Record) -> str | None:
    """Return the full name of the topic that a broker announces by this record; None if it names none."""
    try:
        text = (record.value or b"").decode()
    except UnicodeDecodeError:
        return None
    return text if is_full_name(text) else None


def _leaver_in(record: Record) -> int | None:
    """Return the id of the broker that leaves, as it says by this record; None if it names none."""
    if record.value is not None or record.key is None or not record.key.startswith(_LEAVES):
        return None
    number = record.key.removeprefix(_LEAVES)
    return int(number) if number.isdigit() and len(number) <= _MOST_DIGITS else None


def _broker_of(name: str, properties: Mapping[str, str]) -> LiveBroker | None:
    """Return the broker that a producer of this name stands for; None if a broker has no such name or properties."""
    try:
        node_id, port = int(name.removeprefix(BROKER_PRODUCER)), int(properties["port"])
        broker = LiveBroker(node_id, properties["host"], port, _endpoints(properties.get("listeners", "")))
    except (KeyError, ValueError):
        return None
    return broker if name == f"{BROKER_PRODUCER}{node_id}" else None


def _endpoints(text: str) -> tuple[tuple[str, str, int], ...]:
    """Parse the property of a broker's producer that lists its listeners, `name:port:host` with commas between; return
    name, host and port of each.
    """
    parts = [item.split(":", 2) for item in text.split(",") if item]
    return tuple((name, host, int(port)) for name, port, host in parts)
