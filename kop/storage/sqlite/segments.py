"""The files beside the database that hold large batches. A file is written at its end only, and removed as a whole.

Owns: the files of one folder, their numbers, how bytes reach the disk and come back.
Must not know: logs and rows; which bytes of a file are still wanted is for the database to say.

Bytes lie on the disk when `append` returns, so that the commit which names their place may follow. What no row names
(a crash came between, or the rows went) is garbage, and goes with its file.

Files are written without the page cache (O_DIRECT), where the file system can: what is written was just received and is
read from memory while it is new, and bringing fresh pages into the cache costs more CPU than all the rest of a write.
They are read through the cache.
"""

from __future__ import annotations

import errno
import fcntl
import logging
import mmap
import os
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from kop.storage.base import Buffer
from kop.storage.sqlite.lock import OWNER_ONLY

_log = logging.getLogger(__name__)

ALIGNMENT: Final = 4096
"""The multiple that O_DIRECT requires of positions, lengths and addresses: the block of any usual disk, and a page."""
BUFFER_BYTES: Final = 1 << 20
_DIRECT: Final = getattr(os, "O_DIRECT", 0)
_NO_DIRECT: Final = frozenset({errno.EINVAL, errno.ENOTSUP, errno.EOPNOTSUPP})
"""The error numbers of file systems that have no O_DIRECT, or require another alignment."""


class Place(NamedTuple):
    """The place of a batch beside the database: the number of the segment file, and the position of its first byte."""

    segment: int
    position: int


