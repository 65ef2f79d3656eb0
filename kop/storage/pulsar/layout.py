"""Everything of the gateway that lasts in Pulsar: names of topics, of producers and of properties, and their values.

Owns: those names and formats, and a topic as Pulsar has it; reading them, and what is used instead of a value that does
not parse. Whoever changes one of them changes what other versions of the gateway find.
Must not know: who reads or writes them, and when.

- Kafka's topics are `persistent://NAMESPACE/TOPIC`, partitioned, in the home namespace or in any other one that a
  client names. What belongs to a topic lies in its properties.
- The gateway's own topics lie in the metadata namespace. `__kop` has the cluster's id, its small values and its
  producer ids, `__gateways` the live brokers, `__offsets` the committed offsets of groups.
- Pulsar deduplicates by a producer's name alone, so each name holds the cluster's id.

Everybody who may change a topic's properties may also spoil them, or copy all of one topic's to another. A value that
does not parse is ignored: the last good one is used, or the default where none is known. An id belongs to
the topic whose full name is kept beside it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from struct import Struct
from typing import Any, Final
from uuid import UUID

from kop.records.transcode import EntryTransaction
from kop.storage.topic_table import is_usable

PERSISTENT: Final = "persistent://"
OWN_TOPIC: Final = "__kop"
"""The name of the gateway's own topic: its id is the cluster's, its properties are small values, its entries are blocks
of producer ids.
"""
BROKERS_TOPIC: Final = "__gateways"
"""The name of the topic of live brokers, each of which holds a producer of it."""
TRANSACTIONS_TOPIC: Final = "__transactions"
"""The name in storage of the topic of transaction state. If the topic exists, transactions were used."""
WHOLE_BATCHES_FIT: Final = "transactions.whole-batches-fit"
"""The key of the small value that holds the version of Pulsar whose transactions were seen to hold whole batches
properly.
"""
PROBE_TOPIC: Final = "__transaction_probe"
"""The beginning of the name of a topic on which a broker that starts tries transactions."""
BROKER_PRODUCER: Final = "kop-broker-"
"""The beginning of the name of a broker's producer on the topic of live brokers; the broker's id follows."""
STATE_PREFIX: Final = "kop.state."
"""The prefix of properties of the own topic that hold small values."""
NAMED_PREFIX: Final = "kop.named."
"""The prefix of properties of the own topic that name topics of other namespaces which some client has named."""
OFFSETS_PROPERTY: Final = "kop.offsets"
"""The property of the own topic with the way in which offsets are made: `index` or `packed`."""

ID_PROPERTY: Final = "kop.topic_id"
NAME_PROPERTY: Final = "kop.topic_name"
"""The property with Pulsar's full name of the topic that the id in the properties was made for."""
CONFIGS_PROPERTY: Final = "kop.configs"
RAW_PROPERTY: Final = "kop.raw_entries"
"""The property that is set for good on a topic that may hold batches as they came, on which Pulsar's compaction
fails.
"""
CREATED_PROPERTY: Final = "kop.created"
"""The property with the time at which the topic was made, in ms since 1970 by Pulsar's clock."""
UNFINISHED_PROPERTY: Final = "kop.unfinished"
"""The property that a topic has from its creation until its policies are set."""
DELETING_PROPERTY: Final = "kop.deleting"
"""The property with the time at which a broker began to delete the topic, in ms since 1970 by Pulsar's clock: no
producer may come back then.
"""

LOG_START: Final = "log_start"
"""The kind of number kept of a partition whose start DeleteRecords moved: the first offset that may be read."""
CLOCK_AHEAD: Final = "clock_ahead"
"""The kind of number kept of a partition with a record of the future: the ms by which it was ahead of Pulsar's
clock.
"""

