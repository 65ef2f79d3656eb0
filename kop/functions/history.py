"""The history of a function: its requests and their answers, the newest first, out of the topic of all requests.

Owns: how far back that topic is read, and how what lies before is reached without reading all of it.
Must not know: who asks, what requests do.

The topic is kept without limit. So its last SCANNED_OFFSETS are read, and before them the requests that won alone: each
of those names the revision before it, which is the offset of the request that won before.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import closing, suppress
from typing import Any, Final

from kop.client.batches import StoredRecords
from kop.client.offsets import EARLIEST, LATEST
from kop.client.read_client import OUT_OF_RANGE, FetchSettings, ReadClient
from kop.functions.definitions import DamagedRecordError, LeaderAnswer, Request, from_log
from kop.functions.metadata import REQUESTS
from kop.functions.reading import READ_COMMITTED
from kop.functions.request_effects import OK

SCANNED_OFFSETS: Final = 50_000
"""The number of the last offsets that are read: a request takes about three."""
STEP_OFFSETS: Final = 5_000
"""The number of offsets that are read at once, from the newest ones backwards."""
_PLACE: Final = REQUESTS, 0
_SCAN: Final = FetchSettings(isolation=READ_COMMITTED)
_SINGLE: Final = FetchSettings(isolation=READ_COMMITTED, partition_bytes=64 << 10, max_bytes=64 << 10)


class FunctionHistory:
    """The requests for one function that are read from the topic. `scanned` is how many of the last offsets are."""

    def __init__(self, reader: ReadClient, fqfn: str, *, scanned: int = SCANNED_OFFSETS) -> None:
        self._reader = reader
        self._key = fqfn.encode()
        self._scanned = scanned
        self._requests: dict[str, tuple[int, Request]] = {}
        """By their ids, with their offsets: of one that was sent twice the first, which is the one that counts."""
        self._answers: dict[str, LeaderAnswer] = {}

    def read(self, limit: int, revision: int | None) -> list[tuple[Request, LeaderAnswer | None]]:
        """Return the last `limit` requests, the oldest of them first, with their answers; the answer is None if there
        is none yet.

        `revision` is that of the current definition; None if there is none.
        """
        first = self._reader.list_offsets({_PLACE: EARLIEST}, READ_COMMITTED)[_PLACE]
        end = self._reader.list_offsets({_PLACE: LATEST}, READ_COMMITTED)[_PLACE]
        start, lowest = end, max(first, end - self._scanned)
        while start > lowest and len(self._requests) < limit:
            before, start = start, max(lowest, start - STEP_OFFSETS)
            self._scan(start, before)
        before_scan = self._oldest_winner(revision)
        while before_scan is not None and first <= before_scan < start and len(self._requests) < limit:
            before_scan = self._take_winner(before_scan)
        newest = sorted(self._requests.values(), key=lambda placed: placed[0])[-limit:]
        return [(request, self._answers.get(request.id)) for _, request in newest]

    def _scan(self, start: int, end: int) -> None:
        """Read the requests and answers from offset `start` up to before `end`. The offsets from `end` on were read
        before.
        """
        position = start
        while position < end:
            stored = StoredRecords(self._reader.fetch(_PLACE, None, position, _SCAN), _PLACE, position)
            for offset, said in self._said(stored, end):
                if isinstance(said, Request):
                    there = self._requests.get(said.id)
                    if there is None or offset < there[0]:
                        self._requests[said.id] = offset, said
                elif (known := self._answers.get(said.request)) is None or said.offset <= known.offset:
                    self._answers[said.request] = said
            position = stored.next_offset

    def _said(self, stored: StoredRecords, end: int) -> Iterator[tuple[int, Request | LeaderAnswer]]:
        for records in stored:
            for offset, _, key, value, _ in records:
                if key == self._key and offset < end:
                    with suppress(DamagedRecordError):
                        yield offset, from_log(value)

    def _oldest_winner(self, revision: int | None) -> int | None:
        """Return the offset of the request that the leader granted last before the oldest granted one that was read,
        which names it in `expects`; None if there was none. If none of those read was granted, that is `revision`, the
        revision of the current definition: a definition has the offset of its request.
        """
        won = [
            (offset, request)
            for offset, request in self._requests.values()
            if (answer := self._answers.get(request.id)) is not None and answer.won
        ]
        return min(won, key=lambda placed: placed[0])[1].expects if won else revision

    def _take_winner(self, offset: int) -> int | None:
        """Read the request at an offset, which the leader has granted. Returns the offset of the request that was
        granted before it; None if there was none, or if its record is not there any more.
        """
        with suppress(OUT_OF_RANGE):
            stored = StoredRecords(self._reader.fetch(_PLACE, None, offset, _SINGLE), _PLACE, offset)
            for at, said in self._said(stored, offset + 1):
                if at == offset and isinstance(said, Request):
                    self._requests[said.id] = offset, said
                    self._answers[said.id] = LeaderAnswer(
                        request=said.id, status=OK, revision=None if said.kind == "delete" else offset, offset=offset
                    )
                    return said.expects
        return None


def read_history(
    settings: Mapping[str, Any], patience: float, fqfn: str, revision: int | None, limit: int
) -> list[tuple[Request, LeaderAnswer | None]]:
    """Return the last `limit` requests for a function, the oldest of them first, each with its answer or None, by a
    client of its own. `settings` are kafka-python's; `patience`: the seconds for which requests to the server are tried
    again; `revision`: that of the current definition, None if there is none.
    """
    with closing(ReadClient(settings, int(patience * 1000))) as reader:
        return FunctionHistory(reader, fqfn).read(limit, revision)
