"""`kop consume`: records to lines, through kafka-python's consumer."""

from __future__ import annotations

import base64
import json
import signal
import sys
import time
from collections.abc import Iterator
from typing import Any

import click

from kop.cli.common import bootstrap_option, client, fail, note, reason

EPILOG = """\b
Examples:
  kop consume orders                         new records, until Ctrl-C
  kop consume orders --from-beginning --max-messages 10
  kop consume orders --group billing --print-key
  kop consume orders --partition 0 --offset 1200 --timeout 2 --json"""

COMMIT_SECONDS = 5.0
REBALANCE_SECONDS = 30.0
"""How long the last commit waits for a rebalance."""
_MOVED_ON = "the group has moved on without this member; its last records will be read again"


@click.command("consume", epilog=EPILOG)
@click.argument("topics", metavar="TOPIC...", nargs=-1, required=True)
@click.option("-B", "--from-beginning", is_flag=True, help="Begin at the first record, not with new ones.")
@click.option(
    "-o", "--offset", type=int, metavar="N", help="Begin at this offset; -N is N before the end of each partition."
)
@click.option(
    "-p",
    "--partition",
    "partitions",
    type=click.IntRange(0),
    metavar="N",
    multiple=True,
    help="Read only this partition; may be repeated.",
)
@click.option(
    "-g", "--group", metavar="NAME", help="Join this group: share its partitions, go on at its offsets, commit."
)
@click.option("-n", "--max-messages", type=click.IntRange(1), metavar="N", help="Stop after N records.")
@click.option(
    "-t",
    "--timeout",
    type=click.FloatRange(0, min_open=True),
    metavar="SECONDS",
    help="Stop when no record came for so long.",
)
@click.option("--print-key", is_flag=True, help="Print the key and a tab before the value.")
@click.option("--print-headers", is_flag=True, help="Print headers as name=value,... and a tab before the rest.")
@click.option(
    "--json",
    "as_json",
    is_flag=True,
    help="Print a JSON object for each record: topic, partition, offset, timestamp, ...",
)
@bootstrap_option
def command(
    bootstrap: str,
    topics: tuple[str, ...],
    from_beginning: bool,
    offset: int | None,
    partitions: tuple[int, ...],
    group: str | None,
    max_messages: int | None,
    timeout: float | None,
    **look: bool,
) -> None:
    """Print the records of topics, one a line, until Ctrl-C, which is a clean end.

    With --group the offsets of printed records are committed; without it nothing is left behind.
    In --json, bytes that are not UTF-8 are in key_base64, value_base64 and the like.

    The isolation level is read_uncommitted: where the server hands them out, records of open and of aborted
    transactions are printed, too.
    """
    if group is not None and (offset is not None or partitions):
        raise click.UsageError("--group goes on where the group left: it goes with neither --offset nor --partition")
    if offset is not None and from_beginning:
        raise click.UsageError("give --from-beginning or --offset")
    settings: dict[str, Any] = {
        "group_id": group,
        "enable_auto_commit": False,
        "auto_offset_reset": "earliest" if from_beginning or offset is not None else "latest",
        "allow_auto_create_topics": False,
    }
    with client("KafkaConsumer", bootstrap, **settings) as consumer:
        _check(consumer, topics)
        if group is not None:
            consumer.subscribe(list(topics))
        else:
            _assign(consumer, topics, partitions, from_beginning, offset)
        if sys.stdout.isatty() and not from_beginning and offset is None and group is None:
            note("waiting for new records (--from-beginning for old ones too); Ctrl-C ends")
        printed = Printed(consumer, commits=group is not None)
        stop = StopSignals()
        try:
            for record in _records(consumer, timeout, stop):
                _print(record, **look)
                printed.add(record)
                if stop.came or printed.count == max_messages:
                    break
        finally:
            sys.stdout.flush()
            printed.finish()
        if sys.stdout.isatty() or sys.stderr.isatty():
            note(f"{printed.count:,} {'record' if printed.count == 1 else 'records'}")


def _check(consumer: Any, topics: tuple[str, ...]) -> None:
    known = consumer.topics()
    missing = [topic for topic in topics if topic not in known and not consumer.partitions_for_topic(topic)]
    if missing:
        fail("\n".join(f"{topic}: {reason(3)}" for topic in missing))


