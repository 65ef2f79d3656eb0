"""The losses that a start finds: commits of a damaged write-ahead log, batches whose file is gone.

Owns: what is put aside and kept then, what makes up for it in the database, and how operators are told.
Must not know: logs in memory, the event loop, how the write-ahead log is read.

Nothing is removed: a copy of the log lies beside the database as `kop.db-wal-damaged-TIME`, and the files of batches
that no row names any more stay, as long as such a copy is there. Offsets that lost commits gave out are not given out
again: an empty batch covers them.
"""

from __future__ import annotations

import filecmp
import json
import logging
import shutil
import sqlite3
import time
from collections.abc import Collection, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from urllib.parse import quote

from kop.errors import BackendError
from kop.records.transcode import empty_batch
from kop.storage.sqlite import wal
from kop.storage.sqlite.segments import sync_path
from kop.storage.sqlite.wal import LostCommits

_log = logging.getLogger(__name__)

_KEPT: Final = "segments.kept"
"""The key of the row in `meta` with the numbers of segment files that are kept though no row names them."""
_MOST_OFFSETS: Final = 1 << 31
"""The most offsets that an empty batch can cover."""


@dataclass(frozen=True, slots=True)
class Losses:
    """The losses that this start has found."""

    batches: int = 0
    """The number of batches whose file is missing."""
    commits: int = 0
    """The number of commits in a damaged write-ahead log that are lost."""
    logs: Sequence[Path] = ()
    """The copies of damaged write-ahead logs that lie beside the database, also from earlier starts."""

    @property
    def text(self) -> str | None:
        """One line about the losses for /readyz; None if nothing is lost."""
        parts = []
        if self.batches:
            parts.append(f"{self.batches} batch(es) cannot be read: their files are not there")
        if self.logs:
            parts.append(
                "a damaged write-ahead log had commits that are lost: "
                + ", ".join(str(log) for log in self.logs)
                + " (remove or move it when it was looked at)"
            )
        return "; ".join(parts) or None


def look_at_log(path: Path, *, refuse: bool) -> LostCommits | None:
    """Return the commits that are lost in the write-ahead log of the database at `path`, which nobody has open; None if
    none are. A log with lost commits is copied aside and stays in place; a damaged one of which the database has all is
    removed.

    Raises BackendError instead if commits are lost and `refuse` is set (nothing was copied then), or if the database is
    not consistent without them. The database and its log have not changed then.
    """
    lost = wal.lost_commits(path)
    if lost is None:
        return None
    if lost.copied:
        _log.warning("the write-ahead log %s-wal is damaged; nothing is lost, %s has all that was in it", path, path)
        sync_path(path)
        Path(f"{path}-wal").unlink()
        return None
    text = f"the write-ahead log {path}-wal is damaged: {lost.commits} commit(s) that were acknowledged are lost"
    if refuse:
        raise BackendError(
            f"{text}. kop.refuse.damaged.log keeps the broker from starting without them: restore a copy of all files "
            "of the store, or unset it"
        )
    aside = _put_aside(path)
    _log.error(
        "%s. A copy is kept as %s, and files of batches that only they named stay in their folder; their offsets are "
        "not given out again. Producers may send again what was acknowledged shortly before the last stop",
        text,
        aside,
    )
    _check_whole(path)
    return lost


def damaged_logs(path: Path) -> list[Path]:
    """Return the copies of damaged write-ahead logs that lie beside the database at `path`."""
    return sorted(path.parent.glob(f"{path.name}-wal-damaged-*"))


def kept_files(conn: sqlite3.Connection) -> list[int]:
    """Return the numbers of the segment files that are kept though no row names them."""
    row = conn.execute("SELECT value FROM meta WHERE key = ?", (_KEPT,)).fetchone()
    return [] if row is None else json.loads(row[0])


def keep_files(conn: sqlite3.Connection, numbers: Collection[int]) -> None:
    """Store the numbers of the segment files that are kept, in place of those stored before."""
    if numbers:
        conn.execute("REPLACE INTO meta (key, value) VALUES (?, ?)", (_KEPT, json.dumps(sorted(numbers))))
    else:
        conn.execute("DELETE FROM meta WHERE key = ?", (_KEPT,))


def skip_what_was_given_out(conn: sqlite3.Connection, lost: LostCommits, ids_of_commit: int, now_ms: int) -> None:
    """Raise the next offset of each log above those that lost commits may have used, by an empty batch that covers
    them; likewise the next producer id, by `ids_of_commit` for each lost commit.
    """
    conn.execute("UPDATE meta SET value = value + ? WHERE key = 'producer_id.next'", (lost.commits * ids_of_commit,))
    for log_id, last in lost.offsets.items():
        row = conn.execute(
            "SELECT max(log_start, snapshot_offset, coalesce((SELECT max(last) + 1 FROM batch INDEXED BY batch_of_log"
            " WHERE batch.log = log.id), 0)) FROM log WHERE id = ? AND topic IS NOT NULL",
            (log_id,),
        ).fetchone()
        if row is None or not row[0] <= last < row[0] + _MOST_OFFSETS:
            continue
        data = empty_batch(row[0], last)
        conn.execute(
            "INSERT INTO batch (log, base, last, timestamp, size, data) VALUES (?, ?, ?, ?, ?, ?)",
            (log_id, row[0], last, -now_ms, len(data), data),
        )


def _put_aside(path: Path) -> Path:
    """Copy the damaged write-ahead log of a database aside, unless an earlier start, which was refused, has done so;
    return the copy's path. BackendError if it cannot be copied.
    """
    log = Path(f"{path}-wal")
    for aside in damaged_logs(path):
        if filecmp.cmp(log, aside, shallow=False):
            return aside
    aside = Path(f"{log}-damaged-{time.strftime('%Y%m%dT%H%M%SZ', time.gmtime())}")
    try:
        shutil.copyfile(log, aside)
        sync_path(aside)
        sync_path(aside.parent)
    except OSError as error:
        raise BackendError(f"cannot put the damaged {log} aside as {aside}: {error.strerror or error}") from error
    return aside


def _check_whole(path: Path) -> None:
    """Raise BackendError if the database is not consistent: its write-ahead log was cut after a part of it had been
    copied.

    The connection is read-only. Another one would copy the rest of the log into the database when it is closed.
    """
    _log.warning("checking all of %s, because its write-ahead log was damaged", path)
    try:
        with closing(sqlite3.connect(f"file:{quote(str(path))}?mode=ro", uri=True)) as conn:
            outcome = conn.execute("PRAGMA integrity_check(1)").fetchone()[0]
    except sqlite3.Error as error:
        outcome = str(error)
    if outcome != "ok":
        raise BackendError(
            f"{path} is damaged, since its write-ahead log was: {outcome}. Restore a copy of all files of the store"
        )
