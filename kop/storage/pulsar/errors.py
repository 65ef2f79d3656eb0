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
        "PreconditionFailed": ErrorCode.POLICY_VIOLATION,
    }
)
"""What is not here is KAFKA_STORAGE_ERROR, which clients retry."""

_HELP: Final[Mapping[str, str]] = MappingProxyType(
    {
        "ProducerBlockedQuotaExceededError": "a subscription of the topic is further behind than its backlog quota "
        "allows: let it be consumed, delete it (pulsar-admin topics unsubscribe) or raise the quota "
        "(pulsar-admin topics set-backlog-quota); clients try again",
        "TopicTerminatedError": "the topic was terminated in Pulsar and takes no more messages: create another one",
        "IncompatibleSchema": "the topic wants a schema of every producer, Kafka clients send bytes: delete its schema "
        "(pulsar-admin schemas delete) and allow producers without one "
        "(pulsar-admin namespaces set-schema-validation-enforce --disable)",
        "ProducerBusy": "another gateway holds this producer's name, or the topic has as many producers as it may "
        "(pulsar-admin topics get-max-producers); clients try again",
        "AuthorizationError": "grant the gateway's role produce and consume "
        "(pulsar-admin namespaces grant-permission --actions produce,consume)",
        "Forbidden": "the gateway's role must be an admin of the tenant",
        "AuthenticationError": "see kop.pulsar.auth: Pulsar does not take these credentials",
        "Unauthorized": "see kop.pulsar.auth: Pulsar's REST interface does not take these credentials",
        "Timeout": "Pulsar is overloaded, throttles the topic or cannot be reached; clients try again",
        "ConnectionLost": "see that the brokers run and --store and --admin-url name them",
        "InvalidAddress": "see --store and --admin-url",
        "FrameError": "--store must name the port of Pulsar's binary protocol, 6650 as it comes",
        "MessageTooLarge": "raise maxMessageSize in broker.conf and, more, nettyMaxFrameSizeBytes in bookkeeper.conf",
    }
)
"""What to do, for whoever reads the log."""

_TOO_LARGE: Final = "Exceed maximum message size"
"""So says a broker with NotAllowedError where the topic has a limit of its own."""

_FINAL: Final = frozenset({ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.TOPIC_ALREADY_EXISTS})


def kafka_error(error: PulsarError, doing: str) -> KopError:
    """The same failure in Kafka's words; `doing` begins the text."""
    code = _CODES.get(error.code, ErrorCode.KAFKA_STORAGE_ERROR)
    text = f"{doing}: Pulsar says {error.code}: {error.message}"
    if error.code == "NotAllowedError" and _TOO_LARGE in error.message:
        code = ErrorCode.MESSAGE_TOO_LARGE
        text += ": the topic has a limit of its own (pulsar-admin topics get-max-message-size)"
    if error.code in _HELP:
        text += f": {_HELP[error.code]}"
    return PeerError(text, code) if code in _FINAL else BackendError(text, code)
