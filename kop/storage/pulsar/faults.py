"""The faults between the gateway and Pulsar: the Kafka error for the client, the count, the log line.

Owns: the table from Pulsar's errors to Kafka's with what the log says is to be done, the counts for the metrics, which
line is new and which was said a moment ago.
Must not know: who asked, what is done about it.

Kafka's own rule for each code says which errors a client retries. An error is final where the same request meets it
again until somebody changes a setting of the topic. What is wrong between this broker and Pulsar, such as credentials
that have run out, is no fault of the client: its code is retriable.

Clients retry many times a second. So a line is logged when a fault begins, and then every few minutes while it lasts. A
fault that did not occur for a minute begins again. Of faults that differ only by the partition, a few are logged in
each minute, because an overloaded cluster has thousands of them. All of them are counted, as `fault/detail`: both
are label values of a metric, snake_case and stable, and docs/operations.md lists them.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
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
    """A fault that is counted besides refusals: `fault/detail`, or `fault` alone. docs/operations.md explains each."""

    COMPACTION_KEYLESS_MESSAGE = "compaction/keyless_message"
    COMPACTION_LATE = "compaction/late"
    COMPACTION_NOT_CHECKED = "compaction/not_checked"
    COMPACTION_RAW_BATCH = "compaction/raw_batch"
    COMPACTION_WITHOUT_CURSOR = "compaction/without_cursor"
    ENTRIES_PASSED_OVER_ACKNOWLEDGED = "entries_passed_over/acknowledged"
    ENTRIES_PASSED_OVER_READER = "entries_passed_over/reader"
    ENTRIES_PASSED_OVER_TAIL = "entries_passed_over/tail"
    ENTRIES_UNREADABLE_ANNOUNCEMENT = "entries_unreadable/announcement"
    ENTRIES_UNREADABLE_MISCOUNTED = "entries_unreadable/miscounted"
    ENTRIES_UNREADABLE_NOT_DECODED = "entries_unreadable/not_decoded"
    ENTRIES_UNREADABLE_OLDER_THAN_INDEX = "entries_unreadable/older_than_index"
    OFFSETS_TOLD_WRONG = "offsets_told_wrong"
    OFFSETS_UNKNOWN_NOT_FOUND_IN_TIME = "offsets_unknown/not_found_in_time"
    OFFSETS_UNKNOWN_REQUEST_FAILED = "offsets_unknown/request_failed"
    OUTAGES_GATEWAY = "outages/gateway"
    OUTAGES_PULSAR = "outages/pulsar"
    PACKED_OFFSETS_BATCH_BEYOND = "packed_offsets/batch_beyond"
    PACKED_OFFSETS_ENTRY_BEYOND = "packed_offsets/entry_beyond"
    PACKED_OFFSETS_LEDGER_CLOSED = "packed_offsets/ledger_closed"
    PACKED_OFFSETS_LEDGER_NOT_CLOSED = "packed_offsets/ledger_not_closed"
    PACKED_OFFSETS_READ_BEFORE_LOG_START = "packed_offsets/read_before_log_start"
    SEQUENCES_AHEAD_OF_PULSAR = "sequences/ahead_of_pulsar"
    SEQUENCES_DUPLICATE_FOUND = "sequences/duplicate_found"
    SEQUENCES_DUPLICATE_NOT_FOUND = "sequences/duplicate_not_found"
    SEQUENCES_DUPLICATE_NOT_STORED = "sequences/duplicate_not_stored"
    SEQUENCES_FORGOTTEN_BY_PULSAR = "sequences/forgotten_by_pulsar"
    TAIL_LATE_DISPATCH_RATE = "tail_late/dispatch_rate"
    TAIL_LATE_END_ASKED = "tail_late/end_asked"
    TAIL_LATE_NO_REASON = "tail_late/no_reason"
    TAIL_LATE_OFFSET_ASKED = "tail_late/offset_asked"
    TAIL_LATE_TRANSACTION = "tail_late/transaction"
    TAIL_LATE_TRANSACTION_BUFFER = "tail_late/transaction_buffer"
    TAIL_LOST_FAILED = "tail_lost/failed"
    TAIL_LOST_NOT_SERVED = "tail_lost/not_served"
    TAIL_LOST_STUCK = "tail_lost/stuck"
    TOPIC_SETTINGS_DEDUPLICATION_TURNED_OFF = "topic_settings/deduplication_turned_off"
    TOPIC_SETTINGS_ID_COPIED = "topic_settings/id_copied"
    TOPIC_SETTINGS_PROPERTY_NOT_KEPT = "topic_settings/property_not_kept"
    TOPIC_SETTINGS_PROPERTY_NOT_PARSED = "topic_settings/property_not_parsed"
    TOPIC_SETTINGS_WITHOUT_RETENTION = "topic_settings/without_retention"
    TOPICS_NOT_READ_AT_START = "topics_not_read/at_start"
    TOPICS_NOT_READ_FOREIGN = "topics_not_read/foreign"
    TOPICS_NOT_READ_FOREIGN_REFUSED = "topics_not_read/foreign_refused"
    TOPICS_NOT_READ_OWN = "topics_not_read/own"
    TOPICS_RECREATED_CAME_BACK = "topics_recreated/came_back"
    TOPICS_RECREATED_PARTITION_MISSING = "topics_recreated/partition_missing"
    TRANSACTION_ENDS_ABORTED_BY_PULSAR = "transaction_ends/aborted_by_pulsar"
    TRANSACTION_ENDS_ENDED_BEFORE = "transaction_ends/ended_before"
    TRANSACTION_ENDS_FENCE_TOO_LATE = "transaction_ends/fence_too_late"
    TRANSACTION_ENDS_LOST_BY_PULSAR = "transaction_ends/lost_by_pulsar"
    UPKEEP_FAILED = "upkeep_failed"
    WRITES_REFUSED_WITHOUT_RETENTION = "writes_refused/without_retention"
    WRITES_THROTTLED_PUBLISH_RATE = "writes_throttled/publish_rate"


class Refused(StrEnum):
    """A kind of request that Pulsar can refuse, by the fault of such a refusal. Its detail is the code of Pulsar's
    error.
    """

    WRITES = "writes_refused"
    READS = "reads_refused"
    TOPIC_CHANGES = "topic_changes_refused"
    REQUESTS = "requests_refused"
    """The fault of refused requests of other kinds: for producer ids, settings of brokers, properties of a topic, the
    lead of a partition.
    """
    BROKER_REGISTRY = "broker_registry_refused"
    """The fault of refused questions about the other live brokers."""
    TRANSACTIONS = "transactions_refused"
    """The fault of refused requests that a Kafka transaction makes of Pulsar's: its begin, its partitions, its end."""


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
"""The Kafka error code for each code of Pulsar. A code that is not in this table becomes KAFKA_STORAGE_ERROR, which
clients retry.
"""

