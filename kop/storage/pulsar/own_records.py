"""Records that the gateway itself writes to topics of its own.

Owns: their way from records to one entry that is sent.
Must not know: what they say, who reads them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from kop import clock
from kop.pulsar_client import Client, Position, Producer, TxnId
from kop.records import transcode
from kop.records.batch import build, read_header
from kop.records.record import Record


def send_records(
    client: Client, producer: Producer, records: Sequence[Record], sequence_id: int, txn: TxnId | None = None
) -> asyncio.Future[Position]:
    """Send a few records as one entry, the first of which has this sequence id; the future is that of `Producer.send`.
    With `txn` the entry names that transaction, and is not sent in it.
    """
    batch = build(records)
    (entry,) = transcode.to_entries(
        batch,
        read_header(batch),
        producer_name=producer.name,
        sequence_base=sequence_id,
        publish_time=clock.wall_ms(),
        max_size=client.max_message_size,
        txn=None if txn is None else transcode.EntryTransaction(*txn),
    )
    return producer.send(
        entry.metadata,
        entry.payload,
        sequence_id=sequence_id,
        highest_sequence_id=sequence_id + len(records) - 1,
        num_messages=len(records),
    )
