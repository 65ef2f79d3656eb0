"""What goes wrong between the gateway and Pulsar: the Kafka error for the client, the count, the log line.

Owns: the table from Pulsar's errors to Kafka's with what the log says is to be done, the counts for the metrics, which
line is new and which was said a moment ago.
Must not know: who asked, what is done about it.

Kafka's own rule for each code says which errors a client retries. An error is final where the same request meets it
again until somebody changes a setting of the topic. What is wrong between this broker and Pulsar, such as credentials
that have run out, is no fault of the client: its code is retriable.

Clients retry many times a second. So a line is logged when a fault begins, and then every few minutes while it lasts. A
fault that did not occur for a minute begins again. Of faults that differ only by the partition, a few are logged in
each minute, because an overloaded cluster has thousands of them. All of them are counted. The names that are counted
are snake_case and stable: they are label values of a metric, and docs/operations.md lists them.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Mapping
from enum import StrEnum
from types import MappingProxyType
from typing import Final

from kop.errors import BackendError, ErrorCode, KopError, PeerError
from kop.pulsar_client import PulsarError
from kop.pulsar_client.errors import QUOTA_EXCEEDED
from kop.pulsar_client.outage import Outage
from kop.repeats import Lasting, Repeats

_MOST_ALIKE: Final = 10
_ALIKE_SECONDS: Final = 60.0

log = logging.getLogger(__name__)


class Fault(StrEnum):
    """What is counted besides refusals, as the label `fault` of a metric names it; docs/operations.md explains each."""

    BATCHES_BEYOND_PACKED_OFFSETS = "batches_beyond_packed_offsets"
    BATCHES_THROTTLED_BY_PUBLISH_RATE = "batches_throttled_by_publish_rate"
    BROKERS_THAT_DID_NOT_ANSWER = "brokers_that_did_not_answer"
    COMPACTIONS_LATE = "compactions_late"
    COMPACTIONS_NOT_CHECKED = "compactions_not_checked"
    COMPACTIONS_WITHOUT_CURSOR = "compactions_without_cursor"
    DEDUPLICATION_TURNED_OFF = "deduplication_turned_off"
    DELETED_TOPICS_THAT_CAME_BACK = "deleted_topics_that_came_back"
    DUPLICATES_FOUND = "duplicates_found"
    DUPLICATES_NOT_FOUND = "duplicates_not_found"
    DUPLICATES_THAT_ARE_NOT_STORED = "duplicates_that_are_not_stored"
    ENDS_ASKED_OF_PULSAR = "ends_asked_of_pulsar"
    ENTRIES_BEYOND_PACKED_OFFSETS = "entries_beyond_packed_offsets"
    ENTRIES_PASSED_OVER_BY_TAIL = "entries_passed_over_by_tail"
    FENCES_TOO_LATE = "fences_too_late"
    FOREIGN_TOPICS_NOT_READ = "foreign_topics_not_read"
    FOREIGN_TOPICS_REFUSED = "foreign_topics_refused"
    KEYLESS_MESSAGES_ON_COMPACTED_TOPIC = "keyless_messages_on_compacted_topic"
    LEDGERS_CLOSED_FOR_PACKED_OFFSETS = "ledgers_closed_for_packed_offsets"
    LEDGERS_NOT_CLOSED = "ledgers_not_closed"
    MISCOUNTED_ENTRIES = "miscounted_entries"
    OUTAGES = "outages"
    OFFSET_REQUESTS_FAILED = "offset_requests_failed"
    OFFSETS_ASKED_OF_PULSAR = "offsets_asked_of_pulsar"
    OFFSETS_NOT_FOUND_IN_TIME = "offsets_not_found_in_time"
    OFFSETS_TOLD_WRONG = "offsets_told_wrong"
    PARTITIONS_RECREATED = "partitions_recreated"
    PARTITIONS_WITH_ENTRIES_OLDER_THAN_INDEX = "partitions_with_entries_older_than_index"
    PROPERTIES_NOT_KEPT = "properties_not_kept"
    PROPERTIES_NOT_PARSED = "properties_not_parsed"
    RAW_BATCHES_ON_COMPACTED_TOPIC = "raw_batches_on_compacted_topic"
    READERS_MOVED_PAST_ENTRIES = "readers_moved_past_entries"
    READS_BEFORE_LOG_START = "reads_before_log_start"
    SEQUENCES_AHEAD_OF_PULSAR = "sequences_ahead_of_pulsar"
    SEQUENCES_THAT_PULSAR_FORGOT = "sequences_that_pulsar_forgot"
    TAIL_HELD_BY_DISPATCH_RATE = "tail_held_by_dispatch_rate"
    TAIL_HELD_BY_TRANSACTION = "tail_held_by_transaction"
    TAIL_HELD_BY_TRANSACTION_BUFFER = "tail_held_by_transaction_buffer"
    TAIL_LATE = "tail_late"
    TAILS_LOST = "tails_lost"
    TAILS_MOVED_PAST_ENTRIES = "tails_moved_past_entries"
    TAILS_NOT_SERVED = "tails_not_served"
    TAILS_STUCK = "tails_stuck"
    TOPIC_IDS_COPIED = "topic_ids_copied"
    TOPICS_NOT_READ = "topics_not_read"
    TOPICS_READ_LATE = "topics_read_late"
    TOPICS_WITHOUT_RETENTION = "topics_without_retention"
    TRANSACTION_ENDS_THAT_PULSAR_LOST = "transaction_ends_that_pulsar_lost"
    TRANSACTIONS_ENDED_BEFORE = "transactions_ended_before"
    UNREADABLE_ENTRIES = "unreadable_entries"
    UPKEEP_FAILED = "upkeep_failed"
    WRITES_REFUSED_WITHOUT_RETENTION = "writes_refused_without_retention"


class Refused(StrEnum):
    """What Pulsar can refuse: the first part of what such a refusal is counted as (`refusal_name`)."""

    WRITES = "writes"
    READS = "reads"
    TOPIC_CHANGES = "topic_changes"
    REQUESTS = "requests"
    """What else a client's request needs: producer ids, settings of brokers, the properties of a topic."""
    BROKER_REGISTRY = "broker_registry"
    """The answer which other brokers there are."""
    TRANSACTIONS = "transactions"
    """What a Kafka transaction needs of Pulsar's: beginning it, its partitions, its end."""
    LEADS = "leads"
    """The answer which broker leads a partition."""


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
        "TransactionCoordinatorNotFound": ErrorCode.COORDINATOR_NOT_AVAILABLE,
        "IncompatibleSchema": ErrorCode.POLICY_VIOLATION,
        "EncryptionRequired": ErrorCode.POLICY_VIOLATION,
        "InvalidTopicName": ErrorCode.INVALID_TOPIC_EXCEPTION,
        "NotAllowedError": ErrorCode.POLICY_VIOLATION,
        "Conflict": ErrorCode.TOPIC_ALREADY_EXISTS,
        "MessageTooLarge": ErrorCode.MESSAGE_TOO_LARGE,
        "PreconditionFailed": ErrorCode.POLICY_VIOLATION,
    }
)
"""Kafka's code for one of Pulsar's. A code that is not in this table becomes KAFKA_STORAGE_ERROR, which clients retry.
"""

