"""What tools ask of transactions, by every version of the requests: list, describe, markers, features."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Any

import pytest
from handlers.test_transactions import Talk, talk
from support.gateway import RawClient, gateway, run

from kop.errors import ErrorCode as E
from kop.wire.messages import REQUESTS
from kop.wire.transaction_state import TransactionStatus


async def listed(s: Talk, version: int = 2, **filters: Any) -> Any:
    fields: dict[str, Any] = {"state_filters": [], "producer_id_filters": []}
    if version >= 1:
        fields["duration_filter"] = -1
    if version >= 2:
        fields["transactional_id_pattern"] = None
    return await s.client.call(66, version, **(fields | filters))


async def names(s: Talk, version: int = 2, **filters: Any) -> list[str]:
    answer = await listed(s, version, **filters)
    assert answer.error_code == 0
    return sorted(row.transactional_id for row in answer.transaction_states)


async def make_three_ids(s: Talk) -> None:
    """Ids `a-1` and `b-1` without a transaction, `tx` with an open one."""
    for name in ("a-1", "b-1", "tx"):
        assert await s.init(name=name) == E.NONE
    assert (await s.produce()).error_code == 0


@pytest.mark.parametrize("version", range(3))
def test_transactional_ids_are_listed_by_state_and_producer(tmp_path: Path, version: int) -> None:
    async def main() -> None:
        async with talk(tmp_path) as s:
            assert await names(s, version) == []
            await make_three_ids(s)
            answer = await listed(s, version)
            rows = {row.transactional_id: (row.producer_id, row.transaction_state) for row in answer.transaction_states}
            assert {name: state for name, (_, state) in rows.items()} == {
                "a-1": "Empty", "b-1": "Empty", "tx": "Ongoing",
            }  # fmt: skip
            assert await names(s, version, state_filters=["Ongoing"]) == ["tx"]
            assert await names(s, version, producer_id_filters=[rows["a-1"][0], s.producer_id]) == ["a-1", "tx"]
            assert await names(s, version, producer_id_filters=[rows["a-1"][0]], state_filters=["Ongoing"]) == []
            answer = await listed(s, version, state_filters=["Empty", "Sleeping"])
            assert answer.unknown_state_filters == ["Sleeping"]
            assert len(answer.transaction_states) == 2
            answer = await listed(s, version, state_filters=["Sleeping"])
            assert (answer.unknown_state_filters, answer.transaction_states) == (["Sleeping"], [])

    run(main())


@pytest.mark.parametrize("version", [1, 2])
def test_transactional_ids_are_listed_by_duration(tmp_path: Path, version: int) -> None:
    async def main() -> None:
        async with talk(tmp_path) as s:
            await make_three_ids(s)
            assert await names(s, version, duration_filter=3_600_000, state_filters=["Ongoing"]) == []
            while time.time_ns() // 1_000_000 <= s.transaction().start_timestamp:
                pass  # a millisecond at the most
            assert await names(s, version, duration_filter=0, state_filters=["Ongoing"]) == ["tx"]

    run(main())


def test_transactional_ids_are_listed_by_a_pattern(tmp_path: Path) -> None:
    async def main() -> None:
        async with talk(tmp_path) as s:
            await make_three_ids(s)
            assert await names(s, transactional_id_pattern="") == ["a-1", "b-1", "tx"]
            assert await names(s, transactional_id_pattern="[ab]-.*") == ["a-1", "b-1"]
            assert await names(s, transactional_id_pattern="a") == [], "the whole id has to match"
            # Tried one way after the other, as Python's `re` does, this would take longer than the test may.
            assert await s.init(name="a" * 60) == E.NONE
            assert await names(s, transactional_id_pattern="(a|a)*(a|aa)*b") == []
            for wrong in ("(", "*", r"(a)\1", "(?=a)"):
                answer = await listed(s, transactional_id_pattern=wrong)
                assert answer.error_code == E.INVALID_REGULAR_EXPRESSION
                assert answer.transaction_states == []

    run(main())


async def described(s: Talk, *names_: str) -> list[Any]:
    return list((await s.client.call(65, 0, transactional_ids=list(names_))).transaction_states)


def test_a_transactional_id_is_described(tmp_path: Path) -> None:
    async def main() -> None:
        async with talk(tmp_path) as s:
            assert [row.error_code for row in await described(s, "tx")] == [E.NOT_COORDINATOR], "nobody asked for it"
            await s.init()
            (row,) = await described(s, "tx")
            assert (row.transaction_state, row.transaction_start_time_ms, row.topics) == ("Empty", -1, [])
            await s.produce(1)
            await s.produce(0)
            row, missing, empty = await described(s, "tx", "other", "")
            assert (row.error_code, row.transactional_id, row.transaction_state) == (E.NONE, "tx", "Ongoing")
            assert (row.producer_id, row.producer_epoch) == (s.producer_id, s.epoch)
            assert (row.transaction_timeout_ms, row.transaction_start_time_ms) == (
                60_000, s.transaction().start_timestamp,
            )  # fmt: skip
            assert [(topic.topic, topic.partitions) for topic in row.topics] == [("t", [0, 1])]
            assert (missing.error_code, missing.transactional_id) == (E.TRANSACTIONAL_ID_NOT_FOUND, "other")
            assert empty.error_code == E.INVALID_REQUEST
            assert await s.end() == E.NONE
            await s.reaches(TransactionStatus.COMPLETE_COMMIT)
            (row,) = await described(s, "tx")
            assert (row.transaction_state, row.topics) == ("CompleteCommit", [])

    run(main())


async def mark(s: Talk, version: int, *places: tuple[str, int], commit: bool = False, **more: int) -> list[E]:
    marker = REQUESTS[27].WritableTxnMarker
    topics = [
        marker.WritableTxnMarkerTopic(version=version, name=name, partition_indexes=[index]) for name, index in places
    ]
    fields = {**s.who(), "coordinator_epoch": 0} | more
    if version >= 2:
        fields.setdefault("transaction_version", 0)
    answer = await s.client.call(
        27, version, markers=[marker(version=version, transaction_result=commit, topics=topics, **fields)]
    )
    (result,) = answer.markers
    assert result.producer_id == fields["producer_id"]
    return [E(part.error_code) for topic in result.topics for part in topic.partitions]


async def producer(s: Talk) -> Any:
    row = REQUESTS[61].TopicRequest(version=0, name="t", partition_indexes=[0])
    (state,) = (await s.client.call(61, 0, topics=[row])).topics[0].partitions[0].active_producers
    return state


@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize("store", ["memory", "sqlite"])
def test_a_hanging_transaction_is_aborted_by_a_marker(tmp_path: Path, version: int, store: str) -> None:
    async def main() -> None:
        where = {"store": "memory:"} if store == "memory" else {}
        async with gateway(tmp_path, **where) as serving:
            await serving.gateway.engine.topics.create("t", 2, {})
            s = Talk(serving, await RawClient.connect(serving))
            await s.init()
            assert (await s.produce()).error_code == 0
            state = await producer(s)
            assert (state.producer_id, state.producer_epoch) == (s.producer_id, s.epoch)
            assert (state.current_txn_start_offset, state.coordinator_epoch) == (0, -1)
            assert s.bounds() == (0, 1)
            assert await mark(s, version, ("t", 0), ("t", 9), ("missing", 0)) == [
                E.NONE, E.UNKNOWN_TOPIC_OR_PARTITION, E.UNKNOWN_TOPIC_OR_PARTITION,
            ]  # fmt: skip
            assert s.bounds() == (2, 2)
            assert (await producer(s)).current_txn_start_offset == -1
            assert await mark(s, version, ("t", 0)) == [E.NONE]
            assert s.bounds() == (2, 2), "the marker is there already"
            assert await mark(s, version, ("__transaction_state", 0)) == [E.UNKNOWN_TOPIC_OR_PARTITION]

    run(main())


def test_a_marker_of_an_old_epoch_is_refused(tmp_path: Path) -> None:
    async def main() -> None:
        async with talk(tmp_path) as s:
            await s.init()
            await s.end(commit=False)
            await s.reaches(TransactionStatus.COMPLETE_ABORT)
            assert s.epoch == 1
            assert (await s.produce()).error_code == 0
            assert await mark(s, 1, ("t", 0), producer_epoch=0) == [E.INVALID_PRODUCER_EPOCH]
            assert await mark(s, 2, ("t", 0), transaction_version=2) == [E.INVALID_PRODUCER_EPOCH], "KIP-1228"
            assert s.bounds() == (0, 1)
            assert await mark(s, 2, ("t", 0), transaction_version=2, producer_epoch=2, commit=True) == [E.NONE]
            assert s.bounds() == (2, 2)

    run(main())


async def update(s: Talk, version: int, *updates: tuple[str, int, int], validate_only: bool = False) -> Any:
    key = REQUESTS[57].FeatureUpdateKey
    rows = [
        key(version=version, feature=feature, max_version_level=level)
        if version == 0 and kind == 1
        else key(version=version, feature=feature, max_version_level=level, allow_downgrade=True)
        if version == 0
        else key(version=version, feature=feature, max_version_level=level, upgrade_type=kind)
        for feature, level, kind in updates
    ]
    more = {"validate_only": validate_only} if version >= 1 else {}
    return await s.client.call(57, version, timeout_ms=1000, feature_updates=rows, **more)


UPGRADE, SAFE, UNSAFE = 1, 2, 3
TV = "transaction.version"
REFUSED = {
    "downgrade as an upgrade": (TV, 1, UPGRADE, E.INVALID_UPDATE_VERSION, "upgrade type to either safe or unsafe"),
    "downgrade": (TV, 1, SAFE, E.FEATURE_UPDATE_FAILED, "cannot be changed"),
    "off": (TV, 0, SAFE, E.FEATURE_UPDATE_FAILED, "cannot be changed"),
    "too new": (TV, 3, UPGRADE, E.INVALID_UPDATE_VERSION, "only supports versions 0-2"),
    "negative": (TV, -1, SAFE, E.INVALID_UPDATE_VERSION, "cannot be less than 0"),
    "unknown": ("share.version", 1, UPGRADE, E.INVALID_UPDATE_VERSION, "does not support this feature"),
}


@pytest.mark.parametrize("version", range(3))
def test_a_feature_keeps_its_level(tmp_path: Path, version: int) -> None:
    async def main() -> None:
        async with talk(tmp_path) as s:
            for only in (False, True):
                answer = await update(s, version, (TV, 2, UPGRADE), validate_only=only)
                assert (answer.error_code, answer.error_message) == (0, None)
                if version < 2:
                    assert [(row.feature, row.error_code) for row in answer.results] == [(TV, 0)]

    run(main())


@pytest.mark.parametrize("version", range(3))
@pytest.mark.parametrize("name", REFUSED)
def test_another_level_of_a_feature_is_refused(tmp_path: Path, name: str, version: int) -> None:
    feature, level, kind, code, text = REFUSED[name]

    async def main() -> None:
        async with talk(tmp_path) as s:
            answer = await update(s, version, (TV, 2, UPGRADE), (feature, level, kind))
            assert answer.error_code == code
            assert text in answer.error_message

    run(main())


@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize("kind", [0, 4])
def test_an_unknown_kind_of_update_is_refused(tmp_path: Path, kind: int, version: int) -> None:
    async def main() -> None:
        async with talk(tmp_path) as s:
            answer = await update(s, version, (TV, 2, kind))
            assert answer.error_code == E.INVALID_UPDATE_VERSION
            assert "upgrade type" in answer.error_message

    run(main())


def test_without_re2_a_pattern_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "re2", None)

    async def main() -> None:
        async with talk(tmp_path) as s:
            await s.init()
            assert (await listed(s, transactional_id_pattern="a")).error_code == E.INVALID_REGULAR_EXPRESSION
            assert await names(s) == ["tx"]

    run(main())
