"""The listener of PySpark that passes the progress of queries on to `kop.spark.group_progress`.

Owns: PySpark's listener. Must not know: groups, requests.
"""

from __future__ import annotations

import atexit
import threading
from collections.abc import Mapping
from typing import Any, Final

from pyspark.sql.streaming.listener import StreamingQueryListener

from kop.spark.group_progress import GroupProgress, partitions_of, progress_settings

SETTLE_SECONDS: Final = 5.0
CLOSE_SECONDS: Final = 1.0
"""The seconds that `close` waits for the last commit."""


class ProgressListener(StreamingQueryListener):
    """A listener of PySpark that commits the offsets of each finished batch, which it hears of after the checkpoint."""

    def __init__(self, progress: GroupProgress, query_name: str | None) -> None:
        self._progress = progress
        self._query_name = query_name
        self._runs: set[str] = set()
        self._changed = threading.Condition()

    def onQueryStarted(self, event: Any) -> None:
        """Remember the run of a query that has started, for `settle`. Nothing is read yet, so nothing is committed."""
        with self._changed:
            self._runs.add(f"{event.runId}")

    def onQueryProgress(self, event: Any) -> None:
        """Pass on the offsets up to which the finished batch has read, to be committed in the background; those of the
        query named `query_name` alone, if one is named. The run is remembered for `settle`.
        """
        with self._changed:
            self._runs.add(f"{event.progress.runId}")
        if self._query_name in (None, event.progress.name):
            self._progress.commit(partitions_of(event.progress.sources))

    def onQueryIdle(self, event: Any) -> None:
        """Do nothing: an idle query has read nothing new."""

    def onQueryTerminated(self, event: Any) -> None:
        """Forget the run of a query that has ended, the progress of whose last batch has come, so that `settle` does
        not wait for it any more.
        """
        with self._changed:
            self._runs.discard(f"{event.runId}")
            self._changed.notify()

    def settle(self, spark: Any) -> None:
        """Wait up to 5 s for the last progress of queries that have ended, which Spark tells later than their end."""
        try:
            active = {f"{query.runId}" for query in spark.streams.active}
        except Exception:  # the session has ended, and has told all
            return
        with self._changed:
            self._changed.wait_for(lambda: not self._runs - active, SETTLE_SECONDS)

    def finish(self, progress: Any) -> None:
        """Commit the offsets of a query's last batch, by the progress that the query itself tells, and return when that
        is done, or after 1 s. Nothing is committed after that.
        """
        self._progress.commit(partitions_of(progress["sources"]))
        self._progress.close(CLOSE_SECONDS)

    def close(self, spark: Any) -> None:
        """Commit the progress of the last batches, for which it waits up to 6 s, and remove this listener from the
        session.
        """
        self.settle(spark)
        atexit.unregister(self.settle)
        self._progress.close(CLOSE_SECONDS)
        spark.streams.removeListener(self)


def track_progress(
    spark: Any, *, group: str, options: Mapping[str, str], query_name: str | None = None
) -> ProgressListener:
    """Commit the offsets of each finished batch to a consumer group; returns the listener, which is registered already.
    When the process ends, it waits up to 5 s for the progress of the last batches.

    `options`: `kafka.bootstrap.servers` and what else the connection needs, as for `format("kop")`; OptionError for a
    `kafka.*` that is not known, and other options of the query have no effect. `query_name`: only of the query of this
    name; without it of all queries of the session. To end it: `spark.streams.removeListener(listener)`.
    """
    listener = ProgressListener(GroupProgress(progress_settings(options), group), query_name)
    spark.streams.addListener(listener)
    atexit.register(listener.settle, spark)  # runs before what GroupProgress has registered
    return listener
