"""`kop produce`: lines to records, through kafka-python's producer (idempotent unless --acks says otherwise)."""

from __future__ import annotations

import contextlib
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any, BinaryIO

import click

from kop.cli.common import bootstrap_option, client, explain, fail, note, one_line, pairs, size

EPILOG = """\b
Examples:
  echo hello | kop produce orders
  kop produce orders --file orders.jsonl --compression zstd
  echo key:value | kop produce orders --key-separator : --header source=me"""

IN_FLIGHT_BYTES = 32 * 1024 * 1024
"""Bytes sent and not yet acknowledged: kafka-python has no bound of its own."""
RECORD_OVERHEAD = 100
"""What a record costs in memory beside its key and value, about."""


@click.command("produce", epilog=EPILOG)
@click.argument("topic")
@click.option("-f", "--file", type=click.File("rb"), default="-", help="Read lines from this file, not from stdin.")
@click.option(
    "-K",
    "--key-separator",
    metavar="TEXT",
    help="Text between key and value in a line; without it, records have no key.",
)
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
@click.option("-q", "--quiet", is_flag=True, help="Print no count at the end.")
@bootstrap_option
def command(
    bootstrap: str,
    topic: str,
    file: BinaryIO,
    key_separator: str | None,
    headers: tuple[str, ...],
    partition: int | None,
    acks: str,
    compression: str,
    quiet: bool,
) -> None:
    """Send each line of stdin, or of a file, as one record.

    Ends with exit code 1 at the first record that the server refuses.
    """
    separator = key_separator.encode() if key_separator is not None else None
    if separator == b"":
        raise click.BadParameter("must not be empty", param_hint="--key-separator")
    settings: dict[str, Any] = {
        "acks": acks if acks == "all" else int(acks),
        "enable_idempotence": acks == "all",
        "compression_type": None if compression == "none" else compression,
        "batch_size": 262_144,
        "max_block_ms": 15_000,
    }
    interactive = file.isatty()
    if not interactive:
        settings["linger_ms"] = 5
    sent = SendProgress()
    with client("KafkaProducer", bootstrap, **settings) as producer:
        try:
            known = producer.partitions_for(topic)
        except ValueError as error:  # not a legal name
            fail(one_line(str(error)))
        if partition is not None and partition not in known:
            fail(f"{topic} has no partition {partition}; it has {len(known)}")
        if interactive:
            note("type records, one a line; Ctrl-D ends")
        extra = [(name, value.encode()) for name, value in pairs(headers, "--header").items()]
        try:
            with _progress(interactive) as show:
                _send(producer, topic, file, separator, extra, partition, sent, show)
        except KeyboardInterrupt:
            sent.failure = "interrupted"
    if sent.failure:
        fail(f"{sent.failure}; {sent.records:,} {'record was' if sent.records == 1 else 'records were'} sent")
    if not quiet:
        note(f"{sent.summary()}")


def _send(
    producer: Any,
    topic: str,
    lines: Iterable[bytes],
    separator: bytes | None,
    headers: list[tuple[str, bytes]],
    partition: int | None,
    sent: SendProgress,
    show: Callable[[int, int], None],
) -> None:
    """Send the lines and wait for the answers; stops at the first failure, which is in `sent` then."""
    for number, line in enumerate(lines, 1):
        value = line.removesuffix(b"\n")
        key = None
        if separator is not None:
            key, separated, value = value.partition(separator)
            if not separated:
                sent.failure = sent.failure or f"line {number} has no {separator.decode()!r}"
                break
        if not sent.room(len(line)):
            break
        future = producer.send(topic, value, key, headers, partition)
        future.add_callback(sent.acknowledged, len(line))
        future.add_errback(sent.refused, len(line))
        show(sent.records, sent.bytes)
    producer.flush(timeout=None if sent.failure is None else 5)


class SendProgress:
    """What was sent and answered; written by the producer's thread, read by ours."""

    def __init__(self) -> None:
        self.records = 0
        self.bytes = 0
        self.failure: str | None = None
        self._open = 0
        self._begin = time.monotonic()
        self._moved = threading.Condition()

    def room(self, count: int) -> bool:
        """Wait until a record of `count` bytes may be sent; False once one has failed."""
        with self._moved:
            self._moved.wait_for(lambda: self.failure is not None or self._open < IN_FLIGHT_BYTES)
            self._open += count + RECORD_OVERHEAD
            return self.failure is None

    def acknowledged(self, count: int, _: Any) -> None:
        """A record is where it should be."""
        with self._moved:
            self.records += 1
            self.bytes += count
            self._open -= count + RECORD_OVERHEAD
            self._moved.notify()

    def refused(self, count: int, error: BaseException) -> None:
        """A record is not."""
        with self._moved:
            self.failure = self.failure or explain(error) or one_line(repr(error))
            self._open -= count + RECORD_OVERHEAD
            self._moved.notify()

    def summary(self) -> str:
        """Count, bytes, seconds, rate."""
        seconds = max(time.monotonic() - self._begin, 0.001)
        word = "record" if self.records == 1 else "records"
        text = f"{self.records:,} {word}, {size(self.bytes)} in {seconds:.2f} s"
        if self.records < 100:  # a rate of so few says nothing
            return text
        return f"{text} ({self.records / seconds:,.0f} records/s, {size(round(self.bytes / seconds))}/s)"


@contextlib.contextmanager
def _progress(interactive: bool) -> Iterator[Callable[[int, int], None]]:
    """A line that counts, where somebody watches and is not typing."""
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
            if time.monotonic() - last > 0.1:
                last = time.monotonic()
                progress.update(task, description=f"{records:,} records, {size(count)}")

        yield show
