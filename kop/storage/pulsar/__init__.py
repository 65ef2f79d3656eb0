"""The engine over Apache Pulsar: topics live there, Kafka and Pulsar clients share them."""

from kop.storage.pulsar.access import Access
from kop.storage.pulsar.engine import PulsarEngine, open_engine
from kop.storage.pulsar.settings import PulsarSettings

__all__ = ["Access", "PulsarEngine", "PulsarSettings", "open_engine"]
