"""Pulsar's transactions: the requests to their coordinators, and to the partitions themselves.

Owns: which broker has which coordinator, connecting to it, what is asked again and for how long.
Must not know: what a transaction is for, who decides how it ends, and what is sent in it.

Pulsar has a fixed number of transaction coordinators, each on the broker that has a partition of a system topic. A
transaction's name tells its coordinator. A coordinator lives on the broker's disk, not on the connection: whoever knows
the name of a transaction may add partitions to it and end it.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final, TypeVar

from kop.pulsar_client.backoff import Backoff
from kop.pulsar_client.connection import Connection
from kop.pulsar_client.errors import Ignoring, PulsarError
from kop.pulsar_client.proto import pulsar_pb2 as pb
from kop.pulsar_client.types import TxnId

COORDINATORS: Final = "persistent://pulsar/system/transaction_coordinator_assign"
"""The partitioned system topic whose partition N is on the broker that has transaction coordinator N."""

T = TypeVar("T")

_ELSEWHERE: Final = frozenset({"TransactionCoordinatorNotFound", "ServiceNotReady"})
"""The codes of a broker's errors for a coordinator that it does not have, or not yet: the coordinator moves."""
_ACTION: Final = {True: pb.COMMIT, False: pb.ABORT}
_NO_LOW_WATERMARK: Final = 2**64 - 1
"""The low watermark -1 on the wire: the broker aborts what is open up to this number, and closes a connection that does
not name one.
"""


class Transactions:
    """The transactions of one cluster; made by `Client.transactions`.

    What may pass is tried again for `timeout` seconds in all: a lost connection, a coordinator that moves. So each
    request may be carried out twice. Twice `new` leaves a transaction behind that ends by its time to live, adding a
    partition twice does no harm, and the second of two ends is refused with TransactionNotFound.
    """

    def __init__(
        self,
        partitions: Callable[[str], Awaitable[int]],
        connection: Callable[[str], Awaitable[Connection]],
        *,
        timeout: float,
    ) -> None:
        """`partitions` returns the number of a topic's partitions, `connection` the connection to the broker of a
        topic; `timeout` is the seconds for a request.
        """
        self._partitions = partitions
        self._connection = connection
        self._timeout = timeout
        self._coordinators: list[_Coordinator] = []
        self._turns = itertools.count()

    async def coordinators(self) -> int:
        """Return the number of the cluster's coordinators. PulsarError NotAllowedError if it has none."""
        if not self._coordinators:
            await self._count()
        return len(self._coordinators)

    async def _count(self) -> None:
        count = 0
        with Ignoring("TopicNotFound"):
            count = await self._partitions(COORDINATORS)
        if not count:
            raise PulsarError(
                "NotAllowedError",
                "the cluster has no transaction coordinators: set transactionCoordinatorEnabled=true in broker.conf, "
                "run bin/pulsar initialize-transaction-coordinator-metadata once and restart the brokers",
            )
        known = self._coordinators
        known += [_Coordinator(number, self._connection) for number in range(len(known), count)]

    async def new(self, ttl_ms: int, number: int | None = None) -> TxnId:
        """Begin a transaction, which Pulsar aborts after `ttl_ms`, at the coordinator of that number; if it is None,
        coordinators take turns. PulsarError if Pulsar refuses it or does not answer; NotAllowedError from brokers
        without transactions.
        """
        count = await self.coordinators()
        coordinator = self._coordinators[next(self._turns) % count if number is None else number]
        asked = pb.CommandNewTxn(txn_ttl_seconds=ttl_ms, tc_id=coordinator.number)
        answer: pb.CommandNewTxnResponse = await self._again(
            lambda limit: coordinator.ask(asked, limit, "a new transaction")
        )
        return TxnId(answer.txnid_most_bits, answer.txnid_least_bits)

    async def add(self, txn: TxnId, partitions: Sequence[str]) -> None:
        """Add partitions (their full names) to a transaction; that is durable on return. PulsarError if Pulsar refuses
        it or does not answer: TransactionNotFound if the transaction has ended, or never existed; InvalidTxnStatus if
        it is being ended.
        """
        asked = pb.CommandAddPartitionToTxn(txnid_least_bits=txn.least, txnid_most_bits=txn.most, partitions=partitions)
        await self._ask(txn, asked, f"partitions of transaction {txn}")

    async def end(self, txn: TxnId, *, commit: bool) -> None:
        """End a transaction on all of its partitions. PulsarError if Pulsar refuses it or does not answer:
        TransactionNotFound if the transaction has ended, either way; InvalidTxnStatus if it is being ended the other
        way.
        """
        asked = pb.CommandEndTxn(txnid_least_bits=txn.least, txnid_most_bits=txn.most, txn_action=_ACTION[commit])
        await self._ask(txn, asked, f"the end of transaction {txn}")

    async def _ask(self, txn: TxnId, asked: Any, what: str) -> None:
        async def ask(limit: float) -> Any:
            return await (await self._of(txn)).ask(asked, limit, what)

        await self._again(ask)

    async def end_on_partition(self, txn: TxnId, partition: str, *, commit: bool) -> None:
        """End a transaction on one partition only, whatever its coordinator says of it. PulsarError if Pulsar refuses
        it or does not answer.
        """
        asked = pb.CommandEndTxnOnPartition(
            txnid_least_bits=txn.least,
            txnid_most_bits=txn.most,
            topic=partition,
            txn_action=_ACTION[commit],
            txnid_least_bits_of_low_watermark=_NO_LOW_WATERMARK,
        )

        async def ask(limit: float) -> Any:
            connection = await self._connection(partition)
            return await connection.request(asked, limit, f"the end of transaction {txn} on {partition}")

        await self._again(ask)

    async def _of(self, txn: TxnId) -> _Coordinator:
        if txn.most >= len(self._coordinators):
            await self._count()
        if txn.most >= len(self._coordinators):  # nothing is known of the transaction: it may be open
            text = f"transaction {txn}: the cluster has {len(self._coordinators)} coordinators"
            raise PulsarError("TransactionCoordinatorNotFound", text)
        return self._coordinators[txn.most]

    async def _again(self, ask: Callable[[float], Awaitable[T]]) -> T:
        """Return the answer of `ask`, which gets the seconds that are left; call it again after retriable errors, until
        the time for a request is over. Then, or for any other error, raise that.
        """
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self._timeout
        backoff = Backoff(0.05, 1.0)
        while True:
            try:
                return await ask(max(deadline - loop.time(), 0.1))
            except PulsarError as error:
                wait = backoff.next()
                if not error.retriable or loop.time() + wait >= deadline:
                    raise
            await asyncio.sleep(wait)


