"""What there is to know of a setting beyond its one line: `kop config NAME` shows it.

Owns: those texts.
Must not know: the settings' values.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

_OFFSETS: Final = """\
Index is exact: offsets are dense, Kafka's in every respect. The Pulsar brokers have to send it; where they do not, the
gateway says which two settings of the Pulsar brokers are missing and does not start.

Packed is for Pulsar brokers whose settings cannot be changed. An offset is 30 bits of ledger id, 19 of entry and 14 of
place in the batch. Every request works, with these limits:

- A topic's first offset is not 0, and there is a gap behind every batch and every ledger. Consumers step over gaps as
in a compacted topic, but numbers of records taken from offsets mean nothing, lag among them; a lag of 0 is none.

- From ledger 1048576 on offsets exceed 2^53: tools that keep them as floating point round them.

- A batch has to fit one Pulsar entry (maxMessageSize, before compression) and have 16384 records at most; others are
MESSAGE_TOO_LARGE. Java producers split such a batch by themselves, others need a smaller batch.size or
batch.num.messages.

- A ledger has offsets for 524287 entries. The gateway unloads a partition that comes near, which closes the ledger;
its role has to be an admin of the tenant for that. Where that fails, writes are refused before the end
(KAFKA_STORAGE_ERROR), and what Pulsar clients write behind the end only they can read.

- Entries of Pulsar clients with more than 16384 messages are CORRUPT_MESSAGE: consumers have to seek over them.

- On a cluster with ledger ids above 1073741823 the gateway does not start.

- A consumer that stood in a ledger which retention took goes on with the oldest record; it is not told
OFFSET_OUT_OF_RANGE. It is logged and counted (packed_offsets/read_before_log_start).

- LogAppendTime is when the entry was sent by its sender's clock (a Kafka broker's, for Kafka clients), and
look-ups by time go by those clocks.

The first broker on a kop.pulsar.metadata.namespace chooses for all of them; one that is set otherwise does not start.
To change it, name another namespace: committed offsets do not come along."""

NOTES: Final[Mapping[str, str]] = {"kop.pulsar.offsets": _OFFSETS}
"""The notes by the name of the setting, each in paragraphs."""
