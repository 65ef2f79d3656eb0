"""What the log of Pulsar's broker says of its own failures, in which no gateway has a part.

Owns: the lines that tell of them, and how long each is felt.
Must not know: writers, gateways, what is an anomaly.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection
from datetime import datetime
from typing import Final

from conformance.harness.faults import Disturbance

RECOVERY_SECONDS: Final = 30.0
"""The longest time for which a recovery of a transaction buffer holds its thread before it fails. Readers of the topic
get nothing meanwhile, nor of other topics whose recoveries wait for the thread (docs/quirks.md).
"""
RECOVERY_FAILED: Final = "recovery_failed"
"""The kind of disturbance."""

_RECOVERY_FAILED: Final = re.compile(
    r"^(\S+) .*\[persistent://([^/\s]+/[^/\s]+)/\S+\] ?Transaction buffer failed to recover snapshot", re.MULTILINE
)
_FIRST_SNAPSHOT: Final = re.compile(r"\[(persistent://\S+)\] Start to take the first snapshot")
_COMMIT_FAILED: Final = re.compile(r"handleEndTxnOnPartition fail.*txnId: \[\((\d+),(\d+)\)\], txnAction: \[COMMIT\]")
_ABORTED_BY_PULSAR: Final = re.compile(r"Successes to abort low water mark for txn \[\((\d+),(\d+)\)\]")


def failed_recoveries(log: str, namespaces: Collection[str], aftermath: float) -> list[Disturbance]:
    """Return a disturbance of all topics for each recovery of a transaction buffer that failed, in these `namespaces`.

    Topics of one namespace are recovered from one reader, and a connection is answered in order: others wait, too.
    `aftermath`: the seconds for which it is felt once the broker has given up.
    """
    disturbances = []
    for written, namespace in _RECOVERY_FAILED.findall(log):
        if namespace in namespaces:
            at = datetime.strptime(written, "%Y-%m-%dT%H:%M:%S,%f%z").timestamp()
            disturbances.append(Disturbance(RECOVERY_FAILED, "", at - RECOVERY_SECONDS, at + aftermath))
    return disturbances


def failed_commits(log: str) -> set[tuple[str, str]]:
    """Return the ids, most and least, of the transactions whose commit the broker did not carry out on a partition: it
    failed there, or the broker aborted by itself what it had not ended there.

    Its client was told of a commit all the same.
    """
    return {*_COMMIT_FAILED.findall(log), *_ABORTED_BY_PULSAR.findall(log)}


def begun_anew(log: str) -> set[str]:
    """Return the partitions, by their full names, whose transaction buffer the broker has begun more than once.

    The broker then no longer knew of transactions that were open: readers get their messages, though they are aborted.
    """
    return {name for name, times in Counter(_FIRST_SNAPSHOT.findall(log)).items() if times > 1}
