"""What the group coordinator can be told, with Kafka 4.3's defaults.

Owns: the values. Must not know: where they come from.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class GroupSettings:
    """Kafka's settings of the same names, dots for underscores."""

    offsets_topic_num_partitions: int = 50
    offsets_topic_segment_bytes: int = 104_857_600
    offsets_retention_minutes: int = 10_080
    offsets_retention_check_interval_ms: int = 600_000
    offset_metadata_max_bytes: int = 4096
    """The longest metadata of an offset, in UTF-16 units as in Kafka."""
    group_initial_rebalance_delay_ms: int = 3000
    group_min_session_timeout_ms: int = 6000
    group_max_session_timeout_ms: int = 1_800_000
    group_max_size: int = 2_147_483_647
    canonical_name: Callable[[str], str] = str
    """Gives, for any name of a topic, the name that offsets are kept under. The coordinator sets it."""
    wall_time: Callable[[int], int] = int
    """Gives, for a time of the clock that never goes back, that of the wall clock, which records hold. The coordinator
    sets it."""
    new_member_join_timeout_ms: int = 300_000
    """How long a JoinGroup of a member that never had an id waits; fixed in Kafka (KIP-394)."""
