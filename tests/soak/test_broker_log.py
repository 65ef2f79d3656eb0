"""What the soak takes from the log of Pulsar's broker."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from conformance.soak.broker_log import RECOVERY_SECONDS, begun_anew, failed_commits, failed_recoveries

NAMESPACE = "public/soak-1"
CLOSING = (
    "2026-11-29T01:42:26,554+0000 [pulsar-transaction-snapshot-recover-27-1] WARN  "
    "org.apache.pulsar.broker.transaction.buffer.impl.TopicTransactionBuffer - Closing topic "
    "persistent://public/soak-1/kafka-partition-0 due to read transaction buffer snapshot while recovering the "
    "transaction buffer throw exception\n"
)
FAILED = (
    "2026-11-29T01:42:26,560+0000 [pulsar-transaction-snapshot-recover-27-1] ERROR "
    "org.apache.pulsar.broker.transaction.buffer.impl.TopicTransactionBuffer - "
    "[persistent://public/soak-1/kafka-partition-0]Transaction buffer failed to recover snapshot!\n"
)
AT = datetime(2026, 11, 29, 1, 42, 26, 560000, UTC).timestamp()


def test_a_recovery_that_failed_is_a_disturbance_of_all_topics() -> None:
    (recovery,) = failed_recoveries(CLOSING + FAILED + CLOSING, {NAMESPACE}, 15.0)
    assert (recovery.kind, recovery.target) == ("recovery_failed", "")
    assert (recovery.begin, recovery.end) == pytest.approx((AT - RECOVERY_SECONDS, AT + 15), abs=0.001)


def test_a_recovery_in_a_namespace_of_others_is_none_of_this_run() -> None:
    assert failed_recoveries(FAILED, {"public/soak-2", "public/soak"}, 15.0) == []


def test_commits_that_failed_on_a_partition_are_named() -> None:
    line = "... handleEndTxnOnPartition fail! topic: [t], txnId: [(3,17)], txnAction: [{}]\n"
    assert failed_commits(line.format("COMMIT") + line.format("ABORT").replace("17", "18")) == {("3", "17")}


def test_a_commit_that_was_lost_is_named_if_the_broker_aborts_its_transaction_by_itself() -> None:
    line = (
        "2026-11-29T09:11:39,543+0000 [BookKeeperClientWorker-OrderedExecutor-0-0] WARN  "
        "org.apache.pulsar.broker.transaction.buffer.impl.TopicTransactionBuffer - Successes to abort low water mark "
        "for txn [(2,5)], topic [persistent://public/soak-1/transactions-partition-0], lowWaterMark [5]\n"
    )
    assert failed_commits(line) == {("2", "5")}


def test_a_transaction_buffer_that_took_its_first_snapshot_twice_began_anew() -> None:
    line = (
        "2026-11-29T02:18:24,973+0000 [pulsar-io-34-4] INFO  "
        "org.apache.pulsar.broker.transaction.buffer.impl.TopicTransactionBuffer - "
        "[persistent://public/soak-1/{}-partition-0] Start to take the first snapshot\n"
    )
    assert begun_anew(line.format("a") + line.format("b") + line.format("a")) == {
        "persistent://public/soak-1/a-partition-0"
    }
