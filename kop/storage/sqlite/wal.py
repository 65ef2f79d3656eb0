"""A look at SQLite's write-ahead log before SQLite opens the database: which commits are lost in it.

Owns: the formats of that log and, as far as it is needed, of a page of the index on batches.
Must not know: what is done about a loss.

SQLite takes the log's frames up to the first one that its checksums do not confirm, without a word about what follows.
That is right for the commit that a power loss has torn, the last one: each is synced before the next is written. With
whole commits behind it, the frame was damaged later, and all of them were acknowledged.

Frames of the log's present use carry the salts of its header; those of an earlier use, which may follow, carry others.
How far SQLite comes it says itself: it opens the log beside a copy of the database's first page, read-only.

The frames of lost commits have pages of the index on batches, and so tell which offsets were given out.
"""

from __future__ import annotations

import os
import shutil
import sqlite3
import struct
import sys
from collections.abc import Iterator
from contextlib import closing
from itertools import islice
from pathlib import Path
from typing import Final, NamedTuple, TypeAlias
from urllib.parse import quote

_HEADER: Final = struct.Struct(">IIIIIIII")
"""The layout of the log's header: magic number, version, page size, number of the use, two salts, two halves of the
checksum of all that.
"""
_FRAME: Final = struct.Struct(">IIIIII")
"""The layout of a frame's header: page number, pages of the database after a commit (0 for frames that end none), salts
and checksum as above.
"""
_MAGIC: Final = 0x377F0682
"""The magic number of a write-ahead log, without its last bit, which is set if checksums take words as big-endian."""
_MX_FRAME: Final = struct.Struct("=16xI")
"""The layout by which the index of the log, a file of shared memory, holds the number of the last frame that counts."""
_MASK: Final = 0xFFFFFFFF
_INDEX_LEAF: Final = 10
_INTEGER_BYTES: Final = {1: 1, 2: 2, 3: 3, 4: 4, 5: 6, 6: 8, 8: 0, 9: 0}
"""The number of bytes of an integer in a record, by its type; 8 stands for 0, and 9 for 1."""
_INDEX_COLUMNS: Final = 6
"""The number of columns of the index on batches, with the id of the row. No other index of ours has as many, all
integers.
"""

_Sums: TypeAlias = tuple[int, int]


class LostCommits(NamedTuple):
    """The commits that are lost in a write-ahead log."""

    commits: int
    offsets: dict[int, int]
    """The last offset in the lost commits, or the commits before them, by the log's id."""
    copied: bool
    """True if the database file has all that the log has, as between two uses of the log: nothing is lost then."""


class _Frame(NamedTuple):
    number: int
    """The number of the frame's page."""
    ends_commit: bool
    salts: _Sums
    sums: _Sums
    summed: memoryview
    """The part of the frame's header that its checksum covers."""
    page: memoryview


def lost_commits(path: Path) -> LostCommits | None:
    """Return the commits that SQLite will not take from the write-ahead log of the database at `path`; None if there
    are none.

    Nobody has the database open. Raises OSError if its files cannot be read.
    """
    try:
        data = Path(f"{path}-wal").read_bytes()
        with path.open("rb") as file:
            first_page = file.read(65536)
    except FileNotFoundError:
        return None
    if len(data) <= _HEADER.size or len(first_page) < 512:
        return None
    log = _Log(memoryview(data), first_page)
    if log.is_header_whole and log.last_commit <= (taken := _taken(path, first_page)):
        return None
    with path.open("rb") as file:
        return log.lost_behind(taken if log.is_header_whole else 0, file.fileno())


