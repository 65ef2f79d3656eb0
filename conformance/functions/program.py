"""The function that runs are about, as a user would write it. `kop functions localrun` runs it, not the checkout.

Each message gives one result, and one publish if it has a key. It fails at its first attempt for some messages.
"""

from __future__ import annotations

import zlib
from typing import Any

from pulsar import Function

_failed: set[str] = set()


class PlannedError(Exception):
    """What is raised on purpose."""


class Transform(Function):  # type: ignore[misc]  # the class is not there without pulsar-client
    """The user config: `published` is the topic of publishes, `counts` is true if there is state."""

    def process(self, input: str, context: Any) -> str:
        """Return the message with how many of its unit came, this one included, and a sum over all of them."""
        published = context.get_user_config_value("published")
        key = context.get_partition_key()
        counted = ""
        if context.get_user_config_value("counts"):
            unit = f"{context.get_current_message_topic_name()} {context.get_message_partition_index()} {key}"
            context.incr_counter(f"count {unit}", 1)
            before = context.get_state(f"sum {unit}")
            total = zlib.crc32(input.encode(), int(before or 0))
            context.put_state(f"sum {unit}", str(total))
            counted = f" {context.get_counter(f'count {unit}')} {total}"
        if zlib.crc32(input.encode()) % 400 == 0 and input not in _failed:
            _failed.add(input)
            raise PlannedError(input)
        if key:
            context.publish(published, f"{input}{counted}", message_conf={"partition_key": key})
        return f"{input}{counted}"
