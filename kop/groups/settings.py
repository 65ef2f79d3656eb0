"""The settings of the group coordinator. Owns: their names, defaults and limits."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from kop.values import INT_MAX, Int, Long, Settings, setting


class GroupOptions(Settings):
    """The settings of consumer groups that people can set."""

    offsets_topic_num_partitions: Int = setting(
        "offsets.topic.num.partitions", 50, "Partitions of __consumer_offsets; fixed once it exists.", ge=1
    )
    offsets_retention_minutes: Int = setting(
        "offsets.retention.minutes", 10_080, "Minutes that committed offsets outlive the last member of a group.", ge=1
    )
    offsets_retention_check_interval_ms: Long = setting(
        "offsets.retention.check.interval.ms", 600_000, "Milliseconds between two looks for expired offsets.", ge=1
    )
    offset_metadata_max_bytes: Int = setting(
        "offset.metadata.max.bytes", 4096, "Largest text in bytes that a client may commit with an offset.", ge=0
    )
    group_initial_rebalance_delay_ms: Int = setting(
        "group.initial.rebalance.delay.ms",
        3000,
        "Milliseconds that the first rebalance of a new group waits for more members.",
        ge=0,
    )
    group_min_session_timeout_ms: Int = setting(
        "group.min.session.timeout.ms", 6000, "Least session timeout in milliseconds that a member may ask for.", ge=1
    )
    group_max_session_timeout_ms: Int = setting(
        "group.max.session.timeout.ms",
        1_800_000,
        "Largest session timeout in milliseconds that a member may ask for.",
        ge=1,
    )
    group_max_size: Int = setting("group.max.size", INT_MAX, "Members that a group may have.", ge=1)

    def problems(self) -> Iterable[str]:
        """Yield an error line if the smallest session timeout is above the largest."""
        yield from super().problems()
        if self.group_min_session_timeout_ms > self.group_max_session_timeout_ms:
            yield "group.min.session.timeout.ms must not be above group.max.session.timeout.ms"


class GroupSettings(GroupOptions):
    """The settings that the group coordinator gets: those for people, and those that code and tests set."""

    offsets_topic_segment_bytes: int = 104_857_600
    canonical_name: Callable[[str], str] = str
    """A function that returns, for any name of a topic, the name under which offsets are kept. The coordinator sets
    it.
    """
    wall_time: Callable[[int], int] = int
    """A function that turns a time of the clock that never goes back into one of the wall clock, which records hold.
    The coordinator sets it.
    """
    new_member_join_timeout_ms: int = 300_000
    """The ms that a JoinGroup of a member that never had an id may wait; fixed in Kafka (KIP-394)."""
