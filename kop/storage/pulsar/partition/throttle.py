"""The state in which Pulsar holds a partition's batches back by a publish rate, and for how long still; which
subscription keeps a partition over its backlog quota.

Owns: the first question, asked of Pulsar's own count, the estimate for Kafka's throttle_time_ms, and which connection
such a partition is written over; the second question and its log line.
Must not know: batches, clients.

See docs/quirks.md, "What holds readers or writers back says nothing". Receipts that are late may have other reasons, so
the partition's `publishRateLimitedTimes` decides: it grows while a rate stops the connection. The partition is written
over another one from then on, one of a few that partitions with exceeded rates share.

A Pulsar broker takes a batch first and then stops until the rate has caught up with it. What is answered as
throttle_time_ms is the time that this takes for the batch itself and for those behind it, at the pace of the last ones.
A client that waits for so long loses nothing: what it sent earlier would stand in line here.
"""

from __future__ import annotations

import logging
import zlib
from collections.abc import Callable, Mapping
from typing import Any, Final

from kop.pulsar_client import PulsarError
from kop.repeats import Repeats
from kop.storage.pulsar.context import PulsarContext
from kop.storage.pulsar.faults import Fault

LATE_SECONDS: Final = 0.1
"""The seconds after which a receipt is late."""
MOST_LATENESS: Final = 2.0
"""The seconds that receipts wait together before Pulsar is asked for the reason. A pause of the machine is over by
then.
"""
ASK_SECONDS: Final = 1.0
BETWEEN_SECONDS: Final = 0.25
"""The least seconds from one question to the next, over all partitions. On a machine that is too busy the receipts of
all of them are late, and an answer costs as much as a hundred batches.
"""
_LONGEST_SECONDS: Final = 60.0
_HOLDS_SECONDS: Final = 10.0
"""The seconds for which an answer is believed."""
_MOST_MS: Final = 1000
"""The longest throttle time in ms. It is the window of Kafka's own quotas."""
_LANES: Final = 16
"""The number of connections to one Pulsar broker for partitions that exceeded their rates."""
_APART_SECONDS: Final = 600.0
"""The seconds after a rate was exceeded in which a producer that is opened still gets such a connection."""

_OWN_RATE: Final = (
    "{} is written to faster than its publish rate allows: Pulsar holds batches back, clients are told to wait "
    "(throttle_time_ms). Other topics wait with it for some seconds, until it is written over another connection. "
    "Raise the rate (pulsar-admin topics set-publish-rate, namespaces set-publish-rate) or write less"
)
_RATE_OF_OTHERS: Final = (
    "Pulsar holds batches of {} back, which has no publish rate: that of another topic does, for some seconds, or one "
    "that all topics of the Pulsar broker have (maxPublishRatePerTopicInMessages, "
    "brokerPublisherThrottlingMaxMessageRate and their like in broker.conf). Clients are told to wait "
    "(throttle_time_ms)"
)

_log = logging.getLogger(__name__)


def still_to_wait(waited: float, taken: int, left: int) -> int:
    """Return the ms that `left` bytes take at the pace at which `taken` bytes were taken while a batch waited (`waited`
    seconds); 1000 at most.
    """
    return min(int(waited * left * 1000 / max(taken, 1)), _MOST_MS)


class RateExceeded:
    """The decision if a publish rate is exceeded now, from a count that grows. A pure machine: each call brings
    the time.
    """

    def __init__(self) -> None:
        self._count = -1
        self._grew = self._asked = float("-inf")
        self._pause = ASK_SECONDS
        self.lateness = 0.0
        """The seconds that late receipts waited together, less those that came in time since."""

    def in_time(self) -> None:
        """Note a receipt that came in time, which makes up for 0.1 seconds that late ones waited."""
        self.lateness = max(0.0, self.lateness - LATE_SECONDS)

    def wants_to_ask(self, now: float, waited: float) -> bool:
        """Count a receipt that came late, after `waited` seconds; return true if Pulsar has to be asked for the reason
        at the time `now`, because late ones have waited for 2 seconds together.

        That is once a second at most, and ever less often if receipts are late for other reasons.
        """
        self.lateness = min(self.lateness + waited, 2 * MOST_LATENESS)
        if self.lateness < MOST_LATENESS or now - self._asked < self._pause:
            return False
        self._asked = now
        return True

    def counted(self, count: int, now: float) -> bool:
        """Note Pulsar's count of rate-limited publishes; return true if a rate begins to hold the partition back, since
        the count has grown.
        """
        before = self.now(now)
        if 0 <= self._count < count:
            self._grew, self._pause = now, ASK_SECONDS
        elif self._count >= 0:
            self._pause = min(self._pause * 2, _LONGEST_SECONDS)
        self._count = count
        return self.now(now) and not before

    def now(self, now: float) -> bool:
        """Return true if a publish rate holds the partition back at the time `now`: Pulsar's count was seen to grow in
        the 10 seconds before.
        """
        return self.within(_HOLDS_SECONDS, now)

    def within(self, seconds: float, now: float) -> bool:
        """Return true if a publish rate held the partition back in the last `seconds`."""
        return now - self._grew < seconds