_MENDS: Final = frozenset({"ProducerBusy"})
"""The codes of refusals that are logged only if they last: a broker that restarted holds names of producers for a
while.
"""

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
"""The advice for operators about each of Pulsar's codes, which the log line ends with."""

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
"""The rows for codes that stand for several reasons, told apart by the text: Pulsar's code, a part of the text, Kafka's
code (None: as in `_CODES`), and the advice for operators.
"""

_OURS: Final = frozenset(
    {"Closed", "ConnectionLost", "FrameError", "InvalidAddress", "Timeout", "TlsError", "UnreleasedFormat"}
)
"""The codes of errors that the gateway and its client raise by themselves because Pulsar gave no answer."""

_FINAL: Final = frozenset({ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.TOPIC_ALREADY_EXISTS})


def kafka_error(error: PulsarError, doing: str) -> KopError:
    """Return the Kafka error for an error of Pulsar; for a code that is not known here it is KAFKA_STORAGE_ERROR. Its
    text begins with `doing` and ends with advice for operators, if there is any.
    """
    code = _CODES.get(error.code, ErrorCode.KAFKA_STORAGE_ERROR)
    help_text = _HELP.get(error.code)
    if (row := _said(error)) is not None:
        code, help_text = row[2] or code, row[3]
    text = f"{doing}: {'' if error.code in _OURS else 'Pulsar says '}{error.code}: {error.message}"
    if help_text:
        text += f": {help_text}"
    return PeerError(text, code) if code in _FINAL else BackendError(text, code)


