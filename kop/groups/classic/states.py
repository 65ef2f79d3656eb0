"""The states of a classic group, and which may follow which.

Owns: the table. Must not know: groups.
"""

from __future__ import annotations

from enum import Enum
from typing import Final

from kop.errors import InternalError


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
"""For each state the states from which it may be entered."""


def check_step(group_id: str, before: State, after: State) -> None:
    """InternalError where a group may not go from the one state to the other."""
    if before not in _BEFORE[after]:
        raise InternalError(f"group {group_id} cannot go from {before.value} to {after.value}")
