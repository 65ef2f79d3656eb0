"""One entry of Pulsar with the Kafka offsets of its messages.

Owns: `EntryWithOffsets`, what an entry's metadata says.
Must not know: how entries are read, which offset a message has.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from kop.errors import ErrorCode, KopError, PeerError
from kop.pulsar_client import Entry, Position
from kop.records import transcode

INDEX_HELP: Final = (
    "the Pulsar brokers send no entry index, so there are no offsets. Add to broker.conf (or standalone.conf) and "
    "restart:\n"
    "  brokerEntryMetadataInterceptors=org.apache.pulsar.common.intercept.AppendIndexMetadataInterceptor,"
    "org.apache.pulsar.common.intercept.AppendBrokerTimestampMetadataInterceptor\n"
    "  exposingBrokerEntryMetadataToClientEnabled=true\n"
    "Where that cannot be, kop.pulsar.offsets=packed makes offsets of the message ids; what it costs is said by "
    "`kop config kop.pulsar.offsets`"
)

NO_TIMES_HELP: Final = (
    "the Pulsar brokers do not say when they took an entry: LogAppendTime is the time at which its producer sent it, "
    "by that one's clock. Add org.apache.pulsar.common.intercept.AppendBrokerTimestampMetadataInterceptor to "
    "brokerEntryMetadataInterceptors in broker.conf (or standalone.conf) and restart"
)


class EntryWithOffsets(NamedTuple):
    """An entry with its offsets. The entry's bytes are there only while a stream hands it out."""

    position: Position
    base: int
    last: int
    """The offset of the entry's last message. Offsets between the entry before and `base` were not handed out."""
    entry: Entry
    info: transcode.EntryView
    error: KopError | None = None
    """The error for which the entry cannot be read. Then `info` says nothing, and `base` is exact if the messages can
    be counted.
    """

    @property
    def append_time(self) -> int:
        """The time at which the Pulsar broker took the entry, in ms; if the broker does not tell it, the entry's
        publish time.
        """
        return self.entry.broker_timestamp or self.info.publish_time

    @property
    def has_offsets(self) -> bool:
        """True if the entry has offsets; false if the Pulsar broker gave it no index: it was written before Pulsar
        brokers were set up to give one.
        """
        return self.base >= 0


NOTHING: Final = transcode.EntryView("", 0, 0, 0, 0, 1, False, 0, 0, False, False, -1, -1, 0, 0, "", -1, -1)


def view_of(entry: Entry) -> tuple[transcode.EntryView, KopError | None]:
    """Return an entry's parsed metadata, and None. If it does not parse, or the entry is damaged: a view that says
    nothing, and the error for clients.
    """
    if entry.damaged:
        return NOTHING, PeerError(entry.damaged, ErrorCode.CORRUPT_MESSAGE)
    try:
        return transcode.parse_entry(entry.metadata), None
    except transcode.UndecodableEntryError as error:
        return NOTHING._replace(num_messages=entry.num_messages), error.with_traceback(None)
