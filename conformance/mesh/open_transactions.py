"""The transactions that a mesh has left open, as ListTransactions tells.

Owns: which states count as open, which transactional ids are those of meshes. Must not know: what runs.
"""

from __future__ import annotations

from typing import Any, Final

OVER: Final = frozenset({"Empty", "CompleteCommit", "CompleteAbort", "Dead"})
"""The states in which a transactional id holds back no reader."""
PREFIX: Final = "kop.mesh/"
"""The transactional ids of components, and of what sources and queries write, begin with it."""


def open_transactions(admin: Any) -> list[str]:
    """Return the transactional ids of meshes whose transaction is neither committed nor aborted, with its state.
    `admin` is a KafkaAdminClient.
    """
    rows = [row for some in admin.list_transactions().values() for row in some]
    return sorted(
        f"{row.transactional_id}: {row.state.value}"
        for row in rows
        if row.transactional_id.startswith(PREFIX) and row.state.value not in OVER
    )
