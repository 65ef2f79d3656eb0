"""From a history to its anomalies. Pure: no clock, no file, no server.

Owns: what each kind of anomaly means.
Must not know: clients, servers, where a history comes from.

| kind | meaning |
|---|---|
| lost | acknowledged, and not stored |
| doubled | a record of an idempotent writer is stored more than once |
| elsewhere | stored, and not at the offset that the writer was told |
| untold | acknowledged to a writer that is told offsets, without one |
| reordered | an idempotent writer's record stands behind a later one of the same partition |
| invented | stored, and never sent to that partition |
| refused_stored | the writer was told a final refusal, and the record is stored |
| unexpected_error | an error that no fault of the run explains, such as DUPLICATE_SEQUENCE_NUMBER |
| slow | acknowledged to a Kafka writer after more than SLOW_SECONDS, and nothing broken but, at most, dispatch rates |
| unanswered | the writer still waited for a gateway's answer when all faults were over and its time to finish, too |
| silent | a Kafka writer without any acknowledgement |
| view | a reader saw something else than what the entries of the partition hold |

A refusal for its size excuses, with librdkafka, a second copy of what had no answer: see docs/operations.md on batches
that Pulsar refuses.
What Pulsar's own producers waited for at the same time is not counted as slow: the machine or the broker was busy.
A record that its writer sent behind one that a fault delayed, to the same partition, counts from that one's end on: a
Kafka client sends in order.
A time in which Pulsar could not recover transaction buffers, as its own log says, is one in which something was broken:
it gives nothing to readers then, and a gateway that opens a topic cannot learn where its log ends.
A record that Pulsar's own client committed is no anomaly if it is not stored and Pulsar's log says that the commit
failed on a partition: no gateway has a part in it, and the report names how many there are. So it is with one that
Pulsar's own client aborted, and that is stored all the same, where Pulsar's log says that the partition's transaction
buffer began anew.
An answer that Pulsar's own producers never got is no anomaly, as no gateway gives it: the one of pulsar-client 3.13.0
lost a partition at an unload ("Got invalid producer Id in SendReceipt"), and what it sent there had no answer.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from conformance.harness.faults import Disturbance
from conformance.soak.history import UNANSWERED, UNREADABLE, History, Partition, Stored, Write, writer_of

SLOW_SECONDS = 5.0
HARMLESS = frozenset({"dispatch_rate"})
"""Kinds of disturbance that must not delay an acknowledgement."""

_NOTICED_SECONDS = 0.5
_UNEXPECTED = re.compile(
    r"duplicate_?sequence|out_?of_?order|fenced|producer_?epoch|unknown_?producer|corrupt|invalid_?(record|timestamp)"
    r"|authoriz|policy|unsupported|unknown_?server|^_?unknown$|^_fatal$",
    re.IGNORECASE,
)
_TOO_LARGE = re.compile(r"too_?(large|big)", re.IGNORECASE)


class Anomaly(NamedTuple):
    """Something that must not be. `at` is the time at which the writer was told, 0 where it was not told anything."""

    kind: str
    writer: str
    number: int
    topic: str
    partition: int
    told: int
    """The offset in the acknowledgement, -1 for none."""
    stored_at: tuple[int, ...]
    """Offsets at which the record is stored."""
    at: float
    detail: str


def check(history: History) -> list[Anomaly]:
    """Every anomaly, by kind in the order of the table above."""
    return [
        *_records(history),
        *_order(history),
        *_invented(history),
        *_errors(history),
        *_slow(history),
        *_silent(history),
        *_views(history),
    ]


def done_by_pulsar(history: History) -> list[str]:
    """Return a line for each writer of which Pulsar lost records in commits that it did not carry out on a partition,
    and for each whose aborted records it gives to readers.
    """
    stored = {row.record for row in history.stored}
    lost = Counter(
        writer_of(write.writer)
        for write in history.writes
        if write.outcome == "acknowledged" and write.record in history.failed_commits and write.record not in stored
    )
    given = Counter(
        writer_of(write.writer)
        for write in history.writes
        if write.outcome == "refused" and write.record in history.forgotten_aborts and write.record in stored
    )
    texts = (
        (
            lost,
            "Pulsar lost {} records of its own client {}: commits failed on a partition (docs/quirks.md)",
        ),
        (
            given,
            "Pulsar gives {} records that its own client {} aborted to readers: a transaction buffer began anew "
            "(docs/quirks.md)",
        ),
    )
    return [text.format(count, writer) for counts, text in texts for writer, count in sorted(counts.items())]


def latencies(history: History) -> dict[str, list[float]]:
    """Sorted seconds from sending to acknowledgement, by what was broken at that time; "quiet" for nothing."""
    by_kind: defaultdict[str, list[float]] = defaultdict(list)
    for write in history.writes:
        if write.outcome == "acknowledged":
            kinds = {disturbance.kind for disturbance in _during(history.disturbances, write)} or {"quiet"}
            for kind in kinds:
                by_kind[kind].append(write.done - write.sent)
    return {kind: sorted(seconds) for kind, seconds in by_kind.items()}


def _anomaly(kind: str, write: Write, copies: Iterable[Stored], detail: str = "") -> Anomaly:
    stored_at = tuple(copy.offset for copy in copies)
    return Anomaly(
        kind, write.writer, write.number, write.topic, write.partition, write.offset, stored_at, write.done, detail
    )


def _stored_as(kind: str, stored: Stored, detail: str) -> Anomaly:
    place = (stored.offset,) if stored.offset >= 0 else ()
    text = f"{detail}, entry {stored.position}" if stored.position else detail
    return Anomaly(kind, stored.writer, stored.number, stored.topic, stored.partition, -1, place, 0.0, text)


def _records(history: History) -> Iterator[Anomaly]:
    """Lost, doubled, elsewhere, untold, refused_stored: each record by itself."""
    copies: defaultdict[tuple[str, int], list[Stored]] = defaultdict(list)
    for stored in history.stored:
        copies[stored.record].append(stored)
    refused: defaultdict[str, list[float]] = defaultdict(list)
    """When each writer was told that a record is too large."""
    for write in history.writes:
        if _TOO_LARGE.search(write.error):
            refused[write.writer].append(write.done)
    for write in history.writes:
        stored_copies = copies[write.record]
        if write.outcome == "acknowledged":
            if not stored_copies:
                if write.record not in history.failed_commits:
                    yield _anomaly("lost", write, stored_copies)
            elif write.offset >= 0 and write.offset not in {copy.offset for copy in stored_copies}:
                yield _anomaly("elsewhere", write, stored_copies)
            if write.offset < 0 and writer_of(write.writer) in history.tells_offsets:
                yield _anomaly("untold", write, stored_copies)
        elif (
            write.outcome == "refused"
            and stored_copies
            and write.record not in history.forgotten_aborts
            and not _refused_at_a_retry(history, write)
        ):
            yield _anomaly("refused_stored", write, stored_copies, write.error)
        if (
            len(stored_copies) > 1
            and writer_of(write.writer) in history.idempotent
            and not _sent_again_in_a_new_epoch(history, write, stored_copies, refused[write.writer])
        ):
            yield _anomaly("doubled", write, stored_copies)


def _refused_at_a_retry(history: History, write: Write) -> bool:
    """Whether a writer that is not idempotent sent a record again, and a size limit was lowered in between.

    Nothing tells a server that the record is stored already. Apache Kafka refuses it, too.
    """
    lowered = any(disturbance.kind == "size_limit" for disturbance in _during(history.disturbances, write))
    return lowered and bool(_TOO_LARGE.search(write.error)) and writer_of(write.writer) not in history.idempotent


def _sent_again_in_a_new_epoch(
    history: History, write: Write, stored_copies: list[Stored], refused: list[float]
) -> bool:
    """Whether another record of its writer was refused for its size while the answer of this one may have been lost.

    librdkafka then begins a new epoch, on all partitions, and sends in it what has no answer. Any server stores that
    once more, and tells where. Its maintainers on this: https://github.com/confluentinc/librdkafka/issues/4953
    """
    return (
        writer_of(write.writer) in history.bumps_epoch
        and write.outcome == "acknowledged"
        and write.offset == max(copy.offset for copy in stored_copies)
        and any(write.sent <= told < write.done for told in refused)
        and any(disturbance.kind not in HARMLESS for disturbance in _during(history.disturbances, write))
    )


def _order(history: History) -> Iterator[Anomaly]:
    """A size limit that is lowered meets batches under way, and is no excuse: what is behind a refused one waits."""
    highest: dict[tuple[str, str, int], int] = {}
    seen: set[tuple[str, int]] = set()
    for stored in sorted(history.stored, key=lambda record: (record.topic, record.partition, record.offset)):
        if writer_of(stored.writer) not in history.idempotent or stored.record in seen:
            continue
        seen.add(stored.record)
        place = (stored.writer, stored.topic, stored.partition)
        before = highest.get(place, -1)
        if stored.number < before:
            yield _stored_as("reordered", stored, f"behind number {before}")
        highest[place] = max(before, stored.number)


def _invented(history: History) -> Iterator[Anomaly]:
    sent = {write.record: (write.topic, write.partition) for write in history.writes}
    for stored in history.stored:
        place = sent.get(stored.record)
        if stored.writer == UNREADABLE:
            yield _stored_as("invented", stored, "an entry that holds no record of the soak")
        elif place is None:
            yield _stored_as("invented", stored, "never sent")
        elif place != (stored.topic, stored.partition):
            yield _stored_as("invented", stored, f"sent to {place[0]} {place[1]}")


def _errors(history: History) -> Iterator[Anomaly]:
    for write in history.writes:
        if write.error == UNANSWERED and writer_of(write.writer) not in history.references:
            yield _anomaly("unanswered", write, ())
        too_large = _TOO_LARGE.search(write.error) and write.topic not in history.limited
        if too_large or _UNEXPECTED.search(write.error):
            yield _anomaly("unexpected_error", write, (), write.error)


def _slow(history: History) -> Iterator[Anomaly]:
    others = [
        write
        for write in history.writes
        if write.outcome == "acknowledged"
        and write.done - write.sent > _NOTICED_SECONDS
        and writer_of(write.writer) in history.references
    ]
    delayed: defaultdict[tuple[str, str, int], list[Write]] = defaultdict(list)
    for write in history.writes:
        if write.done - write.sent > SLOW_SECONDS and _is_broken(_during(history.disturbances, write)):
            delayed[write.writer, write.topic, write.partition].append(write)
    for write in history.writes:
        behind = (
            other.done
            for other in delayed[write.writer, write.topic, write.partition]
            if other.sent <= write.sent < other.done
        )
        seconds = write.done - max(behind, default=write.sent)
        if write.outcome != "acknowledged" or seconds <= SLOW_SECONDS:
            continue
        if writer_of(write.writer) not in history.tells_offsets:
            continue  # no gateway is before Pulsar's own
        during = _during(history.disturbances, write)
        if _is_broken(during):
            continue
        beside = (other for other in others if other.sent <= write.done and write.sent <= other.done)
        usual = max((other.done - other.sent for other in beside), default=0.0)
        if seconds - usual > SLOW_SECONDS:
            cause = "a dispatch rate" if during else "nothing broken"
            yield _anomaly("slow", write, (), f"{seconds:.1f} s with {cause}, {usual:.1f} s to Pulsar's own producers")


def _is_broken(during: Iterable[Disturbance]) -> bool:
    return any(disturbance.kind not in HARMLESS for disturbance in during)


def _during(disturbances: Iterable[Disturbance], write: Write) -> list[Disturbance]:
    return [
        disturbance
        for disturbance in disturbances
        if disturbance.begin <= write.done and write.sent <= disturbance.end and disturbance.target in ("", write.topic)
    ]


def _silent(history: History) -> Iterator[Anomaly]:
    counts: Counter[str] = Counter()
    for write in history.writes:
        counts[writer_of(write.writer)] += write.outcome == "acknowledged"
    for writer, acknowledged in counts.items():
        if not acknowledged and writer in history.tells_offsets:
            yield Anomaly("silent", writer, -1, "", -1, -1, (), 0.0, "nothing was acknowledged")


def _views(history: History) -> Iterator[Anomaly]:
    """A reader that is told offsets is compared by them, one that is told positions by those."""
    expected: defaultdict[Partition, list[Stored]] = defaultdict(list)
    for stored in history.stored:
        expected[stored.topic, stored.partition].append(stored)
    for name, rows in history.views.items():
        seen: defaultdict[Partition, list[Stored]] = defaultdict(list)
        for row in rows:
            seen[row.topic, row.partition].append(row)
        for partition in sorted(history.view_partitions[name]):
            yield from _view(name, expected[partition], seen[partition])


def _view(name: str, expected: list[Stored], seen: list[Stored]) -> Iterator[Anomaly]:
    by_offset = not seen or seen[0].offset >= 0

    def key(row: Stored) -> tuple[str | int, str, int]:
        return row.offset if by_offset else row.position, row.writer, row.number

    wanted, had = Counter(map(key, expected)), Counter(map(key, seen))
    for rows, minus, text in ((expected, had, "not seen"), (seen, wanted, "seen and not stored so")):
        left = Counter(map(key, rows)) - minus
        for row in rows:
            if left[key(row)] > 0:
                left[key(row)] -= 1
                yield _stored_as("view", row, f"{text} by {name}")
    if by_offset:
        offsets = [row.offset for row in seen]
        for before, row in zip(offsets, seen[1:], strict=False):
            if row.offset <= before:
                yield _stored_as("view", row, f"delivered behind offset {before} by {name}")
