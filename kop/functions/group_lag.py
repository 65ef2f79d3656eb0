"""The lag of a consumer group, for instances that do not tell their own: its offsets against the ends of the logs.

Owns: these two questions to the server, and how long they may take.
Must not know: instances, workers, why one does not tell.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping
from contextlib import closing
from typing import Any, Final

from kop.client.offsets import LATEST, TopicPartition
from kop.client.read_client import ReadClient
from kop.client.write_client import WriteClient
from kop.functions.reading import READ_COMMITTED

log = logging.getLogger(__name__)

PATIENCE_SECONDS: Final = 3.0


def lag_of(
    settings: Mapping[str, Any], group: str, partitions: Collection[TopicPartition]
) -> dict[TopicPartition, int]:
    """Return how many offsets lie between the committed one of the group and the end of the log, for each partition.
    `settings` are kafka-python's.

    Partitions without an offset, or with one that a transaction holds, are left out; all, if the server does not tell.
    """
    try:
        with closing(WriteClient(settings, PATIENCE_SECONDS)) as writer:
            committed = writer.committed(group, partitions, partitions)
        if not committed:
            return {}
        with closing(ReadClient(settings, int(PATIENCE_SECONDS * 1000))) as reader:
            ends = reader.list_offsets(dict.fromkeys(committed, LATEST), READ_COMMITTED)
    except Exception as error:  # a status without a lag is better than none
        log.info("the lag of %s cannot be counted: %s", group, error)
        return {}
    return {partition: max(0, ends[partition] - offset) for partition, (offset, _) in committed.items()}
