"""Which topics a soak has, who writes to them, and what.

Owns: the tables of topics and writers, the sizes of records.
Must not know: how a client is driven, what is broken when.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Literal, NamedTuple

SIZE_LIMIT = 100 * 1024
"""Bytes of `maxMessageSize` on the topic with a limit of its own."""
DISPATCH_RATE = 5
"""Messages a second that Pulsar lets the readers of a topic with a dispatch rate have."""
PUBLISH_RATE = 10
"""Messages a second that Pulsar takes on a topic with a publish rate."""

Sizes = Literal["small", "mixed", "large", "chunked"]
Family = Literal["librdkafka", "aiokafka", "java", "native", "transactions"]


@dataclass(frozen=True)
class Topic:
    """`partitions` 0: natively made and not partitioned. `policies` are Pulsar's, set by REST."""

    name: str
    partitions: int
    native: bool = False
    configs: Mapping[str, str] = field(default_factory=dict)
    policies: Mapping[str, Any] = field(default_factory=dict)

    @property
    def raw(self) -> bool:
        """Holds Kafka's batches as they came: Pulsar's C++ clients cannot read them."""
        return self.configs.get("kop.entry.format") == "kafka"

    def native_name(self, namespace: str, partition: int) -> str:
        """Pulsar's full name of a partition."""
        name = f"persistent://{namespace}/{self.name}"
        return f"{name}-partition-{partition}" if self.partitions else name

    @property
    def numbers(self) -> range:
        """Its partitions as Kafka counts them."""
        return range(max(1, self.partitions))


@dataclass(frozen=True)
class Writer:
    """`burst` records at once, then a pause of `pause` seconds. `settings` are the client's own."""

    name: str
    family: Family
    topics: tuple[str, ...]
    idempotent: bool = False
    burst: int = 10
    pause: float = 0.5
    sizes: Sizes = "mixed"
    settings: Mapping[str, Any] = field(default_factory=dict)

    @property
    def tells_offsets(self) -> bool:
        """A native producer is told message ids, a Kafka producer offsets."""
        return self.family in ("librdkafka", "aiokafka", "java")


STAYS_IDLE = {
    "inactiveTopicPolicies": {
        "inactiveTopicDeleteMode": "delete_when_no_subscriptions",
        "maxInactiveDurationSeconds": 60,
        "deleteWhileInactive": False,
    }
}
"""Else Pulsar deletes a topic, or its partitions, that it has had for a minute before the first record comes."""
KEPT = STAYS_IDLE | {"retention": {"retentionTimeInMinutes": -1, "retentionSizeInMB": -1}}
DISPATCH_POLICY = {
    "dispatchThrottlingRateInMsg": DISPATCH_RATE,
    "dispatchThrottlingRateInByte": -1,
    "relativeToPublishRate": False,
    "ratePeriodInSecond": 1,
}
PUBLISH_POLICY = {"publishThrottlingRateInMsg": PUBLISH_RATE, "publishThrottlingRateInByte": -1}

TOPICS = (
    Topic("kafka", 2),
    Topic("append-time", 1, configs={"message.timestamp.type": "LogAppendTime"}),
    Topic("raw", 2, configs={"kop.entry.format": "kafka"}),
    Topic("dispatch", 1, policies={"dispatchRate": DISPATCH_POLICY}),
    Topic("publish", 1),
    Topic("limited", 2, policies={"maxMessageSize": SIZE_LIMIT}),
    Topic("native", 2, native=True, policies=KEPT),
    Topic("single", 0, native=True, policies=KEPT),
    Topic("chunked", 1, native=True, policies=KEPT),
    Topic("transactions", 1, native=True, policies=KEPT),
    Topic("unkept", 1, native=True, policies=STAYS_IDLE),
)
"""`unkept` has the retention of a namespace as it comes: none. Only Kafka clients write to it."""

_EVERYWHERE = ("kafka", "append-time", "native", "single", "raw", "transactions")

_LZ4, _ZSTD, _GZIP = ({"compression.type": name} for name in ("lz4", "zstd", "gzip"))
_BATCHED = {"batching_enabled": True}