class Segments:
    """The segment files of one folder. `append`, `release` and `close` are for the writer's thread, the rest is for
    any.
    """

    def __init__(self, folder: Path, *, roll_bytes: int, last: int = 0, kept: Collection[int] = ()) -> None:
        """Prepare to write, without touching a file: the next one gets the number `last` + 1, and takes no more batches
        from `roll_bytes` on. `last` is the largest number of an existing file. `complete` leaves out the numbers in
        `kept`, so that nobody removes those files.
        """
        self._folder = folder
        self._roll_bytes = roll_bytes
        self.kept = kept
        self._file: int | None = None
        self._end = 0
        self._direct = _DIRECT
        self._is_folder_safe = False
        self._buffer: memoryview | None = None
        self.current = last + 1
        """The number of the file that takes batches, or of the next one. Files with smaller numbers take no more."""

    @property
    def takes_batches(self) -> bool:
        """True if there is a file that takes more batches."""
        return self._file is not None

    def append(self, batches: Sequence[Buffer]) -> list[Place]:
        """Write batches to the end of a segment file, and sync them; return the place of each. Raises OSError if
        nothing is written.

        A file in which a write failed takes no more batches: what lies behind its last batch is not known.
        """
        if self._end >= self._roll_bytes:
            self.close()
        before = position = self._end
        places: list[Place] = []
        for batch in batches:
            places.append(Place(self.current, position))
            position += len(batch)
        try:
            file = self._begin() if self._file is None else self._file
            self._write(file, batches)
            _sync(file)
        except BaseException:
            self._give_up(before)
            raise
        return places

    def read(self, segment: int, spans: Sequence[tuple[int, int]]) -> list[bytes]:
        """Return the bytes of spans (position, size) of a segment file; one in which the file ends is shorter. If a
        span cannot be read, those before it are returned. OSError if that is the first, FileNotFoundError if the file
        is gone.
        """
        parts: list[bytes] = []
        file = os.open(self.path(segment), os.O_RDONLY | os.O_CLOEXEC)
        try:
            for position, size in spans:
                parts.append(_read(file, position, size))
        except OSError:
            if not parts:
                raise
        finally:
            os.close(file)
        return parts

    def complete(self) -> dict[int, int]:
        """Return the size in bytes of each file that takes no more batches, by its number, without those that are
        kept.
        """
        current = self.current  # asked first: what has a smaller number now stays as it is
        files = files_in(self._folder)
        return {number: size for number, size in files.items() if number < current and number not in self.kept}

    def remove(self, segment: int) -> None:
        """Delete a segment file. Do nothing if it is gone already."""
        self.path(segment).unlink(missing_ok=True)

    def path(self, segment: int) -> Path:
        """Return the path of a segment file."""
        return self._folder / f"{segment:010d}"

    def release(self) -> None:
        """Free the buffer that writes need, until the next write."""
        self._buffer = None

    def close(self) -> None:
        """Close the file that takes batches; the next batch begins another file."""
        file, self._file = self._file, None
        self._end = 0
        self.current += 1
        if file is not None:
            try:
                os.close(file)
            except OSError:
                pass  # all that was promised is synced, and the descriptor is free all the same

    def _give_up(self, end: int) -> None:
        """Cut the file that takes batches off behind `end`, where its last batch ends, or remove it if it has none;
        then close it. On a full disk each attempt to write takes some room.
        """
        if self._file is not None:
            try:
                os.ftruncate(self._file, end)
                if end == 0:
                    self.remove(self.current)
            except OSError:
                pass  # the disk fails: what is left goes with the file
        self.close()

    def _begin(self) -> int:
        if not self._is_folder_safe:
            self._folder.mkdir(exist_ok=True)
            sync_path(self._folder.parent)
            self._is_folder_safe = True
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        path = self.path(self.current)
        try:
            file = os.open(path, flags | self._direct, OWNER_ONLY)
        except OSError as error:
            if not self._direct or error.errno not in _NO_DIRECT:
                raise
            # Some systems have made the file by then.
            path.unlink(missing_ok=True)
            self._write_through_cache()
            file = os.open(path, flags, OWNER_ONLY)
        self._file = file
        sync_path(self._folder)
        return file

    def _write(self, file: int, batches: Sequence[Buffer]) -> None:
        buffer = self._buffer
        if buffer is None:
            buffer = self._buffer = memoryview(mmap.mmap(-1, BUFFER_BYTES))  # at the beginning of a page
        filled = 0
        for batch in batches:
            rest = memoryview(batch)
            while rest:
                part = rest[: BUFFER_BYTES - filled]
                buffer[filled : filled + len(part)] = part
                filled += len(part)
                rest = rest[len(part) :]
                if filled == BUFFER_BYTES:
                    self._put(file, buffer)
                    filled = 0
        if filled:
            padded = -(-filled // ALIGNMENT) * ALIGNMENT
            buffer[filled:padded] = bytes(padded - filled)
            self._put(file, buffer[:padded])

    def _put(self, file: int, rest: memoryview) -> None:
        while rest:
            try:
                written = os.pwrite(file, rest, self._end)
            except OSError as error:
                if not self._direct or error.errno not in _NO_DIRECT:
                    raise
                fcntl.fcntl(file, fcntl.F_SETFL, fcntl.fcntl(file, fcntl.F_GETFL) & ~_DIRECT)
                self._write_through_cache()
                continue
            self._end += written
            rest = rest[written:]

    def _write_through_cache(self) -> None:
        self._direct = 0
        _log.info("the file system of %s has no O_DIRECT, or asks more of it: its cache is used", self._folder)


def files_in(folder: Path) -> dict[int, int]:
    """Return the size in bytes of each segment file in a folder, by its number; none if there is no folder. OSError if
    the folder cannot be read.
    """
    files: dict[int, int] = {}
    try:
        with os.scandir(folder) as entries:
            for entry in entries:
                if entry.name.isdecimal():
                    try:
                        files[int(entry.name)] = entry.stat().st_size
                    except FileNotFoundError:
                        pass  # removed since
    except FileNotFoundError:
        pass
    return files


def _read(file: int, position: int, size: int) -> bytes:
    data = os.pread(file, size, position)
    while len(data) < size:
        more = os.pread(file, size - len(data), position + len(data))
        if not more:
            break
        data += more
    return data


def _sync(file: int) -> None:
    full_sync = getattr(fcntl, "F_FULLFSYNC", None)
    if full_sync is not None:  # macOS: another sync lets later writes of other files reach the disk before these
        fcntl.fcntl(file, full_sync)
    else:
        os.fdatasync(file)


def sync_path(path: Path) -> None:
    """Sync a file or a folder, so that what was written to it is on the disk."""
    file = os.open(path, os.O_RDONLY)
    try:
        os.fsync(file)
    finally:
        os.close(file)
