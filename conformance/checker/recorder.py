"""Writes down what the clients of a process do and are told, as it happens.

Owns: the file of a process, the records without an answer, the positions of consumers.
Must not know: clients, and what is right.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Mapping
from pathlib import Path

from conformance.checker.history import UNANSWERED, Event, Isolation, Place, Poll, Record, Send, Transaction, line_of


class Recorder:
    """The file of a process. Threads may share it."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("w")
        self._lock = threading.Lock()
        self._open: dict[Record, Send] = {}

    def add(self, event: Event) -> None:
        with self._lock:
            if not self._file.closed:
                self._file.write(line_of(event))

    def sent(self, writer: str, number: int, place: Place, transaction: str = "", source: str = "") -> None:
        """A record is about to be sent; `done` follows."""
        with self._lock:
            self._open[writer, number] = Send(writer, number, *place, transaction, source, time.time(), 0.0, -1, "")

    def done(self, writer: str, number: int, offset: int = -1, error: str = "") -> None:
        """What comes behind the first answer is ignored: the record has been given up."""
        with self._lock:
            send = self._open.pop((writer, number), None)
        if send is not None:
            self.add(send._replace(done=time.time(), offset=offset, error=error))

    def waiting(self, writer: str) -> int:
        """How many records of a writer have no answer yet."""
        with self._lock:
            return sum(name == writer for name, _ in self._open)

    def give_up(self, writer: str = "") -> None:
        """What has no answer will have none: of one writer, or of all."""
        with self._lock:
            records = list(self._open)
        for name, number in records:
            if name == writer or not writer:
                self.done(name, number, error=UNANSWERED)

    def flush(self) -> None:
        with self._lock:
            self._file.flush()

    def close(self) -> None:
        self.give_up()
        with self._lock:
            self._file.close()


class Ending:
    """The lines of one transaction: it is begun, its end is asked for, that is answered."""

    def __init__(self, recorder: Recorder, name: str, transactional_id: str, instance: int) -> None:
        self._recorder = recorder
        self._line = Transaction(name, transactional_id, instance, time.time(), 0.0, 0.0, "", "", "", ())
        self.name = name

    def offsets(self, group: str, offsets: Iterable[tuple[str, int, int]]) -> None:
        """It commits these, too."""
        self._line = self._line._replace(group=group, offsets=tuple(offsets))

    def ask(self, what: str) -> None:
        """`commit` or `abort`. Once a commit has been asked for, an abort does not make that unsaid."""
        if self._line.asked != "commit":
            self._line = self._line._replace(asked=what, ending=time.time())
            self._recorder.add(self._line)

    def answer(self, what: str, error: str = "") -> None:
        """What was asked for was done, or failed."""
        if self._line.asked == what and not self._line.ended:
            self._line = self._line._replace(ended=time.time(), error=error)
            self._recorder.add(self._line)

    def leave(self) -> None:
        """Its producer goes away."""
        if not self._line.asked:
            self._recorder.add(self._line)


class Positions:
    """The sessions of a consumer: each begins with an assignment or a seek, and goes on without a gap."""

    def __init__(self, recorder: Recorder, name: str, isolation: Isolation) -> None:
        self._recorder = recorder
        self._name = name
        self._isolation = isolation
        self._number = 0
        self._at: dict[Place, int] = {}

    @property
    def session(self) -> str:
        return f"{self._name}/{self._number}"

    def begin(self, positions: Mapping[Place, int]) -> None:
        """Another session; a partition whose position is not known begins at the first record that comes."""
        self._number += 1
        self._at = dict(positions)

    def given(
        self, rows: Iterable[tuple[Place, int, Record]], passed: Mapping[Place, int] | None = None
    ) -> dict[Place, int]:
        """What came, as places, offsets and records; `passed` has positions that the client tells. The positions."""
        now = time.time()
        by_place: dict[Place, list[tuple[int, str, int]]] = {place: [] for place in passed or {}}
        for place, offset, (writer, number) in rows:
            by_place.setdefault(place, []).append((offset, writer, number))
        for place, records in by_place.items():
            known = self._at.get(place)
            told = (passed or {}).get(place, -1)
            start = known if known is not None else records[0][0] if records else told
            position = max(told, records[-1][0] + 1 if records else start)
            if records or position != start:
                self._recorder.add(Poll(self.session, self._isolation, *place, now, start, position, tuple(records)))
            self._at[place] = position
        return dict(self._at)
