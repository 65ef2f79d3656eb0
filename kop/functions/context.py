"""The context of a function: what it is told of its message, and what it asks for, as in Pulsar, over records of Kafka.

Owns: the methods of Pulsar's context with their signatures; what a call asks the instance to write and to commit,
as effects; the id of a record.
Must not know: sockets, transactions, when effects are carried out.

One context is used for all messages, one after the other; calls that run at the same time have one each.
"""

from __future__ import annotations

import base64
import importlib
import logging
import math
import operator
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from threading import get_ident
from typing import Any, Final, NoReturn, Protocol, TypeAlias

from kop.client.offsets import TopicPartition
from kop.client.record_columns import Headers, StoredRecord
from kop.functions import origins
from kop.functions.output_sizes import RECORD_BYTES, record_bytes, too_large
from kop.functions.spec import FunctionSpec
from kop.functions.state import StateChanges, StateError

InputRecord: TypeAlias = StoredRecord


class MissingError(Exception):
    """A thing that a function asks for and cannot have."""


@dataclass(frozen=True, slots=True)
class RecordId:
    """The result of `get_message_id`: a place in a topic, with the methods of Pulsar's MessageId.

    Pulsar's ids have a ledger and an entry in it, of which Pulsar's runtime makes one number; the offset is cut where
    that joins them.
    """

    topic: str
    index: int
    offset: int

    def ledger_id(self) -> int:
        """Return the upper bits of the offset."""
        return self.offset >> origins.ENTRY_BITS

    def entry_id(self) -> int:
        """Return the lower 28 bits of the offset."""
        return self.offset & (1 << origins.ENTRY_BITS) - 1

    def batch_index(self) -> int:
        """Return -1: each record has an offset of its own."""
        return -1

    def partition(self) -> int:
        """Return the number of the partition."""
        return self.index

    def serialize(self) -> bytes:
        """Return the bytes that Pulsar's `MessageId.deserialize` reads: a protobuf of ledger, entry and partition."""
        return origins.message_id(self.index, self.offset)

    def __str__(self) -> str:
        return f"{self.topic}-{self.index}@{self.offset}"


@dataclass(frozen=True, slots=True)
class Publish:
    """A record to write, with the guarantee of the message that is processed."""

    topic: str
    key: bytes | None
    value: bytes
    headers: Headers
    timestamp: int | None
    """Milliseconds; None is the time at which it is written."""
    callback: Callable[[Any, Any], Any] | None

    def tell(self, stored: bool, message_id: RecordId | None) -> None:
        """Call the callback that the function gave, if any, with Pulsar's Result (Ok if `stored`, else UnknownError),
        and the id of the message or None.
        """
        if self.callback is not None:
            result = importlib.import_module("pulsar").Result
            self.callback(result.Ok if stored else result.UnknownError, message_id)


@dataclass(frozen=True, slots=True)
class Acked:
    """A message that the function is done with; it counts with the guarantee MANUAL."""

    partition: TopicPartition
    offset: int


@dataclass(frozen=True, slots=True)
class Nacked:
    """A message that has to be tried again."""

    partition: TopicPartition
    offset: int


Effect: TypeAlias = Publish | Acked | Nacked | StateChanges


class Serializer(Protocol):
    """The part of a serde that `publish` needs."""

    def serialize(self, input: Any) -> bytes:
        """Return the bytes of a value."""


_CONF: Final = {
    *("properties", "partition_key", "ordering_key", "event_timestamp"),
    *("sequence_id", "replication_clusters", "disable_replication"),
}
_WITHOUT_EFFECT: Final = ("sequence_id", "replication_clusters", "disable_replication")
_TOPIC: Final = re.compile(r"(?!\.{1,2}\Z)[a-zA-Z0-9._-]{1,249}")
METRIC_CHARACTERS: Final = 1_000
MOST_MS: Final = (1 << 63) // 1000
"""The last time of a record, so that microseconds of it have room in 8 bytes."""
_IDENTITY: Final = "serde.IdentitySerDe"


