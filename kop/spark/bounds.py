"""Where a read starts and ends, as the options say it: not yet offsets.

Owns: the ways to say it. Must not know: pyspark, how options are written, how a bound becomes offsets.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from kop.spark.offsets import TopicPartition

if TYPE_CHECKING:
    from kop.spark.message_ids import MessageId


@dataclass(frozen=True, slots=True)
class Bound:
    """Where a read starts, or where it ends (that offset is not read any more).

    One of the five is set: an offset for all partitions (EARLIEST or LATEST), an offset for each, a time for all, a
    time for each (ms since the epoch), or a message for each. `option` is the name of the option that said so, for
    errors.
    """

    option: str
    everywhere: int | None = None
    each: Mapping[TopicPartition, int] | None = None
    time: int | None = None
    times: Mapping[TopicPartition, int] | None = None
    messages: Mapping[TopicPartition, MessageId] | None = None
    behind: bool = False
    """The offset behind the message is meant, not its own."""
