"""What PySpark tells of the progress of queries, passed on to `kop.spark.group_progress`.

Owns: PySpark's listener. Must not know: groups, requests.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pyspark.sql.streaming.listener import StreamingQueryListener

from kop.spark.group_progress import GroupProgress, partitions_of, progress_settings


class ProgressListener(StreamingQueryListener):
    """Hears of each finished batch. Progress comes after the batch is in the checkpoint."""

    def __init__(self, progress: GroupProgress, query_name: str | None) -> None:
        self._progress = progress
        self._query_name = query_name

    def onQueryStarted(self, event: Any) -> None:
        """Nothing is read yet."""

    def onQueryProgress(self, event: Any) -> None:
        """Commit what the batch has read."""
        if self._query_name in (None, event.progress.name):
            self._progress.commit(partitions_of(event.progress.sources))

    def onQueryIdle(self, event: Any) -> None:
        """Nothing is new."""

    def onQueryTerminated(self, event: Any) -> None:
        """The progress of the last batch has come by then."""


def track_progress(
    spark: Any, *, group: str, options: Mapping[str, str], query_name: str | None = None
) -> ProgressListener:
    """Commit the offsets of each finished batch to a consumer group; returns the listener, which is registered already.

    `options`: `kafka.bootstrap.servers` and what else the connection needs, as for `format("kop")`; OptionError for a
    `kafka.*` that is not known, and other options of the query have no effect. `query_name`: only of the query of this
    name; without it of all queries of the session. To end it: `spark.streams.removeListener(listener)`.
    """
    listener = ProgressListener(GroupProgress(progress_settings(options), group), query_name)
    spark.streams.addListener(listener)
    return listener
