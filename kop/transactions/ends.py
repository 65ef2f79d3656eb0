"""Ending a transaction wherever it left something: in storage, in groups, in what brokers have verified of it.

Owns: the order of these, and what the other brokers are asked to do (WriteTxnMarkers, as Kafka's brokers ask).
Must not know: who decided, how storage or groups do it.

No broker may write into a transaction that ends, so all of them are told first. One that cannot be reached may go on
for as long as its verification is good (`verification.LEASE_SECONDS`): the end waits for that. It waits from when a
broker left, so a coordinator verifies nothing for a broker that is not live. A transaction that began under another
coordinator may be verified for a broker that this one does not see: its end waits from when it was taken over.

Nothing is verified of a transaction once its end is decided, and a verification is good from before it is asked for. So
none is good any more that long after the decision: whatever a broker without offsets to end does, no end waits longer.

Mostly it need not wait at all: a broker that was killed writes nothing, and storage knows that. So storage is asked
whether any other broker has the partitions open for writing under the producer id (`nobody_else_writes`). A gateway
that is killed every few seconds would else end nothing: each one that takes over would begin to wait anew. Offsets need
no such wait: who coordinates them has fenced all others.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection
from typing import Final, Protocol
from uuid import UUID

from kop import clock
from kop.cluster.client_topics import KAFKA_OFFSETS_TOPIC
from kop.cluster.cluster_view import ClusterView
from kop.coordination.peers import Peers
from kop.errors import BackendError, ErrorCode, KopError
from kop.repeats import Lasting, Repeats
from kop.storage.base import EndedTransaction, TransactionStorage
from kop.transactions.verification import LEASE_SECONDS, TransactionVerifier
from kop.wire.messages import WriteTxnMarkersRequest
from kop.wire.transaction_state import STORAGE_TRANSACTION

_VERSION: Final = 2

_log = logging.getLogger(__name__)


class PendingOffsets(Protocol):
    """The part of the group coordinator that keeps the pending offsets of transactions."""

    @property
    def topic_id(self) -> UUID:
        """The id of the topic that keeps groups' offsets."""

    async def end_transaction(
        self,
        offsets_partitions: Collection[int],
        producer_id: int,
        producer_epoch: int,
        *,
        commit: bool,
        storage_transaction: bytes,
    ) -> ErrorCode:
        """Commit or drop the pending offsets of a producer's transaction in these partitions of `__offsets`; return
        NONE once all of that is durable, else an error.
        """


