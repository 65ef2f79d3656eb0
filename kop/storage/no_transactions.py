"""What an engine promises of transactions where its storage has none.

Owns: the refusal. Must not know: the engine.
"""

from __future__ import annotations

from collections.abc import Collection

from kop.errors import ErrorCode, PeerError
from kop.storage.base import EndedTransaction


class NoTransactions:
    """A `TransactionStorage` that refuses with the reason. librdkafka retries most other errors for ever."""

    def __init__(self, refusal: str) -> None:
        self.refusal = refusal

    async def begin(self, timeout_ms: int) -> bytes:
        """See `TransactionStorage.begin`."""
        raise self._error()

    async def add(self, storage_transaction: bytes, partitions: Collection[tuple[str, int]]) -> None:
        """See `TransactionStorage.add`."""
        raise self._error()

    async def end(self, ended: EndedTransaction) -> None:
        """See `TransactionStorage.end`."""
        raise self._error()

    def _error(self) -> PeerError:
        return PeerError(self.refusal, ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED)