_PARTITION: Final = re.compile(r"(.+)-partition-(\d+)\Z")
_FULL_NAME: Final = re.compile(rf"{PERSISTENT}[^/\s]+/[^/\s]+/[^/\s]+\Z")
_PULSARS_OWN: Final = "__"
"""Begins the name of a topic that Pulsar makes for itself, such as __change_events."""
_FOREIGN: Final = re.compile(r"([-\w.=:]+)/[-\w.=:]+/(?!__)[a-zA-Z0-9._-]+\Z", re.ASCII)
_SYSTEM: Final = "pulsar"
"""The name of Pulsar's own tenant."""
_OF_PARTITION: Final = re.compile(r"kop\.([a-z_]+)\.(\d{1,9})(\.\d+)?\Z")
"""The pattern of properties that hold a number of one partition; see `remembered`. Such a property counts only if its
name has that number.
"""
_LARGEST: Final = 2**63 - 1


def topic_of(name: str) -> str:
    """Return the full name of the topic that a partition's name belongs to; any other name as it is."""
    match = _PARTITION.match(name)
    return match[1] if match else name


def is_full_name(text: str) -> bool:
    """Return true if a text has the form of a topic's full name."""
    return _FULL_NAME.match(text) is not None


def namespace_of(full_name: str) -> str:
    """Return `tenant/namespace` of a topic's full name."""
    return full_name.removeprefix(PERSISTENT).rpartition("/")[0]


def may_be_named(name: str) -> bool:
    """Return true if clients may use the topic `tenant/namespace/topic`: it is none of Pulsar's own topics, and no
    partition.
    """
    match = _FOREIGN.match(name)
    return match is not None and match[1] != _SYSTEM and topic_of(name) == name


@dataclass(frozen=True, slots=True)
class TopicNaming:
    """The translation of topic names of Kafka clients into Pulsar's full names, and back."""

    namespace: str
    """The home namespace `tenant/namespace`, whose topics Kafka clients see by their short names."""
    metadata_namespace: str
    """The metadata namespace `tenant/namespace`, which has the internal topics."""

    @property
    def namespaces(self) -> tuple[str, str]:
        """The home and the metadata namespace, whose topics the gateway lists."""
        return self.namespace, self.metadata_namespace

    @property
    def own_topic(self) -> str:
        """The full name of the gateway's own topic, `__kop`."""
        return f"{PERSISTENT}{self.metadata_namespace}/{OWN_TOPIC}"

    @property
    def brokers_topic(self) -> str:
        """The full name of the topic of live brokers, `__gateways`."""
        return f"{PERSISTENT}{self.metadata_namespace}/{BROKERS_TOPIC}"

    def probe_topic(self, instance: str) -> str:
        """Return the full name of a broker's own topic to try transactions on."""
        return f"{PERSISTENT}{self.metadata_namespace}/{PROBE_TOPIC}-{instance}"

    def full_name(self, name: str, internal: bool) -> str:
        """Return Pulsar's full name of a topic. A `name` with slashes holds its namespace; any other topic is in the
        metadata namespace if it is `internal`, else in the home namespace.
        """
        if "/" in name:
            return PERSISTENT + name
        return f"{PERSISTENT}{self.metadata_namespace if internal else self.namespace}/{name}"

    def kafka_name(self, full_name: str) -> tuple[str, bool] | None:
        """Return the name of a topic for Kafka clients, and true if it is internal. None for a topic that Kafka clients
        do not see.
        """
        namespace, _, local = full_name.removeprefix(PERSISTENT).rpartition("/")
        if not full_name.startswith(PERSISTENT) or not local:
            return None
        if namespace == self.metadata_namespace:
            hidden = local in {OWN_TOPIC, BROKERS_TOPIC} or local.startswith(PROBE_TOPIC)
            return None if hidden else (local, True)
        if namespace == self.namespace:
            return local, False
        name = f"{namespace}/{local}"
        return (name, False) if may_be_named(name) else None


def may_be_pulsars(full_name: str) -> bool:
    """Return true if a topic without an id may be Pulsar's own, since its name begins as those of such topics do
    (`__`). Gateways give an id to each topic that they make.
    """
    return full_name.rpartition("/")[2].startswith(_PULSARS_OWN)


