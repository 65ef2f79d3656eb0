"""`kop produce`: lines to records, as one idempotent producer unless --acks says otherwise."""

from __future__ import annotations

import contextlib
import os
import queue
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, BinaryIO

import click

from kop import clock
from kop.cli.common import (
    StopSignals,
    bootstrap_option,
    client_id,
    fail,
    illegal_name,
    no_topic,
    note,
    pairs,
    quiet_client,
    reach,
    security,
    servers,
    size,
    topic_names,
)
from kop.cli.completion import topics
from kop.cli.lines import LineError, LineRecord, from_json

if TYPE_CHECKING:
    from kop.cli.sender import Sender

EPILOG = """\b
Examples:
  echo hello | kop produce orders
  kop produce orders --file orders.jsonl --compression zstd
  echo key:value | kop produce orders --key-separator : --header source=me
  kop consume orders --json --until-end | kop produce copy --json"""

READ_BYTES = 1 << 18
TAKE_BYTES = 1 << 19
"""The number of bytes of lines that are taken at once."""
GRACE_SECONDS = 0.5
"""The seconds that an end by Ctrl-C waits for answers that are under way."""


@click.command("produce", epilog=EPILOG)
@click.argument("topic", shell_complete=topics)
@click.option("-f", "--file", type=click.File("rb"), default="-", help="Read lines from this file, not from stdin.")
@click.option(
    "-K",
    "--key-separator",
    metavar="TEXT",
    help="Text between key and value in a line; without it, records have no key.",
)
@click.option(
    "--json",
    "as_json",
    is_flag=True,
    help="Each line is a JSON object as `kop consume --json` prints it.",
)
@click.option("--null", metavar="TEXT", help="A value that is TEXT makes a tombstone (null), a key no key.")
@click.option(
    "-H",
    "--header",
    "headers",
    metavar="NAME=VALUE",
    multiple=True,
    help="Add a header to every record; may be repeated.",
)
@click.option(
    "-p",
    "--partition",
    type=click.IntRange(0),
    metavar="N",
    help="Send to this partition; without it, the key decides, or records are spread.",
)
@click.option(
    "--acks",
    type=click.Choice(["all", "1", "0"]),
    default="all",
    show_default=True,
    help="Which answer to wait for: of all replicas in sync, of the leader, or none.",
)
@click.option(
    "-z",
    "--compression",
    type=click.Choice(["none", "gzip", "snappy", "lz4", "zstd"]),
    default="none",
    show_default=True,
    help="Compress batches with this codec.",
)
@click.option(
    "-t",
    "--timeout",
    type=click.FloatRange(0, min_open=True),
    metavar="SECONDS",
    default="120",
    show_default=True,
    help="How long a record may wait for its answer; then the command fails.",
)
@click.option("-q", "--quiet", is_flag=True, help="Print no count at the end.")
@bootstrap_option
def command(
    bootstrap: str,
    topic: str,
    file: BinaryIO,
    key_separator: str | None,
    as_json: bool,
    null: str | None,
    headers: tuple[str, ...],
    partition: int | None,
    acks: str,
    compression: str,
    timeout: float,
    quiet: bool,
) -> None:
    """Send each line of stdin, or of a file, as one record.

    Ends with exit code 1 at the first line that is no record, and at the first record that the server refuses; typed
    at a terminal, both are said and the next line is taken.
    """
    if key_separator == "":
        raise click.BadParameter("must not be empty", param_hint="--key-separator")
    if as_json and (key_separator is not None or null is not None):
        raise click.UsageError("--json has keys and nulls of its own: it goes with neither --key-separator nor --null")
    extra: list[tuple[bytes, bytes | None]] = [
        (name.encode(), value.encode()) for name, value in pairs(headers, "--header").items()
    ]
    quiet_client()
    reach(bootstrap)
    from kafka.errors import InvalidTopicError, UnknownTopicOrPartitionError

    from kop.cli.sender import CODECS, Sender, SendError, SendSettings

    interactive = file.isatty()
    settings = SendSettings(-1 if acks == "all" else int(acks), CODECS[compression], timeout)
    sender = Sender(topic, servers(bootstrap), client_id(), settings, note, tolerant=interactive, security=security())
    separator, nothing = (None if text is None else text.encode() for text in (key_separator, null))
    form = LineForm(sender, separator, as_json, nothing, extra, partition)
    lines = Lines(file, sender.wake)
    stop = StopSignals()
    begin = clock.monotonic()
    try:
        if sender.open(lambda: stop.came):
            if partition is not None and partition not in sender.partitions:
                fail(f"{topic} has no partition {partition}; it has {len(sender.partitions)}")
            if interactive:
                note("type records, one a line; Ctrl-D ends")
            with _progress(interactive) as show:
                lines.start()
                _send(sender, lines, form, stop, show)
        failure = "interrupted" if stop.came else form.problem
    except SendError as error:
        failure = str(error)
    except UnknownTopicOrPartitionError:
        fail(no_topic(topic, topic_names(bootstrap)))
    except InvalidTopicError:
        fail(illegal_name(topic))
    finally:
        sender.close()
    sent, waiting = sender.outbox.sent, sender.outbox.waiting
    if failure or sent < form.lines:
        unanswered = f", {waiting:,} unanswered" if waiting else ""
        counts = f"{sent:,} of {form.lines:,} {'was' if sent == 1 else 'were'} sent{unanswered}"
        fail("; ".join(filter(None, [failure, counts if form.lines else None])))
    if not quiet:
        note(_summary(sent, lines.bytes, clock.monotonic() - begin))


