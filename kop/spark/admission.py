"""The reader of a stream for PySpark 4.2 and later, which says how much a batch may take.

Owns: what Spark's read limits mean here, and Trigger.AvailableNow.
Must not know: how offsets are found. Not importable with an older PySpark.
"""

from __future__ import annotations

from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    ReadMinRows,
    SupportsTriggerAvailableNow,
)

from kop.spark.offsets import OffsetDict, from_dict, to_dict
from kop.spark.reader import KopStreamReader


class KopLimitedStreamReader(KopStreamReader, SupportsTriggerAvailableNow):
    """The reader of a stream in PySpark 4.2 and later, whose batches Spark limits."""

    def getDefaultReadLimit(self) -> ReadLimit:
        """Return the limit of a batch by the options: the first of maxOffsetsPerTrigger, minOffsetsPerTrigger and
        maxBytesPerTrigger that is set, or all there is. Spark passes it back to `latestOffset`, unless its trigger
        wants all there is.
        """
        if self.options.max_offsets_per_trigger:
            return ReadMaxRows(self.options.max_offsets_per_trigger)
        if self.options.min_offsets_per_trigger:
            return ReadMinRows(self.options.min_offsets_per_trigger)
        if self.options.max_bytes_per_trigger:
            return ReadMaxBytes(self.options.max_bytes_per_trigger)
        return ReadAllAvailable()

    def latestOffset(self, start: OffsetDict, limit: ReadLimit) -> OffsetDict:
        """Return the offsets at which the batch after `start` ends, `start` itself if there is nothing to read. All
        limits of the options count, whichever `limit` names, unless Spark wants all there is.
        """
        return to_dict(self.stream.next_end(from_dict(start), limited=not isinstance(limit, ReadAllAvailable)))

    def reportLatestOffset(self) -> OffsetDict | None:
        """Return the ends of the logs as last seen, which Spark shows in the query's progress; None before the first
        look.
        """
        latest = self.stream.latest
        return None if latest is None else to_dict(latest)

    def prepareForTriggerAvailableNow(self) -> None:
        """Keep the present ends of the logs as the end of the query (Trigger.AvailableNow); later partitions are not
        read.
        """
        self.stream.stop_at_latest()