@dataclass(frozen=True, slots=True)
class ProducerNaming:
    """The names of this broker's Pulsar producers. `instance` tells brokers of one cluster apart."""

    cluster_id: str
    instance: str

    def of(self, producer_id: int) -> str:
        """Return the name of the Pulsar producer for a Kafka producer id; -1 is the gateway's own, for plain batches.

        It holds the cluster id, because the brokers of another cluster, or of a metadata namespace that was made again,
        hand out the same producer ids.
        """
        own = f"pid-{producer_id}" if producer_id >= 0 else f"gateway-{self.instance}"
        return f"kop-{self.cluster_id}-{own}"

    @property
    def leader(self) -> str:
        """The name of the exclusive Pulsar producer by which this broker leads a log, as the only writer."""
        return f"kop-{self.cluster_id}-leader-{self.instance}"

    def leaders_instance(self, producer: str) -> str | None:
        """Return the `instance` of the broker of this cluster whose `leader` has this producer name; None for any other
        name.
        """
        prefix = f"kop-{self.cluster_id}-leader-"
        return producer.removeprefix(prefix) if producer.startswith(prefix) else None

    @property
    def fences(self) -> str:
        """The name of the Pulsar producer of fences, by which a broker opens transactions on a partition."""
        return f"kop-{self.cluster_id}-fences-{self.instance}"


_TRANSACTION: Final = Struct(">BQQ")
_WHOLE_BATCHES: Final = 1
_RECORDS: Final = 2
FENCE_MARKER: Final = 77
"""The `marker_type` of a fence: Pulsar gives readers no entry with a type that it does not know."""


def transaction_name(txn: EntryTransaction) -> bytes:
    """Return the bytes by which the record of a transactional id names its Pulsar transaction."""
    return _TRANSACTION.pack(_RECORDS if txn.sent_in else _WHOLE_BATCHES, txn.most, txn.least)


def transaction_of(name: bytes) -> EntryTransaction | None:
    """Return the Pulsar transaction that the bytes of `transaction_name` name; None if other bytes are given."""
    if len(name) != _TRANSACTION.size:
        return None
    kind, most, least = _TRANSACTION.unpack(name)
    return EntryTransaction(most, least, kind == _RECORDS) if kind in {_WHOLE_BATCHES, _RECORDS} else None


def remembered(what: str, partition: int, value: int) -> str:
    """Return the name of the property for a number that is kept of one partition; the largest that any broker kept
    counts. `what` is the kind of the number, such as `log_start`.

    The name holds the number: brokers that keep different ones at once write different properties, so none overwrites a
    larger one.
    """
    return f"kop.{what}.{partition}.{value}"


def all_remembered(properties: Mapping[str, str]) -> dict[tuple[str, int], int]:
    """Return the largest number of each kind that properties keep of each partition, by kind and partition."""
    largest: dict[tuple[str, int], int] = {}
    for key in properties:
        named = _OF_PARTITION.match(key)
        if named is not None and named[3]:
            of = named[1], int(named[2])
            largest[of] = max(largest.get(of, 0), number(properties, key))
    return largest


def outdated(properties: Mapping[str, str], what: str, partition: int, value: int) -> list[str]:
    """Return the names of the properties that keep, of the kind `what` and this partition, a number up to `value`:
    beside the property for `value` itself they make no difference any more.
    """
    return [
        key
        for key in properties
        if key.startswith(f"kop.{what}.{partition}.") and number(properties, key) <= value
        if key != remembered(what, partition, value)
    ]


def id_of(properties: Mapping[str, str]) -> UUID | None:
    """Return the id of a topic, as its properties tell it; None if they have none, or one that no topic may have."""
    try:
        topic_id = UUID(properties[ID_PROPERTY])
    except (KeyError, ValueError, AttributeError, TypeError):
        return None
    return topic_id if is_usable(topic_id) else None