def _send(sender: Sender, lines: Lines, form: LineForm, stop: StopSignals, show: Callable[[int, int], None]) -> None:
    """Send the lines until their end, a problem or a signal, then wait for the server's answers: after a signal for
    those under way alone, and for 0.5 s. `show` is called with the records and bytes so far.
    """
    while not (stop.came or lines.ended or (form.problem and not sender.tolerant)):
        while sender.has_room and (some := lines.take()):
            form.send(some)
            if form.problem:
                if not sender.tolerant:
                    break
                note(form.problem)
                form.problem = None
        sender.step()
        show(sender.outbox.sent, lines.bytes)
    end = clock.monotonic() + GRACE_SECONDS
    sender.finish(lambda: stop.came and (not sender.outbox.flying or clock.monotonic() > end))


class Lines:
    """The lines of a file, read by a thread of their own, so that nothing else waits for them.

    The thread reads by the descriptor: a lock that it held for ever would keep the process from ending.
    """

    def __init__(self, file: BinaryIO, wake: Callable[[], None]) -> None:
        self.bytes = 0
        """The number of bytes of the lines that were taken, line ends included."""
        self.ended = False
        """True once every line was taken."""
        self._descriptor = file.fileno()
        self._wake = wake
        self._read: queue.Queue[bytes] = queue.Queue(maxsize=8)
        self._rest: list[bytes] = []

    def start(self) -> None:
        """Start the thread that reads the lines."""
        threading.Thread(target=self._run, daemon=True).start()

    def _run(self) -> None:
        data = b"more"
        while data:
            data = os.read(self._descriptor, READ_BYTES)
            self._read.put(data)
            self._wake()

    def take(self) -> list[bytes]:
        """Return the lines that were read since the last call, about 512 KiB of them at most, without their line ends;
        empty if there are none at the moment. Sets `ended` with the last ones.
        """
        lines: list[bytes] = []
        size = 0
        while size < TAKE_BYTES and not self.ended:
            try:
                data = self._read.get_nowait()
            except queue.Empty:
                break
            size += len(data)
            self.bytes += len(data)
            first, *more = data.split(b"\n")
            self._rest.append(first)
            if more:
                lines.append(b"".join(self._rest))
                self._rest = [more.pop()]
                lines += more
            elif not data:
                self.ended = True
                if last := b"".join(self._rest):
                    lines.append(last)
        return lines


@dataclass
class LineForm:
    """The form of the lines, by which they are turned into records for a sender."""

    sender: Sender
    separator: bytes | None
    as_json: bool
    null: bytes | None
    headers: list[tuple[bytes, bytes | None]]
    partition: int | None
    lines: int = 0
    """The number of lines that were turned into records so far."""
    problem: str | None = None
    """The reason if the last line is no record; None otherwise."""

    def send(self, lines: list[bytes]) -> None:
        """Turn lines into records and give them to the sender, up to the first line that is no record, of which
        `problem` tells then; lines behind it are dropped.
        """
        if not (self.as_json or self.headers or self.separator is not None or self.null is not None):
            self.lines += len(lines)
            self.sender.add_values(lines, self.partition)
            return
        records = []
        for line in lines:
            self.lines += 1
            try:
                records.append(self._record(line))
            except LineError as error:
                self.problem = f"line {self.lines} {error}"
                break
        self.sender.add(records)

    def _record(self, line: bytes) -> LineRecord:
        key: bytes | None = None
        value: bytes | None = line
        headers, timestamp, partition = self.headers, None, self.partition
        if self.as_json:
            key, value, own, timestamp, named = from_json(line)
            headers = [*own, *headers]
            if partition is None and named is not None:
                partition = named
                if named not in self.sender.partitions:
                    raise LineError(f"is for partition {named}; the topic has {len(self.sender.partitions)}")
        elif self.separator is not None:
            key, separated, value = line.partition(self.separator)
            if not separated:
                raise LineError(f"has no {self.separator.decode()!r}")
        if self.null is not None:
            key, value = (None if item == self.null else item for item in (key, value))
        return LineRecord(key, value, headers, timestamp, partition)


def _summary(records: int, count: int, seconds: float) -> str:
    """Return the summary line at the end: number of records, bytes, seconds and rate."""
    seconds = max(seconds, 0.001)
    text = f"{records:,} {'record' if records == 1 else 'records'}, {size(count)} in {seconds:.2f} s"
    if records < 100:  # a rate of so few says nothing
        return text
    return f"{text} ({records / seconds:,.0f} records/s, {size(round(count / seconds))}/s)"


@contextlib.contextmanager
def _progress(interactive: bool) -> Iterator[Callable[[int, int], None]]:
    """Give the block a function that shows a running count on a terminal; it does nothing in a pipe or while
    somebody types.
    """
    if interactive or not sys.stderr.isatty():
        yield lambda records, count: None
        return
    from rich.console import Console
    from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    columns = SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn()
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task("connected")
        last = 0.0

        def show(records: int, count: int) -> None:
            nonlocal last
            if clock.monotonic() - last > 0.1:
                last = clock.monotonic()
                progress.update(task, description=f"{records:,} records, {size(count)}")

        yield show
