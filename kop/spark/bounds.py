"""The start and the end of a read, as the options say it: not yet offsets.

Owns: the ways to say it. Must not know: pyspark, how options are written, how a bound becomes offsets.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, TypeVar

from kop.client.offsets import TopicPartition

if TYPE_CHECKING:
    from kop.spark.message_ids import MessageId

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Bound:
    """The start or the end of a read; the offset of an end is not read any more.

    One of the five fields is set: an offset for all partitions (EARLIEST or LATEST), an offset for each, a time for
    all, a time for each (ms since the epoch), or a message for each. `option` is the name of the option that gave it,
    for errors.
    """

    option: str
    everywhere: int | None = None
    each: Mapping[TopicPartition, int] | None = None
    time: int | None = None
    times: Mapping[TopicPartition, int] | None = None
    messages: Mapping[TopicPartition, MessageId] | None = None
    behind: bool = False
    """True if the offset behind the message is meant, not its own."""

    @property
    def named(self) -> Collection[TopicPartition] | None:
        """The partitions that the bound names; None if it is for all alike."""
        for given in (self.each, self.times, self.messages):
            if given is not None:
                return given.keys()
        return None

    def only(self, partitions: Collection[TopicPartition]) -> Bound:
        """Return the bound with only those of its named partitions that are in `partitions`; a bound for all alike
        stays as it is.
        """
        return replace(
            self,
            each=_only(self.each, partitions),
            times=_only(self.times, partitions),
            messages=_only(self.messages, partitions),
        )


def _only(
    given: Mapping[TopicPartition, T] | None, partitions: Collection[TopicPartition]
) -> dict[TopicPartition, T] | None:
    return None if given is None else {p: at for p, at in given.items() if p in partitions}
