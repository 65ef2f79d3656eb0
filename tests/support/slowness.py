"""What a slow Pulsar alone makes the engine count, so that a test can assert that nothing else was counted.

On a machine that is shared a topic's transaction buffer recovers late and a tail brings entries late. The engine then
asks Pulsar for what it needs, again where no answer comes in time, answers rightly and counts that it asked. A test
whose subject is another one must not fail for that.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from kop.storage.pulsar.faults import Fault

SLOWNESS: Final = frozenset(
    {
        Fault.TAIL_LATE_END_ASKED,
        Fault.TAIL_LATE_OFFSET_ASKED,
        Fault.OFFSETS_UNKNOWN_REQUEST_FAILED,
        Fault.TAIL_LATE_TRANSACTION_BUFFER,
        Fault.TAIL_LATE_NO_REASON,
        Fault.TOPICS_NOT_READ_AT_START,
    }
)


def beyond_slowness(counts: Mapping[str, int]) -> dict[str, int]:
    """Of the counts of an engine those that a slow Pulsar alone does not explain."""
    return {name: count for name, count in counts.items() if name not in SLOWNESS}
