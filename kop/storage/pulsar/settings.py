"""What can be set of the engine over Pulsar.

Owns: the settings and their defaults.
Must not know: who reads them.
"""

from __future__ import annotations

from dataclasses import dataclass

from kop.storage.tail_cache import reads_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class PulsarSettings:
    """What can be set of the engine over Pulsar. Sizes in bytes, times in seconds."""

    namespace: str = "public/default"
    """`tenant/namespace` whose topics Kafka clients see."""
    metadata_namespace: str = "public/kafka"
    """Where `__offsets` and the gateway's own topic lie."""
    cache_bytes: int = 64 << 20
    """For the newest batches, those of open transactions, and what readers behind the tails hold, all together."""
    max_queued_bytes: int = 256 << 20
    tail_seconds: float = 300.0
    """Seconds after which a partition that nobody asks for has no reader any more. The next request attaches it again.
    """
    idle_seconds: float = 10.0
    """Seconds after which an unused producer of an idempotent producer id is closed, so that another broker may open
    it.
    """
    list_seconds: float = 60.0
    """Time between full listings, which find what the watcher missed."""
    offsets: str = "index"
    """What offsets are made of: index, or packed from the message id; see `offsets/mapping.py`."""

    @property
    def read_ahead_bytes(self) -> int:
        """What all readers behind the tails, and results that wait for their reader, may hold together."""
        return reads_bytes(self.cache_bytes)
