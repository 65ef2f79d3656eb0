"""Calls from one broker to another, over a real gateway's Kafka port and over one that fails."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from support.gateway import gateway, run
from support.waiting import until

from kop.coordination import peers as module
from kop.coordination.peers import Peers, broker_of
from kop.errors import ErrorCode, KopError
from kop.groups.offsets import Commit
from kop.transactions.runtime import TransactionCoordinator
from kop.wire.messages import AddPartitionsToTxnRequest, InitProducerIdRequest, WriteTxnMarkersRequest
from kop.wire.transaction_state import STORAGE_TRANSACTION


def request() -> object:
    return InitProducerIdRequest(version=5, transactional_id=None, transaction_timeout_ms=0)


@pytest.mark.parametrize(
    ("client_id", "broker"), [("kop-broker-12", 12), ("kop-broker-x", None), ("a", None), (None, None)]
)
def test_a_broker_is_known_by_its_client_id(client_id: str | None, broker: int | None) -> None:
    assert broker_of(client_id) == broker


def test_calls_overlap_and_are_answered(tmp_path: Path) -> None:
    async def main() -> None:
        async with gateway(tmp_path, store="memory:") as serving:
            peers = Peers(7, lambda _: serving.listeners[0])
            answers = await asyncio.gather(*(peers.call(1, request()) for _ in range(10)))
            assert len({answer.message.producer_id for answer in answers}) == 10
            await peers.close()

    run(main())


@pytest.mark.parametrize(("asking", "is_live"), [(1, True), (7, False)])
def test_only_a_live_broker_learns_what_to_write_into(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, asking: int, is_live: bool
) -> None:
    """What has no field comes in the header. A broker that is not live would not be told when the transaction ends."""

    async def main() -> None:
        async with gateway(tmp_path, store="memory:") as serving:
            created = await serving.gateway.engine.topics.create("t", 1, {})
            transactions = serving.gateway.transactions
            who = await transactions.init_producer_id("tx", 60_000)
            transactions_of_storage = serving.gateway.engine.transactions

            async def begin(timeout_ms: int) -> bytes:
                return b"in storage"

            monkeypatch.setattr(transactions_of_storage, "begin", begin)
            transaction = AddPartitionsToTxnRequest.AddPartitionsToTxnTransaction
            topic = transaction.AddPartitionsToTxnTopic(version=5, name="t", partitions=[0])
            peers = Peers(asking, lambda _: serving.listeners[0])
            tags = {10_000: b"in storage", 10_001: created.topic_id.bytes}
            told = (ErrorCode.NONE, tags) if is_live else (ErrorCode.COORDINATOR_NOT_AVAILABLE, {})
            for verify_only, expected in [(False, (ErrorCode.NONE, {})), (True, told)]:
                asked = transaction(
                    version=5, transactional_id="tx", producer_id=who.producer_id,
                    producer_epoch=who.producer_epoch, verify_only=verify_only, topics=[topic],
                )  # fmt: skip
                answer = await peers.call(1, AddPartitionsToTxnRequest(version=5, transactions=[asked]))
                row = answer.message.results_by_transaction[0].topic_results[0].results_by_partition[0]
                assert (row.partition_error_code, answer.tags) == expected
            await peers.close()

    run(main())


def test_a_late_end_of_one_transaction_leaves_the_offsets_of_the_next(tmp_path: Path) -> None:
    """What storage calls the transaction is in the header."""

    async def main() -> None:
        async with gateway(tmp_path, store="memory:") as serving:
            groups = serving.gateway.groups
            index = groups.state_log.partition_of("g")
            commits = [Commit("t", None, 0, 7)]
            assert await groups.commit_in_transaction("g", 5, 0, commits, storage_transaction=b"second") == 0
            marker = WriteTxnMarkersRequest.WritableTxnMarker
            topic = marker.WritableTxnMarkerTopic(version=2, name="__consumer_offsets", partition_indexes=[index])
            markers = [
                marker(
                    version=2, producer_id=5, producer_epoch=0, transaction_result=True, topics=[topic],
                    coordinator_epoch=0, transaction_version=0,
                )
            ]  # fmt: skip
            peers = Peers(7, lambda _: serving.listeners[0])
            for name, left in ((b"first", 1), (b"second", 0)):
                request = WriteTxnMarkersRequest(version=2, markers=markers)
                answer = await peers.call(1, request, {STORAGE_TRANSACTION: name})
                assert answer.message.markers[0].topics[0].partitions[0].error_code == 0
                assert groups.pending_offsets == left
            await peers.close()

    run(main())


async def silent_server() -> tuple[asyncio.Server, list[asyncio.StreamWriter]]:
    """A server that answers nothing, and the connections that it has taken."""
    taken: list[asyncio.StreamWriter] = []

    async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        taken.append(writer)
        await reader.read()
        writer.close()

    return await asyncio.start_server(silent, "127.0.0.1", 0), taken


def test_a_lost_connection_fails_what_is_under_way_and_the_next_call_connects_again(tmp_path: Path) -> None:
    async def main() -> None:
        server, taken = await silent_server()
        address = server.sockets[0].getsockname()
        peers = Peers(7, lambda _: address)
        calls = [asyncio.create_task(peers.call(1, request())) for _ in range(3)]
        await until(lambda: len(taken) == 1)
        taken[0].transport.abort()
        for error in await asyncio.gather(*calls, return_exceptions=True):
            assert isinstance(error, KopError)
            assert error.code is ErrorCode.NETWORK_EXCEPTION
            assert error.__context__ is None
        server.close()
        async with gateway(tmp_path, store="memory:") as serving:
            address = serving.listeners[0]
            assert (await peers.call(1, request())).message.error_code == 0
            await peers.close()

    run(main())


def test_a_connection_that_is_closed_as_soon_as_it_is_made_fails_its_call() -> None:
    async def main() -> None:
        server, taken = await silent_server()
        closing: list[asyncio.Task[None]] = []

        async def connect(host: str, port: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
            connected = await asyncio.open_connection(host, port)
            closing.append(asyncio.create_task(peers.close()))  # runs before anything is read
            return connected

        peers = Peers(7, lambda _: server.sockets[0].getsockname(), connect)
        try:
            with pytest.raises(KopError, match="the connection was lost") as failure:
                await peers.call(1, request())
            assert failure.value.code == ErrorCode.NETWORK_EXCEPTION
            await asyncio.gather(*closing)
        finally:
            server.close()
            for writer in taken:
                writer.transport.abort()

    run(main())


def test_a_call_that_waits_for_storage_holds_no_other_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Answers come in order on each connection: behind one that is late another connection is used."""
    asked, goes_on = asyncio.Event(), asyncio.Event()
    add = TransactionCoordinator.add_partitions

    async def slow(self: TransactionCoordinator, *values: Any) -> ErrorCode:
        asked.set()
        await goes_on.wait()
        return await add(self, *values)

    monkeypatch.setattr(TransactionCoordinator, "add_partitions", slow)
    monkeypatch.setattr(module, "LATE_SECONDS", -1.0)

    def adding(*, verify_only: bool) -> object:
        transaction = AddPartitionsToTxnRequest.AddPartitionsToTxnTransaction
        topic = transaction.AddPartitionsToTxnTopic(version=5, name="t", partitions=[0])
        asked = transaction(
            version=5, transactional_id="tx", producer_id=1, producer_epoch=0, verify_only=verify_only, topics=[topic]
        )
        return AddPartitionsToTxnRequest(version=5, transactions=[asked])

    async def main() -> None:
        async with gateway(tmp_path, store="memory:") as serving:
            await serving.gateway.engine.topics.create("t", 1, {})
            address = serving.listeners[0]
            peers = Peers(1, lambda _: address)
            waits = asyncio.create_task(peers.call(1, adding(verify_only=False)))
            await asked.wait()
            async with asyncio.timeout(60):
                for _ in range(3):
                    await peers.call(1, adding(verify_only=True))
            assert not waits.done()
            goes_on.set()
            await waits
            await peers.close()

    run(main())


