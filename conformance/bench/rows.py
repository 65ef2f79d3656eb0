"""What is measured: the rows of the table, as data.

Owns: the rows, their names, which of them a run takes.
Must not know: servers, clients, figures.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from fnmatch import fnmatch
from typing import Literal

RECORD_BYTES = 1024
BATCH_HEAD = 61
RECORD_HEAD = 12
"""What a record has beside its value, at most."""
IN_FLIGHT_BYTES = 4 * 2**20

Engine = Literal["pulsar", "embedded"]
Load = Literal[
    "produce",
    "librdkafka",
    "bare-in",
    "fetch",
    "bare-out",
    "commit",
    "latency",
    "transactions",
    "flushes",
    "isolation",
    "behind",
]
Isolation = Literal["read_committed", "read_uncommitted"]
Source = Literal["memory", "gateway-cold", "broker-cold"]


@dataclass(frozen=True, slots=True)
class Row:
    """One load. Its records have `record_bytes` each; the batches of a request go to partitions of their own."""

    name: str
    load: Load
    engine: Engine = "pulsar"
    batch_bytes: int = 65_536
    record_bytes: int = RECORD_BYTES
    codec: str = "none"
    idempotent: bool = False
    connections: int = 1
    partitions: int = 1
    batches: int = 1
    """A request."""
    most_in_flight: int = 64
    """Requests of a connection."""
    source: Source = "memory"
    groups: int = 100
    transaction_records: int = 1000
    """Records of a transaction, or between two flushes."""
    isolation: Isolation = "read_committed"
    cache_bytes: int | None = None
    """The gateway's `kop.cache.bytes`; None: as it comes."""
    family: str = ""
    """A name that stands for this row and others like it."""
    longer: int = 1
    """So many times as long as others: what happens once, at the start, would be most of it."""

    @property
    def records(self) -> int:
        """As many as fit into a batch, and at least one."""
        return max(1, (self.batch_bytes - BATCH_HEAD) // (self.record_bytes + RECORD_HEAD))

    @property
    def in_flight(self) -> int:
        """Requests of a connection that are under way at once."""
        return max(1, min(self.most_in_flight, IN_FLIGHT_BYTES // (self.batch_bytes * self.batches)))

    @property
    def beside_kafka(self) -> bool:
        """Whether its peer is an Apache Kafka, and not what goes to Pulsar without a gateway."""
        return self.engine == "embedded" or self.load in ("commit", "behind", *_TRANSACTIONAL)

    @property
    def beside_perf(self) -> bool:
        """True if `pulsar-perf` is a peer of it over Pulsar."""
        return not self.beside_kafka or (self.load == "behind" and self.cache_bytes is not None)

    @property
    def client(self) -> str:
        """What drives it."""
        if self.load.startswith("bare"):
            return "bare client"
        return "librdkafka" if self.load in _LIBRDKAFKA else "raw"


_TRANSACTIONAL = ("transactions", "flushes", "isolation")
_LIBRDKAFKA = ("librdkafka", "latency", "behind", *_TRANSACTIONAL)


SIZES = {"1k": 1024, "4k": 4096, "16k": 16_384, "64k": 65_536, "1m": 1_048_576}
COMPRESSED = {name: SIZES[name] for name in ("16k", "64k")}
OUT_BEHIND = "out-behind"
SMALL_CACHE_BYTES = 64 * 2**20

_WITH_AND_WITHOUT: tuple[tuple[str, Load], ...] = ("", "transactions"), ("-plain", "flushes")
_BOTH = [
    *(Row(f"in-{name}", "produce", batch_bytes=size) for name, size in SIZES.items()),
    *(Row(f"in-{name}-idempotent", "produce", batch_bytes=size, idempotent=True) for name, size in SIZES.items()),
    *(
        Row(f"in-{name}-{codec}", "produce", batch_bytes=size, codec=codec, idempotent=True)
        for codec in ("lz4", "zstd")
        for name, size in COMPRESSED.items()
    ),
    Row(
        "in-1000-producers",
        "produce",
        batch_bytes=256,
        record_bytes=100,
        idempotent=True,
        connections=1000,
        partitions=10,
        most_in_flight=1,
        longer=3,
    ),
    Row("in-100-partitions", "produce", batch_bytes=1024, partitions=100, batches=100, most_in_flight=5, longer=2),
    Row("in-64k-8-producers", "produce", idempotent=True, connections=8, partitions=8, most_in_flight=8),
    Row("in-64k-librdkafka", "librdkafka"),
    Row("out-memory", "fetch"),
    Row("out-gateway-cold", "fetch", source="gateway-cold"),
    *(
        Row(
            f"{OUT_BEHIND}-{name}-{partitions}{suffix}",
            "behind",
            batch_bytes=SIZES[name],
            partitions=partitions,
            cache_bytes=cache_bytes,
            family=OUT_BEHIND,
        )
        for suffix, cache_bytes in (("", None), ("-small-cache", SMALL_CACHE_BYTES))
        for name in ("64k", "1m")
        for partitions in (1, 8)
    ),
    Row("commit", "commit"),
    Row("latency", "latency"),
    *(
        Row(f"tx-{size}{suffix}", load, transaction_records=size)
        for size in (1, 100, 10_000)
        for suffix, load in _WITH_AND_WITHOUT
    ),
    Row("out-tx-committed", "isolation", isolation="read_committed"),
    Row("out-tx-uncommitted", "isolation", isolation="read_uncommitted"),
]
_PULSAR = [
    Row("out-broker-cold", "fetch", source="broker-cold"),
    Row("bare-in-64k", "bare-in"),
    Row("bare-out", "bare-out"),
]

ROWS = [
    *(replace(row, name=f"{engine}-{row.name}", engine=engine) for engine in ("pulsar", "embedded") for row in _BOTH),
    *(replace(row, name=f"pulsar-{row.name}") for row in _PULSAR),
]
"""All of them, each name once."""


def chosen(part: str, patterns: list[str]) -> list[Row]:
    """The rows of an engine (or `all`) whose names match one of the shell patterns; all where there is no pattern.

    A family stands for its rows.

    ValueError for a pattern that matches no row.
    """
    for pattern in patterns:
        if not any(_is_called(row, pattern) for row in ROWS):
            raise ValueError(f"no row is called {pattern}; --list names them")
    return [
        row
        for row in ROWS
        if part in ("all", row.engine) and (not patterns or any(_is_called(row, pattern) for pattern in patterns))
    ]


def _is_called(row: Row, pattern: str) -> bool:
    return fnmatch(row.name, pattern) or (row.family != "" and row.family == pattern)
