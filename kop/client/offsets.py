"""The names of the clients for partitions, and for the places in them that have no number.

Owns: these names.
Must not know: anything else.
"""

from __future__ import annotations

from typing import Final, TypeAlias

EARLIEST: Final = -2
LATEST: Final = -1
"""In the place of an offset, as in Kafka's ListOffsets."""

TopicPartition: TypeAlias = tuple[str, int]
Offsets: TypeAlias = dict[TopicPartition, int]