_MENDS: Final = frozenset({"ProducerBusy"})
"""Codes of refusals that are logged only if they last: a broker that restarted holds names of producers for a while."""

_HELP: Final[Mapping[str, str]] = MappingProxyType(
    {
        QUOTA_EXCEEDED: "a subscription of the topic is further behind than its backlog quota "
        "allows: let it be consumed, delete it (pulsar-admin topics unsubscribe) or raise the quota "
        "(pulsar-admin topics set-backlog-quota); clients try again",
        "TopicTerminatedError": "the topic was terminated in Pulsar and takes no more messages: create another one",
        "IncompatibleSchema": "the topic wants a schema of every producer, Kafka clients send bytes: delete its schema "
        "(pulsar-admin schemas delete) and allow producers without one "
        "(pulsar-admin namespaces set-schema-validation-enforce --disable)",
        "EncryptionRequired": "Pulsar wants every message encrypted by its producer, Kafka clients cannot: turn that "
        "off (pulsar-admin namespaces set-encryption-required --disable) or use another namespace",
        "ProducerBusy": "another broker holds this producer's name; clients try again",
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
        "ConnectionLost": "see that the Pulsar brokers run and --store and --admin-url name them",
        "InvalidAddress": "see --store and --admin-url",
        "TransactionCoordinatorNotFound": "the Pulsar broker of the transaction coordinator restarts, or it moves; "
        "clients try again",
        "FrameError": "--store must name the port of Pulsar's binary protocol, 6650 as it comes",
        "MessageTooLarge": "raise maxMessageSize in broker.conf and, more, nettyMaxFrameSizeBytes in bookkeeper.conf",
    }
)
"""What an operator can do about one of Pulsar's codes; it stands in the log line."""

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
        "set-max-producers, namespaces set-max-producers-per-topic); each broker needs one and one more for each "
        "idempotent producer; clients try again",
    ),
    (
        "ConsumerBusy",
        "max consumers limit",
        None,
        "the topic or its namespace allows fewer consumers than read it: raise the limit (pulsar-admin topics "
        "set-max-consumers, namespaces set-max-consumers-per-topic); each broker needs a few readers; clients try "
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
"""Codes that stand for several reasons, which the text tells apart. A row: Pulsar's code, a part of the text, Kafka's
code (None: as in `_CODES`), and what an operator can do.
"""

_OURS: Final = frozenset(
    {"Closed", "ConnectionLost", "FrameError", "InvalidAddress", "Timeout", "TlsError", "UnreleasedFormat"}
)
"""Codes of the gateway and of its client: Pulsar said nothing."""

_FINAL: Final = frozenset({ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.TOPIC_ALREADY_EXISTS})


def kafka_error(error: PulsarError, doing: str) -> KopError:
    """The Kafka error for an error of Pulsar. Its text begins with `doing` and ends with what an operator can do."""
    code = _CODES.get(error.code, ErrorCode.KAFKA_STORAGE_ERROR)
    help_text = _HELP.get(error.code)
    for name, part, special, text in _SAID:
        if error.code == name and part in error.message:
            code, help_text = special or code, text
    text = f"{doing}: {'' if error.code in _OURS else 'Pulsar says '}{error.code}: {error.message}"
    if help_text:
        text += f": {help_text}"
    return PeerError(text, code) if code in _FINAL else BackendError(text, code)


def refusal_name(what: Refused, code: str) -> str:
    """What the metric calls a refusal with one of Pulsar's error codes: `writes_refused_producer_busy`."""
    return f"{what}_refused_{re.sub(r'(?<=[a-z0-9])(?=[A-Z])', '_', code).lower()}"


class Alike:
    """Counts how many lines of each kind were logged within the last minute. It has no clock of its own."""

    def __init__(self) -> None:
        self._since: dict[object, tuple[float, int]] = {}

    def left(self, kind: object, now: float) -> int:
        """How many more lines of a kind may be logged now, the one asked about included; 0 where it may not."""
        since, times = self._since.get(kind, (now, 0))
        if now - since > _ALIKE_SECONDS:
            since, times = now, 0
        self._since[kind] = (since, times + 1)
        return max(_MOST_ALIKE - times, 0)


class Faults:
    """Counts and logs the faults of one engine. `clock` gives seconds.

    While `outage` lasts, it takes what it causes: that is neither counted here nor logged.
    """

    def __init__(self, clock: Callable[[], float], outage: Outage | None = None) -> None:
        self.outage = outage or Outage()
        self.counts: dict[str, int] = {}
        self._clock = clock
        self._repeats = Repeats()
        self._lasting = Lasting()
        self._alike = Alike()

    def count(self, fault: Fault) -> None:
        """Count one more of a fault."""
        self._count(fault)

    def _count(self, name: str) -> None:
        self.counts[name] = self.counts.get(name, 0) + 1

    def tell(self, key: object, text: str, kind: object = None) -> None:
        """Log a warning, unless the fault `key` was logged a moment ago, or many faults of the same `kind` were.

        Without a `kind` there is no bound on how many different faults are logged.
        """
        now = self._clock()
        kept = self._repeats.say(key, now)
        left = 1 if kept is None or kind is None else self._alike.left(kind, now)
        if kept is None or not left:
            return
        more = f" ({kept} more since it was last said)" if kept else ""
        if left == 1 and kind is not None:
            more += "; others like it are counted in kop_pulsar_faults_total, not logged, for a minute"
        log.warning("%s%s", text, more)

    def takes(self, error: BaseException) -> bool:
        """Return True if the present outage caused an error, and takes it: it has no line and no number of its own."""
        return (isinstance(error, KopError) and error.told) or self.outage.takes(error)

    def refused(self, error: PulsarError, what: Refused, doing: str) -> KopError:
        """Count a refusal by Pulsar, log it, and return the error for the client."""
        kafka = kafka_error(error, doing)
        if self.outage.takes(error):
            kafka.told = True
            return kafka
        self._count(refusal_name(what, error.code))
        if error.code in _MENDS and not self._lasting.lasts((doing, error.code), self._clock()):
            log.debug("%s", kafka.message)
        elif isinstance(kafka, BackendError):  # otherwise the client asked for something impossible, and is told so
            self.tell((doing, error.code), kafka.message, (what, error.code))
        return kafka
