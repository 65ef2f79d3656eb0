"""What every client of a process is given.

Owns: how long clients wait, when they stop.
Must not know: how a client is driven.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from typing import Any

from conformance.checker.recorder import Recorder
from conformance.checker.workload import (
    CHAINS,
    CONSUMERS,
    WRITERS,
    ChainRole,
    ConsumerRole,
    Family,
    Names,
    Settings,
    WriterRole,
)
from conformance.harness import tenants

ANSWER_SECONDS = 40.0
"""For what is repeated until it is answered: an end of a transaction, the initialization of a producer."""
RECORD_SECONDS = 120.0
"""How long a producer without transactions tries to deliver a record. Longer than any fault: librdkafka begins a new
epoch after a timeout, and sends what may be stored already once more in that, to any server."""

WAITING = 100
"""Records without an answer after which a producer without transactions waits: what it has while a server is down."""


class Work:
    """The run as a process of clients sees it."""

    def __init__(self, settings: Settings, recorder: Recorder) -> None:
        self.librdkafka: Mapping[str, Any] = {"bootstrap.servers": settings.bootstrap} | tenants.librdkafka(
            settings.user
        )
        """The settings of librdkafka by which clients connect."""
        self.aiokafka: Mapping[str, Any] = {"bootstrap_servers": settings.bootstrap.split(",")} | tenants.aiokafka(
            settings.user
        )
        """The arguments of aiokafka by which clients connect."""
        self.seed = settings.seed
        self.names = Names(settings.prefix)
        self.recorder = recorder
        self.stop_writing = threading.Event()
        """Writers end what they have begun; chains make no more transactions that fail on purpose."""
        self.stop = threading.Event()
        """Everybody ends."""

    @property
    def over(self) -> bool:
        """Whether there is no sense in trying again."""
        return self.stop.is_set()

    def writers(self, family: Family) -> Iterator[WriterRole]:
        return (role for role in WRITERS if role.family == family)

    def consumers(self, family: Family) -> Iterator[ConsumerRole]:
        return (role for role in CONSUMERS if role.family == family)

    def chains(self, family: Family) -> Iterator[ChainRole]:
        return (role for role in CHAINS if role.family == family)