class TransactionEnds:
    """The carrying out of transactions' ends: the `Markers` of the coordinator here, and this broker's part of ends
    that other brokers' coordinators decide.
    """

    def __init__(
        self,
        storage: TransactionStorage,
        offsets: PendingOffsets,
        cluster: ClusterView,
        peers: Peers,
    ) -> None:
        self._storage = storage
        self._offsets = offsets
        self._cluster = cluster
        self._peers = peers
        self._others: set[int] = set()
        self._lasting = Lasting()
        self._repeats = Repeats()
        self._left_at = float("-inf")
        """The time at which a broker last left the cluster, by `clock.monotonic`. It may go on for a while, and nobody
        tells it of ends.
        """
        self._calls: set[asyncio.Task[KopError | None]] = set()
        """The calls to other brokers. One that nobody waits for any more goes on, since its result shows if a
        connection is lost.
        """
        self.verifier: TransactionVerifier | None = None
        """The verifier of this broker, which has to forget a transaction that ends; set once, before the first end."""
        cluster.on_change(self._brokers_changed)
        self._brokers_changed()

    def _brokers_changed(self) -> None:
        others = set(self._cluster.ids) - {self._cluster.broker_id}
        if self._others - others:
            self._left_at = clock.monotonic()
        self._others = others

    async def write(self, ended: EndedTransaction, taken_over_at: float, decided: float) -> None:
        """Carry out the end of a transaction on all brokers: none accepts records for it any more, offsets are
        committed or dropped, and storage ends it. KopError if a part fails: it is tried again. For the times see
        `Markers.write`.
        """
        left_at = self._left_at if self._cluster.alone else max(self._left_at, taken_over_at)
        self.forget(ended.producer_id, ended.storage_transaction)
        records = frozenset(partition for partition in ended.partitions if partition[0] != KAFKA_OFFSETS_TOPIC)
        in_records = ended._replace(partitions=records)
        of_offsets = {index for topic, index in ended.partitions if topic == KAFKA_OFFSETS_TOPIC}
        if self._others:
            of_offsets = await self._tell_others(ended, in_records, of_offsets, decided, left_at)
        else:
            await self._wait_for_writers(in_records, min(left_at, decided) + LEASE_SECONDS)
        offsets = self.end_offsets(
            of_offsets, ended.producer_id, ended.producer_epoch, ended.storage_transaction, commit=ended.commit
        )
        if records or ended.storage_transaction:
            error, _ = await asyncio.gather(offsets, self._storage.end(in_records))
        else:
            error = await offsets
        if error:
            raise KopError(f"the offsets of transactional id {ended.transactional_id!r} cannot be written", error)

    def forget(self, producer_id: int, storage_transaction: bytes) -> None:
        """Forget that partitions were verified for the producer's transaction, so that this broker accepts nothing more
        for it, and writes nothing that it accepted before.
        """
        if self.verifier is not None:
            self.verifier.forget(producer_id)
        self._storage.stop_writes(storage_transaction)

    async def end_offsets(
        self,
        offsets_partitions: Collection[int],
        producer_id: int,
        producer_epoch: int,
        storage_transaction: bytes,
        *,
        commit: bool,
    ) -> ErrorCode:
        """Commit or drop the transaction's offsets in these partitions of `__consumer_offsets`, which this broker
        coordinates; return NONE once that is durable, else an error. Pending offsets of a newer epoch are logged, and
        no error.
        """
        if not offsets_partitions:
            return ErrorCode.NONE
        error = await self._offsets.end_transaction(
            offsets_partitions, producer_id, producer_epoch, commit=commit, storage_transaction=storage_transaction
        )
        if error is ErrorCode.INVALID_PRODUCER_EPOCH:  # those of this transaction are not pending any more
            _log.warning("producer %d has offsets pending of a newer epoch than %d", producer_id, producer_epoch)
            return ErrorCode.NONE
        return error

    async def _tell_others(
        self,
        ended: EndedTransaction,
        in_records: EndedTransaction,
        of_offsets: set[int],
        decided: float,
        left_at: float,
    ) -> set[int]:
        """Let every other broker carry out its part of a transaction's end; return the partitions of
        `__consumer_offsets` that this broker coordinates. KopError if a broker has not ended the offsets that it
        coordinates.

        `in_records` is the transaction without its partitions of offsets. `decided` is the time from which no partition
        was verified to be in it, `left_at` the time at which the last broker left that is not told and may have
        verified something; both by `clock.monotonic`. Returns once no broker that was not reached can write into the
        transaction.
        """
        topic_id = self._offsets.topic_id
        parts: dict[int, list[int]] = {broker_id: [] for broker_id in self._others}
        own: set[int] = set()
        for index in of_offsets:
            leader = self._cluster.leader(topic_id, index)
            parts[leader].append(index) if leader in parts else own.add(index)
        loop = asyncio.get_running_loop()
        calls = {broker_id: loop.create_task(self._tell(broker_id, ended, part)) for broker_id, part in parts.items()}
        for call in calls.values():
            self._calls.add(call)
            call.add_done_callback(self._calls.discard)
        over = decided + LEASE_SECONDS
        await asyncio.wait(calls.values(), timeout=max(over - clock.monotonic(), 0))
        if needed := [call for broker_id, call in calls.items() if parts[broker_id]]:
            await asyncio.wait(needed)
        until = min(max(self._left_at, left_at) + LEASE_SECONDS, over)  # one may have left while others were told
        failed: list[KopError] = []
        for broker_id, call in calls.items():
            error = call.result() if call.done() else BackendError("no answer yet", ErrorCode.NETWORK_EXCEPTION)
            if error is None:
                self._lasting.over(broker_id)
                continue
            level = logging.WARNING if self._lasting.lasts(broker_id, clock.monotonic()) else logging.INFO
            if self._repeats.say((broker_id, level), clock.monotonic()) is not None:
                _log.log(
                    level, "broker %d has not done its part of the end of a transaction: %s", broker_id, error
                )  # fmt: skip
            if error.code is ErrorCode.NETWORK_EXCEPTION:
                until = over
            if parts[broker_id]:
                failed.append(error)
        await self._wait_for_writers(in_records, until)
        if failed:
            raise failed[0]
        return own

    async def _wait_for_writers(self, in_records: EndedTransaction, until: float) -> None:
        """Wait until no broker that could not be told of the end writes into the transaction.

        None does from `until` on, a time of `clock.monotonic`; storage may know earlier that none does.
        """
        if (rest := until - clock.monotonic()) <= 0:
            return
        try:
            async with asyncio.timeout(rest):
                if not await self._storage.nobody_else_writes(in_records):
                    await asyncio.sleep(rest)
        except TimeoutError:
            pass

    async def _tell(self, broker_id: int, ended: EndedTransaction, of_offsets: list[int]) -> KopError | None:
        marker = WriteTxnMarkersRequest.WritableTxnMarker
        topic = marker.WritableTxnMarkerTopic
        topics = [topic(version=_VERSION, name=KAFKA_OFFSETS_TOPIC, partition_indexes=of_offsets)] if of_offsets else []
        request = WriteTxnMarkersRequest(
            version=_VERSION,
            markers=[
                marker(
                    version=_VERSION,
                    producer_id=ended.producer_id,
                    producer_epoch=ended.producer_epoch,
                    transaction_result=ended.commit,
                    topics=topics,
                    coordinator_epoch=0,
                    transaction_version=ended.client_version,
                )
            ],
        )
        try:
            answer = await self._peers.call(broker_id, request, {STORAGE_TRANSACTION: ended.storage_transaction})
        except KopError as error:
            return error
        for row in answer.message.markers:
            for of_topic in row.topics:
                for partition in of_topic.partitions:
                    if code := ErrorCode(partition.error_code):
                        text = f"it answers {code.name} for {of_topic.name}-{partition.partition_index}"
                        return KopError(text, code)
        return None