class RateQuestions:
    """The bound on questions to Pulsar by all partitions together. A pure machine."""

    def __init__(self) -> None:
        self._next = float("-inf")

    def may_ask(self, now: float) -> bool:
        """Return true, and count a question, if one may be asked now: there are 0.25 seconds between two."""
        if now < self._next:
            return False
        self._next = now + BETWEEN_SECONDS
        return True


class PublishThrottle:
    """The watch over the publish rate of one partition of `topic_name`, Pulsar's name of the topic; `title` names it in
    the log.

    `exceeded` is called each time that Pulsar is found to hold batches back by a rate that the topic has. Without
    `questions` Pulsar is never asked: a topic of this broker's own has no client to be told of a rate.
    """

    def __init__(
        self,
        context: PulsarContext,
        partition_name: str,
        topic_name: str,
        title: str,
        exceeded: Callable[[], None],
        questions: RateQuestions | None,
    ) -> None:
        self._context = context
        self._partition_name = partition_name
        self._topic_name = topic_name
        self._title = title
        self._exceeded = exceeded
        self._questions = questions
        self._held = RateExceeded()
        self._own_rate = False
        """True if the topic has a rate of its own. Pulsar also counts batches that wait because of another topic on
        their connection.
        """
        self._rate_unknown = False
        """True if a rate began to hold the partition back, and Pulsar has not said since if it is the topic's own."""

    @property
    def lane(self) -> str:
        """The name of the connection for the partition's producers: one apart if the topic's own rate was exceeded in
        the last 10 minutes; empty for the usual one. See `Client.open_producer`.
        """
        if not self._own_rate or not self._held.within(_APART_SECONDS, self._context.loop.time()):
            return ""
        return f"publish rates {zlib.crc32(self._partition_name.encode()) % _LANES}"

    @property
    def late(self) -> bool:
        """True if receipts were late, and since then not enough came in time."""
        return self._held.lateness > 0

    def holds_back(self, now: float) -> bool:
        """Return true if a publish rate holds the partition back at the time `now`, by Pulsar's answers of the 10
        seconds before.
        """
        return self._held.now(now)

    def received(self, now: float, waited: float) -> bool:
        """Note a receipt that came after `waited` seconds. Return true, and count that, if it was late because of a
        publish rate. If receipts are late, Pulsar is asked for the reason in the background, now and then.
        """
        if self._questions is None:
            return False
        if waited <= LATE_SECONDS:
            if self._held.lateness:
                self._held.in_time()
            return False
        if self._held.wants_to_ask(now, waited) and self._questions.may_ask(now):
            self._context.spawn(self._ask())
        if not self._held.now(now):
            return False
        self._context.faults.count(Fault.WRITES_THROTTLED_PUBLISH_RATE)
        return True

    async def _ask(self) -> None:
        context = self._context
        try:
            count = int((await context.admin.stats(self._partition_name)).get("publishRateLimitedTimes", 0))
            if self._held.counted(count, context.loop.time()):
                self._rate_unknown = True
            tells = self._rate_unknown and self._held.now(context.loop.time())
            if tells:
                self._own_rate = await context.admin.has_publish_rate(self._topic_name)
                self._rate_unknown = False
        except PulsarError:
            return  # Pulsar does not answer, and is asked again; other parts log that
        if tells:
            text = _OWN_RATE if self._own_rate else _RATE_OF_OTHERS
            context.faults.tell(("publish rate", self._title), text.format(self._title))
        if self._own_rate and self._held.now(context.loop.time()):
            self._exceeded()


def furthest_behind(stats: Mapping[str, Any]) -> str | None:
    """Return in words which subscription is furthest behind, and by how much; None if none is."""
    held: dict[str, Mapping[str, Any]] = {
        name: subscription
        for name, subscription in (stats.get("subscriptions") or {}).items()
        if subscription.get("durable", True)  # a reader's own one keeps nothing
    }
    name = max(held, key=lambda each: (held[each].get("backlogSize", 0), held[each].get("msgBacklog", 0)), default="")
    behind = held.get(name, {})
    if behind.get("backlogSize", 0) <= 0:
        return None
    entries, size = behind.get("msgBacklog", 0), behind["backlogSize"]
    return f"the subscription {name!r} is {entries:,} entries ({size:,} bytes) behind"


class BacklogTeller:
    """The log lines about subscriptions that are too far behind, as often as the refusals themselves are logged."""

    def __init__(self, context: PulsarContext) -> None:
        self._context = context
        self._repeats = Repeats()

    def refused(self, partition_name: str, title: str) -> None:
        """Log which subscription of a partition is so far behind that a write was refused, when that begins, and every
        5 minutes while it lasts. Pulsar is asked for it in the background.
        """
        if self._repeats.say(partition_name, self._context.loop.time()) is not None:
            self._context.spawn(self._tell(partition_name, title))

    async def _tell(self, partition_name: str, title: str) -> None:
        stats = await self._context.admin.stats(partition_name, backlogs=True)
        if (text := furthest_behind(stats)) is not None:
            _log.warning("over its backlog quota, %s: %s", title, text)
