"""The state of a test's broker in words: for `repr`, and for the report of a test that fails.

Owns: these texts, and a group as they show it.
Must not know: how what they tell is found out.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final, NamedTuple

from kop.storage.base import PartitionLog, TopicInfo
from kop.testing.requests import SeenRequest

_MOST_LINES: Final = 30
"""The number of lines of each part of a report."""
_MOST_NAMES: Final = 10
"""The number of names that one line shows."""


class Group(NamedTuple):
    """A consumer group, as reports and tests see it."""

    group_id: str
    state: str
    """The state by Kafka's name: `Stable`, `Empty`, `PreparingRebalance`, ..."""
    members: tuple[str, ...]
    """The client ids of the members."""


def line(address: str, topics: Sequence[TopicInfo], groups: Sequence[Group]) -> str:
    """Return one line about a broker, for its `repr`."""
    of_topics = _names(f"{topic.name}[{topic.partitions}]" for topic in topics) or "none"
    of_groups = _names(f"{group.group_id} ({group.state})" for group in groups) or "none"
    return f"<Broker {address}: topics {of_topics}; groups {of_groups}>"


def text(
    topics: Iterable[tuple[str, Sequence[PartitionLog]]],
    groups: Iterable[tuple[Group, Mapping[tuple[str, int], int]]],
    requests: Sequence[SeenRequest],
) -> str:
    """Return a report of several lines: topics with their ends, groups with their offsets, the last requests."""
    parts = (
        ("topics", list(_topic_lines(topics))),
        ("groups", list(_group_lines(groups))),
        (f"the last {len(requests)} requests, the newest last", list(_request_lines(requests))),
    )
    lines: list[str] = []
    for title, of_part in parts:
        lines += [f"{title}:", *(f"  {item}" for item in of_part[:_MOST_LINES] or ("none",))]
        if len(of_part) > _MOST_LINES:
            lines.append(f"  ... and {len(of_part) - _MOST_LINES} more")
    return "\n".join(lines)


def nearest(name: str, names: Sequence[str]) -> str:
    """Return the end of an error message that names the known name nearest to a wrong one, or, if none is near, the
    known names.
    """
    near = difflib.get_close_matches(name, names, 1)
    return f"; do you mean {near[0]!r}?" if near else f"; there are {_names(names) or 'none'}"


def _topic_lines(topics: Iterable[tuple[str, Sequence[PartitionLog]]]) -> Iterator[str]:
    for name, logs in topics:
        for log in logs:
            end, stable = log.high_watermark, log.last_stable_offset
            held = "" if stable == end else f", an open transaction holds readers of committed records at {stable}"
            yield f"{name}-{log.index}: offsets {log.log_start_offset} to {end}{held}"


def _group_lines(groups: Iterable[tuple[Group, Mapping[tuple[str, int], int]]]) -> Iterator[str]:
    for group, committed in groups:
        members = f"members {_names(group.members)}" if group.members else "no members"
        yield f"{group.group_id}: {group.state}, {members}"
        for (topic, partition), offset in sorted(committed.items()):
            yield f"  {topic}-{partition}: committed {offset}"


def _request_lines(requests: Sequence[SeenRequest]) -> Iterator[str]:
    names = [f"{request.api} v{request.version}" for request in requests]
    width = max(map(len, names), default=0)
    for name, request in zip(names, requests, strict=True):
        yield f"{request.seconds_ago:7.3f} s ago  {name:{width}}  {request.client_id or '-'}  {request.outcome}"


def _names(names: Iterable[str]) -> str:
    all_names = list(names)
    rest = len(all_names) - _MOST_NAMES
    return ", ".join(all_names[:_MOST_NAMES]) + (f" and {rest} more" if rest > 0 else "")
