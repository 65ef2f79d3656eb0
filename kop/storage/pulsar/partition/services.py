"""The services of the engine for the logs of its partitions, and a partition as the engine's other parts see it.

Owns: both lists. One object serves all logs of an engine; `PulsarLog` is a `PartitionView`.
Must not know: how any of it is done.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any, Protocol
from uuid import UUID

from kop.pulsar_client import Producer
from kop.read_budget import ReadBudget
from kop.storage.base import LogPolicy, TopicInfo
from kop.storage.pulsar.layout import ProducerNaming
from kop.storage.pulsar.offsets.mapping import OffsetMapping
from kop.storage.pulsar.partition.appends import OpenBatches
from kop.storage.pulsar.partition.decompression import DecompressionTurns, DirectCodecs
from kop.storage.pulsar.partition.ended_transactions import EndedTransactions
from kop.storage.pulsar.partition.entry_sizes import EntrySizeLimit
from kop.storage.pulsar.partition.throttle import RateQuestions
from kop.storage.pulsar.partition.write_budget import WriteBudget
from kop.storage.tail_cache import TailCache
from kop.turns import Turns


class PartitionView(Protocol):
    """A partition of a topic in Pulsar, as the engine's other parts see it."""

    topic: TopicInfo
    index: int
    partition_name: str
    """The partition's full name in Pulsar; of a topic that is not partitioned, the topic's own."""
    policy: LogPolicy
    attached: bool
    """True if the log knows its bounds and follows its tail."""
    deleted: bool
    """True if the topic is gone or being deleted: nothing may subscribe or produce, since that would bring it back."""

    @property
    def title(self) -> str:
        """The partition as log lines name it: `topic-index`."""

    @property
    def producing(self) -> bool:
        """True if a Pulsar producer of this broker is attached to the partition, or being opened."""

    @property
    def holds_lease(self) -> bool:
        """True if this broker holds the partition's exclusive producer, as far as it knows."""

    async def look_at_ends(self) -> None:
        """Ask Pulsar if retention has moved the log start, and move it then; give up a tail that does not go on, so
        that the log attaches again when it is needed. KopError if that cannot be found out.
        """

    def close_idle(self, now: float, seconds: float) -> None:
        """Close producers and readers that nobody used for `seconds`, also of a log that is not attached; `now` is the
        loop's time.
        """


@dataclass(slots=True)
class PartitionServices:
    """The services that all logs of one engine share, and their questions about topics."""

    mapping: OffsetMapping
    cache: TailCache
    open_batches: OpenBatches
    read_budget: ReadBudget
    attaching: Turns
    """The places for partitions that attach, a few at a time."""
    write_budget: WriteBudget
    ended_transactions: EndedTransactions
    decompression: DecompressionTurns
    """The bound on decompression in one turn of the loop, shared by all partitions."""
    producer_naming: Callable[[], ProducerNaming]
    """A function that returns the names of this broker's Pulsar producers, for use after the start of the engine, which
    reads the cluster id.
    """

    leader_is_live: Callable[[str], bool | None]
    """A function that returns true if the broker is live whose only writer of a log has this name; None if this broker
    has never seen it.
    """
    counts_as_live: Callable[[], bool]
    """A function that returns true if the other brokers surely take this one for live now."""

    over_quota: Callable[[str, str], None]
    """A callback for each write that a backlog quota refused, with the partition's name and title."""
    may_attach: Callable[[PartitionView], Awaitable[bool]]
    """A function that returns true if the topic and the partition exist. PulsarError if Pulsar does not answer."""
    confirm: Callable[[PartitionView, Producer], Awaitable[None]]
    """A check of each producer that was attached. KopError if that brought back a topic that is gone."""
    retains: Callable[[UUID], Awaitable[None]]
    """A function that makes sure that Pulsar keeps the records that are written to the topic. KopError or PulsarError
    if that fails.
    """
    deduplicates: Callable[[UUID], Awaitable[None]]
    """A function that makes sure that the topic deduplicates, before an idempotent producer is opened. PulsarError if
    Pulsar refuses it or does not answer.
    """
    knows_all_producers: Callable[[UUID], bool]
    """A function that returns true if Pulsar cannot have forgotten a producer of the topic yet."""
    mark_raw: Callable[[UUID], Awaitable[None]]
    """A function that sets the property of a topic that it holds batches as they came: Pulsar can then never compact
    it. KopError if that fails.
    """
    may_write_raw: Callable[[UUID], bool]
    """A function that returns true if a batch may be stored as it came now. If it may not, the topic's property is set
    in the background.
    """
    entry_size_limit: Callable[[UUID], EntrySizeLimit]
    """A function that returns the limit of the topic's entry sizes; one object for all of its partitions."""
    kept_number: Callable[[UUID, int, str], int]
    """A function that returns the largest number of a kind that a broker kept of a topic's partition, or 0."""
    keep_number: Callable[[TopicInfo, int, str, int], Coroutine[Any, Any, None]]
    """A function that keeps a number of a kind of a topic's partition, for all brokers. KopError or PulsarError if that
    fails.
    """
    direct_codecs: DirectCodecs = field(init=False)
    """The codecs that compiled code calls for compressed batches; their bytes count in `decompression`."""
    rate_questions: RateQuestions = field(default_factory=RateQuestions)
    """The bound on how often Pulsar is asked if a publish rate holds batches back."""

    def __post_init__(self) -> None:
        """Make `direct_codecs`, which is made of `decompression`."""
        self.direct_codecs = DirectCodecs(self.decompression)
