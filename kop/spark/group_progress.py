"""The progress of streaming queries as offsets of a consumer group, so that Kafka's and Pulsar's tools show their lag.

Owns: what a query's progress says of partitions, and when it is committed.
Must not know: how requests are sent (`kop.client.write_client`), how a query reads.

Spark keeps its offsets in the checkpoint and never asks a group for them: what is committed here is for people and
alarms. It serves the sources `kafka` and `kop` alike, whose offsets are the same JSON.
"""

from __future__ import annotations

import atexit
import json
import logging
import sys
import threading
from collections.abc import Iterable, Mapping
from typing import IO, Any, Final, NamedTuple

from kop.client.offsets import TopicPartition
from kop.client.write_client import WriteClient
from kop.spark.clients import write_client
from kop.spark.given import Given
from kop.spark.options import CONNECTION_OPTIONS, FETCH_OPTIONS, connection_options, refuse_unknown
from kop.spark.write_options import PRODUCER_OPTIONS

_log = logging.getLogger(__name__)
PATIENCE_SECONDS: Final = 10.0
RETRY_SECONDS = 10.0
"""The seconds after which a commit that has failed is tried again."""


class PartitionProgress(NamedTuple):
    """The progress of a query in one partition."""

    topic: str
    partition: int
    offset: int
    """The offset of the next record to be read."""
    end: int | None
    """The end offset of the partition; None if the source did not tell it."""

    @property
    def lag(self) -> int | None:
        """The number of offsets, of which some may have no record, left to be read; None if the end is not known."""
        return None if self.end is None else max(self.end - self.offset, 0)


def partitions_of(sources: Iterable[Any]) -> list[PartitionProgress]:
    """Return the partitions that the sources of a query's progress name, in order, with the offsets up to which the
    last batch has read. Sources whose offsets are not in the form of `kafka` and `kop` are left out.

    `sources`: those of a StreamingQueryProgress, or of its JSON.
    """
    progress = []
    for source in sources:
        ends = _offsets(_field(source, "latestOffset"))
        for (topic, partition), offset in _offsets(_field(source, "endOffset")).items():
            progress.append(PartitionProgress(topic, partition, offset, ends.get((topic, partition))))
    return sorted(progress)


def _field(source: Any, name: str) -> Any:
    return source.get(name) if isinstance(source, Mapping) else getattr(source, name, None)


def _offsets(value: Any) -> dict[TopicPartition, int]:
    """Return the offsets in JSON of the form `{"topic": {"0": 7}}` by partition, without those below 0; none if it is
    of another form.
    """
    try:
        parsed = json.loads(value) if isinstance(value, str) else value
        return {
            (str(topic), int(partition)): offset
            for topic, partitions in (parsed or {}).items()
            for partition, offset in partitions.items()
            if type(offset) is int and offset >= 0
        }
    except (ValueError, AttributeError, TypeError):
        return {}


def lag_table(partitions: Iterable[PartitionProgress]) -> str:
    """Return the partitions with offset, end and lag as a table of text for a terminal; `-` for a number that is not
    known.
    """
    rows = [("TOPIC", "PARTITION", "OFFSET", "END", "LAG")]
    for row in partitions:
        end, lag = ("-" if number is None else f"{number}" for number in (row.end, row.lag))
        rows.append((row.topic, f"{row.partition}", f"{row.offset}", end, lag))
    widths = [max(len(row[column]) for row in rows) for column in range(5)]
    numbers = ["  ".join(cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True)) for row in rows]
    return "\n".join(f"{row[0].ljust(widths[0])}  {rest}" for row, rest in zip(rows, numbers, strict=True))


def print_lag(query: Any, file: IO[str] | None = None) -> None:
    """Print offset, end and lag of each partition of a running query, as of its last batch, to `file`, or to standard
    output; a sentence instead if no batch is finished yet.
    """
    progress = query.lastProgress
    if progress is None:
        print("the query has not finished a batch yet", file=file or sys.stdout)
        return
    print(lag_table(partitions_of(_field(progress, "sources") or [])), file=file or sys.stdout)


def progress_settings(options: Mapping[str, str]) -> Mapping[str, Any]:
    """Return kafka-python's settings for the connection, by the options of a read or a write; OptionError says which
    option is wrong.

    Options that do not concern the connection are ignored, but an unknown `kafka.*` is refused.
    """
    others = {name.lower() for name in (*FETCH_OPTIONS, *PRODUCER_OPTIONS)}
    names = {name.lower(): name for name in options}
    given = Given(
        {names[name]: options[names[name]] for name in names if name.startswith("kafka.") and name not in others}
    )
    settings = connection_options(given).settings
    refuse_unknown(given, CONNECTION_OPTIONS, "the options of a connection")
    return settings


class GroupProgress:
    """The commits of a query's offsets to a group, as by a consumer without membership; failures are logged and never
    raised.

    One commit is under way at a time. What comes meanwhile waits, and the newest offset of a partition wins. What waits
    when the process ends is committed then.
    """

    def __init__(self, settings: Mapping[str, Any], group: str, patience: float = PATIENCE_SECONDS) -> None:
        """Start the thread that commits, and register `close` for the end of the process. `settings` are
        kafka-python's; `patience` is the seconds for which a commit is tried again before it fails.
        """
        self._patience = patience
        self._settings = settings
        self._group = group
        self._waiting: dict[TopicPartition, int] = {}
        self._changed = threading.Condition()
        self._closed = False
        self._thread = threading.Thread(target=self._run, name=f"kop-progress-{group}", daemon=True)
        self._thread.start()
        atexit.register(self.close)

    def commit(self, partitions: Iterable[PartitionProgress]) -> None:
        """Leave these offsets to the thread that commits in the background, and return at once. A commit that fails is
        logged, and tried again after 10 s; one that the group refuses for a partition is only logged.
        """
        with self._changed:
            self._waiting |= {(row.topic, row.partition): row.offset for row in partitions}
            self._changed.notify()

    def close(self, seconds: float = PATIENCE_SECONDS * 2) -> None:
        """Commit the offsets that wait, and end the thread; return when it has ended, or after `seconds`. What cannot
        be committed by one more try is logged and dropped.
        """
        atexit.unregister(self.close)
        with self._changed:
            self._closed = True
            self._changed.notify()
        self._thread.join(seconds)

    def _run(self) -> None:
        client: WriteClient | None = None
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._waiting or self._closed)
                due, self._waiting = self._waiting, {}
                if not due:
                    break
            try:
                client = client or write_client(self._settings, self._patience)
                for (topic, partition), error in client.commit(self._group, due).items():
                    _log.warning(
                        "the offset of %s-%d was not committed to %s: %s", topic, partition, self._group, error
                    )
            except Exception as error:  # whatever it is, the query must not end of it
                _log.warning(
                    "the progress of the query was not committed to group %s: %s. It is tried again.",
                    self._group,
                    error,
                )
                if client is not None:
                    client.close()
                    client = None
                with self._changed:
                    if self._closed:
                        break
                    self._waiting = due | self._waiting  # the query may be idle from now on
                    self._changed.wait_for(lambda: self._closed, RETRY_SECONDS)
        if client is not None:
            client.close()