class _Coordinator:
    """A transaction coordinator of Pulsar, on whichever broker it is."""

    def __init__(self, number: int, connection: Callable[[str], Awaitable[Connection]]) -> None:
        self.number = number
        self._find = connection
        self._connected: Connection | None = None
        """The connection to the coordinator; None if its broker has to be looked up."""
        self._connecting: asyncio.Task[Connection] | None = None

    async def ask(self, asked: Any, limit: float, what: str) -> Any:
        """Send a request, such as CommandNewTxn, which `what` names in errors, and return the answer. PulsarError if
        the coordinator refuses it, or does not answer within `limit` seconds.
        """
        connection = await self._connection(limit)
        try:
            return await connection.request(asked, limit, what)
        except PulsarError as error:
            if error.code in _ELSEWHERE and self._connected is connection:
                self._connected = None
            raise

    async def _connection(self, limit: float) -> Connection:
        """Return the connection to the coordinator, made now if there is none. PulsarError if it cannot be made."""
        connection = self._connected
        if connection is None or connection.closed:
            if self._connecting is None:
                self._connecting = asyncio.create_task(
                    self._connect(limit), name=f"pulsar transaction coordinator {self.number}"
                )
                self._connecting.add_done_callback(self._connect_ended)
            connection = await asyncio.shield(self._connecting)
        return connection

    async def _connect(self, limit: float) -> Connection:
        connection = await self._find(f"{COORDINATORS}-partition-{self.number}")
        asked = pb.CommandTcClientConnectRequest(tc_id=self.number)
        await connection.request(asked, limit, f"transaction coordinator {self.number}")
        return connection

    def _connect_ended(self, task: asyncio.Task[Connection]) -> None:
        self._connecting = None
        if not task.cancelled() and task.exception() is None:
            self._connected = task.result()
