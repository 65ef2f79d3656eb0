"""The errors between the client and Pulsar.

Owns: the exceptions of this package and which codes are worth another try.
Must not know: Kafka's error codes.
"""

from __future__ import annotations

import re
from typing import Final

from kop.pulsar_client.proto import pulsar_pb2 as pb

_FINAL = frozenset(
    {
        "AuthenticationError",
        "AuthorizationError",
        "ChecksumError",
        "Closed",
        "EncryptionRequired",
        "FrameError",
        "IncompatibleSchema",
        "InvalidAddress",
        "InvalidTopicName",
        "InvalidTxnStatus",
        "MessageTooLarge",
        "NotAllowedError",
        "ProducerFenced",
        "SubscriptionNotFound",
        "TlsError",
        "TopicNotFound",
        "TopicTerminatedError",
        "TransactionNotFound",
        "UnsupportedVersionError",
        # of the REST interface and of credentials
        "AuthFailed",
        "BadAnswer",
        "BadRequest",
        "Conflict",
        "Forbidden",
        "NotAllowed",
        "NotFound",
        "PreconditionFailed",
        "Unauthorized",
    }
)
"""The codes of errors that the same request gets again however often it is repeated. All other codes may pass."""


NOT_THERE: Final = ("NotFound", "TopicNotFound")
"""The codes of Pulsar's errors for a topic, partition or namespace that does not exist."""
QUOTA_EXCEEDED = "ProducerBlockedQuotaExceededError"
"""The code of a refusal to publish because a subscription of the topic is too far behind (its backlog quota)."""

_ENCRYPTION = "Encryption is required"
_CLOSING = "fenced managed ledger"
"""A part of the broker's text about a topic that is being deleted or moved at this moment."""
_HELD_BY = re.compile(r"existing exclusive producer: (\S+)")


class PulsarError(Exception):
    """A refusal by a broker, or no answer from one.

    `code` is a name of Pulsar's ServerError ("TopicNotFound"), or one of ours: "Timeout" (no answer in time; the
    request may have been carried out), "ConnectionLost", "Closed" (by us), "MessageTooLarge", "FrameError" (the peer
    speaks another protocol), "TlsError" (the broker's certificate is not trusted), "AuthFailed" (no credentials to be
    had), "EncryptionRequired", or one of the REST interface (`rest.STATUS`). `retriable` says if another try may help.
    """

    def __init__(self, code: str, message: str = "", *, retriable: bool | None = None) -> None:
        super().__init__(f"{code}: {message}" if message else code)
        self.code = code
        self.message = message
        self.retriable = code not in _FINAL if retriable is None else retriable
        """True if the same request may succeed later."""


class EntryRefusedError(PulsarError):
    """A final refusal of one entry by the broker, however often it is sent. Those sent behind it have answers of their
    own.
    """

    def __init__(self, error: PulsarError) -> None:
        super().__init__(error.code, error.message, retriable=False)


class Ignoring:
    """A `with` block that ends without an error if a PulsarError of one of these codes is raised in it."""

    def __init__(self, *codes: str) -> None:
        self._codes = codes

    def __enter__(self) -> None:
        """Begin the block."""

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> bool:
        return isinstance(error, PulsarError) and error.code in self._codes


def exclusive_holder(error: PulsarError) -> str | None:
    """Return the name of the exclusive producer for which a broker refused another one; None if the error names
    none.
    """
    held = _HELD_BY.search(error.message)
    return None if held is None or held[1] == "null" else held[1]


def server_error(number: int, message: str) -> PulsarError:
    """Return the exception for a ServerError in an answer; a number newer than this client keeps its number as name.
    Refusals that brokers send under a code that misleads get the code that fits their text.
    """
    try:
        name = pb.ServerError.Name(number)
    except ValueError:
        name = f"ServerError{number}"
    if name == "ProducerBlockedQuotaExceededException":  # the same refusal, in brokers' other spelling
        name = QUOTA_EXCEEDED
    if name == "MetadataError" and _ENCRYPTION in message:  # said of troubles with metadata, too, which pass
        name = "EncryptionRequired"
    if name == "UnknownError" and _CLOSING in message:
        name = "ServiceNotReady"
    return PulsarError(name, message)
