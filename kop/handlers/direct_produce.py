"""The Produce requests that compiled code carries from their frame to their answer (`kop/_native/src/direct/`).

Owns: a table of writers for each of those who have the same rights, which topics, partitions and producers are in it,
what such an answer says where a batch was refused after all, and counting these requests.
Must not know: how batches are stored; logs say which of them may be written to so (`PartitionLog.direct_writer`).

A request is taken where nothing about it is unusual and all of its batches have a writer; all others are handled by
`produce.py`, which offers a writer for the next ones. Either way leads to the same answer.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import TYPE_CHECKING, Final

from kop.cluster.topic_configs import ProduceRules
from kop.compiled import compiled_only
from kop.errors import ErrorCode, KopError
from kop.handlers.access import AccessControl
from kop.handlers.api import Answer
from kop.handlers.produce_targets import ProduceTargets, refused_by_log
from kop.metrics import Metrics
from kop.records.batch import BatchHeader
from kop.records.compression import Codec
from kop.security.audit import Peer
from kop.security.tenants import HOME, Space
from kop.storage.base import PartitionLog
from kop.wire.names import outward_text
from kop.wire.produce import encode_partition

if TYPE_CHECKING:
    from kop._native import DirectRequests

_PRUNE_EVERY: Final = 256
"""The number of writers after whose addition writers that are closed are forgotten."""

TakeRequest = Callable[[memoryview, float, float, int], Answer | None]
"""The type of the compiled function that takes a Produce: it gets the frame without its size, the time of its arrival
(perf_counter), the loop's time and the wall clock in ms. It returns None, with nothing done, if the request has to go
the ordinary way.
"""


def _nothing(frame: memoryview, arrived: float, loop_time: float, now_ms: int) -> None:
    """Return None for any request, so that it goes the ordinary way: its client has no writer, and need not even have
    logged in, so nothing is kept for it.
    """


class _OfSpace:
    """The methods that compiled code calls about requests of clients who work in a space of names, in which topics go
    by the clients' names.
    """

    def __init__(self, direct: DirectProduce, space: Space) -> None:
        self._direct = direct
        self._space = space
        self.ended = direct.ended

    def refusal(self, version: int, topic: str | bytes, partition: int, error: KopError) -> tuple[int, bytes]:
        """Return the error code and the encoded answer of a partition whose batch was not stored, as
        `DirectProduce.refusal` does, with the names that the client uses in its text.
        """
        stored = self._space.inward(topic) if isinstance(topic, str) else topic
        told = KopError(outward_text(error.message, self._space) or "", error.code)
        return self._direct.refusal(version, stored, partition, told)


class DirectProduce:
    """The Produce requests that compiled code answers, by tables of writers. `take` is None without the compiled
    module.
    """

    def __init__(self, access: AccessControl, targets: ProduceTargets, metrics: Metrics) -> None:
        self._access = access
        self._targets = targets
        self._metrics = metrics
        self._versions: Hashable = None
        self._added = 0
        self._native = compiled_only()
        self._tables: dict[Hashable, DirectRequests] = {}
        """The tables of writers, one for each group of clients with the same rights, which are not checked again."""
        self.take: TakeRequest | None = None
        """The function that takes any client's Produce, after `look`, as long as there is no authorizer; None without
        the compiled module.
        """
        if self._native is not None:
            self.take = self._table(None).take
            metrics.before_scrape(self._count)

    def look(self) -> None:
        """Forget all writers if a topic, a config or a right has changed since the last call. To be called before
        requests are handled.
        """
        versions = self._targets.versions
        if versions != self._versions:
            self._versions = versions
            self._count()
            for who, table in list(self._tables.items()):
                table.clear()
                if who is not None:
                    del self._tables[who]

    def take_of(self, peer: Peer) -> TakeRequest:
        """Return the function that handles Produce requests of this client in compiled code; for a client without a
        writer it takes none. It is good until the next `look`.
        """
        table = self._tables.get(self._access.who(peer))
        return _nothing if table is None else table.take

    def _table(self, who: Hashable, space: Space = HOME) -> DirectRequests:
        table = self._tables.get(who)
        if table is None:
            assert self._native is not None
            asked = _OfSpace(self, space) if space.prefix else self
            table = self._tables[who] = self._native.DirectRequests(asked, self._metrics.latency.of("Produce"))
        return table

    def offer(
        self, peer: Peer, topic: str | bytes, rules: ProduceRules, log: PartitionLog, header: BatchHeader
    ) -> None:
        """Offer compiled code a writer for the producer of a batch that the log has just accepted, so that its next
        batches need not pass the handler. Do nothing if the batch, the topic or the log does not allow that.

        `peer` is the client that sent it; `topic` is the topic that the request names: a stored name, or the 16 bytes
        of an id.
        """
        if self._native is None or header.transactional or rules.log_append_time or self._access.decides_each_time:
            return
        writer = log.direct_writer(header)
        if writer is None or rules.codec not in {None, Codec.NONE}:
            return
        space = peer.space
        if space.prefix and isinstance(topic, str) and (name := space.outward(topic)) is not None:
            topic = name  # compiled code reads requests with the client's names
        requests = self._table(self._access.who(peer), space)
        self._added += 1
        if self._added % _PRUNE_EVERY == 0:
            requests.prune()
        requests.add(
            topic,
            log.index,
            max(header.producer_id, -1),
            writer,
            rules.max_message_bytes,
            *rules.time_limits,
            rules.compact,
            rules.codec is None,
        )

    # --- what compiled code asks

    def refusal(self, version: int, topic: str | bytes, partition: int, error: KopError) -> tuple[int, bytes]:
        """Return the error code and the encoded answer of a partition whose batch was not stored, or may not have been.
        Compiled code calls this.
        """
        return error.code, encode_partition(version, refused_by_log(self._targets, topic, partition, error))

    def ended(self, codes: Sequence[int], throttled: bool) -> None:
        """Count an answer that has errors (`codes` has each of them once) or a throttle time. Compiled code calls
        this.
        """
        for code in codes:
            self._metrics.errors.labels("Produce", ErrorCode(code).name).inc()
        if throttled:
            self._metrics.throttled.value += 1

    def _count(self) -> None:
        metrics = self._metrics
        for table in self._tables.values():
            table.prune()
            records, size, requests = table.counted()
            metrics.produced_records.value += records
            metrics.produced_bytes.value += size
            for version, count in enumerate(requests):
                if count:
                    metrics.requests.of("Produce", str(version)).value += count