def _said(error: PulsarError) -> tuple[str, str, ErrorCode | None, str] | None:
    """Return the row for an error whose code stands for several reasons, if the error's text shows which one it is:
    code, the part of the text, Kafka's code, advice. None if the code alone gives the reason.
    """
    return next((row for row in _SAID if error.code == row[0] and row[1] in error.message), None)


def refusal_name(what: Refused, code: str) -> str:
    """Return the name of a refusal with one of Pulsar's error codes: `writes_refused/producer_busy`."""
    return f"{what}/{re.sub(r'(?<=[a-z0-9])(?=[A-Z])', '_', code).lower()}"


class Alike:
    """The number of log lines of each kind within the last minute, which is bounded. It has no clock of its own."""

    def __init__(self) -> None:
        self._since: dict[object, tuple[float, int]] = {}

    def left(self, kind: object, now: float) -> int:
        """Count one more line of a kind that wants to be logged at the time `now` (s), and return how many may be, that
        line included; 0 if it may not be. In a minute, which begins with the first of them, that is 10 of a kind.
        """
        since, times = self._since.get(kind, (now, 0))
        if now - since > _ALIKE_SECONDS:
            since, times = now, 0
        self._since[kind] = (since, times + 1)
        return max(_MOST_ALIKE - times, 0)


class Faults:
    """The counting and logging of one engine's faults. `clock` gives seconds.

    While `outage` lasts, faults that it causes are neither counted here nor logged.
    """

    def __init__(self, clock: Callable[[], float], outage: Outage) -> None:
        self.outage = outage
        self.counts: dict[str, int] = {}
        self._clock = clock
        self._repeats = Repeats()
        self._lasting = Lasting()
        self._alike = Alike()

    def count(self, name: str) -> None:
        """Count one more occurrence of a `Fault`, or of a refusal by the name from `refusal_name`."""
        self.counts[name] = self.counts.get(name, 0) + 1

    def tell(self, key: object, text: str, kind: object = None) -> None:
        """Log a warning, unless the fault `key` was logged before and goes on: then there is a line every 5 minutes. Of
        different faults of the same `kind`, 10 are logged in a minute.

        Without a `kind` there is no bound on how many different faults are logged. Nothing is counted here; see
        `count`.
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
        """Return true if an error needs neither a log line nor a count of its own, because the present outage of Pulsar
        caused it, which counts it then, or because it was told as a part of one already.
        """
        return (isinstance(error, KopError) and error.told) or self.outage.takes(error)

    def refused(self, error: PulsarError, what: Refused, doing: str) -> KopError:
        """Return the Kafka error for a refusal by Pulsar, with a text that begins with `doing`, and count and log the
        refusal.

        What the present outage caused is neither counted nor logged, and what is the client's own fault is only
        counted. Lines that repeat are left out; see `tell`.
        """
        kafka = kafka_error(error, doing)
        if self.outage.takes(error):
            kafka.told = True
            return kafka
        self.count(refusal_name(what, error.code))
        mends = error.code in _MENDS and _said(error) is None
        if mends and not self._lasting.lasts((doing, error.code), self._clock()):
            log.debug("%s", kafka.message)
        elif isinstance(kafka, BackendError):  # otherwise the client asked for something impossible, and is told so
            self.tell((doing, error.code), kafka.message, (what, error.code))
        return kafka

    @contextmanager
    def refusing(self, what: Refused, doing: str) -> Iterator[None]:
        """Raise the error of `refused` in the place of a PulsarError that is raised in the `with` block."""
        try:
            yield
        except PulsarError as error:
            raise self.refused(error, what, doing) from error
