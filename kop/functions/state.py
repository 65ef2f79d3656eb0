"""The state of a function in the process that uses it: what its calls read and change, and what goes to the changelog.

Owns: what a value is, the changes of a call until they count, the bounded copy in memory before a file, how an entry of
the changelog looks.
Must not know: sockets, threads, where the changelog is (`kop.functions.changelog`).

The truth is the changelog. What is here is a copy of it: as long as it is small it is in memory alone, else its oldest
entries are in a file of SQLite without a name, which is gone with the process. An entry of the changelog is a record:
the key as UTF-8, a counter as 8 bytes big-endian (as Pulsar has them) or the bytes of a value, and the header KIND,
which tells the two apart. Keys that begin with 0xff, which is no UTF-8, are marks of windows.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from operator import index
from typing import Final, TypeAlias

from kop.client.record_columns import Headers, StoredRecord

Value: TypeAlias = int | bytes
"""A counter, or what `put_state` was given."""
Entry: TypeAlias = tuple[bytes, bytes | None, Headers]
"""Key, value (None: there is none any more) and headers of a record of the changelog."""

KIND: Final = "kop.state"
MOST_ENTRIES: Final = 100_000
"""The most entries, of all partitions, that are in memory once a batch has ended."""
MOST_BYTES: Final = 64 << 20
"""The most bytes that the entries of all partitions need in memory once a batch has ended."""
VALUE_BYTES: Final = 880_000
"""The most bytes of key and value together: they are one record."""
_ENTRY_BYTES: Final = 150
"""The bytes, about, that Python needs for an entry beside those of its key and its value."""
_LEAST: Final = -(1 << 63)
_MOST: Final = (1 << 63) - 1
_COUNTER: Final[Headers] = [(KIND, b"counter")]
_VALUE: Final[Headers] = [(KIND, b"value")]
_MARK: Final[Headers] = [(KIND, b"mark")]
_KINDS: Final = frozenset({b"counter", b"value", b"mark"})


class StateError(Exception):
    """State that is not there, or a use of it that is refused."""


class StateLostError(StateError):
    """State that cannot be had now; it ends the instance, and is no failure of the call that wanted it."""


class ForeignEntryError(Exception):
    """A record of a changelog that no function wrote; the text says what is wrong with it."""


@dataclass(frozen=True, slots=True)
class StateValue:
    """An entry as it is shown: the number of a counter, or the bytes of a value."""

    key: str
    number: int | None
    value: bytes | None


class StateChanges:
    """The changes of one call to the state of a partition. Nothing of them counts until `apply`.

    Amounts are added when they count, so asynchronous calls that run at the same time lose nothing.
    """

    __slots__ = ("_puts", "_state", "_sums")

    def __init__(self, state: PartitionState) -> None:
        self._state = state
        self._sums: dict[str, int] = {}
        self._puts: dict[str, Value | None] = {}
        """The values that were set, by their keys, None for deleted ones; a key is in one of `_puts` and `_sums`."""

    def incr(self, key: str, amount: int) -> None:
        """Add to a counter, 0 if there is none. StateError if the key has a value that is no counter, or if the sum has
        no room in 8 bytes.
        """
        if type(amount) is not int:
            amount = index(amount)
        if self._puts and key in self._puts:
            self._puts[key] = _in_range(key, _number(key, self._puts[key]) + amount)
            return
        base = self._state.values.get(key)
        if type(base) is not int:
            base = self._state.number(key)
        total = self._sums.get(key, 0) + amount
        if not _LEAST <= base + total <= _MOST:
            _in_range(key, base + total)
        self._sums[key] = total

    def get_amount(self, key: str) -> int | None:
        """Return a counter, with the changes of this call; None if there is none, as for Pulsar's functions. StateError
        if the key has a value that is no counter.
        """
        value = self.get(key)
        return None if value is None else _number(key, value)

    def get_value(self, key: str) -> bytes | None:
        """Return the bytes of a value, with the changes of this call; those of a counter are its 8, big-endian. None if
        there is none.
        """
        value = self.get(key)
        return value.to_bytes(8, "big", signed=True) if isinstance(value, int) else value

    def put(self, key: str, value: bytes | str) -> None:
        """Set a value; a text is its UTF-8. TypeError if it is neither text nor bytes, StateError if key and value are
        too large.
        """
        data = value.encode() if isinstance(value, str) else value
        if not isinstance(data, bytes | bytearray | memoryview):
            raise TypeError(f"put_state takes a str or bytes, not a {type(value).__name__}: encode it first")
        self.set(key, bytes(data))

    def delete_key(self, key: str) -> None:
        """Forget a counter or a value."""
        self.set(key, None)

    def get(self, key: str) -> Value | None:
        """Return a counter or a value, with the changes of this call; None if there is none."""
        if key in self._puts:
            return self._puts[key]
        value = self._state.get(key)
        return value if key not in self._sums else _number(key, value) + self._sums[key]

    def set(self, key: str, value: Value | None) -> None:
        """Set a counter or a value; None forgets it. StateError if key and value have more than 880 000 bytes, or if a
        counter has no room in 8 bytes.
        """
        size = len(key.encode()) + (len(value) if isinstance(value, bytes) else 0)
        if size > VALUE_BYTES:
            raise StateError(f"key and value of {key[:60]!r} have {size} bytes, and {VALUE_BYTES} are the most")
        if isinstance(value, int):
            _in_range(key, value)
        self._sums.pop(key, None)
        self._puts[key] = value

    def check(self) -> None:
        """Check that the changes still fit the state. StateError if another call has meanwhile made a counter a value
        that is none, or so large that the sum has no room in 8 bytes.
        """
        for key, amount in self._sums.items():
            _in_range(key, self._state.number(key) + amount)

    def apply(self) -> None:
        """Make the changes of the call count: later calls see them, and the next flush writes them. If other calls have
        changed the state since the first of them, `check` has to be called before.
        """
        state = self._state
        values, changed = state.values, state.changed
        for key, amount in self._sums.items():
            number = values.get(key)
            values[key] = amount + (number if type(number) is int else state.number(key))
            changed[key] = None
        for key, value in self._puts.items():
            values[key] = value
            changed[key] = None


def _number(key: str, value: Value | None) -> int:
    if value is None:
        return 0
    if not isinstance(value, int):
        raise StateError(f"{key!r} is a value of put_state, and no counter: use another key, or del_counter first")
    return value


def _in_range(key: str, number: int) -> int:
    if not _LEAST <= number <= _MOST:
        raise StateError(f"the counter {key!r} would be {number}, which has no room in 8 bytes")
    return number


class PartitionState:
    """The state of one partition of the changelog."""

    def __init__(self, number: int, file: _File) -> None:
        self.values: dict[str, Value | None] = {}
        """The entries in memory; None: there is no such entry. An entry that is not here may be in the file."""
        self.changed: dict[str, None] = {}
        """The keys that the changelog does not have yet."""
        self.marks: dict[bytes, bytes | None] = {}
        """The notes of windows; always in memory."""
        self.changed_marks: dict[bytes, None] = {}
        self._number = number
        self._file = file

    def get(self, key: str) -> Value | None:
        """Return a counter or a value; None if there is none. An entry of the file is in memory from then on."""
        values = self.values
        if key in values:
            return values[key]
        key.encode()  # a text that is no UTF-8 can be no key of a record
        value = values[key] = self._file.get(self._number, key)
        return value

    def number(self, key: str) -> int:
        """Return a counter, 0 if there is none. StateError if the key has a value that is no counter."""
        return _number(key, self.get(key))

    def set_mark(self, key: bytes, value: bytes | None) -> None:
        """Set the value of a key that windows use for themselves; None removes it."""
        if self.marks.get(key) != value:
            self.marks[key] = value
            self.changed_marks[key] = None

    def restore(self, records: Iterable[StoredRecord]) -> int:
        """Apply records of the changelog in their order, and return about how many bytes they need in memory.
        ForeignEntryError at the first one that is no entry.
        """
        values = self.values
        size = 0
        for offset, _, key, data, headers in records:
            kind = headers[0][1] if len(headers) == 1 and headers[0][0] == KIND else None
            if key is None or kind is None or kind not in _KINDS:
                raise ForeignEntryError(f"offset {offset} has no key, or no header {KIND} with a kind that is known")
            if (key[:1] == b"\xff") is not (kind == b"mark"):
                raise ForeignEntryError(f"offset {offset} has a key that no {kind.decode()} has")
            size += len(key) + len(data or b"") + _ENTRY_BYTES
            if kind == b"mark":
                self.marks[key] = data
                continue
            if kind == b"counter" and data is not None and len(data) != 8:
                raise ForeignEntryError(f"offset {offset} has {len(data)} bytes, and a counter has 8")
            try:
                text = key.decode()
            except UnicodeDecodeError:
                raise ForeignEntryError(f"the key of offset {offset} is no UTF-8") from None
            values[text] = int.from_bytes(data, "big", signed=True) if data and kind == b"counter" else data
        return size

    def entries(self) -> Iterator[Entry]:
        """Yield the entries that are not in the changelog yet, each key once, marks of windows among them, and count
        them as written.
        """
        changed, self.changed = self.changed, {}
        values = self.values
        for key in changed:
            value = values[key]
            if isinstance(value, int):
                yield key.encode(), value.to_bytes(8, "big", signed=True), _COUNTER
            else:
                yield key.encode(), value, _VALUE
        marks, self.changed_marks = self.changed_marks, {}
        for mark in marks:
            yield mark, self.marks[mark], _MARK

    def bytes_in_memory(self) -> int:
        """Return about how many bytes the entries in memory need."""
        sizes = (len(value) if isinstance(value, bytes) else 0 for value in self.values.values())
        return sum(map(len, self.values)) + sum(sizes) + _ENTRY_BYTES * len(self.values)

    def let_go(self, count: int) -> None:
        """Move `count` of the oldest entries in memory into the file. All of them must be in the changelog."""
        oldest = [entry for entry, _ in zip(self.values.items(), range(count), strict=False)]
        self._file.put(self._number, oldest)
        for key, _ in oldest:
            del self.values[key]


class LocalState:
    """The state of a function in one process, by partitions of its changelog."""

    def __init__(self, most_entries: int = MOST_ENTRIES, most_bytes: int = MOST_BYTES) -> None:
        self._most_entries = most_entries
        self._most_bytes = most_bytes
        self._partitions: dict[int, PartitionState] = {}
        self._file = _File()
        self._bytes = 0
        """At least what the entries in memory need."""

    @property
    def partitions(self) -> Mapping[int, PartitionState]:
        """The partitions that were asked for."""
        return self._partitions

    def close(self) -> None:
        """Forget everything, and delete the file."""
        self._partitions.clear()
        self._file.close()

    def partition(self, number: int) -> PartitionState:
        """Return the state of a partition of the changelog, an empty one if it was not asked for before."""
        state = self._partitions.get(number)
        if state is None:
            state = self._partitions[number] = PartitionState(number, self._file)
        return state

    def restore(self, number: int, records: Iterable[StoredRecord]) -> None:
        """Apply records of a partition of the changelog, and move entries to the file if memory holds too many.
        ForeignEntryError at the first record that is no entry.
        """
        self._bytes += self.partition(number).restore(records)
        self._bound()

    def flush(self) -> Iterator[tuple[int, Entry]]:
        """Yield the entries that have changed, each once, with their partitions, and count them as written; at the end,
        move entries to the file if memory holds too many.
        """
        for number, state in self._partitions.items():
            for entry in state.entries():
                self._bytes += len(entry[0]) + len(entry[1] or b"") + _ENTRY_BYTES
                yield number, entry
        self._bound()

    def _bound(self) -> None:
        """Move entries to the file if memory holds more entries or bytes than this state may have there. All changes
        must be in the changelog.
        """
        count = sum(len(state.values) for state in self._partitions.values())
        if self._bytes > self._most_bytes:
            self._bytes = sum(state.bytes_in_memory() for state in self._partitions.values())
        share = min(self._most_entries / max(count, 1), self._most_bytes / max(self._bytes, 1))
        if share < 1:
            for state in self._partitions.values():
                state.let_go(len(state.values) - int(len(state.values) * share * 0.75))
            self._bytes = sum(state.bytes_in_memory() for state in self._partitions.values())


class _File:
    """Entries that have no room in memory. SQLite deletes the file itself; it is made when it is needed."""

    def __init__(self) -> None:
        self._database: sqlite3.Connection | None = None

    def close(self) -> None:
        if self._database is not None:
            self._database.close()
            self._database = None

    def get(self, partition: int, key: str) -> Value | None:
        if self._database is None:
            return None
        row = self._database.execute(
            "select value from entries where part = ? and key = ?", (partition, key)
        ).fetchone()
        value: Value | None = row[0] if row else None
        return value

    def put(self, partition: int, entries: Iterable[tuple[str, Value | None]]) -> None:
        database = self._database
        if database is None:
            database = self._database = sqlite3.connect("", isolation_level=None)
            database.execute("pragma journal_mode = off")
            database.execute("pragma synchronous = off")
            database.execute("pragma cache_size = -8192")
            database.execute(
                "create table entries (part integer, key text, value, primary key (part, key)) without rowid"
            )
        database.execute("begin")
        database.executemany(
            "insert or replace into entries values (?, ?, ?)", ((partition, key, value) for key, value in entries)
        )
        database.execute("commit")
