"""From what Pulsar says went wrong to what a Kafka client is told.

Owns: that table, and what the log says is to be done.
Must not know: who asked.

Which of them a client tries again is Kafka's own rule for the code. Final are those that the same request meets again
until somebody changes a setting of the topic; whatever is wrong between this gateway and Pulsar, credentials that have
run out among it, is no fault of the client and retriable.
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
        "Timeout": ErrorCode.REQUEST_TIMED_OUT,
        "TooManyRequests": ErrorCode.NOT_LEADER_OR_FOLLOWER,
        "IncompatibleSchema": ErrorCode.POLICY_VIOLATION,
        "EncryptionRequired": ErrorCode.POLICY_VIOLATION,
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
        "EncryptionRequired": "Pulsar wants every message encrypted by its producer, Kafka clients cannot: turn that "
        "off (pulsar-admin namespaces set-encryption-required --disable) or use another namespace",
        "ProducerBusy": "another gateway holds this producer's name; clients try again",
        "ConsumerBusy": "another consumer holds the topic; clients try again",
        "AuthorizationError": "grant the gateway's role produce and consume "
        "(pulsar-admin namespaces grant-permission --actions produce,consume)",
        "Forbidden": "the gateway's role must be an admin of the tenant "
        "(pulsar-admin tenants update TENANT --admin-roles ROLE)",
        "AuthenticationError": "see kop.pulsar.auth: Pulsar does not take these credentials, or they have run out",
        "AuthFailed": "see kop.pulsar.auth: there are no credentials to show",
        "Unauthorized": "see kop.pulsar.auth: Pulsar's REST interface does not take these credentials, or they have "
        "run out",
        "Timeout": "Pulsar is overloaded, throttles the topic or cannot be reached; clients try again",
        "ConnectionLost": "see that the brokers run and --store and --admin-url name them",
        "InvalidAddress": "see --store and --admin-url",
        "FrameError": "--store must name the port of Pulsar's binary protocol, 6650 as it comes",
        "MessageTooLarge": "raise maxMessageSize in broker.conf and, more, nettyMaxFrameSizeBytes in bookkeeper.conf",
    }
)
"""What to do, for whoever reads the log."""

_SAID: Final[tuple[tuple[str, str, ErrorCode | None, str], ...]] = (
    (
        "NotAllowedError",
        "Exceed maximum message size",
        ErrorCode.MESSAGE_TOO_LARGE,
        "the topic has a limit of its own (pulsar-admin topics get-max-message-size)",
    ),
    (
        "ProducerBusy",
        "max producers limit",
        None,
        "the topic or its namespace allows fewer producers than write to it: raise the limit (pulsar-admin topics "
        "set-max-producers, namespaces set-max-producers-per-topic); each gateway needs one and one more for each "
        "idempotent producer; clients try again",
    ),
    (
        "ConsumerBusy",
        "max consumers limit",
        None,
        "the topic or its namespace allows fewer consumers than read it: raise the limit (pulsar-admin topics "
        "set-max-consumers, namespaces set-max-consumers-per-topic); each gateway needs a few readers; clients try "
        "again",
    ),
    (
        "NotAllowed",
        "opic level polic",
        ErrorCode.POLICY_VIOLATION,
        "set topicLevelPoliciesEnabled=true and systemTopicEnabled=true in broker.conf: retention, compaction and "
        "deduplication of Kafka topics are topic policies",
    ),
    (
        "PreconditionFailed",
        "-partition-",
        ErrorCode.INVALID_TOPIC_EXCEPTION,
        "Pulsar names the partitions of its topics so: choose another name",
    ),
    (
        "PreconditionFailed",
        "maximum number of topics",
        None,
        "the namespace may have no more topics, each partition counts: delete some or raise the limit "
        "(pulsar-admin namespaces set-max-topics-per-namespace)",
    ),
)
"""Where one code stands for several reasons, its text tells: code, part of the text, Kafka's code, what to do."""

_FINAL: Final = frozenset({ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.TOPIC_ALREADY_EXISTS})


def kafka_error(error: PulsarError, doing: str) -> KopError:
    """The same failure in Kafka's words; `doing` begins the text, what to do ends it."""
    code = _CODES.get(error.code, ErrorCode.KAFKA_STORAGE_ERROR)
    help_text = _HELP.get(error.code)
    for name, part, special, text in _SAID:
        if error.code == name and part in error.message:
            code, help_text = special or code, text
    text = f"{doing}: Pulsar says {error.code}: {error.message}"
    if help_text:
        text += f": {help_text}"
    return PeerError(text, code) if code in _FINAL else BackendError(text, code)