def _assign(
    consumer: Any, topics: tuple[str, ...], partitions: tuple[int, ...], from_beginning: bool, offset: int | None
) -> None:
    from kafka import TopicPartition

    keys = []
    for topic in topics:
        present = consumer.partitions_for_topic(topic) or set()
        if absent := set(partitions) - present:
            fail(f"{topic} has no partition {', '.join(map(str, sorted(absent)))}; it has {len(present)}")
        keys += [TopicPartition(topic, number) for number in sorted(set(partitions) or present)]
    consumer.assign(keys)
    if from_beginning:
        consumer.seek_to_beginning()
    elif offset is None:
        consumer.seek_to_end()
        for key in keys:
            consumer.position(key)  # now, not with the first poll: what comes after this line is printed
    else:
        starts, ends = consumer.beginning_offsets(keys), consumer.end_offsets(keys)
        for key in keys:
            wanted = max(ends[key] + offset, starts[key]) if offset < 0 else offset
            if not starts[key] <= wanted <= ends[key]:
                fail(f"{key.topic}-{key.partition} has offsets {starts[key]} to {ends[key]}, not {wanted}")
            consumer.seek(key, wanted)


class StopSignals:
    """Notes SIGINT and SIGTERM instead of raising KeyboardInterrupt.

    The consumer has threads and locks: an exception in the middle of its code may leave a lock taken that closing it
    waits for. A second signal raises KeyboardInterrupt all the same, for whoever does not want to wait.
    """

    def __init__(self) -> None:
        self.came = False
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, self._note)

    def _note(self, number: int, frame: object) -> None:
        if self.came:
            raise KeyboardInterrupt
        self.came = True


def _records(consumer: Any, timeout: float | None, stop: StopSignals) -> Iterator[Any]:
    """Records as they come; ends when none came for `timeout` seconds, or a signal came."""
    last = time.monotonic()
    while not stop.came:
        wait = 0.5 if timeout is None else min(0.5, max(0.0, last + timeout - time.monotonic()))
        batch = consumer.poll(timeout_ms=int(wait * 1000))
        for records in batch.values():
            yield from records
        if batch:
            sys.stdout.flush()
            last = time.monotonic()
        elif timeout is not None and time.monotonic() - last >= timeout:
            return


class Printed:
    """Counts records and, in a group, commits the offsets of those that were printed, never of more."""

    def __init__(self, consumer: Any, commits: bool) -> None:
        self.count = 0
        self._consumer = consumer
        self._commits = commits
        self._next: dict[Any, int] = {}
        self._last = time.monotonic()

    def add(self, record: Any) -> None:
        """Note a printed record."""
        from kafka import TopicPartition

        self.count += 1
        if self._commits:
            self._next[TopicPartition(record.topic, record.partition)] = record.offset + 1
            if time.monotonic() - self._last > COMMIT_SECONDS:
                self.commit()

    def commit(self) -> bool:
        """Commit what was printed since the last commit; partitions that went to other members are theirs now.

        False while the group rebalances: the offsets are kept for the next commit.
        """
        from kafka import errors
        from kafka.structs import OffsetAndMetadata

        ours = self._consumer.assignment()
        offsets = {key: OffsetAndMetadata(value, "", -1) for key, value in self._next.items() if key in ours}
        self._last = time.monotonic()
        if offsets:
            try:
                self._consumer.commit(offsets)
            except errors.RebalanceInProgressError:
                return False
            except errors.CommitFailedError:
                note(_MOVED_ON)
        self._next.clear()
        return True

    def finish(self) -> None:
        """Commit what is left. A rebalance has some time to end first: what it brings is not printed."""
        end = time.monotonic() + REBALANCE_SECONDS
        while not self.commit():
            if time.monotonic() > end:
                note(_MOVED_ON)
                return
            self._consumer.poll(timeout_ms=100)


def _print(record: Any, *, print_key: bool, print_headers: bool, as_json: bool) -> None:
    if as_json:
        sys.stdout.buffer.write(json.dumps(_json(record), ensure_ascii=False).encode() + b"\n")
        return
    parts = []
    if print_headers:
        parts.append(b",".join(name.encode() + b"=" + _bytes(value) for name, value in record.headers))
    if print_key:
        parts.append(_bytes(record.key))
    parts.append(_bytes(record.value))
    sys.stdout.buffer.write(b"\t".join(parts) + b"\n")


def _bytes(value: bytes | None) -> bytes:
    return b"null" if value is None else bytes(value)


def _json(record: Any) -> dict[str, Any]:
    return {
        "topic": record.topic,
        "partition": record.partition,
        "offset": record.offset,
        "timestamp": record.timestamp,
        **_text("key", record.key),
        **_text("value", record.value),
        "headers": [{"name": name, **_text("value", value)} for name, value in record.headers],
    }


def _text(name: str, value: bytes | None) -> dict[str, str | None]:
    if value is None:
        return {name: None}
    try:
        return {name: bytes(value).decode()}
    except UnicodeDecodeError:
        return {f"{name}_base64": base64.b64encode(value).decode()}
