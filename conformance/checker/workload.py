"""Which topics a run has, who writes to them, who reads and copies them, and what each does in which order.

Owns: the tables of topics, writers, consumers and chains; what a seed makes of them.
Must not know: how a client is driven, what is broken when.
"""

from __future__ import annotations

import random
import zlib
from collections.abc import Iterator
from typing import Any, Literal, NamedTuple

from conformance.checker.history import Chain, Isolation

Family = Literal["confluent", "aiokafka"]
FAMILIES: tuple[Family, ...] = ("confluent", "aiokafka")
Promise = Literal["transactional", "idempotent", "loose"]
Finish = Literal["commit", "abort", "abandon", "zombie"]
"""`abandon`: the producer goes away and leaves its transaction open. `zombie`: it asks for the commit once another
producer of its transactional id has been initialized, and has to be refused."""

TRANSACTION_MS = 20_000
"""`transaction.timeout.ms` of all producers: longer than most faults."""
_KEYS = 12
_FINISHES: tuple[tuple[Finish, int], ...] = (("commit", 74), ("abort", 16), ("abandon", 5), ("zombie", 5))


class Topic(NamedTuple):
    """A topic, by its name without the run's prefix."""

    name: str
    partitions: int


class WriterRole(NamedTuple):
    """A producer that writes to these topics, at most `burst` records at once, then pauses."""

    name: str
    family: Family
    promise: Promise
    topics: tuple[str, ...]
    burst: int = 12
    pause: float = 0.3


class ConsumerRole(NamedTuple):
    """A member of a group that commits what it has read, and leaves and comes again now and then."""

    name: str
    family: Family
    group: str
    isolation: Isolation
    topics: tuple[str, ...]


class ChainRole(NamedTuple):
    """Workers that copy a topic, each input with its offset in one transaction.

    Those of confluent-kafka share the input as members of a group. aiokafka commits offsets without saying which member
    it is (TxnOffsetCommit 0), so no server could fence a worker that lost a partition: each has partitions of its own.
    """

    name: str
    family: Family
    source: str
    output: str
    workers: int


TOPICS = (Topic("left", 3), Topic("right", 2), Topic("copied", 3), Topic("twice", 2))
WRITERS = (
    WriterRole("tx-a", "confluent", "transactional", ("left", "right")),
    WriterRole("tx-b", "confluent", "transactional", ("right", "left"), 4, 0.1),
    WriterRole("tx-c", "aiokafka", "transactional", ("left", "right")),
    WriterRole("tx-d", "aiokafka", "transactional", ("left",), 5, 0.1),
    WriterRole("once-a", "confluent", "idempotent", ("left", "right"), 8, 0.5),
    WriterRole("once-b", "aiokafka", "idempotent", ("right", "left"), 8, 0.5),
    WriterRole("loose-a", "confluent", "loose", ("left",), 4, 0.5),
    WriterRole("loose-b", "aiokafka", "loose", ("right",), 4, 0.5),
)
CONSUMERS = (
    ConsumerRole("reader-a", "confluent", "readers", "committed", ("left", "right")),
    ConsumerRole("reader-b", "confluent", "readers", "committed", ("left", "right")),
    ConsumerRole("reader-c", "confluent", "everything", "uncommitted", ("left", "right", "copied")),
    ConsumerRole("reader-d", "aiokafka", "others", "committed", ("left", "copied", "twice")),
    ConsumerRole("reader-e", "aiokafka", "others-everything", "uncommitted", ("right", "twice")),
)
CHAINS = (
    ChainRole("first", "confluent", "left", "copied", 2),
    ChainRole("second", "aiokafka", "copied", "twice", 2),
)
"""The order in which they come to their end: the second copies what the first one wrote."""


class Draft(NamedTuple):
    """A record that a writer sends next."""

    topic: str
    partition: int
    key: str
    padding: str


class Deed(NamedTuple):
    """What a writer does next. Only a transactional one looks at `finish`."""

    drafts: tuple[Draft, ...]
    finish: Finish
    wait: float
    """Seconds for which a transaction stays open once its records are acknowledged."""
    pause: float


class Names:
    """The names of one run's topics, groups and transactional ids, which nobody else has."""

    def __init__(self, prefix: str) -> None:
        self.prefix = prefix

    def of(self, name: str) -> str:
        return f"{self.prefix}-{name}"

    def chain(self, role: ChainRole) -> Chain:
        return Chain(role.name, self.of(role.name), (self.of(role.source),), self.of(role.output))


def partitions_of(topic: str) -> int:
    """How many a topic of the table has."""
    return next(known.partitions for known in TOPICS if known.name == topic)


def deeds(role: WriterRole, seed: int) -> Iterator[Deed]:
    """Without end, the same for the same seed. A key stays in its partition."""
    rng = random.Random(f"{seed} {role.name}")
    finishes, weights = zip(*_FINISHES, strict=True)
    while True:
        drafts = []
        for _ in range(rng.randint(1, role.burst)):
            topic = rng.choice(role.topics)
            key = f"{role.name}-{rng.randrange(_KEYS)}"
            partition = zlib.crc32(key.encode()) % partitions_of(topic)
            drafts.append(Draft(topic, partition, key, rng.randbytes(rng.randint(5, 200)).hex()))
        (finish,) = rng.choices(finishes, weights)
        wait = rng.choice((0.0, 0.0, 0.05, 0.3, 1.0))
        yield Deed(tuple(drafts), finish, wait, rng.uniform(0.0, 2 * role.pause))


def chain_finishes(name: str, seed: int) -> Iterator[Finish]:
    """How the transactions of a chain's worker end."""
    rng = random.Random(f"{seed} {name}")
    finishes, weights = zip(*_FINISHES, strict=True)
    while True:
        yield rng.choices(finishes, weights)[0]


def shares(partitions: int, workers: int, worker: int) -> list[int]:
    """The partitions of a worker that has some of its own."""
    return [partition for partition in range(partitions) if partition % workers == worker]


class Settings(NamedTuple):
    """What a process of clients is told."""

    bootstrap: str
    prefix: str
    seed: int
    user: str = ""
    """By whom clients log in; empty: they do not."""

    @classmethod
    def read(cls, fields: dict[str, Any]) -> Settings:
        return cls(**fields)