def test_a_call_without_an_answer_fails_no_later_one(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        monkeypatch.setattr(module, "LATE_SECONDS", -1.0)
        monkeypatch.setattr(module, "CALL_SECONDS", 0.3)
        server, taken = await silent_server()
        peers = Peers(7, lambda _: server.sockets[0].getsockname())
        first = asyncio.create_task(peers.call(1, request()))
        await until(lambda: len(taken) == 1)
        monkeypatch.setattr(module, "CALL_SECONDS", 60.0)
        second = asyncio.create_task(peers.call(1, request()))
        await until(lambda: len(taken) == 2)
        with pytest.raises(KopError, match="no answer"):
            await first
        await until(taken[0].is_closing)
        assert not second.done()
        await peers.close()
        with pytest.raises(KopError, match="was lost"):
            await second
        server.close()

    run(main())


def test_a_broker_that_is_not_live_or_does_not_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        with pytest.raises(KopError, match="broker 3 is not live"):
            await Peers(7, lambda _: None).call(3, request())

        monkeypatch.setattr(module, "CALL_SECONDS", 0.05)
        server, _ = await silent_server()
        peers = Peers(7, lambda _: server.sockets[0].getsockname())
        with pytest.raises(KopError, match="does not answer"):
            await peers.call(1, request())
        await peers.close()
        server.close()

    run(main())
