"""The topics in a consumer's subscription: the one thing that a broker reads in the members' metadata.

Owns: reading the part of `ConsumerProtocolSubscription` that all its versions begin with.
Must not know: groups.
"""

from __future__ import annotations

CONSUMER_PROTOCOL_TYPE = "consumer"


def topics_of(metadata: bytes) -> frozenset[str] | None:
    """The topics that a consumer subscribes to, or None where these bytes are no subscription."""
    if len(metadata) < 6 or metadata[0] & 0x80:
        return None
    count = int.from_bytes(metadata[2:6], "big", signed=True)
    if count < 0 or count > len(metadata):
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
