"""From what Pulsar says went wrong to what a Kafka client is told.

Owns: that table. Must not know: who asked.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from kop.errors import BackendError, ErrorCode, KopError, PeerError
from kop.pulsar_client import PulsarError

_CODES: Final[Mapping[str, ErrorCode]] = MappingProxyType(
    {
        "TopicNotFound": ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        "NotFound": ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        "TopicTerminatedError": ErrorCode.POLICY_VIOLATION,
        "ProducerBusy": ErrorCode.NOT_LEADER_OR_FOLLOWER,
        "ProducerFenced": ErrorCode.NOT_LEADER_OR_FOLLOWER,
        "ServiceNotReady": ErrorCode.NOT_LEADER_OR_FOLLOWER,
        "ConsumerBusy": ErrorCode.NOT_LEADER_OR_FOLLOWER,
        "AuthorizationError": ErrorCode.TOPIC_AUTHORIZATION_FAILED,
        "Forbidden": ErrorCode.TOPIC_AUTHORIZATION_FAILED,
        "AuthenticationError": ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
        "Unauthorized": ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
        "Timeout": ErrorCode.REQUEST_TIMED_OUT,
        "TooManyRequests": ErrorCode.NOT_LEADER_OR_FOLLOWER,
        "IncompatibleSchema": ErrorCode.POLICY_VIOLATION,
        "InvalidTopicName": ErrorCode.INVALID_TOPIC_EXCEPTION,
        "NotAllowedError": ErrorCode.POLICY_VIOLATION,
        "Conflict": ErrorCode.TOPIC_ALREADY_EXISTS,
        "MessageTooLarge": ErrorCode.MESSAGE_TOO_LARGE,
    }
)
"""What is not here is KAFKA_STORAGE_ERROR, which clients retry."""

_FINAL: Final = frozenset({ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.TOPIC_ALREADY_EXISTS})


def kafka_error(error: PulsarError, doing: str) -> KopError:
    """The same failure in Kafka's words; `doing` begins the text."""
    code = _CODES.get(error.code, ErrorCode.KAFKA_STORAGE_ERROR)
    text = f"{doing}: Pulsar says {error.code}: {error.message}"
    return PeerError(text, code) if code in _FINAL else BackendError(text, code)
