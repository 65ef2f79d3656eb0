"""What a soak run was told and what it found, as plain values.

Owns: the events, what an error means for a record, and the lines that writers and readers put into files.
Must not know: clients, servers, what is an anomaly.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, NamedTuple

from conformance.harness.faults import Disturbance

Outcome = Literal["acknowledged", "refused", "unknown"]
Partition = tuple[str, int]
"""A topic and the number of a partition."""

UNREADABLE = "(unreadable)"
"""The writer of a stored entry that holds no record of the soak."""
UNANSWERED = "Unanswered"
"""The error of a record that had no answer when its writer stopped."""
ABORTED = "Aborted"
"""The error of a record whose transaction its writer aborted."""

_REFUSED = re.compile(
    r"too_?(large|big)|invalid_?(record|required|timestamp|topic)|corrupt|authoriz|policy|^aborted$", re.IGNORECASE
)
"""Errors after which a record must not be stored. All others, such as timeouts, leave it open."""


class Write(NamedTuple):
    """One record that a writer sent, and what it was told. Times are in seconds since 1970."""

    writer: str
    number: int
    topic: str
    partition: int
    sent: float
    done: float
    """When it was acknowledged, refused or given up."""
    offset: int
    """The offset that the writer was told; -1: none."""
    error: str
    """The client's name of the error; empty: acknowledged."""

    @property
    def record(self) -> tuple[str, int]:
        """What names the record in all of the run."""
        return self.writer, self.number

    @property
    def outcome(self) -> Outcome:
        """Whether the record has to be stored, must not be, or may be."""
        if not self.error:
            return "acknowledged"
        return "refused" if _REFUSED.search(self.error) else "unknown"


class Stored(NamedTuple):
    """One record as a reader found it."""

    topic: str
    partition: int
    offset: int
    """By the broker's index of the entry; -1 where the reader is not told."""
    position: str
    """LEDGER:ENTRY:PLACE, the place in the batch being -1 where there is none; empty where the reader is not told."""
    writer: str
    number: int

    @property
    def record(self) -> tuple[str, int]:
        """What names the record in all of the run."""
        return self.writer, self.number


@dataclass
class History:
    """One run."""

    idempotent: set[str]
    """The writers whose records must be stored once and in order."""
    tells_offsets: set[str]
    """The writers that are told an offset with each acknowledgement."""
    references: set[str]
    """Pulsar's own producers, which show how long an acknowledgement takes without a gateway."""
    limited: set[str]
    """The topics that may refuse a record for its size."""
    bumps_epoch: set[str]
    """The idempotent writers that begin a new epoch on all partitions when one of their records is refused for its
    size, and send again in it what has no answer."""
    writes: list[Write]
    stored: list[Stored]
    """Every record of every partition, by the entries that Pulsar keeps."""
    failed_commits: set[tuple[str, int]] = field(default_factory=set)
    """Records of transactions of Pulsar's own client that were committed, as it was told, though Pulsar's broker says
    that it did not commit them on a partition. No gateway has a part in these transactions."""
    forgotten_aborts: set[tuple[str, int]] = field(default_factory=set)
    """Records of transactions of Pulsar's own client that were aborted, on partitions whose transaction buffer Pulsar's
    broker began anew. No gateway has a part in these transactions."""
    views: dict[str, list[Stored]] = field(default_factory=dict)
    """The same as other readers saw it, by the reader's name; a partition that one did not read is not compared."""
    view_partitions: dict[str, set[Partition]] = field(default_factory=dict)
    """What each of those readers read."""
    disturbances: list[Disturbance] = field(default_factory=list)


def writer_of(name: str) -> str:
    """The writer without its generation: a producer that met a fatal error is followed by NAME#2, NAME#3."""
    return name.partition("#")[0]


def value_of(writer: str, number: int, padding: str) -> bytes:
    """What a record of the soak carries."""
    return f"{writer}|{number}|{padding}".encode()


def record_of(value: bytes | None) -> tuple[str, int]:
    """The record's writer and number; UNREADABLE and -1 where the value is not one of the soak's."""
    parts = bytes(value or b"")[:200].split(b"|", 2)
    if len(parts) == 3 and parts[1].isdigit():
        return parts[0].decode(errors="replace"), int(parts[1])
    return UNREADABLE, -1


def dump(path: Path, rows: Iterable[Write] | Iterable[Stored]) -> None:
    """One JSON array a line."""
    with path.open("w") as out:
        for row in rows:
            out.write(json.dumps(row) + "\n")


def writes_in(path: Path) -> list[Write]:
    """The whole lines of a file that a writer may still be appending to."""
    return [Write(*json.loads(line)) for line in _whole_lines(path)]


def stored_in(path: Path) -> list[Stored]:
    """What a reader in another process found."""
    return [Stored(*json.loads(line)) for line in _whole_lines(path)]


def _whole_lines(path: Path) -> list[str]:
    text = path.read_text() if path.exists() else ""
    return [line for line in text[: text.rfind("\n") + 1].splitlines() if line]
