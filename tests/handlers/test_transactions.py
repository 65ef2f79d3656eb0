"""Transactions as clients ask for them, by every version of the requests, against the memory engine."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from support.gateway import FAST, RawClient, batch, gateway, log_of, produce_fields, run, topic_of
from support.waiting import until

from kop.app import Serving
from kop.errors import ErrorCode as E
from kop.records.batch import iter_records, read_header
from kop.storage.base import EndedTransaction
from kop.transactions.ends import TransactionEnds
from kop.transactions.machine import Transaction
from kop.transactions.runtime import TransactionCoordinator
from kop.wire.messages import REQUESTS
from kop.wire.transaction_state import TransactionStatus, decode_transaction_key, decode_transaction_value

NEWEST = 13


class Talk:
    """A client of a gateway with the topic `t` of two partitions, and who its producer is."""

    def __init__(self, serving: Serving, client: RawClient) -> None:
        self.serving = serving
        self.client = client
        self.producer_id = self.epoch = -1
        self.sequences = [0, 0]

    async def init(self, version: int = 5, name: str | None = "tx", timeout: int = 60_000, **more: int) -> E:
        answer = await self.client.call(22, version, transactional_id=name, transaction_timeout_ms=timeout, **more)
        if not answer.error_code:
            self.producer_id, self.epoch = answer.producer_id, answer.producer_epoch
            self.sequences = [0, 0]
        return E(answer.error_code)

    async def add(self, *partitions: int, version: int = 3, topic: str = "t", **who: int) -> list[E]:
        if version >= 4:
            return await self._between_brokers(partitions, version, verify_only=False)
        row = REQUESTS[24].AddPartitionsToTxnTopic(version=version, name=topic, partitions=list(partitions))
        producer = {f"v3_and_below_{field}": value for field, value in self.who(**who).items()}
        answer = await self.client.call(
            24, version, v3_and_below_transactional_id="tx", v3_and_below_topics=[row], **producer
        )
        rows = answer.results_by_topic_v3_and_below
        return [E(part.partition_error_code) for row in rows for part in row.results_by_partition]

    async def verify(self, *partitions: int, version: int = 5) -> list[E]:
        return await self._between_brokers(partitions, version, verify_only=True)

    async def _between_brokers(self, partitions: tuple[int, ...], version: int, *, verify_only: bool) -> list[E]:
        transaction = REQUESTS[24].AddPartitionsToTxnTransaction
        topic = transaction.AddPartitionsToTxnTopic(version=version, name="t", partitions=list(partitions))
        asked = transaction(
            version=version, transactional_id="tx", topics=[topic], verify_only=verify_only, **self.who()
        )
        answer = await self.client.call(24, version, transactions=[asked])
        rows = answer.results_by_transaction[0].topic_results
        return [E(part.partition_error_code) for row in rows for part in row.results_by_partition]

    async def produce(self, partition: int = 0, *, version: int = NEWEST, name: str = "tx", **who: int) -> Any:
        producer = self.who(**who)
        sent = batch([b"v"], transactional=True, base_sequence=self.sequences[partition], **producer)
        asked = "t" if version < 13 else topic_of(self.serving).topic_id
        fields = produce_fields(asked, sent, version=version, partition=partition) | {"transactional_id": name}
        answer = await self.client.call(0, version, **fields)
        part = answer.responses[0].partition_responses[0]
        self.sequences[partition] += not part.error_code
        return part

    async def end(self, *, commit: bool = True, version: int = 5, name: str = "tx", **who: int) -> E:
        answer = await self.client.call(26, version, transactional_id=name, committed=commit, **self.who(**who))
        if version >= 5 and not answer.error_code:
            self.producer_id, self.epoch = answer.producer_id, answer.producer_epoch
            self.sequences = [0, 0]
        return E(answer.error_code)

    def who(self, **who: int) -> dict[str, Any]:
        return {"producer_id": self.producer_id, "producer_epoch": self.epoch} | who

    def transaction(self) -> Transaction:
        transaction = dict(self.serving.gateway.transactions.all()).get("tx")
        assert transaction is not None
        return transaction

    async def reaches(self, status: TransactionStatus) -> None:
        await until(lambda: self.transaction().status is status)

    def bounds(self, partition: int = 0) -> tuple[int, int]:
        """The last stable offset and the high watermark."""
        log = log_of(self.serving, "t", partition)
        return log.last_stable_offset, log.high_watermark


@asynccontextmanager
async def talk(path: Path, store: str = "memory:") -> AsyncIterator[Talk]:
    async with gateway(path, store=store) as serving:
        await serving.gateway.engine.topics.create("t", 2, {})
        yield Talk(serving, await RawClient.connect(serving))


def test_fast_settings_make_one_partition_of_transactional_ids() -> None:
    assert FAST["transaction.state.log.num.partitions"] == "1"


@pytest.mark.parametrize("version", range(6))
def test_the_coordinator_of_a_transactional_id_is_found(tmp_path: Path, version: int) -> None:
    async def main() -> None:
        async with talk(tmp_path) as s:
            if version == 0:
                return  # it knows groups alone
            fields: dict[str, Any] = {"key": "tx"} if version < 4 else {"coordinator_keys": ["tx"]}
            answer = await s.client.call(10, version, key_type=1, **fields)
            row = answer if version < 4 else answer.coordinators[0]
            assert (row.error_code, row.node_id) == (0, 1)
            assert s.serving.gateway.engine.topics.get("__transactions") is not None

    run(main())


@pytest.mark.parametrize(("add_version", "end_version"), [(0, 0), (1, 1), (2, 2), (3, 3), (3, 4)])
@pytest.mark.parametrize("commit", [True, False])
def test_a_client_that_adds_partitions_keeps_its_epoch(
    tmp_path: Path, add_version: int, end_version: int, commit: bool
) -> None:
    async def main() -> None:
        async with talk(tmp_path) as s:
            assert await s.init(0) == E.NONE
            for round_ in range(2):
                assert await s.add(0, 1, version=add_version) == [E.NONE, E.NONE]
                start = s.bounds()[1]
                assert (await s.produce(version=9)).base_offset == start
                assert (await s.produce(1, version=11)).error_code == 0
                assert s.bounds() == (start, start + 1)
                assert await s.end(commit=commit, version=end_version) == E.NONE
                await s.reaches(TransactionStatus.COMPLETE_COMMIT if commit else TransactionStatus.COMPLETE_ABORT)
                assert s.bounds() == (start + 2, start + 2), "the marker has an offset"
                assert (s.transaction().producer_epoch, round_ * 2) == (0, start)

    run(main())


@pytest.mark.parametrize("commit", [True, False])
def test_a_client_of_version_2_adds_by_producing_and_gets_a_new_epoch_at_each_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, commit: bool
) -> None:
    monkeypatch.setattr("kop.transactions.runtime.CONCURRENT_SECONDS", 60.0)  # clients ask again

    async def main() -> None:
        async with talk(tmp_path) as s:
            assert await s.init() == E.NONE
            for epoch in range(3):
                assert s.epoch == epoch
                assert (await s.produce(version=12)).error_code == 0
                assert (await s.produce(1, version=13)).error_code == 0
                assert (await s.produce()).error_code == 0
                assert await s.end(commit=commit) == E.NONE  # the next round does not wait for the markers

    run(main())


def test_requests_that_come_together_are_stored_in_their_order(tmp_path: Path) -> None:
    async def main() -> None:
        async with talk(tmp_path) as s:
            await s.init()
            sent = []
            for sequence in range(5):
                of = batch([b"%d" % sequence], transactional=True, base_sequence=sequence, **s.who())
                fields = produce_fields("t", of, version=12) | {"transactional_id": "tx"}
                sent.append(s.client.send(0, 12, **fields))
            for offset, correlation in enumerate(sent):
                got, answer = await s.client.receive(0, 12)
                part = answer.responses[0].partition_responses[0]
                assert (got, part.error_code, part.base_offset) == (correlation, 0, offset)

    run(main())


def test_a_request_does_not_pass_the_one_before_it_that_adds_a_partition(tmp_path: Path) -> None:
    async def main() -> None:
        async with talk(tmp_path) as s:
            await s.init()
            assert (await s.produce(0, version=12)).error_code == 0
            for sequences in ({0: 1, 1: 0}, {0: 2}):
                partition = REQUESTS[0].TopicProduceData.PartitionProduceData
                rows = [
                    partition(
                        version=12,
                        index=index,
                        records=batch([b"v"], transactional=True, base_sequence=sequence, **s.who()),
                    )
                    for index, sequence in sequences.items()
                ]
                topic = REQUESTS[0].TopicProduceData(version=12, name="t", partition_data=rows)
                s.client.send(0, 12, transactional_id="tx", acks=-1, timeout_ms=1000, topic_data=[topic])
            answers = [(await s.client.receive(0, 12))[1] for _ in range(2)]
            parts = [part for answer in answers for part in answer.responses[0].partition_responses]
            assert [(part.index, part.error_code, part.base_offset) for part in parts] == [
                (0, E.NONE, 1), (1, E.NONE, 0), (0, E.NONE, 2),
            ]  # fmt: skip

    run(main())


@pytest.mark.parametrize("was_there", [False, True])
def test_a_topic_that_is_made_while_the_coordinator_is_asked_takes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, was_there: bool
) -> None:
    """Its partition was not asked about: nobody would end the transaction there."""
    asked, ends = asyncio.Event(), asyncio.Event()
    add, write = TransactionCoordinator.add_partitions, TransactionEnds.write

    async def noted(self: TransactionCoordinator, *values: Any) -> E:
        asked.set()
        return await add(self, *values)

    async def late(self: TransactionEnds, ended: EndedTransaction, *times: float) -> None:
        await ends.wait()
        await write(self, ended, *times)

    monkeypatch.setattr(TransactionEnds, "write", late)
    monkeypatch.setattr("kop.transactions.runtime.CONCURRENT_SECONDS", 10.0)

    async def main() -> None:
        async with talk(tmp_path) as s:
            topics = s.serving.gateway.engine.topics
            if was_there:
                before = await topics.create("u", 1, {})
            await s.init()
            assert (await s.produce(0)).error_code == 0
            assert await s.end() == E.NONE
            sent = [batch([b"v"], transactional=True, base_sequence=0, **s.who()) for _ in range(2)]
            fields = produce_fields("u", sent[0], version=12) | {"transactional_id": "tx"}
            fields["topic_data"] += produce_fields("t", sent[1], version=12)["topic_data"]
            monkeypatch.setattr(TransactionCoordinator, "add_partitions", noted)
            s.client.send(0, 12, **fields)
            await asked.wait()
            if was_there:
                await topics.delete(before.topic_id)
            await topics.create("u", 1, {})
            ends.set()
            _, answer = await s.client.receive(0, 12)
            codes = [topic.partition_responses[0].error_code for topic in answer.responses]
            assert codes == [E.UNKNOWN_TOPIC_OR_PARTITION, E.NONE]
            assert log_of(s.serving, "u").high_watermark == 0

    run(main())


@pytest.mark.parametrize("store", ["memory:", "sqlite:kop.db"])
@pytest.mark.parametrize("version", [12, 13])
def test_a_batch_does_not_pass_the_one_before_it_that_came_before_the_end_of_a_transaction(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, store: str, version: int
) -> None:
    """The first batch on a partition is told CONCURRENT_TRANSACTIONS, and comes again; the second is behind the end."""
    monkeypatch.setattr("kop.transactions.runtime.CONCURRENT_SECONDS", 0.0)
    ends = asyncio.Event()
    write = TransactionEnds.write

    async def late(self: TransactionEnds, ended: EndedTransaction, *times: float) -> None:
        await ends.wait()
        await write(self, ended, *times)

    monkeypatch.setattr(TransactionEnds, "write", late)

    async def main() -> None:
        async with talk(tmp_path, store.replace(":kop", f":{tmp_path}/kop")) as s:

            async def send(sequence: int) -> tuple[E, int]:
                sent = batch([b"%d" % sequence], transactional=True, base_sequence=sequence, **s.who())
                asked = "t" if version < 13 else topic_of(s.serving).topic_id
                fields = produce_fields(asked, sent, version=version, partition=1) | {"transactional_id": "tx"}
                part = (await s.client.call(0, version, **fields)).responses[0].partition_responses[0]
                return E(part.error_code), part.base_offset

            await s.init()
            assert (await s.produce(0)).error_code == 0
            assert await s.end() == E.NONE
            assert await send(0) == (E.CONCURRENT_TRANSACTIONS, -1)
            ends.set()
            await s.reaches(TransactionStatus.COMPLETE_COMMIT)
            assert await send(1) == (E.OUT_OF_ORDER_SEQUENCE_NUMBER, -1)
            assert await send(0) == (E.NONE, 0)
            assert await send(1) == (E.NONE, 1)
            assert await s.end() == E.NONE
            await s.reaches(TransactionStatus.COMPLETE_COMMIT)
            assert s.bounds(1) == (3, 3)

    run(main())


@pytest.mark.parametrize(
    ("version", "code"),
    [(9, E.INVALID_TXN_STATE), (10, E.INVALID_TXN_STATE), (11, E.TRANSACTION_ABORTABLE)],
)
def test_a_partition_that_was_not_added_takes_nothing(tmp_path: Path, version: int, code: E) -> None:
    async def main() -> None:
        async with talk(tmp_path) as s:
            await s.init()
            assert await s.add(0) == [E.NONE]
            assert (await s.produce(1, version=version)).error_code == code
            assert s.bounds(1) == (0, 0)
            assert (await s.produce(0, version=version)).error_code == 0

    run(main())


@pytest.mark.parametrize("store", ["memory:", "sqlite:kop.db"])
def test_a_producer_that_is_fenced_in_mid_batch_leaves_nothing_open(tmp_path: Path, store: str) -> None:
    """What it is told of as stored is in the transaction that is aborted, and the rest is refused."""

    async def main() -> None:
        async with talk(tmp_path, store.replace(":kop", f":{tmp_path}/kop")) as s:
            await s.init()
            old = s.who()
            other = Talk(s.serving, await RawClient.connect(s.serving))

            async def fences() -> bool:
                return await other.init() == E.NONE

            for sequence in range(50):
                of = batch([b"%d" % sequence], transactional=True, base_sequence=sequence, **old)
                s.client.send(0, 12, **(produce_fields("t", of, version=12) | {"transactional_id": "tx"}))
                if sequence == 25:
                    fencing = asyncio.create_task(until(fences))
            codes = [(await s.client.receive(0, 12))[1].responses[0].partition_responses[0] for _ in range(50)]
            await fencing
            stored = [part.base_offset for part in codes if not part.error_code]
            assert stored == list(range(len(stored)))
            refused = {E(part.error_code) for part in codes if part.error_code}
            assert refused <= {E.INVALID_PRODUCER_EPOCH, E.CONCURRENT_TRANSACTIONS, E.PRODUCER_FENCED}
            assert s.bounds() == (len(stored) + 1, len(stored) + 1) or not stored
            assert await s.end(**old) == E.PRODUCER_FENCED

    run(main())


def test_a_late_request_is_not_stored_behind_the_end(tmp_path: Path) -> None:
    async def main() -> None:
        async with talk(tmp_path) as s:
            await s.init(0)
            assert await s.add(0) == [E.NONE]
            assert (await s.produce(version=11)).error_code == 0
            assert await s.end(version=3) == E.NONE
            await s.reaches(TransactionStatus.COMPLETE_COMMIT)
            assert (await s.produce(version=11)).error_code == E.TRANSACTION_ABORTABLE
            assert s.bounds() == (2, 2)

    run(main())


@pytest.mark.parametrize("version", [9, 11, 12, 13])
def test_an_older_instance_is_fenced(tmp_path: Path, version: int) -> None:
    async def main() -> None:
        async with talk(tmp_path) as s:
            await s.init()
            old = s.who()
            assert await s.add(0) == [E.NONE]
            assert (await s.produce(version=11)).error_code == 0
            assert await s.init() == E.CONCURRENT_TRANSACTIONS
            await s.reaches(TransactionStatus.COMPLETE_ABORT)
            assert await s.init() == E.NONE
            assert s.epoch > old["producer_epoch"] + 1
            assert (await s.produce(version=version, **old)).error_code == E.INVALID_PRODUCER_EPOCH
            assert await s.add(0, version=1, **old) == [E.INVALID_PRODUCER_EPOCH]
            assert await s.add(0, version=2, **old) == [E.PRODUCER_FENCED]
            assert await s.end(version=1, **old) == E.INVALID_PRODUCER_EPOCH
            assert await s.end(version=5, **old) == E.PRODUCER_FENCED
            assert await s.init(3, **old) == E.INVALID_PRODUCER_EPOCH
            assert await s.init(4, **old) == E.PRODUCER_FENCED
            assert s.bounds() == (2, 2)

    run(main())


def test_the_topic_of_transactions_is_seen_as_kafkas(tmp_path: Path) -> None:
    async def main() -> None:
        async with talk(tmp_path) as s:
            await s.init()
            asked = [
                REQUESTS[3].MetadataRequestTopic(version=12, topic_id=None, name=name)
                for name in ("__transaction_state", "__transactions")
            ]
            known, hidden = (await s.client.call(3, 12, topics=asked)).topics
            assert (known.error_code, known.is_internal, len(known.partitions)) == (E.NONE, True, 1)
            assert hidden.error_code == E.UNKNOWN_TOPIC_OR_PARTITION
            everything = await s.client.call(3, 12, topics=None)
            assert "__transaction_state" in {topic.name for topic in everything.topics}
            refused = await s.client.call(0, 12, **produce_fields("__transaction_state", batch([b"v"]), version=12))
            assert refused.responses[0].partition_responses[0].error_code == E.INVALID_TOPIC_EXCEPTION
            deleted = await s.client.call(20, 5, topic_names=["__transaction_state"], timeout_ms=1000)
            assert deleted.responses[0].error_code == E.INVALID_TOPIC_EXCEPTION
            part = REQUESTS[1].FetchTopic.FetchPartition(
                version=12, partition=0, fetch_offset=0, log_start_offset=-1, partition_max_bytes=1 << 20
            )
            topic = REQUESTS[1].FetchTopic(version=12, topic="__transaction_state", partitions=[part])
            answer = await s.client.call(
                1, 12, replica_id=-1, max_wait_ms=0, min_bytes=1, max_bytes=1 << 20, isolation_level=0,
                session_id=0, session_epoch=-1, topics=[topic], forgotten_topics_data=[], rack_id="",
            )  # fmt: skip
            stored = answer.responses[0].partitions[0].records
            record = next(iter_records(stored, read_header(stored), max_bytes=1 << 20))
            assert record.key is not None
            assert record.value is not None
            assert decode_transaction_key(record.key) == "tx"
            assert decode_transaction_value(record.value).producer_id == s.producer_id

    run(main())


def test_what_is_wrong_with_a_request_is_said(tmp_path: Path) -> None:
    async def main() -> None:
        async with talk(tmp_path) as s:
            assert await s.init(name="") == E.INVALID_REQUEST
            assert await s.init(timeout=0) == E.INVALID_TRANSACTION_TIMEOUT
            assert await s.init(timeout=900_001) == E.INVALID_TRANSACTION_TIMEOUT
            assert await s.init(producer_id=5, producer_epoch=-1) == E.INVALID_REQUEST
            assert await s.init(name="third") == E.NONE  # there is a coordinator to ask now
            assert await s.add(0, producer_id=1, producer_epoch=0) == [E.INVALID_PRODUCER_ID_MAPPING]
            assert await s.end(producer_id=1, producer_epoch=0) == E.INVALID_PRODUCER_ID_MAPPING
            assert await s.init() == E.NONE
            assert await s.end() == E.INVALID_TXN_STATE
            assert await s.end(version=4) == E.INVALID_TXN_STATE
            assert await s.add(0, 7) == [E.OPERATION_NOT_ATTEMPTED, E.UNKNOWN_TOPIC_OR_PARTITION]
            assert await s.add(0, topic="missing") == [E.UNKNOWN_TOPIC_OR_PARTITION]
            assert await s.add(0, topic="__transaction_state") != [E.NONE]
            for version in range(4):
                assert await s.add(0, topic="__consumer_offsets", version=version) == [E.TOPIC_AUTHORIZATION_FAILED]
            assert s.transaction().status is TransactionStatus.EMPTY
            assert (await s.produce(name="another", version=12)).error_code == E.INVALID_PRODUCER_ID_MAPPING

    run(main())


@pytest.mark.parametrize("version", [3, 4, 5])
def test_only_minus_1_stands_for_no_producer(tmp_path: Path, version: int) -> None:
    async def main() -> None:
        async with talk(tmp_path) as s:
            fenced = E.PRODUCER_FENCED if version >= 4 else E.INVALID_PRODUCER_EPOCH
            for producer_id, epoch in ((-2, 0), (0, -2), (-2, -2)):
                producer = {"producer_id": producer_id, "producer_epoch": epoch}
                answer = await s.client.call(22, version, transactional_id=None, transaction_timeout_ms=0, **producer)
                assert (answer.error_code, answer.producer_epoch) == (E.NONE, 0)
                assert await s.init(version) == E.NONE
                assert await s.init(version, producer_id=producer_id, producer_epoch=epoch) == fenced
            assert await s.init(version, producer_id=-2, producer_epoch=-1) == E.INVALID_REQUEST
            assert await s.init(version, producer_id=-1, producer_epoch=-2) == E.INVALID_REQUEST

    run(main())


@pytest.mark.parametrize("version", [4, 5])
def test_brokers_ask_whether_a_partition_is_in_a_transaction(tmp_path: Path, version: int) -> None:
    async def main() -> None:
        async with talk(tmp_path) as s:
            await s.init()
            assert await s.add(0, version=version) == [E.NONE]
            outside = E.TRANSACTION_ABORTABLE if version == 5 else E.INVALID_TXN_STATE
            assert await s.verify(0, 1, version=version) == [E.NONE, outside]

    run(main())


@pytest.mark.parametrize("version", range(5))
def test_offsets_of_a_group_are_added_by_their_partition(tmp_path: Path, version: int) -> None:
    async def main() -> None:
        async with talk(tmp_path) as s:
            await s.init(0)
            answer = await s.client.call(25, version, transactional_id="tx", group_id="g", **s.who())
            assert answer.error_code == 0
            ((name, _),) = s.transaction().partitions
            assert name == "__consumer_offsets"

    run(main())


@pytest.mark.parametrize("version", range(5))
def test_offsets_of_the_group_without_a_name_are_added_as_in_kafka(tmp_path: Path, version: int) -> None:
    """TxnOffsetCommit refuses such a group."""

    async def main() -> None:
        async with talk(tmp_path) as s:
            await s.init(0)
            answer = await s.client.call(25, version, transactional_id="tx", group_id="", **s.who())
            assert answer.error_code == E.NONE
            assert s.transaction().partitions == {("__consumer_offsets", 0)}

    run(main())


def test_batches_of_two_producers_in_a_request(tmp_path: Path) -> None:
    async def main() -> None:
        async with talk(tmp_path) as s:
            await s.init()
            mine = batch([b"a"], transactional=True, base_sequence=0, **s.who())
            other = batch([b"a"], transactional=True, base_sequence=0, producer_id=999, producer_epoch=0)
            fields = produce_fields("t", mine, version=12) | {"transactional_id": "tx"}
            fields["topic_data"][0].partition_data += produce_fields("t", other, version=12, partition=1)["topic_data"][
                0
            ].partition_data
            answer = await s.client.call(0, 12, **fields)
            codes = [part.error_code for part in answer.responses[0].partition_responses]
            assert codes == [0, E.INVALID_PRODUCER_ID_MAPPING]

    run(main())


def test_a_transaction_times_out(tmp_path: Path) -> None:
    async def main() -> None:
        async with talk(tmp_path) as s:
            await s.init(timeout=1000)  # the first record has to come before that
            assert (await s.produce(version=12)).error_code == 0
            await s.reaches(TransactionStatus.COMPLETE_ABORT)
            assert s.bounds() == (2, 2)
            assert (await s.produce(version=12)).error_code == E.INVALID_PRODUCER_EPOCH

    run(main())


@pytest.mark.parametrize("times_out", [False, True])
@pytest.mark.parametrize("version", [11, 12])
def test_a_running_producer_bumps_its_epoch_and_goes_on_after_an_abort(
    tmp_path: Path, version: int, times_out: bool
) -> None:
    async def main() -> None:
        async with talk(tmp_path) as s:
            await s.init(timeout=1000 if times_out else 60_000)

            async def written(start: int) -> None:
                if version < 12:
                    assert await s.add(0) == [E.NONE]
                answer = await s.produce(version=version)
                assert (answer.error_code, answer.base_offset) == (E.NONE, start)

            async def goes_on() -> bool:
                return await s.init(**before) != E.CONCURRENT_TRANSACTIONS

            await written(0)
            before = s.who()
            if times_out:
                await s.reaches(TransactionStatus.COMPLETE_ABORT)
                assert (await s.produce(version=version)).error_code == E.INVALID_PRODUCER_EPOCH
            else:
                assert await s.init(**before) == E.CONCURRENT_TRANSACTIONS
            await until(goes_on)
            assert s.who() == before | {"producer_epoch": before["producer_epoch"] + 1}
            await written(2)

    run(main())


def test_a_client_that_leaves_while_its_transaction_is_verified(tmp_path: Path) -> None:
    async def main() -> None:
        async with talk(tmp_path) as s:
            await s.init()
            other = await RawClient.connect(s.serving)
            sent = batch([b"a"], transactional=True, base_sequence=0, **s.who())
            other.send(0, 12, **(produce_fields("t", sent, version=12) | {"transactional_id": "tx"}))
            await asyncio.sleep(0)
            await other.close()
            assert await s.end(commit=False) in {E.NONE, E.CONCURRENT_TRANSACTIONS}

    run(main())
