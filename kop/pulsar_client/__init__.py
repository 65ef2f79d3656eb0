"""A client of Apache Pulsar's binary protocol for asyncio.

Owns: what the gateway needs of that protocol: ready batches in, entries with the broker's index out.
Must not know: Kafka. Nothing here imports another package of ours.
"""

from kop.pulsar_client.client import Client
from kop.pulsar_client.errors import EntryRefusedError, PulsarError, exclusive_holder
from kop.pulsar_client.producer import Producer
from kop.pulsar_client.reader import Reader
from kop.pulsar_client.tls import TlsOptions
from kop.pulsar_client.transactions import Transactions
from kop.pulsar_client.types import (
    DUPLICATE,
    EARLIEST,
    LATEST,
    Access,
    Auth,
    Entry,
    Position,
    Received,
    TxnId,
    position_in,
)
from kop.pulsar_client.watch import Watch

__all__ = [
    "DUPLICATE",
    "EARLIEST",
    "LATEST",
    "Access",
    "Auth",
    "Client",
    "Entry",
    "EntryRefusedError",
    "Position",
    "Producer",
    "PulsarError",
    "Reader",
    "Received",
    "TlsOptions",
    "Transactions",
    "TxnId",
    "Watch",
    "exclusive_holder",
    "position_in",
]
