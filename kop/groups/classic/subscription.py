"""The topics in a consumer's subscription: the one thing that a broker reads in the members' metadata.

Owns: reading the part of `ConsumerProtocolSubscription` that all its versions begin with.
Must not know: groups.
"""

from __future__ import annotations

from typing import Final

CONSUMER_PROTOCOL_TYPE = "consumer"
MOST_TOPICS: Final = 1 << 16
"""A subscription of more topics is not read: metadata has room for millions, which would hold the event loop."""


def topics_of(metadata: bytes) -> frozenset[str] | None:
    """The topics that a consumer subscribes to; None where these bytes are no subscription, or are not read."""
    if len(metadata) < 6 or metadata[0] & 0x80:
        return None
    count = int.from_bytes(metadata[2:6], "big", signed=True)
    if not 0 <= count <= MOST_TOPICS:
        return None
    pos = 6
    topics = set()
    for _ in range(count):
        length = int.from_bytes(metadata[pos : pos + 2], "big", signed=True)
        end = pos + 2 + length
        if length < 0 or end > len(metadata):
            return None
        try:
            topics.add(metadata[pos + 2 : end].decode())
        except UnicodeDecodeError:
            return None
        pos = end
    return frozenset(topics)