WRITERS = (
    Writer("rd-none", "librdkafka", _EVERYWHERE, True, settings={"linger.ms": 5}),
    Writer("rd-lz4", "librdkafka", (*_EVERYWHERE, "unkept"), True, burst=20, pause=1.0, settings=_LZ4),
    Writer("rd-zstd", "librdkafka", (*_EVERYWHERE, "chunked"), True, settings=_ZSTD),
    Writer("rd-gzip", "librdkafka", ("native", "publish"), True, settings=_GZIP),
    Writer("rd-single", "librdkafka", ("kafka", "single"), True, 3, 0.3, "small", {"linger.ms": 0, "batch.size": 200}),
    Writer("rd-plain", "librdkafka", ("kafka", "limited", "publish"), settings={"linger.ms": 5}),
    Writer("rd-large", "librdkafka", ("limited",), True, 15, 1.5, "large", {"linger.ms": 50}),
    Writer("rd-dispatch", "librdkafka", ("dispatch",), True, sizes="small", settings={"linger.ms": 5}),
    Writer("java-none", "java", _EVERYWHERE, True, settings={"linger.ms": 5}),
    Writer("java-lz4", "java", ("kafka", "native", "unkept"), True, settings=_LZ4),
    Writer("java-large", "java", ("limited",), True, 25, 1.0, "large", {"linger.ms": 20, "batch.size": 3 * SIZE_LIMIT}),
    Writer("java-dispatch", "java", ("dispatch",), True, sizes="small", settings=_ZSTD),
    Writer("java-plain", "java", ("kafka", "raw"), settings={"acks": "1"}),
    Writer("aio", "aiokafka", ("kafka", "native", "limited"), True),
    Writer("aio-plain", "aiokafka", ("append-time", "single", "native")),
    Writer("aio-dispatch", "aiokafka", ("dispatch",), sizes="small"),
    Writer("pulsar-batched", "native", ("kafka", "native"), settings=_BATCHED),
    Writer(
        "pulsar-lz4", "native", ("single", "append-time"), settings={"batching_enabled": True, "compression": "LZ4"}
    ),
    Writer("pulsar-single", "native", ("kafka", "limited", "publish"), burst=3, sizes="small"),
    Writer("pulsar-dispatch", "native", ("dispatch",), burst=3, pause=0.3, sizes="small"),
    Writer("pulsar-chunked", "native", ("chunked",), burst=1, pause=10.0, sizes="chunked"),
    Writer("pulsar-transactions", "transactions", ("transactions",), burst=5, pause=2.0, sizes="small"),
)
"""Kafka answers a connection in order: what is slow has writers of its own, and delays no other."""


def writers_of(user: str) -> tuple[Writer, ...]:
    """The writers of a run; those of a tenant have its name in theirs, and half the load: there are two tenants."""
    if not user:
        return WRITERS
    return tuple(replace(writer, name=f"{user}-{writer.name}", pause=2 * writer.pause) for writer in WRITERS)


class Record(NamedTuple):
    """What a writer sends next."""

    number: int
    topic: str
    partition: int
    padding: str


def records(writer: Writer, topics: Mapping[str, Topic], seed: int) -> Iterator[Record]:
    """Without end, the same for the same seed. A burst goes to one topic, so that batches form.

    A writer of large records begins with a small burst to every partition. Where the first batch of an idempotent
    producer is refused, Kafka takes the batch behind it as the producer's first: the order of a retry is not promised.
    Apache Kafka 4.3.1 and its Java client, with batches larger than `max.message.bytes` from the beginning: the batch
    behind the refused one is stored first, and the pieces of that one are OUT_OF_ORDER_SEQUENCE_NUMBER again and again.
    """
    rng = random.Random(f"{seed} {writer.name}")
    number = 0
    while True:
        topic = topics[writer.topics[number // writer.burst % len(writer.topics)]]
        begins = writer.sizes == "large" and number < writer.burst
        partition = topic.numbers[number % len(topic.numbers)] if begins else rng.choice(topic.numbers)
        yield Record(number, topic.name, partition, rng.randbytes(size(rng, "small" if begins else writer.sizes)).hex())
        number += 1


def size(rng: random.Random, sizes: Sizes) -> int:
    """Half the bytes of a record: the padding is random hexadecimal, which compression halves."""
    if sizes == "small":
        return rng.randint(10, 100)
    if sizes == "chunked":
        return 3 * 1024 * 1024
    usual, rare = (rng.randint(20, 300), rng.randint(2000, 8000))
    if sizes == "mixed":
        return rare if rng.random() < 0.03 else usual
    draw = rng.random()
    if draw < 0.02:  # no batch that holds this one fits
        return rng.randint(SIZE_LIMIT // 2 + 2000, SIZE_LIMIT // 2 + 30_000)
    return rare if draw < 0.6 else usual


def specification(writer: Writer) -> dict[str, Any]:
    """A writer as JSON."""
    return asdict(writer)


def specified(fields: Mapping[str, Any]) -> Writer:
    """The other way round."""
    return Writer(**{**fields, "topics": tuple(fields["topics"])})
