"""The errors that a user of the clients can mend. The texts name Kafka's own properties, as `bootstrap.servers`.

Everything else that the clients raise is kafka-python's.
"""

from __future__ import annotations

from typing import Final

from kafka import errors


class ClientError(Exception):
    """A request that cannot be done; the text says what to do about it. Trying again does not help."""


class NotAllowedError(ClientError):
    """The user may not do what was asked for."""


class NoTransactionsError(ClientError):
    """The cluster has no transactions, or none for this user."""


class FencedError(Exception):
    """The transaction was aborted: a newer producer of its transactional id has begun, or its time was over.

    Its argument says what was asked for.
    """

    def __str__(self) -> str:
        return (
            f"{self.args[0]}: a newer producer of the same transactional id has begun, and this one ends; or the "
            "transaction was open for longer than transaction.timeout.ms: raise that if one takes so long"
        )


class NotMemberError(Exception):
    """Whoever committed is not the group's member any more, or its group has another generation by now."""


class UnreachableError(Exception):
    """No server answered, or none let this client in; the text says which properties to look at."""


REQUEST_ERRORS: Final = (ClientError, UnreachableError, errors.KafkaError)
"""The errors that a request may raise but for FencedError and NotMemberError."""
ANSWERS: Final = (errors.BrokerResponseError, ClientError, NotMemberError)
"""The errors that a server has answered, or that follow from its answer."""
RIGHTS: Final = (errors.AuthorizationError, NotAllowedError, NoTransactionsError)
"""Answers because the user may not do what was asked for."""
OF_TRANSACTION: Final = (
    NoTransactionsError,
    errors.ConcurrentTransactionsError,
    errors.InvalidProducerIdMappingError,
    errors.InvalidTxnStateError,
)
"""Answers that concern a transaction as a whole, and none of what is added to it."""
