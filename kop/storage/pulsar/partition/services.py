"""What the engine does for the logs of its partitions.

Owns: the list of it. One object serves all logs of an engine.
Must not know: how any of it is done.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

from kop.pulsar_client import Producer
from kop.read_budget import ReadBudget
from kop.storage.base import TopicInfo
from kop.storage.pulsar.layout import ProducerNaming
from kop.storage.pulsar.offsets.mapping import OffsetMapping
from kop.storage.pulsar.partition.decompression_turns import DecompressionTurns
from kop.storage.pulsar.partition.direct_codecs import DirectCodecs
from kop.storage.pulsar.partition.entry_sizes import EntrySizeLimit
from kop.storage.pulsar.partition.open_batches import OpenBatches
from kop.storage.pulsar.partition.throttle import RateQuestions
from kop.storage.pulsar.partition.view import PartitionView
from kop.storage.pulsar.partition.write_budget import WriteBudget
from kop.storage.tail_cache import TailCache
from kop.turns import Turns


@dataclass(slots=True)
class PartitionServices:
    """What all logs of one engine share, and what they ask of topics."""

    mapping: OffsetMapping
    cache: TailCache
    open_batches: OpenBatches
    read_budget: ReadBudget
    attaching: Turns
    """Bounds how many partitions attach at a time."""
    write_budget: WriteBudget
    decompression: DecompressionTurns
    """Shared by all partitions, since they share the loop."""
    producer_naming: Callable[[], ProducerNaming]
    """Names of this broker's Pulsar producers. For use after the start of the engine, which reads the cluster id."""

    leader_is_live: Callable[[str], bool | None]
    """Whether the broker whose only writer of a log has this name is live; None where this one has never seen it."""
    counts_as_live: Callable[[], bool]
    """Whether the other brokers surely take this one for live now."""

    over_quota: Callable[[PartitionView], None]
    """Called with each write that a backlog quota refused."""
    may_attach: Callable[[PartitionView], Awaitable[bool]]
    """Whether the topic and the partition are there. PulsarError where Pulsar does not answer."""
    confirm: Callable[[PartitionView, Producer], Awaitable[None]]
    """Called with each producer that was attached. KopError where that brought back a topic that is gone."""
    retains: Callable[[UUID], Awaitable[None]]
    """Makes sure that Pulsar keeps what is written to the topic. KopError, PulsarError."""
    deduplicates: Callable[[UUID], Awaitable[None]]
    """Makes sure that the topic deduplicates, before an idempotent producer is opened. PulsarError."""
    knows_all_producers: Callable[[UUID], bool]
    """Whether Pulsar cannot have forgotten a producer of the topic yet."""
    mark_raw: Callable[[UUID], Awaitable[None]]
    """Notes in the topic's properties that it holds batches as they came: Pulsar can then never compact it. KopError.
    """
    may_write_raw: Callable[[UUID], bool]
    """Whether a batch may be stored as it came now. Where it may not, the topic's property is set in the background."""
    entry_size_limit: Callable[[UUID], EntrySizeLimit]
    """How large an entry the topic takes; one object for all of its partitions."""
    kept_number: Callable[[UUID, int, str], int]
    """The largest number of a kind that a broker kept beside partition `int` of the topic, or 0."""
    keep_number: Callable[[TopicInfo, int, str, int], Coroutine[Any, Any, None]]
    """Keep a number of a kind beside a partition, for all brokers. KopError, PulsarError."""
    direct_codecs: DirectCodecs = field(init=False)
    """What compiled code asks for compressed batches; they count in `decompression`."""
    rate_questions: RateQuestions = field(default_factory=RateQuestions)
    """Bounds how often Pulsar is asked whether a publish rate holds batches back."""

    def __post_init__(self) -> None:
        """Make what is made of the rest."""
        self.direct_codecs = DirectCodecs(self.decompression)
