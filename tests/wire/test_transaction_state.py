"""Records of `__transaction_state`: Kafka's own bytes (conformance/vectors), damage, and fields of our own."""

from __future__ import annotations

import base64
import contextlib
import gzip
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kop.errors import StateRecordError
from kop.wire.transaction_state import (
    TransactionStatus,
    TransactionValue,
    decode_transaction_key,
    decode_transaction_value,
    encode_transaction_key,
    encode_transaction_value,
)

FILE = Path(__file__).parents[2] / "conformance" / "vectors" / "state.jsonl.gz"
_STATUS_AT = 2 + 8 + 2 + 4


def vectors(name: str) -> list[Any]:
    with gzip.open(FILE, "rt", encoding="utf-8") as lines:
        chosen = [row for row in map(json.loads, lines) if row["name"] == name]
    assert chosen
    return [pytest.param(row, id=f"{name}-v{row['version']}-{row['fill']}") for row in chosen]


@pytest.mark.parametrize("vector", vectors("TransactionLogKey"))
def test_keys_are_kafkas(vector: dict[str, Any]) -> None:
    raw, java = base64.b64decode(vector["bytes"]), vector["json"]
    assert decode_transaction_key(raw) == java["transactionalId"]
    assert encode_transaction_key(java["transactionalId"]) == raw


@pytest.mark.parametrize("vector", vectors("TransactionLogValue"))
def test_values_are_kafkas(vector: dict[str, Any]) -> None:
    raw, java = bytearray(base64.b64decode(vector["bytes"])), vector["json"]
    raw[_STATUS_AT] = TransactionStatus.ONGOING  # the vectors hold random numbers there, an enumeration takes eight
    value = decode_transaction_value(raw)
    assert (value.producer_id, value.producer_epoch) == (java["producerId"], java["producerEpoch"])
    assert (value.timeout_ms, value.status) == (java["transactionTimeoutMs"], TransactionStatus.ONGOING)
    assert value.partitions == {
        (row["topic"], index) for row in java["transactionPartitions"] for index in row["partitionIds"]
    }
    assert value.last_update_timestamp == java["transactionLastUpdateTimestampMs"]
    assert value.start_timestamp == java["transactionStartTimestampMs"]
    assert value.previous_producer_id == java.get("previousProducerId", -1)
    assert value.next_producer_id == java.get("nextProducerId", -1)
    assert value.next_producer_epoch == java.get("nextProducerEpoch", -1)
    assert value.client_version == java.get("clientTransactionVersion", 0)
    again = encode_transaction_value(value, vector["version"])
    assert decode_transaction_value(again) == value
    if len(java["transactionPartitions"]) < 2 and not _unordered(java):
        assert again.hex() == raw.hex()


def _unordered(java: dict[str, Any]) -> bool:
    return any(row["partitionIds"] != sorted(row["partitionIds"]) for row in java["transactionPartitions"])


VALUE = TransactionValue(4000, 7, 60_000, TransactionStatus.ONGOING, frozenset({("orders", 1), ("orders", 0)}), 9, 8)


def test_an_empty_transaction_has_no_list_as_in_kafka() -> None:
    raw = encode_transaction_value(replace(VALUE, status=TransactionStatus.EMPTY, partitions=frozenset()))
    assert raw[_STATUS_AT : _STATUS_AT + 2] == b"\0\0"
    assert decode_transaction_value(raw).partitions == frozenset()


def test_fields_of_our_own_come_back() -> None:
    value = replace(VALUE, own={10_000: b"\1\2", 10_003: b""}, client_version=2, next_producer_id=5000)
    assert decode_transaction_value(encode_transaction_value(value)) == value


def test_a_key_of_another_kind_is_stepped_over() -> None:
    assert decode_transaction_key(b"\0\5\0\1a") is None


@pytest.mark.parametrize("status", TransactionStatus)
def test_every_state_has_kafkas_name(status: TransactionStatus) -> None:
    names = ["Empty", "Ongoing", "PrepareCommit", "PrepareAbort", "CompleteCommit", "CompleteAbort"]
    assert status.label == [*names, "Dead", "PrepareEpochFence"][status]


@pytest.mark.parametrize("version", [-1, 2, 77])
def test_versions_that_are_not_known_are_refused(version: int) -> None:
    with pytest.raises(StateRecordError, match="version"):
        decode_transaction_value(version.to_bytes(2, "big", signed=True) + bytes(60))
    with pytest.raises(StateRecordError, match="version"):
        encode_transaction_value(VALUE, version)


@given(st.binary(max_size=80), st.sampled_from([0, 1]))
def test_damage_is_an_error_of_its_own(rest: bytes, version: int) -> None:
    with contextlib.suppress(StateRecordError):
        decode_transaction_value(version.to_bytes(2, "big") + rest)
    with contextlib.suppress(StateRecordError):
        decode_transaction_key(b"\0\0" + rest)


@pytest.mark.parametrize("size", range(len(encode_transaction_value(VALUE))))
def test_every_cut_is_an_error(size: int) -> None:
    with pytest.raises(StateRecordError):
        decode_transaction_value(encode_transaction_value(VALUE)[:size])