class _Log:
    """The content of a write-ahead log, frame by frame."""

    def __init__(self, data: memoryview, first_page: bytes) -> None:
        magic, _, page_size, _, salt_1, salt_2, *sums = _HEADER.unpack_from(data)
        self._data = data
        self._words = ">" if magic & 1 else "<"
        self._sums = sums[0], sums[1]
        self._salts = salt_1, salt_2
        self._page_size: int = page_size
        computed = _checksum(data[:24], (0, 0), self._words)
        self.is_header_whole = magic & ~1 == _MAGIC and computed == self._sums
        self._roots = {self._sums, computed}
        if not self.is_header_whole:  # what is wrong in it the database and the first frame know, too
            size = int.from_bytes(first_page[16:18], "big")
            self._page_size = 65536 if size == 1 else size
            self._words = ">" if sys.byteorder == "big" else "<"
            self._roots.add(_checksum(data[:24], (0, 0), self._words))
            self._salts = _FRAME.unpack_from(data.tobytes().ljust(64, b"\0"), _HEADER.size)[2:4]

    def _frames(self) -> Iterator[_Frame]:
        size = _FRAME.size + self._page_size
        for at in range(_HEADER.size, len(self._data) - size + 1, size):
            number, pages, *values = _FRAME.unpack_from(self._data, at)
            yield _Frame(
                number,
                pages != 0,
                (values[0], values[1]),
                (values[2], values[3]),
                self._data[at : at + 8],
                self._data[at + _FRAME.size : at + size],
            )

    @property
    def last_commit(self) -> int:
        """The number of the last frame that ends a commit of the log's present use; 0 for none."""
        last = 0
        for number, frame in enumerate(self._frames(), 1):
            if frame.ends_commit and frame.salts == self._salts:
                last = number
        return last

    def lost_behind(self, taken: int, database: int) -> LostCommits | None:
        """Return the commits that are lost behind the first `taken` frames, which SQLite takes; None if there are none
        but one that a power loss has torn. `database` is a descriptor of the database file.
        """
        commits = 0
        offsets: dict[int, int] = {}
        newest: dict[int, tuple[_Frame, set[_Sums]]] = {}  # of each page the last frame, and the sums before it
        is_lost = False
        # The first commit behind may be torn; with a damaged header, which was synced before, none is.
        is_torn, is_whole = self.is_header_whole, True
        before = self._roots
        for number, frame in enumerate(islice(self._frames(), self.last_commit), 1):
            newest[frame.number] = frame, before
            if number <= taken:
                before = {frame.sums}
                continue
            if frame.salts != self._salts:
                before, is_whole = {frame.sums}, False
                continue
            computed = {_sum_of(frame.summed, frame.page, sums, self._words) for sums in before}
            is_whole = is_whole and frame.sums in computed
            before = {frame.sums} | computed  # the sums themselves may be what is damaged
            for log_id, last in offsets_in(frame.page):
                offsets[log_id] = max(last, offsets.get(log_id, last))
            if frame.ends_commit:
                commits += 1
                is_lost = is_lost or (is_whole and not is_torn)
                is_torn, is_whole = False, True
        if not is_lost:
            return None
        return LostCommits(commits, offsets, all(self._is_copied(database, *last) for last in newest.values()))

    def _is_copied(self, database: int, frame: _Frame, before: set[_Sums]) -> bool:
        page = os.pread(database, self._page_size, (frame.number - 1) * self._page_size)
        if len(page) < self._page_size:
            return False
        # Where the frame is the damaged one, its sums say whether this is what it had.
        return page == frame.page or frame.sums in {
            _sum_of(frame.summed, memoryview(page), sums, self._words) for sums in before
        }


def _sum_of(summed: memoryview, page: memoryview, before: _Sums, order: str) -> _Sums:
    return _checksum(page, _checksum(summed, before, order), order)


def _checksum(data: memoryview, sums: _Sums, order: str) -> _Sums:
    first, second = sums
    words = struct.unpack(f"{order}{len(data) // 4}I", data)
    for odd, even in zip(words[::2], words[1::2], strict=True):
        first = (first + odd + second) & _MASK
        second = (second + even + first) & _MASK
    return first, second


def _taken(path: Path, first_page: bytes) -> int:
    """Return the number of frames that SQLite takes from the write-ahead log of the database at `path`."""
    folder = Path(f"{path}-look")
    beside = folder / "kop.db"
    shutil.rmtree(folder, ignore_errors=True)  # a start that was killed may have left it
    folder.mkdir()
    try:
        beside.write_bytes(first_page)
        try:
            os.link(f"{path}-wal", f"{beside}-wal")
        except OSError:  # a file system without hard links
            shutil.copyfile(f"{path}-wal", f"{beside}-wal")
        with closing(sqlite3.connect(f"file:{quote(str(beside))}?mode=ro", uri=True)) as conn:
            try:
                conn.execute("SELECT 1 FROM sqlite_schema").fetchone()
            except sqlite3.Error:
                pass  # there is one page of the database only; the log has been read by then
            index = Path(f"{beside}-shm").read_bytes()
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return int(_MX_FRAME.unpack_from(index)[0])


def offsets_in(page: memoryview) -> Iterator[tuple[int, int]]:
    """Yield the log's id and the last offset of each entry in a page of the index on batches; nothing for other
    pages.
    """
    if page[0] != _INDEX_LEAF:
        return
    count = int.from_bytes(page[3:5], "big")
    try:
        for number in range(count):
            at = int.from_bytes(page[8 + 2 * number : 10 + 2 * number], "big")
            _, at = _varint(page, at)
            values = _integers(page, at)
            if values is None:
                return
            yield values[0], values[1]
    except IndexError:
        return  # damaged


def _integers(page: memoryview, start: int) -> list[int] | None:
    """Return the values of a record that has as many integers as one of the index on batches, and nothing else; None
    for any other record.
    """
    size, at = _varint(page, start)
    types: list[int] = []
    while at < start + size:
        kind, at = _varint(page, at)
        types.append(kind)
    if len(types) != _INDEX_COLUMNS or any(kind not in _INTEGER_BYTES for kind in types):
        return None
    values: list[int] = []
    for kind in types:
        end = at + _INTEGER_BYTES[kind]
        values.append(int.from_bytes(page[at:end], "big", signed=True) if kind < 8 else kind - 8)
        at = end
    return values


def _varint(page: memoryview, at: int) -> tuple[int, int]:
    """Return the number in SQLite's format, of up to nine bytes, that begins at `at`, and the position behind it."""
    value = 0
    for number in range(8):
        byte = page[at + number]
        value = value << 7 | byte & 0x7F
        if byte < 0x80:
            return value, at + number + 1
    return value << 8 | page[at + 8], at + 9
