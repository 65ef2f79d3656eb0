"""What a run of the checker did and what it was told, as plain values.

Owns: the events, what an outcome is, and the lines of the files that hold them.
Must not know: clients, servers, what is an anomaly.

Each line of a file is a JSON array: the kind of the event, then its fields. All times are seconds since 1970, taken by
processes of one machine, so that an event that was done before another one began has happened before it.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Literal, NamedTuple

from conformance.harness.faults import Disturbance

Outcome = Literal["committed", "aborted", "unknown"]
Isolation = Literal["committed", "uncommitted"]
Place = tuple[str, int]
"""A topic and the number of a partition."""
Record = tuple[str, int]
"""The writer of a record and its number: what names it in all of a run."""

UNREADABLE = "(unreadable)"
"""The writer of a record that is none of the run's."""
UNANSWERED = "Unanswered"
"""The error of what had no answer when its process ended."""
NOT_SENT = "NotSent"
"""The error of a record that a client refused to take."""


class Writer(NamedTuple):
    """A producer. The records of one that is idempotent have to be stored once and in the order of their numbers."""

    name: str
    idempotent: bool


class Instance(NamedTuple):
    """A producer that was initialized with a transactional id, as the `number`th of that id."""

    transactional_id: str
    number: int
    begin: float
    done: float


class Send(NamedTuple):
    """One record that a writer sent, and what it was told."""

    writer: str
    number: int
    topic: str
    partition: int
    transaction: str
    """Empty where it was sent in none."""
    source: str
    """Where the input lies that a chain made it from, by `source_of`; else empty."""
    sent: float
    done: float
    offset: int
    """The offset in the acknowledgement; -1: none."""
    error: str
    """The client's name of the error; empty: acknowledged."""

    @property
    def record(self) -> Record:
        return self.writer, self.number

    @property
    def place(self) -> Place:
        return self.topic, self.partition

    @property
    def acknowledged(self) -> bool:
        return not self.error


class Transaction(NamedTuple):
    """One transaction. It is written down when its end is asked for, and again when that is answered: the last counts.

    Nobody but its producer asks for a commit, so one that was never asked for ends as aborted, whoever ends it. A
    commit that was asked for and not granted leaves it open what happened, also where the producer aborted afterwards:
    it may have been told of the loss of its own success.
    """

    name: str
    transactional_id: str
    instance: int
    begun: float
    ending: float
    """When its end was asked for; 0: never."""
    ended: float
    """When that was answered; 0: never."""
    asked: str
    """`commit`, `abort` or empty."""
    error: str
    group: str
    """The group whose offsets it commits, or empty."""
    offsets: tuple[tuple[str, int, int], ...]
    """Topic, partition, offset: what it commits for the group."""

    @property
    def outcome(self) -> Outcome:
        if self.asked != "commit":
            return "aborted"
        return "committed" if self.ended and not self.error else "unknown"


class Poll(NamedTuple):
    """What a consumer was given of one partition at once.

    `session` is one reading without a seek and without a change of the assignment; `start` and `position` are the
    consumer's position before and after.
    """

    session: str
    isolation: Isolation
    topic: str
    partition: int
    at: float
    """When it was given, or later."""
    start: int
    position: int
    records: tuple[tuple[int, str, int], ...]
    """Offset, writer, number."""

    @property
    def place(self) -> Place:
        return self.topic, self.partition


class Whole(NamedTuple):
    """A session that began at the log's start has come to what was its end when all transactions had ended."""

    session: str
    isolation: Isolation
    topic: str
    partition: int

    @property
    def place(self) -> Place:
        return self.topic, self.partition


class End(NamedTuple):
    """An end of a log, as a server told it: its `start`, its last `stable` offset, its `high` watermark."""

    topic: str
    partition: int
    begin: float
    done: float
    kind: Literal["start", "stable", "high"]
    offset: int

    @property
    def place(self) -> Place:
        return self.topic, self.partition


class Commit(NamedTuple):
    """Offsets that a consumer committed outside of transactions."""

    group: str
    begin: float
    done: float
    error: str
    offsets: tuple[tuple[str, int, int], ...]


