"""The lock that makes one process the only one on a database, whatever name it is opened by.

Owns: the descriptor that holds the lock.
Must not know: SQLite.

The lock lies on the database file itself, so that neither links to it nor files that somebody removes matter. SQLite
loses its own locks where the process closes any descriptor of the file: this one is closed after SQLite's connections,
and none is opened for a file that this process has locked already.
"""

from __future__ import annotations

import fcntl
import os
import threading
from pathlib import Path
from typing import Final, TypeAlias

from kop.errors import BackendError

_Inode: TypeAlias = tuple[int, int]

OWNER_ONLY: Final = 0o600
"""The mode of a store's new files: they hold records and credentials of users. SQLite gives its others the mode of the
database.
"""
_guard: Final = threading.Lock()
_held: Final[set[_Inode]] = set()
"""The database files that this process has locked, so that it opens no descriptor of one again."""


class DatabaseLock:
    """The lock on a database file, held until `close`."""

    def __init__(self, file: int, inode: _Inode) -> None:
        self._file = file
        self._inode = inode

    def close(self) -> None:
        """Unlock the file. To be called after all connections to it are closed."""
        with _guard:
            _held.discard(self._inode)
            os.close(self._file)


def lock(path: Path) -> DatabaseLock:
    """Lock the database file at `path`, whose links were followed before; make an empty file if there is none.

    BackendError if another process, or another engine of this one, uses the file, or if the lock file of an unreleased
    kop lies beside it; OSError if the file cannot be opened.
    """
    if (older := Path(f"{path}.lock")).exists():
        raise BackendError(f"{older} is the lock of an unreleased kop: stop that one, then remove the file")
    with _guard:
        try:
            known = _inode(os.stat(path))
        except FileNotFoundError:
            known = None
        if known in _held:
            raise _in_use(path, os.getpid())
        file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, OWNER_ONLY)
        inode = _inode(os.fstat(file))
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(file)
            raise _in_use(path, _holder(inode[1])) from None
        except BaseException:
            os.close(file)
            raise
        _held.add(inode)
    return DatabaseLock(file, inode)


def _inode(status: os.stat_result) -> _Inode:
    return status.st_dev, status.st_ino


def _in_use(path: Path, holder: int | None) -> BackendError:
    return BackendError(
        f"{path} is in use by another kop process{f' (pid {holder})' if holder else ''}: "
        "one database serves one process; stop that one or give another --store"
    )


def _holder(inode: int) -> int | None:
    """Return the id of the process that has locked a file; None if this system does not tell."""
    try:
        locks = Path("/proc/locks").read_text(encoding="ascii").splitlines()
    except (OSError, UnicodeDecodeError):
        return None
    for fields in map(str.split, locks):
        if len(fields) > 5 and fields[1] == "FLOCK" and fields[5].endswith(f":{inode}"):
            return int(fields[4])
    return None
