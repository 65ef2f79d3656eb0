"""Partitions on which a transaction goes on holding readers back though it has ended, and their cure.

Owns: the questions whether there are such partitions, the end of a transaction on one partition alone, telling of a
commit that Pulsar made an abort of.
Must not know: who decides how a transaction ends, how fences are written.

There are two causes: a fence that was stored behind the end (`late_fences.py`), and an end that Pulsar did not carry
out on a partition (`lost_ends.py`).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Coroutine
from typing import Any, Final, TypeVar

from kop.background import cancel
from kop.pulsar_client import PulsarError, Transactions, TxnId
from kop.pulsar_client.admin import RECOVERED
from kop.pulsar_client.errors import NOT_THERE, Ignoring
from kop.storage.pulsar.context import PulsarContext
from kop.storage.pulsar.faults import Fault
from kop.storage.pulsar.transactions.late_fences import Due, LateFences
from kop.storage.pulsar.transactions.lost_ends import End, LostEnds

_LOOK_SECONDS: Final = 0.5
"""The seconds between two looks for questions that are due."""
_AT_ONCE: Final = 16
"""The number of questions that Pulsar is asked at a time."""

T = TypeVar("T")

log = logging.getLogger(__name__)


class EndsOnPartitions:
    """The watch over the transactions that this broker writes fences in, or ends. Partitions go by their full names."""

    def __init__(self, context: PulsarContext, transactions: Transactions) -> None:
        self._context = context
        self._transactions = transactions
        self._late = LateFences()
        self._lost = LostEnds()
        self._looking: asyncio.Task[None] | None = None
        """The task that asks due questions; None if there is nothing to ask."""

    def fenced(self, txn: TxnId, partitions: Collection[str], *, doubtful: bool = False) -> None:
        """Watch fences of this broker that are stored in a transaction, or may be (`doubtful`): its end may come before
        them. Pulsar is asked in the background; where a fence was too late, the transaction is ended again as it ended
        before.
        """
        self._late.stored(txn, partitions, self._context.loop.time(), doubtful=doubtful)
        self._begin_to_look()

    def ended(self, txn: TxnId, partitions: Collection[str], *, commit: bool, here: bool) -> None:
        """Begin to look, in the background, if the end of a transaction has reached its partitions, once Pulsar said
        that it has ended. Where it has not, it is carried out again.

        `here` is True if no other broker took part in the transaction.
        """
        now = self._context.loop.time()
        self._lost.ended(txn, partitions, now, commit=commit)
        if here:
            self._late.ended_here(txn)
        else:
            self._late.ended_of_other(txn, partitions, now, commit=commit)
        self._begin_to_look()

    async def close(self) -> None:
        """Stop watching: no further question is asked."""
        await cancel(self._looking)

    def _begin_to_look(self) -> None:
        if self._looking is None and (self._late or self._lost):
            self._looking = self._context.loop.create_task(self._look())
            self._looking.add_done_callback(self._looked)

    def _looked(self, task: asyncio.Task[None]) -> None:
        self._looking = None
        if task.cancelled():
            return
        if (error := task.exception()) is not None:
            log.error("ended transactions are not looked after; please report this with its traceback", exc_info=error)
            return
        self._begin_to_look()  # one may have come since

    async def _look(self) -> None:
        """Ask the due questions, until no fence may be late and no end may be lost."""
        while self._late or self._lost:
            now = self._context.loop.time()
            await _for_each(self._late.due(now), self._ask_about_fences)
            await _for_each(self._lost.due(now), self._ask_about_ends)
            await asyncio.sleep(_LOOK_SECONDS)

    # --- late fences

    async def _ask_about_fences(self, doubt: Due) -> None:
        """Ask if a transaction has ended, and end it again on partitions where a fence was stored behind its end, so
        that readers can pass.

        A gateway that was stopped, cut off from Pulsar or killed may be so late: another one has ended the transaction
        since. Pulsar ignores such a fence if the transaction was aborted. If it was committed, the fence opens it again
        on that partition. So it ends there as it ended elsewhere: an abort would hide what was committed, and a commit
        would show what was aborted if Pulsar has not carried out the abort yet. Nothing is behind the fence: data is
        sent when the fence is stored and its transaction is known to be open.
        """
        txn, now = doubt.txn, self._context.loop.time
        try:
            if doubt.ended:
                for name in sorted(doubt.partitions):
                    await self._lift(txn, name, Fault.TRANSACTION_ENDS_FENCE_TOO_LATE, commit=doubt.commit)
            elif await self._has_ended(txn, doubt.partitions):
                self._late.ended_elsewhere(doubt, now())
                return
        except PulsarError as error:
            if not self._late.failed(doubt, now()) and not self._context.faults.takes(error):
                log.warning("Pulsar does not answer whether fences of its transaction %d:%d are late: %s", *txn, error)
        else:
            self._late.answered(doubt, now())

    async def _has_ended(self, txn: TxnId, names: Collection[str]) -> bool:
        """Return true if a transaction has ended on all of its partitions; it is asked by adding these once more, which
        changes nothing in an open one. PulsarError if that is not known.
        """
        with Ignoring("TransactionNotFound"):
            await self._transactions.add(txn, list(names))
            return False  # its end is to come
        return True

    # --- lost ends

    async def _ask_about_ends(self, name: str) -> None:
        """Carry out again the ends of transactions that Pulsar lost on the partition `name` while that was being
        unloaded. If Pulsar does not answer, a later look tries again.
        """
        now = self._context.loop.time
        asked = now()

        async def carry_out(end: End) -> None:
            aborted = await self._lift(end.txn, name, Fault.TRANSACTION_ENDS_LOST_BY_PULSAR, commit=end.commit)
            if aborted and end.commit:
                self._tell_aborted(end.txn, name)
                self._lost.forget(name, end)

        try:
            buffer = await self._context.admin.transaction_buffer(name)
            if buffer["state"] not in RECOVERED:
                raise PulsarError("ServiceNotReady", f"the transaction buffer is in the state {buffer['state']}")
            if in_doubt := self._lost.looked(name, buffer["recoverStartTime"], asked):
                if buffer["ongoingTxnSize"] or buffer.get("totalAbortedTransactions", 1):
                    await _for_each(in_doubt, carry_out)
                self._lost.settled(name, asked)
        except PulsarError as error:
            known = error.code in NOT_THERE or self._context.faults.takes(error)
            if not self._lost.failed(name, now()) and not known:
                log.warning(
                    "Pulsar does not answer whether %s holds readers back at a transaction that has ended: %s. Where "
                    "it does, see pulsar-admin transactions transaction-buffer-stats",
                    name, error,
                )  # fmt: skip

    # --- the cure

    async def _lift(self, txn: TxnId, name: str, fault: Fault, *, commit: bool) -> bool:
        """End a transaction once more on a partition, unless Pulsar says that it does not hold readers back at it
        there; that is counted as `fault`, and logged. Return true if it was aborted there before. PulsarError if Pulsar
        refuses it or does not answer.
        """
        try:
            there = await self._context.admin.transaction_in_buffer(name, txn)
            if not there.holds:
                return there.aborted
        except PulsarError as error:
            if error.retriable:
                raise
        with Ignoring(*NOT_THERE):
            await self._transactions.end_on_partition(txn, name, commit=commit)
            self._context.faults.count(fault)
            log.info(
                "%s held readers back at Pulsar's transaction %d:%d, which was %s, and is told so once more: a gateway "
                "was stopped, killed or cut off from Pulsar, or the partition was unloaded; nothing has to be done",
                name,
                *txn,
                "committed" if commit else "aborted",
            )
        return False

    def _tell_aborted(self, txn: TxnId, name: str) -> None:
        """Count and log that Pulsar aborted on a partition what was committed: nobody can undo that."""
        self._context.faults.count(Fault.TRANSACTION_ENDS_ABORTED_BY_PULSAR)
        log.error(
            "%s: Pulsar aborted its transaction %d:%d, which was committed: the records of a Kafka transaction are "
            "lost there; compare the partition with its source, and write again what is missing. Each such partition "
            "has a line of its own",
            name,
            *txn,
        )


async def _for_each(values: Collection[T], do: Callable[[T], Coroutine[Any, Any, None]]) -> None:
    """Call `do` for all values, 16 at a time. An error is raised when the others of its group are done."""
    ordered = list(values)
    for first in range(0, len(ordered), _AT_ONCE):
        done = await asyncio.gather(*map(do, ordered[first : first + _AT_ONCE]), return_exceptions=True)
        for error in done:
            if error is not None:
                raise error
