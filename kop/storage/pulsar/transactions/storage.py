"""Kafka's transactions as Pulsar's.

Owns: the Pulsar transaction of each Kafka transaction, from `begin` to `end`; the one that is kept ready.
Must not know: who decides, producers of clients, offsets.

A Kafka transaction is a Pulsar transaction. On each of its partitions a fence lies before its batches (`fences.py`);
batches are sent as all others are, and name the transaction in their metadata. Pulsar shows nobody anything from the
fence on, until the transaction ends. Then all partitions show it, or hide it for good.

The coordinator of the Kafka transaction decides when and how it ends. So Pulsar's own time limit is far longer than any
of Kafka's: Pulsar must not abort what was decided to be committed.

Pulsar answers the second end of a transaction as that of one that never was. So what is not known to Pulsar counts as
ended: the coordinator's record, which is durable before the first end, is what holds.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection
from typing import Final

from kop.errors import ErrorCode, InternalError, KopError, PeerError
from kop.pulsar_client import PulsarError, Transactions, TxnId
from kop.records.transcode import EntryTransaction
from kop.storage.base import EndedTransaction
from kop.storage.pulsar.context import PulsarContext
from kop.storage.pulsar.faults import Fault, Refused
from kop.storage.pulsar.layout import transaction_name, transaction_of
from kop.storage.pulsar.transactions.fences import FencedPartition, Fences

_BEYOND_MS: Final = 24 * 3600 * 1000
"""By how much Pulsar's time limit is longer than Kafka's."""
_READY_MS: Final = 3600 * 1000
"""How long a transaction is kept ready, and what it is ready for."""
_FRESH_SECONDS: Final = 2.0
"""How old the answer that a transaction is open may be when its fences are sent. A broker that was stopped for longer
may have a successor meanwhile, who ends it."""
_TRIES: Final = 3
_GONE: Final = frozenset({"TransactionNotFound", "InvalidTxnStatus"})

log = logging.getLogger(__name__)


class PulsarTransactions:
    """A `TransactionStorage` over Pulsar. `find` gives a partition by its topic's name and its number."""

    def __init__(
        self,
        context: PulsarContext,
        transactions: Transactions,
        fences: Fences,
        find: Callable[[str, int], FencedPartition | None],
    ) -> None:
        self.refusal: str | None = "whether Pulsar has transactions is not known yet"
        self._context = context
        self._transactions = transactions
        self._fences = fences
        self._find = find
        self._ready: asyncio.Task[TxnId] | None = None
        self._ready_since = 0.0

    async def start(self) -> None:
        """Find out whether the cluster has transactions."""
        try:
            await self._transactions.coordinators()
        except PulsarError as error:
            self.refusal = f"there are no transactions: Pulsar says {error.code}: {error.message}"
            log.warning("%s; clients without transactions are served", self.refusal)
        else:
            self.refusal = None

    async def begin(self, timeout_ms: int) -> bytes:
        """See `TransactionStorage.begin`."""
        self._check_refusal()
        txn = await (self._take_ready() if timeout_ms <= _READY_MS else self._new(timeout_ms + _BEYOND_MS))
        return transaction_name(EntryTransaction(*txn))

    async def add(self, storage_transaction: bytes, partitions: Collection[tuple[str, int]]) -> None:
        """See `TransactionStorage.add`. TRANSACTION_ABORTABLE where Pulsar has ended the transaction by itself."""
        self._check_refusal()
        txn = self._named(storage_transaction)
        wanted = [self._existing(name, partition) for name, partition in partitions]
        names = [partition.partition_name for partition in wanted]
        doing = f"cannot add partitions to Pulsar's transaction {txn}"

        async def still_open() -> None:
            """A fence of a transaction that has ended would hold readers back for good: the answer has to be fresh."""
            for _ in range(_TRIES):
                asked = self._context.loop.time()
                await self._transactions.add(txn, names)
                if self._context.loop.time() - asked < _FRESH_SECONDS:
                    return
            raise PulsarError("Timeout", f"the coordinator of {txn} is slow, or this broker is")

        try:
            await still_open()
            fences = [self._fences.put(partition, txn, still_open) for partition in wanted]
            for error in await asyncio.gather(*fences, return_exceptions=True):
                if error is not None:
                    raise error
        except PulsarError as error:
            refused = self._context.faults.refused(error, Refused.TRANSACTIONS, doing)
            if error.code in _GONE:
                raise PeerError(refused.message, ErrorCode.TRANSACTION_ABORTABLE) from error
            raise refused from error

    async def end(self, ended: EndedTransaction) -> None:
        """See `TransactionStorage.end`."""
        txn = self._named(ended.storage_transaction)
        try:
            await self._transactions.end(txn, commit=ended.commit)
        except PulsarError as error:
            if error.code == "TransactionNotFound":
                self._ended_before(ended, txn)
                return
            doing = f"cannot end Pulsar's transaction {txn} of {ended.transactional_id!r}"
            raise self._context.faults.refused(error, Refused.TRANSACTIONS, doing) from error

    def _ended_before(self, ended: EndedTransaction, txn: TxnId) -> None:
        self._context.count(Fault.TRANSACTIONS_ENDED_BEFORE)
        log.info(
            "transactional id %r: Pulsar's transaction %d:%d, which is to be %s, has ended before",
            ended.transactional_id,
            *txn,
            "committed" if ended.commit else "aborted",
        )

    def close_idle(self, now: float, seconds: float) -> None:
        """Let go what nobody used for `seconds`; `now` is the loop's time."""
        self._fences.close_idle(now, seconds)

    async def close(self) -> None:
        """End the transaction that is ready for nobody, and close the fences' producers."""
        ready, self._ready = self._ready, None
        if ready is not None:
            if not ready.done():
                ready.cancel()
            (txn,) = await asyncio.gather(ready, return_exceptions=True)
            if isinstance(txn, TxnId):
                await self._give_back(txn)
        await self._fences.close()

    # --- inside

    def _check_refusal(self) -> None:
        if self.refusal is not None:
            raise PeerError(self.refusal, ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED)

    @staticmethod
    def _named(storage_transaction: bytes) -> TxnId:
        named = transaction_of(storage_transaction)
        if named is None:
            raise InternalError(f"{storage_transaction.hex()!r} names no transaction of Pulsar")
        return TxnId(named.most, named.least)

    def _existing(self, name: str, partition: int) -> FencedPartition:
        existing = self._find(name, partition)
        if existing is None:
            raise PeerError(f"there is no partition {name}-{partition}", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        return existing

    async def _new(self, ttl_ms: int) -> TxnId:
        try:
            return await self._transactions.new(ttl_ms)
        except PulsarError as error:
            raise self._context.faults.refused(error, Refused.TRANSACTIONS, "cannot begin a transaction") from error

    async def _take_ready(self) -> TxnId:
        """The transaction that is ready, if one is; another one is made ready for the next caller."""
        ready, since, now = self._ready, self._ready_since, self._context.loop.time()
        self._ready = self._context.loop.create_task(self._new(2 * _READY_MS + _BEYOND_MS))
        self._ready.add_done_callback(_heard)
        self._ready_since = now
        if ready is not None:
            try:
                txn = await asyncio.shield(ready)
            except KopError:
                pass  # it was asked for when Pulsar did not answer
            else:
                if now - since < _READY_MS / 1000:
                    return txn
                self._context.spawn(self._give_back(txn))
        return await self._new(_READY_MS + _BEYOND_MS)

    async def _give_back(self, txn: TxnId) -> None:
        try:
            await self._transactions.end(txn, commit=False)
        except PulsarError as error:
            log.info("Pulsar's transaction %d:%d, in which nothing is, ends by its time limit: %s", *txn, error)


def _heard(task: asyncio.Task[TxnId]) -> None:
    """Read the error, so that asyncio does not report it where nobody asks for the transaction."""
    if not task.cancelled():
        task.exception()