class FunctionContext:
    """The argument `context` of `process`."""

    def __init__(
        self,
        spec: FunctionSpec,
        instance_id: int,
        effects: list[Effect],
        *,
        logger: logging.Logger,
        serde: Callable[[str], Serializer],
        secrets: Mapping[str, str],
        record_metric: Callable[[str, float], None],
        state: Callable[[TopicPartition], StateChanges] | None = None,
        version: str = "0",
    ) -> None:
        """Make the context of an instance. `effects` gets what a function asks for; who calls the function clears it.

        `serde` returns the serde of a class name; `state` returns the object that collects the changes of a call, for
        the partition of its message.
        """
        self._spec = spec
        self._instance_id = instance_id
        self._effects = effects
        self._logger = logger
        self._serde = serde
        self._secrets = secrets
        self._record_metric = record_metric
        self._state = state
        self._version = version
        self._serializers: dict[str, Serializer] = {}
        self._told: set[str] = set()
        self._changes: StateChanges | None = None
        """The changes that the call has made to the state; they are one of its effects."""
        self._thread: int | None = None
        """The thread of the call that is under way."""
        self._partition: TopicPartition = ("", -1)
        self._record: InputRecord = (-1, -1, None, None, ())

    def begin(self, partition: TopicPartition, record: InputRecord) -> None:
        """Set the message that is processed from now on; the changes of state of the message before it are no longer
        added to.
        """
        self._partition = partition
        self._record = record
        self._changes = None
        if self._thread is None:
            self._thread = get_ident()

    def end(self) -> None:
        """Note that the call has ended: nothing can be asked for until the next `begin`."""
        self._thread = None

    def _check_call(self, asked: str) -> None:
        """Raise RuntimeError unless the call is under way, on this thread; `asked` names what is asked for."""
        if self._thread != get_ident():
            raise RuntimeError(
                f"{asked} belongs to a call: ask for it before process returns, on the thread that process is called "
                "on; a thread, a callback or a background task of the function's own cannot"
            )

    def input_headers(self) -> list[tuple[str, bytes]]:
        """Return the headers for an output, which tell the topic and the id of the message that is processed."""
        return origins.headers(*self._partition, self._record[0])

    # -- the message

    def get_message_id(self) -> RecordId:
        """Return the id of the message."""
        return RecordId(*self._partition, self._record[0])

    def get_message_key(self) -> str:
        """Return the key of the message: its text, base64 if it is no UTF-8, empty if there is none."""
        key = self._record[2]
        if key is None:
            return ""
        try:
            return key.decode()
        except UnicodeDecodeError:
            return base64.b64encode(key).decode()

    def get_message_eventtime(self) -> int:
        """Return the timestamp of the message in milliseconds; 0 if it has none."""
        return max(self._record[1], 0)

    def get_message_properties(self) -> dict[str, str]:
        """Return the headers of the message as text; of those with one name the last."""
        return {name: (value or b"").decode(errors="replace") for name, value in self._record[4]}

    def get_current_message_topic_name(self) -> str:
        """Return the topic of the message."""
        return self._partition[0]

    def get_message_sequence_id(self) -> int:
        """Return the offset of the message."""
        return self._record[0]

    def get_message_partition_index(self) -> int:
        """Return the partition of the message."""
        return self._partition[1]

    def get_partition_key(self) -> str:
        """Return the key of the message, as `get_message_key` does."""
        return self.get_message_key()

    def get_ordering_key(self) -> str | None:
        """Return None: a record of Kafka has one key, which is the partition key."""
        return None

    # -- the function

    def get_function_tenant(self) -> str:
        """Return the tenant of the function."""
        return self._spec.tenant

    def get_function_namespace(self) -> str:
        """Return the namespace of the function, without its tenant."""
        return self._spec.namespace

    def get_function_name(self) -> str:
        """Return the name of the function."""
        return self._spec.name

    def get_function_id(self) -> str:
        """Return `tenant/namespace/name`."""
        return self._spec.fqfn

    def get_instance_id(self) -> str:
        """Return the number of the instance."""
        return str(self._instance_id)

    def get_function_version(self) -> str:
        """Return the revision of the definition."""
        return self._version

    def get_logger(self) -> logging.Logger:
        """Return the logger of the function."""
        return self._logger

    def get_user_config_value(self, key: str) -> Any:
        """Return a value of `userConfig`; None if it is not there."""
        return self._spec.user_config.get(key)

    def get_user_config_map(self) -> Mapping[str, Any]:
        """Return all of `userConfig`."""
        return self._spec.user_config

    def get_secret(self, secret_name: str) -> str | None:
        """Return a secret; None if the definition does not name it."""
        return self._secrets.get(secret_name)

    def record_metric(self, metric_name: str, metric_value: float) -> None:
        """Count a value of a metric of the function's own; the metric's count and sum are told with the statistics.
        TypeError, ValueError or OverflowError for what is no name, or no finite number.
        """
        if not isinstance(metric_name, str):
            raise TypeError(f"record_metric: the name has to be a str, not a {type(metric_name).__name__}")
        if len(metric_name) > METRIC_CHARACTERS or not _is_utf8(metric_name):
            raise ValueError(f"record_metric: the name has to be UTF-8 of at most {METRIC_CHARACTERS} characters")
        value: Any = metric_value
        if isinstance(value, str | bytes | bytearray):
            raise TypeError(f"record_metric: the value has to be a number, not a {type(value).__name__}")
        try:
            number = float(value)
        except (TypeError, OverflowError) as error:
            raise type(error)(f"record_metric: the value has to be a number that a float can be: {error}") from None
        if not math.isfinite(number):
            raise ValueError(f"record_metric: the value has to be finite, and is {number}")
        self._record_metric(str(metric_name), number)

    def get_input_topics(self) -> list[str]:
        """Return the topics and patterns of the inputs."""
        return list(self._spec.inputs)

    def get_output_topic(self) -> str:
        """Return the topic of results; empty if there is none."""
        return self._spec.output

    def get_output_serde_class_name(self) -> str:
        """Return the name of the serde of results; empty if none is named."""
        return self._spec.output_serde_class_name

    def get_pulsar_client(self) -> NoReturn:
        """Raise MissingError: there is no client of Pulsar."""
        raise MissingError("there is no client of Pulsar: the function runs on Kafka's protocol; use publish")

    # -- what it asks for

    def publish(
        self,
        topic_name: str,
        message: Any,
        serde_class_name: str = _IDENTITY,
        properties: Mapping[str, str] | None = None,
        compression_type: Any = None,
        callback: Callable[[Any, Any], Any] | None = None,
        message_conf: Mapping[str, Any] | None = None,
    ) -> None:
        """Ask to write a message to a topic; it is written after the call, with the guarantee of the message that is
        processed, and not at all if the call fails. `callback` is called once it is written. Options that Kafka does
        not have are logged, once each, and left out.

        What cannot be written is raised at once: the serde's errors, TypeError for an unknown key of `message_conf`,
        TypeError or ValueError for a topic, a name of a property or a time that there cannot be, OutputError for a
        record above 890,000 bytes. RuntimeError outside of a call.
        """
        self._check_call("publish")
        name = str(serde_class_name)
        serializer = self._serializers.get(name)
        if serializer is None:
            serializer = self._serializers[name] = self._serde(name)
        conf = message_conf or {}
        if conf.keys() - _CONF:
            raise TypeError(f"publish: message_conf has no {', '.join(sorted(map(str, conf.keys() - _CONF)))}")
        without_effect = [option for option in _WITHOUT_EFFECT if conf.get(option) is not None]
        if compression_type is not None:
            without_effect.append("compression_type")
        for option in without_effect:
            if option not in self._told:
                self._told.add(option)
                self._logger.warning("publish: %s has no effect on Kafka's protocol", option)
        topic = str(topic_name)
        if "/" in topic:
            topic = self._spec.topic_names.kafka_name(topic)
        if not _TOPIC.fullmatch(topic.rpartition("/")[2]):
            raise ValueError(
                f"publish: no topic is named {topic[:300]!a}: take 1 to 249 of the characters a-z A-Z 0-9 . _ -, and "
                "not '.' or '..'"
            )
        key = conf.get("partition_key")
        if key is None:
            key = conf.get("ordering_key")
        pairs = properties or conf.get("properties") or {}
        key_bytes, value = None if key is None else _bytes(key), serializer.serialize(message)
        headers = [(_header(name), _bytes(content)) for name, content in pairs.items()]
        size = record_bytes(key_bytes, value, headers)
        if size > RECORD_BYTES:
            raise too_large(f"a publish to {topic}", size)
        self._effects.append(
            Publish(topic, key_bytes, value, headers, _timestamp(conf.get("event_timestamp")), callback)
        )

    def ack(self, msgid: RecordId, topic: str) -> None:
        """Note that a message, by an id of `get_message_id`, is done with; without effect but with the guarantee
        MANUAL. TypeError for another id, ValueError if `topic` is not the message's.
        """
        self._check_call("ack")
        self._effects.append(Acked(*_place(msgid, topic)))

    def nack(self, msgid: RecordId, topic: str) -> None:
        """Note that a message has failed, so that it is tried again as after an error; errors as of `ack`. If it is the
        one that is processed, all that the call gave is dropped. An earlier one has to be open still: with MANUAL, not
        acknowledged.
        """
        self._check_call("nack")
        self._effects.append(Nacked(*_place(msgid, topic)))

    # -- state

    def incr_counter(self, key: str, amount: int) -> None:
        """Add to a counter of the state, 0 if there is none; it counts if the call does not fail. StateError if the key
        has a value of `put_state`, or if the sum has no room in 8 bytes.
        """
        self._state_changes().incr(key, amount)

    def get_counter(self, key: str) -> int | None:
        """Return a counter, with what this call has added; None if there is none, as in Pulsar. StateError if the key
        has a value of `put_state`.
        """
        return self._state_changes().get_amount(key)

    def del_counter(self, key: str) -> None:
        """Delete a counter or a value of the state; it counts if the call does not fail."""
        self._state_changes().delete_key(key)

    def put_state(self, key: str, value: str | bytes) -> None:
        """Set a value of the state; a text is its UTF-8. It counts if the call does not fail. StateError if key and
        value have more than 880 000 bytes.
        """
        self._state_changes().put(key, value)

    def get_state(self, key: str) -> bytes | None:
        """Return a value of the state, as this call has set it if it has; None if there is none. A counter is its 8
        bytes, big-endian.
        """
        return self._state_changes().get_value(key)

    def _state_changes(self) -> StateChanges:
        self._check_call("state")
        return self._changes or self._new_changes()

    def _new_changes(self) -> StateChanges:
        if self._state is None:
            raise StateError("state is not there: this context was made without")
        changes = self._changes = self._state(self._partition)
        self._effects.append(changes)
        return changes


