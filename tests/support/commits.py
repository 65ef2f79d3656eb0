"""Commits of offsets that a test waits for."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from kop.errors import ErrorCode
from kop.groups.offsets import Commit
from kop.groups.runtime import GroupCoordinator


def commit(
    groups: GroupCoordinator, group_id: str, commits: Sequence[Commit], retention_ms: int = -1
) -> asyncio.Future[ErrorCode]:
    """As `GroupCoordinator.commit`; the future ends with what it answers, or with its refusal."""
    answer: asyncio.Future[ErrorCode] = asyncio.get_running_loop().create_future()

    def end(code: ErrorCode) -> None:
        if not answer.cancelled():
            answer.set_result(code)

    refusal = groups.commit(group_id, commits, end, retention_ms=retention_ms)
    if refusal:
        end(refusal)
    return answer