class Committed(NamedTuple):
    """The offsets of a group in one answer. `stable`: the question was to wait for open transactions."""

    group: str
    stable: bool
    begin: float
    done: float
    offsets: tuple[tuple[str, int, int], ...]
    """-1 for a partition without."""


class Chain(NamedTuple):
    """Consume, transform, produce: each committed record of the inputs has to be the source of one output."""

    name: str
    group: str
    inputs: tuple[str, ...]
    output: str


class Engine(NamedTuple):
    """What the servers of a run are. `hides`: what an open transaction has written, and what lies behind that, is
    beyond the ends that anybody is told, as over Pulsar."""

    hides: bool


Event = (
    Writer | Instance | Send | Transaction | Poll | Whole | End | Commit | Committed | Chain | Engine | Disturbance
)  # fmt: skip


@dataclass
class History:
    """One run."""

    writers: list[Writer] = field(default_factory=list)
    instances: list[Instance] = field(default_factory=list)
    sends: list[Send] = field(default_factory=list)
    transactions: list[Transaction] = field(default_factory=list)
    polls: list[Poll] = field(default_factory=list)
    """Those of one session are in their order."""
    wholes: list[Whole] = field(default_factory=list)
    ends: list[End] = field(default_factory=list)
    commits: list[Commit] = field(default_factory=list)
    committed: list[Committed] = field(default_factory=list)
    chains: list[Chain] = field(default_factory=list)
    engines: list[Engine] = field(default_factory=list)
    disturbances: list[Disturbance] = field(default_factory=list)

    def add(self, event: Event) -> None:
        """Put an event where it belongs."""
        getattr(self, _LISTS[type(event).__name__.lower()][0]).append(event)

    def events(self) -> Iterator[Event]:
        """Everything, by kind."""
        for kind in fields(self):
            yield from getattr(self, kind.name)


_LISTS: dict[str, tuple[str, Any]] = {
    "writer": ("writers", Writer),
    "instance": ("instances", Instance),
    "send": ("sends", Send),
    "transaction": ("transactions", Transaction),
    "poll": ("polls", Poll),
    "whole": ("wholes", Whole),
    "end": ("ends", End),
    "commit": ("commits", Commit),
    "committed": ("committed", Committed),
    "chain": ("chains", Chain),
    "engine": ("engines", Engine),
    "disturbance": ("disturbances", Disturbance),
}


def name_of(record: Record) -> str:
    """A record as one word."""
    return f"{record[0]}|{record[1]}"


def source_of(place: Place, offset: int) -> str:
    """The place of an input as one word: a writer that is not idempotent may have left several copies of a record."""
    return f"{place[0]}|{place[1]}|{offset}"


def value_of(writer: str, number: int, padding: str = "") -> bytes:
    """What a record of a run carries."""
    return f"{writer}|{number}|{padding}".encode()


def record_of(value: bytes | None) -> Record:
    """The record's writer and number; UNREADABLE and -1 where the value is not one of a run's."""
    parts = bytes(value or b"")[:200].split(b"|", 2)
    if len(parts) == 3 and parts[1].isdigit():
        return parts[0].decode(errors="replace"), int(parts[1])
    return UNREADABLE, -1


def line_of(event: Event) -> str:
    """An event as a line of a file."""
    return json.dumps([type(event).__name__.lower(), *event]) + "\n"


def event_of(line: str) -> Event:
    """The other way round."""
    kind, *values = json.loads(line)
    made: Event = _LISTS[kind][1](*(_hashable(value) for value in values))
    return made


def _hashable(value: Any) -> Any:
    return tuple(_hashable(inner) for inner in value) if isinstance(value, list) else value


def dump(path: Path, events: Iterable[Event]) -> None:
    """One event a line."""
    with path.open("w") as out:
        out.writelines(line_of(event) for event in events)


def load(paths: Iterable[Path]) -> History:
    """The whole lines of files that processes may still be appending to."""
    history = History()
    for path in paths:
        text = path.read_text() if path.exists() else ""
        for line in text[: text.rfind("\n") + 1].splitlines():
            history.add(event_of(line))
    return history