def _is_utf8(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _header(name: Any) -> str:
    """Return the name of a property as that of a header. ValueError if it has no UTF-8."""
    header = str(name)
    if not _is_utf8(header):
        raise ValueError(f"publish: the name {header!a} of a property is no UTF-8: give one without surrogates")
    return header


def _timestamp(time: Any) -> int | None:
    """Return an event time in milliseconds. TypeError if it is no whole number, ValueError if no record has it."""
    if time is None:
        return None
    try:
        milliseconds = operator.index(time)
    except TypeError:
        raise TypeError(
            f"publish: event_timestamp has to be an int of milliseconds, as int(seconds * 1000), not a "
            f"{type(time).__name__}"
        ) from None
    if not 0 <= milliseconds <= MOST_MS:
        raise ValueError(f"publish: event_timestamp has to be milliseconds since 1970, not {milliseconds}")
    return milliseconds


def _bytes(value: Any) -> bytes:
    return value if isinstance(value, bytes) else str(value).encode()


def _place(msgid: Any, topic: str) -> tuple[TopicPartition, int]:
    if not isinstance(msgid, RecordId):
        raise TypeError(f"ack and nack take what get_message_id() has returned, not a {type(msgid).__name__}")
    if topic not in {msgid.topic, f"{msgid.topic}-partition-{msgid.index}"}:
        raise ValueError(f"Invalid topicname {topic}: the message is of {msgid.topic}")
    return (msgid.topic, msgid.index), msgid.offset
