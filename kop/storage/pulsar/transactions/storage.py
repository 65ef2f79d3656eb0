"""Kafka's transactions as Pulsar's.

Owns: the Pulsar transaction of each Kafka transaction, from `begin` to `end`; the one that is kept ready, and those
that are kept open as anchors (`anchors.py`); whether there are transactions at all, and with whole batches in them.
Must not know: who decides, producers of clients, offsets.

A Kafka transaction is a Pulsar transaction. On each of its partitions a fence lies before its batches (`fences.py`);
batches are sent as all others are, and name the transaction in their metadata. Pulsar shows nobody anything from the
fence on, until the transaction ends. Then all partitions show it, or hide it for good.

Where the probe finds that a broker does not treat batches so, each record is sent in the transaction, as an entry of
its own, and no fence is needed. The name of a transaction says which way it goes.

The coordinator of the Kafka transaction decides when and how it ends. So Pulsar's own time limit is far longer than any
of Kafka's: Pulsar must not abort what was decided to be committed.

Pulsar answers the second end of a transaction as that of one that never was. So what is not known to Pulsar counts as
ended: the coordinator's record, which is durable before the first end, is what holds.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection
from typing import Any, Final

from kop.background import cancel
from kop.errors import BackendError, ErrorCode, InternalError, KopError, PeerError
from kop.pulsar_client import PulsarError, Transactions, TxnId
from kop.pulsar_client.backoff import Backoff
from kop.records.transcode import EntryTransaction
from kop.storage.base import EndedTransaction
from kop.storage.pulsar.context import PulsarContext
from kop.storage.pulsar.faults import Fault, Refused
from kop.storage.pulsar.layout import transaction_name, transaction_of
from kop.storage.pulsar.partition.ended_transactions import EndedTransactions
from kop.storage.pulsar.partition.log import PulsarLog
from kop.storage.pulsar.transactions.anchors import DOUBT_SECONDS, SPAN_SECONDS, Anchors
from kop.storage.pulsar.transactions.ends_on_partitions import EndsOnPartitions
from kop.storage.pulsar.transactions.fences import Fences

_BEYOND_MS: Final = 24 * 3600 * 1000
"""The ms by which Pulsar's time limit of a transaction is longer than Kafka's."""
_READY_MS: Final = 3600 * 1000
"""The ms for which a transaction is kept ready; and the longest Kafka timeout that it is ready for."""
_LOOK_AGAIN_SECONDS: Final = 60.0
"""The seconds after which Pulsar is asked again if it has transactions."""
_KNOWN_SECONDS: Final = 20.0
_FRESH_SECONDS: Final = 2.0
"""The age in seconds that the answer that a transaction is open may have when its fences are sent. A broker that was
stopped for longer may have a successor meanwhile, who ends it.
"""
LATE_SECONDS: Final = 2.0
"""The age in seconds that that answer may have when the fences are stored; if it is older, Pulsar is asked again if
they came too late.
"""
_TRIES: Final = 3
_GONE: Final = frozenset({"TransactionNotFound", "InvalidTxnStatus"})

log = logging.getLogger(__name__)


class PulsarTransactions:
    """The transactions of Kafka as transactions of Pulsar, a `TransactionStorage`. `find` gives a partition by its
    topic's name and its number.
    """

    def __init__(
        self,
        context: PulsarContext,
        transactions: Transactions,
        fences: Fences,
        find: Callable[[str, int], PulsarLog | None],
        ended: EndedTransactions,
        *,
        probe: Callable[[], Awaitable[str | None]],
        packed: bool,
    ) -> None:
        """Begin without knowing if there are transactions. `find` returns a partition by topic name and number; `ended`
        is told of those transactions that end. `probe()` returns the reason why whole batches cannot be in Pulsar's.
        `packed`: a batch must be one entry.
        """
        self.refusal: str | None = None
        self.whole_batches = True
        """True if a batch of a transaction is one entry; else each record is."""
        self._probe = probe
        self._packed = packed
        self._known = asyncio.Event()
        """An event that is set once it is known if there are transactions, and of which kind."""
        self._finding_out: asyncio.Task[None] | None = None
        self._context = context
        self._transactions = transactions
        self._fences = fences
        self._find = find
        self._ended_lately = ended
        self._ready: asyncio.Task[TxnId] | None = None
        self._ready_since = 0.0
        self._begun: dict[TxnId, float] = {}
        """The loop's times at which transactions were begun here: no other broker has written fences in these."""
        self._ends = EndsOnPartitions(context, transactions)
        self._anchors = Anchors()
        self._anchoring: dict[int, asyncio.Task[None]] = {}
        """The tasks that begin an anchor, by coordinator: one is enough for all that wait."""

    async def start(self, *, used: bool) -> None:
        """Ask if the cluster has transactions; if not, `refusal` says so, and Pulsar is asked again and again. If they
        were `used` before, their kind is found out at once, in the background; else before the first of them.
        """
        try:
            await self._transactions.coordinators()
        except PulsarError as error:
            self._refuse(error)
        if used or self.refusal is not None:
            self._begin_to_find_out()

    def _begin_to_find_out(self) -> None:
        if self._finding_out is None:
            self._finding_out = self._context.loop.create_task(self._find_out())

    def _refuse(self, error: PulsarError) -> None:
        """Refuse transactions, by `refusal` and with a warning, because Pulsar has none; do nothing if the error may
        pass.
        """
        if error.retriable:
            return
        if self.refusal is None:
            log.warning("there are no transactions, clients without them are served: %s", error)
        self.refusal = f"Pulsar has no transactions: {error.message}"

    async def _find_out(self) -> None:
        """Ask Pulsar again and again until it is known if there are transactions, and of which kind: an operator may
        enable them.
        """
        backoff = Backoff(0.2, _LOOK_AGAIN_SECONDS)
        while not self._known.is_set():
            try:
                await self._transactions.coordinators()
                unfit = await self._try_whole_batches()
            except PulsarError as error:
                self._refuse(error)
                if error.retriable:
                    self._context.faults.tell("probe", f"transactions cannot be tried on Pulsar: {error}; trying again")
            except KopError as error:
                self._context.faults.tell("probe", f"transactions cannot be tried on Pulsar: {error}; trying again")
            else:
                self._decide(unfit)
                return
            await asyncio.sleep(backoff.next())

    async def _try_whole_batches(self) -> str | None:
        """Return the reason why whole batches cannot be in transactions of Pulsar, if trying it on two topics, one
        after the other, shows it; else None. PulsarError or KopError if that cannot be found out now.

        See docs/quirks.md, "A new topic may be recovered without its aborted transaction".
        """
        first = await self._probe()
        if first is None:
            return None
        log.info("transactions are tried on Pulsar once more, on another topic, since %s", first)
        return await self._probe()

    def _decide(self, unfit: str | None) -> None:
        self.refusal, self.whole_batches = None, unfit is None
        if unfit is not None and self._packed:
            self.refusal = (
                f"Pulsar holds whole batches in transactions otherwise than this gateway needs ({unfit}), and with "
                "packed offsets a batch cannot be split: kop.pulsar.offsets=index can have transactions"
            )
            log.warning("%s", self.refusal)
        elif unfit is not None:
            log.warning("transactions have one record in an entry, which is slow, since %s", unfit)
        self._known.set()

    async def begin(self, timeout_ms: int) -> bytes:
        """Begin a Pulsar transaction for a Kafka transaction with that time limit, or use the one that is kept ready;
        return its name for the coordinator's record. KopError if there are no transactions, or Pulsar does not answer.
        """
        await self._until_known()
        txn = await (self._take_ready() if timeout_ms <= _READY_MS else self._new(timeout_ms + _BEYOND_MS))
        txn = await self._guarded(txn, timeout_ms)
        self._begun[txn] = self._context.loop.time()
        return transaction_name(EntryTransaction(*txn, sent_in=not self.whole_batches))

    async def add(self, storage_transaction: bytes, partitions: Collection[tuple[str, int]]) -> None:
        """Add partitions, by topic name and number, to the Pulsar transaction of that name, and write a fence to each,
        if whole batches are in it; wait until these are stored. TRANSACTION_ABORTABLE if Pulsar has ended the
        transaction by itself; other errors are KopErrors.
        """
        txn, sent_in = self._named(storage_transaction)
        wanted = [self._existing(name, partition) for name, partition in partitions]
        names = [partition.partition_name for partition in wanted]

        async def still_open() -> None:
            """Raise PulsarError if the transaction has ended, or Pulsar says only after 2 seconds or more, three times,
            that it is open: a fence of a transaction that has ended would hold readers back for good.
            """
            for _ in range(_TRIES):
                asked = self._context.loop.time()
                await self._transactions.add(txn, names)
                if self._context.loop.time() - asked < _FRESH_SECONDS:
                    return
            raise PulsarError("Timeout", f"the coordinator of {txn} is slow, or this broker is")

        fencing = False
        try:
            asked = self._context.loop.time()
            await still_open()
            if not sent_in:
                fencing = True
                fences = [self._fences.put(partition, txn, still_open) for partition in wanted]
                for error in await asyncio.gather(*fences, return_exceptions=True):
                    if error is not None:
                        raise error
                if self._context.loop.time() - asked > LATE_SECONDS:
                    await self._transactions.add(txn, names)
                else:
                    self._ends.fenced(txn, names)
        except (PulsarError, KopError) as error:
            if fencing:
                self._ends.fenced(txn, names, doubtful=True)
            if isinstance(error, KopError):
                raise
            raise self._refused(error, f"cannot add partitions to Pulsar's transaction {txn}") from error

    async def confirm(self, storage_transaction: bytes, partitions: Collection[tuple[str, int]]) -> None:
        """Raise TRANSACTION_ABORTABLE if Pulsar's clock or one of its tools has ended the transaction; another KopError
        if Pulsar does not tell.
        """
        txn, _ = self._named(storage_transaction)
        try:
            await self._transactions.add(txn, [each.partition_name for each in self._those_of(partitions)])
        except PulsarError as error:
            raise self._refused(error, f"cannot commit Pulsar's transaction {txn}") from error

    def _refused(self, error: PulsarError, doing: str) -> KopError:
        """Return the error for a client whose transaction goes on, or TRANSACTION_ABORTABLE if Pulsar has ended it;
        count and log the refusal.
        """
        refused = self._context.faults.refused(error, Refused.TRANSACTIONS, doing)
        return PeerError(refused.message, ErrorCode.TRANSACTION_ABORTABLE) if error.code in _GONE else refused

    def stop_writes(self, storage_transaction: bytes) -> None:
        """Send no batch into the transaction from now on: what waits for a producer is refused. Bytes that name no
        transaction are ignored.
        """
        named = transaction_of(storage_transaction)
        if named is not None:
            self._ended_lately.add(TxnId(named.most, named.least))

    async def nobody_else_writes(self, ended: EndedTransaction) -> bool:
        """Return true once no other broker can write into the transaction any more.

        A broker that takes the producer's name a moment later, for a batch of before, writes what is hidden with the
        others if the transaction is aborted, and a duplicate if it is committed: whoever commits has all answers.
        Records that are sent in the transaction are another matter, a late one holds readers back: False.
        """
        if ended.partitions and self._named(ended.storage_transaction)[1]:
            return False
        existing = self._those_of(ended.partitions)
        return all(await asyncio.gather(*(each.nobody_else_writes(ended.producer_id) for each in existing)))

    async def end(self, ended: EndedTransaction) -> None:
        """Commit or abort the Pulsar transaction, so that readers see its records all at once, or never; then watch in
        the background that this has reached its partitions. A transaction that Pulsar does not know counts as ended.
        KopError if Pulsar refuses it or does not answer.
        """
        txn, _ = self._named(ended.storage_transaction)
        try:
            await self._transactions.end(txn, commit=ended.commit)
        except PulsarError as error:
            if error.code == "TransactionNotFound":
                self._ended_before(ended, txn)
                self._ended(txn, ended, here=False)
                return
            doing = f"cannot end Pulsar's transaction {txn} of {ended.transactional_id!r}"
            raise self._context.faults.refused(error, Refused.TRANSACTIONS, doing) from error
        self._ended(txn, ended, here=txn in self._begun)

    def _ended(self, txn: TxnId, ended: EndedTransaction, *, here: bool) -> None:
        """Forget a transaction that has ended, and watch its partitions. `here`: no other broker has a part in it, so
        no fence may be stored later.
        """
        self._begun.pop(txn, None)
        names = [each.partition_name for each in self._those_of(ended.partitions)]
        self._ends.ended(txn, names, commit=ended.commit, here=here)

    def _ended_before(self, ended: EndedTransaction, txn: TxnId) -> None:
        self._context.faults.count(Fault.TRANSACTION_ENDS_ENDED_BEFORE)
        log.info(
            "transactional id %r: Pulsar's transaction %d:%d, which is to be %s, has ended before",
            ended.transactional_id,
            *txn,
            "committed" if ended.commit else "aborted",
        )

    def close_idle(self, now: float, seconds: float) -> None:
        """Close fences' producers that wrote none for `seconds`, and end the transaction that is kept ready if it is
        older than that; `now` is the loop's time.
        """
        self._fences.close_idle(now, seconds)
        for txn, begun in tuple(self._begun.items()):
            if now - begun < _READY_MS / 1000:
                break
            del self._begun[txn]  # another broker has ended it, most likely
        ready = self._ready
        if ready is not None and ready.done() and now - self._ready_since > seconds:
            self._ready = None
            if not ready.cancelled() and ready.exception() is None:
                self._context.spawn(self._give_back(ready.result()))

    async def close(self) -> None:
        """End the transaction that is kept ready, close the fences' producers, and watch ended transactions no more."""
        await self._ends.close()
        await cancel(self._finding_out, *self._anchoring.values())
        ready, self._ready = self._ready, None
        if ready is not None:
            if not ready.done():
                ready.cancel()
            (txn,) = await asyncio.gather(ready, return_exceptions=True)
            if isinstance(txn, TxnId):
                await self._give_back(txn)
        await self._fences.close()

    # --- inside

    async def _until_known(self) -> None:
        """Wait until it is known of which kind transactions are here. COORDINATOR_NOT_AVAILABLE if that takes more than
        20 seconds; TRANSACTIONAL_ID_AUTHORIZATION_FAILED if there are none.
        """
        if not self._known.is_set() and self.refusal is None:
            self._begin_to_find_out()
            try:
                async with asyncio.timeout(_KNOWN_SECONDS):
                    await self._known.wait()
            except TimeoutError:
                text = "whether Pulsar's transactions can be used is not found out yet; clients try again"
                raise BackendError(text, ErrorCode.COORDINATOR_NOT_AVAILABLE) from None
        if self.refusal is not None:
            raise PeerError(self.refusal, ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED)

    @staticmethod
    def _named(storage_transaction: bytes) -> tuple[TxnId, bool]:
        """Return Pulsar's transaction of that name, and true if each record is sent in it."""
        named = transaction_of(storage_transaction)
        if named is None:
            raise InternalError(f"{storage_transaction.hex()!r} names no transaction of Pulsar")
        return TxnId(named.most, named.least), named.sent_in

    def _those_of(self, partitions: Collection[tuple[str, int]]) -> list[PulsarLog]:
        """Return those of the partitions, by topic name and number, that exist."""
        return [known for name, index in partitions if (known := self._find(name, index)) is not None]

    def _existing(self, name: str, partition: int) -> PulsarLog:
        existing = self._find(name, partition)
        if existing is None:
            raise PeerError(f"there is no partition {name}-{partition}", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        return existing

    async def _new(self, ttl_ms: int, coordinator: int | None = None) -> TxnId:
        with self._context.faults.refusing(Refused.TRANSACTIONS, "cannot begin a transaction"):
            return await self._transactions.new(ttl_ms, coordinator)

    async def _guarded(self, txn: TxnId, timeout_ms: int) -> TxnId:
        """Return the transaction, or another one in its place, so that an anchor is open until its end is beyond doubt
        (`anchors.py`); the transaction as it is if Pulsar refuses one of the others: better unguarded than none.
        """
        # A Kafka transaction may be begun in this one until its time limit is over, and then has as much time again.
        seconds = 2 * timeout_ms / 1000 + DOUBT_SECONDS
        if self._anchors.guard(txn, self._context.loop.time() + seconds):
            return txn
        try:
            while not self._anchors.stays(txn.most, self._context.loop.time() + seconds):
                await self._anchor(txn.most, seconds + SPAN_SECONDS)
            guarded = await self._new(max(timeout_ms, _READY_MS) + _BEYOND_MS, txn.most)
        except KopError:
            return txn
        self._context.spawn(self._give_back(txn))
        return guarded

    async def _anchor(self, coordinator: int, seconds: float) -> None:
        """Begin an anchor at a coordinator that is open for so many seconds; wait for the one that is being begun there
        if there is one. KopError if Pulsar refuses it.
        """
        task = self._anchoring.get(coordinator)
        if task is None:
            task = self._anchoring[coordinator] = self._context.loop.create_task(self._new_anchor(coordinator, seconds))
            task.add_done_callback(_heard)
            task.add_done_callback(lambda _: self._anchoring.pop(coordinator))
        await asyncio.shield(task)

    async def _new_anchor(self, coordinator: int, seconds: float) -> None:
        now = self._context.loop.time()
        self._anchors.add(await self._new(int(seconds * 1000), coordinator), now, now + seconds)

    async def _take_ready(self) -> TxnId:
        """Return the transaction that is kept ready, or a new one if there is none, or it is more than an hour old;
        another one is made ready for the next caller. KopError if Pulsar refuses it.
        """
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
            level = logging.DEBUG if self._context.faults.takes(error) else logging.INFO
            log.log(level, "Pulsar's transaction %d:%d, in which nothing is, ends by its time limit: %s", *txn, error)


def _heard(task: asyncio.Task[Any]) -> None:
    """Read the exception of a finished task, so that asyncio does not report it if nobody asks for the transaction."""
    if not task.cancelled():
        task.exception()
