"""The states of a classic group and the errors that a failed write becomes.

Owns: the tables. Must not know: groups.
"""

from __future__ import annotations

from enum import Enum
from typing import Final

from kop.errors import ErrorCode, InternalError


class State(Enum):
    """Kafka's states of a classic group, by the names that clients see."""

    EMPTY = "Empty"
    PREPARING_REBALANCE = "PreparingRebalance"
    COMPLETING_REBALANCE = "CompletingRebalance"
    STABLE = "Stable"
    DEAD = "Dead"


_BEFORE: Final = {
    State.EMPTY: {State.PREPARING_REBALANCE},
    State.PREPARING_REBALANCE: {State.STABLE, State.COMPLETING_REBALANCE, State.EMPTY},
    State.COMPLETING_REBALANCE: {State.PREPARING_REBALANCE},
    State.STABLE: {State.COMPLETING_REBALANCE},
    State.DEAD: {State.EMPTY},
}
"""From which states a state may be entered."""

_ANSWERS: Final = {
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_ENOUGH_REPLICAS: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.REQUEST_TIMED_OUT: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_LEADER_OR_FOLLOWER: ErrorCode.NOT_COORDINATOR,
    ErrorCode.KAFKA_STORAGE_ERROR: ErrorCode.NOT_COORDINATOR,
    ErrorCode.MESSAGE_TOO_LARGE: ErrorCode.UNKNOWN_SERVER_ERROR,
    ErrorCode.RECORD_LIST_TOO_LARGE: ErrorCode.UNKNOWN_SERVER_ERROR,
    ErrorCode.INVALID_FETCH_SIZE: ErrorCode.UNKNOWN_SERVER_ERROR,
}


def answer_for(failed_write: ErrorCode) -> ErrorCode:
    """What a client is told when the record that its answer needs could not be written."""
    return _ANSWERS.get(failed_write, failed_write)


def check_step(group_id: str, before: State, after: State) -> None:
    """InternalError where a group may not go from the one state to the other."""
    if before not in _BEFORE[after]:
        raise InternalError(f"group {group_id} cannot go from {before.value} to {after.value}")
