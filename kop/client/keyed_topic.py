"""A topic of one partition in which the last record of a key is its value: read to its end, and written.

Owns: these reads and writes. Must not know: what keys and values mean.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Final

from kop import clock
from kop.client.batches import StoredRecords, build
from kop.client.fixed_topics import ensure_topics
from kop.client.offsets import EARLIEST, LATEST
from kop.client.read_client import OUT_OF_RANGE, FetchSettings, ReadClient
from kop.client.write_client import Identity, WriteClient
from kop.records.batch import Codec, add_sequence

CONFIGS: Final = {"cleanup.policy": "compact"}
_COMMITTED: Final = 1
_WAIT_MS: Final = 100


class KeyedTopic:
    """A topic, for one thread. `settings` are kafka-python's; `patience` seconds are what fails for a time is tried.

    Raises ClientError, UnreachableError, kafka-python's errors.
    """

    def __init__(self, settings: Mapping[str, Any], topic: str, patience: float) -> None:
        self._settings = dict(settings)
        self._place = topic, 0
        self._patience = patience
        self._reader: ReadClient | None = None
        self._writer: WriteClient | None = None
        self._identity: Identity | None = None
        self._sequence = 0

    def close(self) -> None:
        """Close the connections that were made."""
        for client in (self._reader, self._writer):
            if client is not None:
                client.close()

    def make(self) -> None:
        """Make the topic, or check that it is compacted and has one partition. ClientError if it is otherwise, or may
        not be made.
        """
        ensure_topics(self._settings, {self._place[0]: CONFIGS})

    def put(self, values: Mapping[str, bytes | None]) -> None:
        """Write values by key, in this order; None removes a key. Returns once they are durable. After an error some
        may be written.
        """
        if self._writer is None or self._identity is None:
            self._writer = WriteClient(self._settings, self._patience)
            self._identity = self._writer.init_producer(None, -1)
            self._sequence = 0
        records = [(key.encode(), value, (), None) for key, value in values.items()]
        try:
            for batch, count in build(records, self._identity, self._sequence, now=clock.wall_ms(), codec=Codec.NONE):
                self._writer.produce(self._identity, {self._place: batch})
                self._sequence = add_sequence(self._sequence, count)
        except Exception:
            self._writer.close()
            self._writer = self._identity = None
            raise

    def exists(self) -> bool:
        """Return true if the topic exists; it is not made by asking."""
        return self._place[0] in self._read_client().topics({self._place[0]})

    def read(self) -> dict[str, bytes]:
        """Return the newest value of each key, read from the topic's beginning to its present end. Empty if the topic
        does not exist.
        """
        values: dict[str, bytes] = {}
        if not self.exists():
            return values
        position = self._ends(EARLIEST)
        end = self._ends(LATEST)

        def take(key: str, value: bytes | None) -> None:
            if value is None:
                values.pop(key, None)
            else:
                values[key] = value

        while position < end:
            position = self._fetch(take, position)
        return values

    def _read_client(self) -> ReadClient:
        if self._reader is None:
            self._reader = ReadClient(self._settings, int(self._patience * 1000))
        return self._reader

    def _ends(self, which: int) -> int:
        return self._read_client().list_offsets({self._place: which}, _COMMITTED)[self._place]

    def _fetch(self, take: Callable[[str, bytes | None], None], position: int) -> int:
        """Call `take` with keys and values from the offset `position` on, as one fetch gives them; return the offset
        behind them.
        """
        fetch = FetchSettings(isolation=_COMMITTED, wait_ms=_WAIT_MS)
        while True:
            try:
                fetched = self._read_client().fetch(self._place, None, position, fetch)
            except OUT_OF_RANGE:  # what was there is compacted away
                return self._ends(EARLIEST)
            stored = StoredRecords(fetched, self._place, position)
            for records in stored:
                for _, _, key, value, _ in records:
                    if key is not None:
                        take(key.decode(errors="replace"), value)
            if stored.next_offset == position and stored.cut_off > fetch.partition_bytes:
                fetch = replace(fetch, partition_bytes=stored.cut_off, max_bytes=stored.cut_off)
                continue
            return stored.next_offset
