"""`kop consume`: records to lines, through kafka-python's consumer."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

import click

from kop import clock
from kop.cli import completion
from kop.cli.common import (
    CliUsageError,
    StopSignals,
    bootstrap_option,
    client,
    fail,
    naming,
    no_topic,
    note,
    partitions_of,
    troubles,
)
from kop.cli.lines import to_json
from kop.cli.times import parse_moment

EPILOG = """\b
Examples:
  kop consume orders                         new records, until Ctrl-C
  kop consume orders --from-beginning --max-messages 10
  kop consume orders --group billing --print-key
  kop consume orders --partition 0 --offset 1200 --timeout 2 --json
  kop consume orders --since PT1H --until-end --format '{offset} {key}'
  kop consume orders --json --until-end | kop produce copy --json"""

COMMIT_SECONDS = 5.0
LAST_COMMIT_SECONDS = 5.0
"""The seconds that a server may take for the last commit of offsets when the command has to end."""
SILENT_COMMIT_SECONDS = 0.3
"""The seconds that the last commit may take if the server owes an answer by then."""
REBALANCE_SECONDS = 30.0
"""The seconds that the last commit waits for a rebalance of the group to end."""
_MOVED_ON = "the group has moved on without this member; its last records will be read again"


@click.command("consume", epilog=EPILOG)
@click.argument("topics", metavar="TOPIC...", nargs=-1, required=True, shell_complete=completion.topics)
@click.option("-B", "--from-beginning", is_flag=True, help="Begin at the first record, not with new ones.")
@click.option(
    "-o", "--offset", type=int, metavar="N", help="Begin at this offset; -N is N before the end of each partition."
)
@click.option(
    "--since", metavar="TIME", help="Begin at the first record of a time (2026-01-31T12:00) or a duration (PT1H)."
)
@click.option(
    "--until-end", is_flag=True, help="Stop at the end that each partition has now; begin at the first record."
)
@click.option(
    "--to-offset", type=click.IntRange(0), metavar="N", help="Stop before this offset of each partition, or at its end."
)
@click.option("--until", metavar="TIME", help="Stop at the first record of this time or later, as --since takes it.")
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
    "-g",
    "--group",
    metavar="NAME",
    help="Join this group: share its partitions, go on at its offsets, commit.",
    shell_complete=completion.groups,
)
@click.option("-n", "--max-messages", type=click.IntRange(1), metavar="N", help="Stop after N records.")
@click.option(
    "-t",
    "--timeout",
    type=click.FloatRange(0, min_open=True),
    metavar="SECONDS",
    help="Stop when no record came for so long; a member of a group counts from its first partitions on.",
)
@click.option("--read-committed", is_flag=True, help="Leave out records of transactions that are open or aborted.")
@click.option("--filter", "only_key", metavar="KEY", help="Print only records with this key.")
@click.option("--print-key", is_flag=True, help="Print the key and a tab before the value.")
@click.option("--print-headers", is_flag=True, help="Print headers as name=value,... and a tab before the rest.")
@click.option("--format", "template", metavar="TEXT", help="Print this for each record, with its fields in braces.")
@click.option(
    "--json",
    "as_json",
    is_flag=True,
    help="Print a JSON object for each record, as `kop produce --json` takes it.",
)
@bootstrap_option
def command(
    bootstrap: str,
    topics: tuple[str, ...],
    from_beginning: bool,
    offset: int | None,
    since: str | None,
    until_end: bool,
    to_offset: int | None,
    until: str | None,
    partitions: tuple[int, ...],
    group: str | None,
    max_messages: int | None,
    timeout: float | None,
    read_committed: bool,
    only_key: str | None,
    print_key: bool,
    print_headers: bool,
    template: str | None,
    as_json: bool,
) -> None:
    """Print the records of topics, one a line, until Ctrl-C, which is a clean end.

    With --group the offsets of printed records are committed; without it nothing is left behind.
    In --json, bytes that are not UTF-8 are in key_base64, value_base64 and the like.
    In --format, {topic}, {partition}, {offset}, {timestamp} (ms), {time}, {key}, {value} and {headers} are the fields,
    \\t and \\n are tab and new line.

    Without --read-committed records of open and of aborted transactions are printed, too, where the server hands them
    out, and --until-end stops behind the last record; with it, in front of open transactions.
    """
    begins = [from_beginning, offset is not None, since is not None]
    ends = [until_end, to_offset is not None, until is not None]
    if group is not None and (offset is not None or since is not None or partitions or any(ends)):
        raise click.UsageError(
            "--group goes on where the group left: it goes with none of --offset, --since, --partition, --until-end, "
            "--to-offset, --until"
        )
    if sum(begins) > 1:
        raise click.UsageError("give one of --from-beginning, --offset, --since")
    if sum(ends) > 1:
        raise click.UsageError("give one of --until-end, --to-offset, --until")
    if sum([as_json, template is not None, print_key or print_headers]) > 1:
        raise click.UsageError("give one of --json, --format, --print-key with --print-headers")
    with naming("--since"):
        since_ms = None if since is None else parse_moment(since)
    with naming("--until"):
        until_ms = None if until is None else parse_moment(until)
    write = _writer(as_json, template, print_key, print_headers)
    # What has an end is read from its beginning.
    from_beginning = from_beginning or (any(ends) and not any(begins))
    settings: dict[str, Any] = {
        "group_id": group,
        "enable_auto_commit": False,
        "auto_offset_reset": "earliest" if from_beginning or any(begins) else "latest",
        "allow_auto_create_topics": False,
        "isolation_level": "read_committed" if read_committed else "read_uncommitted",
    }
    key = None if only_key is None else only_key.encode()
    stop = StopSignals()
    with client("KafkaConsumer", bootstrap, **settings) as consumer:
        present = _partitions(consumer, topics)
        reading = Reading(consumer, timeout, stop)
        if group is not None:
            if sys.stdout.isatty() or sys.stderr.isatty():
                note(f"joining the group {group}")
            reading.join(topics)
        else:
            keys = _assign(consumer, present, partitions)
            _seek(consumer, keys, from_beginning, offset, since_ms)
            if any(ends):
                reading.ends = _ends(consumer, keys, to_offset, until_ms)
        if sys.stdout.isatty() and not any([*begins, *ends, group]):
            note("waiting for new records (--from-beginning for old ones too); Ctrl-C ends")
        printed = Printed(consumer, commits=group is not None)
        try:
            for record in reading.records():
                wanted = key is None or record.key == key
                if wanted:
                    sys.stdout.buffer.write(write(record) + b"\n")
                printed.add(record, wanted)
                if stop.came or printed.count == max_messages:
                    break
        finally:
            sys.stdout.flush()
            printed.finish(silent=bool(troubles(consumer)))
        if sys.stdout.isatty() or sys.stderr.isatty():
            note(f"{printed.count:,} {'record' if printed.count == 1 else 'records'}")
        if reading.problem is not None and printed.count != max_messages:
            fail(reading.problem)


# -- where reading begins and ends


def _partitions(consumer: Any, topics: tuple[str, ...]) -> dict[str, set[int]]:
    """Return the partitions of each topic; end the command with an error if one of the topics does not exist."""
    present = partitions_of(consumer, topics)
    missing = [topic for topic in topics if not present.get(topic)]
    if missing:
        known = consumer.topics()
        fail("\n".join(no_topic(topic, known) for topic in missing))
    return present


def _assign(consumer: Any, topics: Mapping[str, set[int]], partitions: tuple[int, ...]) -> list[Any]:
    from kafka import TopicPartition

    keys = []
    for topic, present in topics.items():
        if absent := set(partitions) - present:
            fail(f"{topic} has no partition {', '.join(map(str, sorted(absent)))}; it has {len(present)}")
        keys += [TopicPartition(topic, number) for number in sorted(set(partitions) or present)]
    consumer.assign(keys)
    return keys


def _seek(consumer: Any, keys: Sequence[Any], from_beginning: bool, offset: int | None, since: int | None) -> None:
    if from_beginning:
        consumer.seek_to_beginning()
    elif since is not None:
        firsts, ends = consumer.offsets_for_times(dict.fromkeys(keys, since)), consumer.end_offsets(keys)
        for key in keys:
            first = firsts.get(key)
            consumer.seek(key, ends[key] if first is None else first.offset)
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


def _ends(consumer: Any, keys: Sequence[Any], to_offset: int | None, until: int | None) -> dict[Any, int]:
    """Return for each partition the offset at which reading ends: its end now, or the offset of --to-offset or
    --until.
    """
    ends: dict[Any, int] = consumer.end_offsets(keys)
    if to_offset is not None:
        return {key: min(end, to_offset) for key, end in ends.items()}
    if until is not None:
        for key, first in consumer.offsets_for_times(dict.fromkeys(keys, until)).items():
            if first is not None:
                ends[key] = min(ends[key], first.offset)
    return ends


class Reading:
    """The records of a consumer as they come, until they reach the ends that were set, until none comes for some time,
    or until a signal.
    """

    def __init__(self, consumer: Any, timeout: float | None, stop: StopSignals) -> None:
        self.ends: Mapping[Any, int] | None = None
        """The offset of each partition at which reading ends, the first that is not read; None for no end."""
        self.problem: str | None = None
        """The reason if the records ended too early; None for a clean end."""
        self._consumer = consumer
        self._timeout = timeout
        self._stop = stop
        self._last: float | None = clock.monotonic()

    def join(self, topics: Sequence[str]) -> None:
        """Make the consumer a member of its group for these topics, from its next poll on. The time without records is
        counted from the first assignment of partitions on.
        """
        from kafka import ConsumerRebalanceListener

        self._last = None

        def joined() -> None:
            self._last = self._last or clock.monotonic()

        class Listener(ConsumerRebalanceListener):  # type: ignore[misc]
            def on_partitions_revoked(self, revoked: Any) -> None:
                pass

            def on_partitions_assigned(self, assigned: Any) -> None:
                joined()

        self._consumer.subscribe(list(topics), listener=Listener())

    def records(self) -> Iterator[Any]:
        """Yield records as they come, until the ends that were set are reached, until none came for the time limit, or
        until a signal. After the time limit `problem` says if there should have been more.
        """
        open_ends = None if self.ends is None else dict(self.ends)
        while not self._stop.came:
            if open_ends is not None:
                for key, end in list(open_ends.items()):
                    position = self._consumer.position(key, timeout_ms=1000)
                    if position is not None and position >= end:
                        del open_ends[key]
                        self._consumer.pause(key)
                if not open_ends:
                    return
            left = (
                0.5 if self._timeout is None or self._last is None else self._last + self._timeout - clock.monotonic()
            )
            batch = self._consumer.poll(timeout_ms=int(min(0.5, max(0.0, left)) * 1000))
            for key, records in batch.items():
                end = None if self.ends is None else self.ends[key]
                for record in records:
                    if end is None or record.offset < end:
                        yield record
            if batch:
                sys.stdout.flush()
                self._last = clock.monotonic()
            elif self._timeout is not None and self._last is not None and left <= 0:
                self.problem = self._why_silent(open_ends)
                return

    def _why_silent(self, open_ends: Mapping[Any, int] | None) -> str | None:
        """Return the reason if no record came for some time although there should have been some; None for a clean
        end.
        """
        for _, address in troubles(self._consumer).values():
            return f"{address} does not answer; there may be more records"
        if open_ends:
            key, end = min(open_ends.items())
            return f"no record for {self._timeout:g} s, and {key.topic}-{key.partition} was to be read up to {end}"
        return None


class Printed:
    """A count of the records that were printed. In a group it commits their offsets, and never those of more
    records.
    """

    def __init__(self, consumer: Any, commits: bool) -> None:
        self.count = 0
        self._consumer = consumer
        self._commits = commits
        self._next: dict[Any, int] = {}
        self._last = clock.monotonic()

    def add(self, record: Any, counted: bool = True) -> None:
        """Note a record that was printed, or, if it is not `counted`, left out by a filter: in a group its offset may
        be committed from now on, which is done each 5 s.
        """
        from kafka import TopicPartition

        self.count += counted
        if self._commits:
            self._next[TopicPartition(record.topic, record.partition)] = record.offset + 1
            if clock.monotonic() - self._last > COMMIT_SECONDS:
                self.commit()

    def commit(self, seconds: float | None = None) -> bool:
        """Commit the offsets of what was printed since the last commit, but of no partition that went to another
        member, within so many seconds.

        Return false while the group rebalances: the offsets are kept for the next commit. Else they are forgotten, also
        if the group has moved on without this member, which is told.
        """
        from kafka import errors
        from kafka.structs import OffsetAndMetadata

        ours = self._consumer.assignment()
        offsets = {key: OffsetAndMetadata(value, "", -1) for key, value in self._next.items() if key in ours}
        self._last = clock.monotonic()
        if offsets:
            try:
                self._consumer.commit(offsets, timeout_ms=None if seconds is None else seconds * 1000)
            except errors.RebalanceInProgressError:
                return False
            except errors.CommitFailedError:
                note(_MOVED_ON)
        self._next.clear()
        return True

    def finish(self, silent: bool = False) -> None:
        """Commit what is left at the end of the command. A rebalance has 30 s to end first; what it brings is not
        printed. The command fails if the server does not answer the commit within 5 s.

        A server that is `silent`, which owes an answer by now, has 0.3 s.
        """
        from kafka import errors

        if not self._next:
            return
        end = clock.monotonic() + REBALANCE_SECONDS
        limit = SILENT_COMMIT_SECONDS if silent else LAST_COMMIT_SECONDS
        try:
            while not self.commit(limit):
                if clock.monotonic() > end:
                    note(_MOVED_ON)
                    return
                self._consumer.poll(timeout_ms=100)
        except errors.KafkaTimeoutError:
            fail(f"the last commit was not answered within {limit:g} s; its records will be read again")


# -- how a record looks


def _writer(as_json: bool, template: str | None, print_key: bool, print_headers: bool) -> Callable[[Any], bytes]:
    """Return the function that makes the printed line of a record, by the options of the command."""
    if as_json:
        return to_json
    if template is None:
        template = "{headers}\\t" * print_headers + "{key}\\t" * print_key + "{value}"
    parts = _parsed(template)
    return lambda record: b"".join(part if isinstance(part, bytes) else part(record) for part in parts)


def _parsed(template: str) -> list[bytes | Callable[[Any], bytes]]:
    """Return the parts of a --format template in order: bytes of fixed text, or a function that shows one field of a
    record. A usage error if it names a field that there is not.
    """
    parts: list[bytes | Callable[[Any], bytes]] = []
    for text, name in re.findall(r"([^{]+)|\{([^{}]*)\}?", template):
        if text:
            parts.append(re.sub(r"\\([tn\\])", lambda match: {"t": "\t", "n": "\n"}.get(match[1], "\\"), text).encode())
        elif name in _FIELDS:
            parts.append(_FIELDS[name])
        else:
            names = ", ".join(f"{{{known}}}" for known in _FIELDS)
            raise CliUsageError(f"--format has no field {{{name}}}; it has {names}")
    return parts


def _bytes(value: bytes | None) -> bytes:
    return b"null" if value is None else bytes(value)


def _time(record: Any) -> bytes:
    moment = datetime.fromtimestamp(record.timestamp / 1000, UTC)
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z").encode()


_FIELDS: Mapping[str, Callable[[Any], bytes]] = {
    "topic": lambda record: record.topic.encode(),
    "partition": lambda record: b"%d" % record.partition,
    "offset": lambda record: b"%d" % record.offset,
    "timestamp": lambda record: b"%d" % record.timestamp,
    "time": _time,
    "key": lambda record: _bytes(record.key),
    "value": lambda record: _bytes(record.value),
    "headers": lambda record: b",".join(name.encode() + b"=" + _bytes(value) for name, value in record.headers),
}