def is_copied(properties: Mapping[str, str], full_name: str) -> bool:
    """Return true if the properties were copied: they say that their id was made for another topic."""
    return properties.get(NAME_PROPERTY, full_name) != full_name


def number(properties: Mapping[str, str], key: str, default: int = 0) -> int:
    """Return the number of a property; the default if it has none from 0 to 2^63 - 1, or is not there."""
    text = properties.get(key, "")
    if not isinstance(text, str) or not text.isascii() or not text.isdigit() or len(text) > 19:
        return default
    value = int(text)
    return value if value <= _LARGEST else default


def configs_of(properties: Mapping[str, str]) -> dict[str, str] | None:
    """Return the topic's own Kafka configs in its properties, empty if there are none; None if they do not parse."""
    try:
        configs: Any = json.loads(properties.get(CONFIGS_PROPERTY, "{}"))
    except (ValueError, TypeError, RecursionError):
        return None
    if not isinstance(configs, dict) or not all(isinstance(value, str) for value in configs.values()):
        return None
    return configs


def repaired(properties: Mapping[str, str], before: Mapping[str, str]) -> tuple[dict[str, str], list[str]]:
    """Return a topic's properties with unusable ones mended, and the names of those that do not parse.

    A mended property has the value of `before`, the last good properties of the same topic, or is left out.
    """
    good = dict(properties)
    wrong = []
    for key in properties:
        if key == ID_PROPERTY:
            fits = id_of(properties) is not None
        elif key == CONFIGS_PROPERTY:
            fits = configs_of(properties) is not None
        elif (named := _OF_PARTITION.match(key)) or key in {CREATED_PROPERTY, DELETING_PROPERTY}:
            fits = number(properties, key, -1) >= 0 and (named is None or named[3] is not None)
        else:
            fits = isinstance(properties[key], str)
        if fits:
            continue
        wrong.append(key)
        if key in before:
            good[key] = before[key]
        else:
            del good[key]
    return good, wrong


def of_the_original(properties: Mapping[str, str]) -> list[str]:
    """Return the names of those properties that mean nothing on a topic that they were copied to, since they are of the
    original's log.

    Kafka configs mean the same on both, and nobody knows if entries were copied, too.
    """
    ours = {CREATED_PROPERTY, UNFINISHED_PROPERTY, DELETING_PROPERTY}
    return [key for key in properties if key in ours or _OF_PARTITION.match(key)]


_YOUNG_SECONDS: Final = 3600.0
ABANDONED_SECONDS: Final = 60.0
"""The seconds for which a topic without all of its policies is left to the broker that makes it."""


@dataclass(frozen=True, slots=True)
class PulsarTopic:
    """The Pulsar side of a topic, beside its `TopicInfo`: full name, kind and properties."""

    full_name: str
    """The topic's full name in Pulsar: `persistent://tenant/namespace/name`."""
    plain: bool
    """True if the topic is not partitioned. Its only partition then has the topic's own name."""
    properties: Mapping[str, str]

    def partition(self, index: int) -> str:
        """Return Pulsar's full name of a partition."""
        return self.full_name if self.plain else f"{self.full_name}-partition-{index}"

    def is_young(self, now_ms: int) -> bool:
        """Return True if a broker made the topic within the last hour, by Pulsar's clock (`Rest.now_ms`).

        It deduplicates from its beginning, and Pulsar has forgotten no producer yet: that takes 6 idle hours
        (brokerDeduplicationProducerInactivityTimeoutMinutes).
        """
        created = number(self.properties, CREATED_PROPERTY, -1)
        return created >= 0 and now_ms - created < _YOUNG_SECONDS * 1000

    def is_being_made(self, now_ms: int) -> bool:
        """Return true if the broker that made the topic may still be setting its policies: they are not all set, and
        the topic is less than 60 seconds old at `now_ms`, by Pulsar's clock.
        """
        age_ms = now_ms - number(self.properties, CREATED_PROPERTY)
        return UNFINISHED_PROPERTY in self.properties and age_ms < ABANDONED_SECONDS * 1000
