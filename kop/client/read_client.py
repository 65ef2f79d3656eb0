"""The requests of a reader to Kafka: Metadata, ListOffsets, DescribeLogDirs and Fetch, one at a time.

Owns: these requests, which server leads a partition, and which of their errors mean that a topic is gone.
Must not know: who reads, what is in the records (`kop.client.batches`), how requests are sent again
(`kop.client.connection`).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

from kafka import errors
from kafka.protocol.admin import DescribeLogDirsRequest
from kafka.protocol.api_message import ApiMessage
from kafka.protocol.consumer import ListOffsetsRequest

from kop.client.connection import BROKER, TEMPORARY, ClusterClient
from kop.client.offsets import Offsets, TopicPartition
from kop.errors import without_frames
from kop.records import entry_places, entry_schemas
from kop.records.entry_places import PlacedEntry
from kop.records.entry_schemas import SchemaRun

NO_TOPIC_ID: Final = "00000000-0000-0000-0000-000000000000"
_BY_ID: Final = 13
"""The first version of Fetch that names topics by their ids."""
TOGETHER_MS: Final = 500
"""The longest wait of a Fetch to several servers: what one of them has is not given before all have answered."""
_REQUEST_TIMEOUT_MS: Final = 30_000
"""kafka-python's, after which it closes a connection that does not answer."""
_WAIT_PART: Final = 5 / 6
"""The part of it that a server may hold a Fetch for nothing."""
OUT_OF_RANGE: Final = errors.OffsetOutOfRangeError
GONE: Final = (errors.UnknownTopicOrPartitionError, errors.UnknownTopicIdError, errors.InconsistentTopicIdError)
"""The topic, or the partition, is not there any more, or is another one by now. A server that has not heard of it yet
says the same."""


class FetchRequest(ApiMessage):
    """Kafka's, with the tagged fields by which a gateway of kop is asked where Pulsar keeps the records, and which of
    its schemas they name.

    kafka-python finds the schema by the name of the class.
    """

    @classmethod
    def json_patch(cls, schema: dict[str, Any]) -> dict[str, Any]:
        """Add the two tagged fields to `schema`, by which kafka-python encodes the request, and return it."""
        for name, tag in (("EntryPlaces", entry_places.TAG), ("EntrySchemas", entry_schemas.TAG)):
            schema["fields"].append(
                {
                    "name": name,
                    "type": "bool",
                    "versions": "12+",
                    "taggedVersions": "12+",
                    "tag": tag,
                    "ignorable": True,
                }
            )
        return schema


@dataclass(frozen=True, slots=True)
class FetchSettings:
    """The settings of a Fetch request; bytes and milliseconds."""

    isolation: int = 0
    partition_bytes: int = 4 << 20
    max_bytes: int = 50 << 20
    min_bytes: int = 1
    wait_ms: int = 500
    rack: str = ""
    places: bool = False
    """True if it asks where Pulsar keeps the records."""
    schemas: bool = False
    """True if it asks which versions of Pulsar's schemas the records name."""


@dataclass(frozen=True, slots=True)
class TopicMetadata:
    """A topic that there is; `topic_id` is None where the servers have no ids. A leader of -1 is none at the moment."""

    topic_id: str | None
    leaders: Mapping[int, int] = field(default_factory=dict)
    internal: bool = False


@dataclass(frozen=True, slots=True)
class Fetched:
    """The answer for a partition: batches, whole ones and maybe the beginning of another, and where the log stands."""

    records: bytes
    high_watermark: int
    last_stable_offset: int
    log_start_offset: int
    aborted: tuple[tuple[int, int], ...]
    """Producer id and first offset of each aborted transaction that these records may be of."""
    places: Sequence[PlacedEntry] = ()
    """The places in which Pulsar keeps the records, if they were asked for and the server knows them."""
    schemas: Sequence[SchemaRun] = ()
    """The versions of Pulsar's schemas that the records name, if they were asked for and the server knows them."""


class ReadClient(ClusterClient):
    """A client of one cluster, for one thread.

    `settings` are kafka-python's. A request is tried again until `patience_ms` are over where the server says so, the
    connection fails or another server leads now; then the last failure is raised. Errors that do not pass by
    themselves are raised at once, as kafka-python's. That a topic or partition is gone is believed after
    SETTLE_SECONDS.
    """

    def __init__(self, settings: Mapping[str, Any], patience_ms: int) -> None:
        super().__init__(settings, patience_ms / 1000)
        self._longest_wait_ms = int(settings.get("request_timeout_ms", _REQUEST_TIMEOUT_MS) * _WAIT_PART)
        self._topics: dict[str, TopicMetadata] = {}
        self._turn = 0

    def topics(
        self, names: Collection[str] | None, refused: dict[str, Exception] | None = None
    ) -> dict[str, TopicMetadata]:
        """Return those topics of these names that exist, or all topics if None; no topic is made by asking.

        `refused` gets the error of each topic that has one, which is left out then. Without it the first such error is
        raised, if it may pass once the patience is over.
        """

        def ask() -> dict[str, TopicMetadata]:
            topics: dict[str, TopicMetadata] = {}
            for topic in self._connection.metadata(names):
                error = errors.for_code(topic.error_code)
                if error in {errors.UnknownTopicOrPartitionError, errors.InvalidTopicError}:
                    continue
                if error is not errors.NoError:
                    wrong: Exception = error(f"topic {topic.name}")
                    if refused is None:
                        raise wrong
                    refused[topic.name] = wrong
                    continue
                topic_id = None if topic.topic_id is None else str(topic.topic_id)
                leaders = {p.partition_index: p.leader_id for p in topic.partitions}
                topics[topic.name] = TopicMetadata(
                    None if topic_id == NO_TOPIC_ID else topic_id, leaders, bool(topic.is_internal)
                )
            return topics

        if names is not None and not names:
            return {}
        topics = self._connection.patiently(ask)
        if names is None:
            self._topics = dict(topics)
        else:
            for name in names:
                self._topics.pop(name, None)
            self._topics |= topics
        return topics

    def list_offsets(self, wanted: Mapping[TopicPartition, int], isolation: int) -> Offsets:
        """Return, for each partition, the first offset at or after a time (ms), or at EARLIEST or LATEST; -1 if no
        record is that late. With an `isolation` of 1 LATEST is before the first record of an open transaction.
        """
        left, offsets = dict(wanted), Offsets()

        def ask() -> None:
            for leader, partitions in self._by_leader(left).items():
                topics: dict[str, list[Any]] = {}
                for topic, partition in partitions:
                    asked = ListOffsetsRequest.ListOffsetsTopic.ListOffsetsPartition(
                        partition_index=partition, timestamp=left[topic, partition]
                    )
                    topics.setdefault(topic, []).append(asked)
                answer = self._connection.send(
                    ListOffsetsRequest(
                        isolation_level=isolation,
                        topics=[
                            ListOffsetsRequest.ListOffsetsTopic(name=name, partitions=parts)
                            for name, parts in topics.items()
                        ],
                        min_version=2 if isolation else 1,
                    ),
                    leader,
                )
                failed: Any = None
                for topic in answer.topics:
                    for partition in topic.partitions:
                        error = errors.for_code(partition.error_code)
                        if error is errors.NoError:
                            offsets[topic.name, partition.partition_index] = partition.offset
                            left.pop((topic.name, partition.partition_index), None)
                        else:
                            failed = error, (topic.name, partition.partition_index)
                if failed is not None:
                    self._check_gone(*failed)
                    raise failed[0]("topic {} partition {}".format(*failed[1]))

        self._connection.patiently(ask, forget=lambda: self._forget(topic for topic, _ in left), doubtful=GONE)
        return offsets

    def log_sizes(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, int]:
        """Return the bytes of each log as its leader tells (DescribeLogDirs); 0 if it does not."""

        def ask() -> dict[TopicPartition, int]:
            sizes = dict.fromkeys(partitions, 0)
            topic_class = DescribeLogDirsRequest.DescribableLogDirTopic
            for leader, led in self._by_leader(partitions).items():
                topics: dict[str, list[int]] = {}
                for topic, partition in led:
                    topics.setdefault(topic, []).append(partition)
                asked = [topic_class(topic=name, partitions=some) for name, some in topics.items()]
                answer = self._connection.send(DescribeLogDirsRequest(topics=asked), leader)
                for directory in answer.results:
                    if directory.error_code:
                        raise errors.for_code(directory.error_code)("DescribeLogDirs")
                    for topic in directory.topics:
                        for row in topic.partitions:
                            if (topic.name, row.partition_index) in sizes and not row.is_future_key:
                                sizes[topic.name, row.partition_index] = row.partition_size
            return sizes

        topics = {topic for topic, _ in partitions}
        return self._connection.patiently(ask, forget=lambda: self._forget(topics), doubtful=GONE)

    def server_configs(self, names: Collection[str]) -> dict[str, str]:
        """Return those settings of these names that the controller has and tells; an empty dict if this user may not
        ask.
        """
        return self._configs(BROKER, None, names)

    def fetch(self, partition: TopicPartition, topic_id: str | None, offset: int, settings: FetchSettings) -> Fetched:
        """Return the batches of a partition from the one that holds `offset` on; empty if none comes within the wait.

        With a topic id, and servers that know ids in Fetch (KIP-516), UnknownTopicIdError is raised if another topic
        has the name by now. OffsetOutOfRangeError is raised at once.
        """
        topic_ids = {} if topic_id is None else {partition[0]: topic_id}
        answer = self.fetch_many({partition: offset}, settings, topic_ids)[partition]
        if isinstance(answer, Exception):
            raise answer
        return answer

    def fetch_many(
        self,
        offsets: Mapping[TopicPartition, int],
        settings: FetchSettings,
        topic_ids: Mapping[str, str] | None = None,
    ) -> dict[TopicPartition, Fetched | Exception]:
        """Return batches of partitions from these offsets on, or kafka-python's error of each, by one Fetch a leader.

        An error that passes by itself is in the answer only beside others, and the partition may be asked for again. If
        all partitions have one, all are asked for again, see `ReadClient`. `topic_ids`: see `fetch`; they count if each
        topic has one. Each call begins with another partition: an answer may have no room for the last ones. What
        several leaders answer is waited for together, for 500 ms at most. No server is let wait for longer than five
        sixths of request.timeout.ms.
        """
        ids = topic_ids or {}
        self._turn += 1

        def ask() -> dict[TopicPartition, Fetched | Exception]:
            turn = self._turn % len(offsets)
            failed: dict[TopicPartition, Exception] = {}
            by_leader = self._by_leader([*offsets][turn:] + [*offsets][:turn], failed)
            responses = self._exchange(by_leader, offsets, settings, ids)
            nearer: dict[int, list[TopicPartition]] = {}
            for place, response in responses.items():
                # A server of the client's rack that is to be asked instead: the leader gives no records then (KIP-392).
                if (server := getattr(response, "preferred_read_replica", -1)) >= 0:
                    nearer.setdefault(server, []).append(place)
            responses |= self._exchange(nearer, offsets, settings, ids) | failed
            answers = {
                place: self._fetched(response, place, offsets[place], ids.get(place[0]))
                for place, response in responses.items()
            }
            temporary = {place: a for place, a in answers.items() if isinstance(a, TEMPORARY)}
            if len(temporary) == len(answers):
                raise next(iter(temporary.values()))
            self._forget(topic for topic, _ in temporary)
            return answers

        if not offsets:
            return {}
        return self._connection.patiently(
            ask, forget=lambda: self._forget(topic for topic, _ in offsets), doubtful=GONE
        )

    def _exchange(
        self,
        by_server: Mapping[int, Sequence[TopicPartition]],
        offsets: Mapping[TopicPartition, int],
        settings: FetchSettings,
        ids: Mapping[str, str],
    ) -> dict[TopicPartition, Any]:
        """Send one Fetch to each server; return for each partition its part of the answer, or kafka-python's error."""
        longest_ms = min(self._longest_wait_ms, TOGETHER_MS) if len(by_server) > 1 else self._longest_wait_ms
        settings = replace(settings, wait_ms=min(settings.wait_ms, longest_ms))
        requests = [(server, _fetch_request(places, offsets, settings, ids)) for server, places in by_server.items()]
        names = {topic_id: name for name, topic_id in ids.items()}
        responses: dict[TopicPartition, Any] = {}
        answers = self._connection.send_all(requests)
        for places, answer in zip(by_server.values(), answers, strict=True):
            if isinstance(answer, Exception):
                responses |= dict.fromkeys(places, answer)
            elif answer.error_code:
                responses |= dict.fromkeys(places, errors.for_code(answer.error_code)("Fetch"))
            else:  # a server of Kafka that holds this user to a quota answers without partitions
                responses |= dict.fromkeys(places, errors.ThrottlingQuotaExceededError("Fetch"))
                for topic in answer.responses:
                    name = topic.topic if answer.API_VERSION < _BY_ID else names[str(topic.topic_id)]
                    responses |= {(name, part.partition_index): part for part in topic.partitions}
        return responses

    def _fetched(self, response: Any, place: TopicPartition, offset: int, topic_id: str | None) -> Fetched | Exception:
        if isinstance(response, Exception):
            return response
        error = errors.for_code(response.error_code)
        if error is not errors.NoError:
            try:
                self._check_gone(error, place, topic_id)
            except errors.KafkaError as other:
                later: Exception = without_frames(other)
                return later
            refused: Exception = error(f"Fetch from {place[0]} partition {place[1]} at offset {offset}")
            return refused
        tags = response.unknown_tags or {}
        return Fetched(
            bytes(response.records or b""),
            response.high_watermark,
            response.last_stable_offset,
            response.log_start_offset,
            tuple((entry.producer_id, entry.first_offset) for entry in response.aborted_transactions or ()),
            entry_places.unpack_places(tags.get(f"_{entry_places.TAG}", b"")),
            entry_schemas.unpack_runs(tags.get(f"_{entry_schemas.TAG}", b"")),
        )

    def _check_gone(self, error: Any, partition: TopicPartition, topic_id: str | None = None) -> None:
        """Raise LeaderNotAvailableError, which is tried again, if a server says that a partition does not exist, but
        metadata, asked for now, still has it, with the same topic id if one is given. Do nothing for other errors.
        """
        if error not in GONE:
            return
        topic, index = partition
        now = self.topics({topic}).get(topic)
        if now is not None and index in now.leaders and now.topic_id == (topic_id or now.topic_id):
            raise errors.LeaderNotAvailableError(f"{error.__name__}, and metadata still has {topic} {index}")

    def _by_leader(
        self, partitions: Iterable[TopicPartition], failed: dict[TopicPartition, Exception] | None = None
    ) -> dict[int, list[TopicPartition]]:
        """Return the partitions by their leaders. Metadata is asked for first if topics, or partitions of them, are not
        known.

        A partition that does not exist, or has no leader, is kafka-python's error: it is put into `failed` if that is
        given, else the first one is raised.
        """
        partitions = list(partitions)
        unknown = {t for t, p in partitions if t not in self._topics or p not in self._topics[t].leaders}
        if unknown:
            self.topics(unknown)
        by_leader: dict[int, list[TopicPartition]] = {}
        for topic, partition in partitions:
            known = self._topics.get(topic)
            leader = None if known is None else known.leaders.get(partition)
            if leader is not None and leader >= 0:
                by_leader.setdefault(leader, []).append((topic, partition))
                continue
            kind = errors.UnknownTopicOrPartitionError if leader is None else errors.LeaderNotAvailableError
            error = kind(f"topic {topic} partition {partition}")
            if failed is None:
                raise error
            failed[topic, partition] = error
        return by_leader


def _fetch_request(
    places: Sequence[TopicPartition],
    offsets: Mapping[TopicPartition, int],
    settings: FetchSettings,
    ids: Mapping[str, str],
) -> FetchRequest:
    topics: dict[str, list[Any]] = {}
    for place in places:
        asked = FetchRequest.FetchTopic.FetchPartition(
            partition=place[1], fetch_offset=offsets[place], partition_max_bytes=settings.partition_bytes
        )
        topics.setdefault(place[0], []).append(asked)
    by_id = all(topic in ids for topic in topics)
    return FetchRequest(
        max_wait_ms=settings.wait_ms,
        min_bytes=settings.min_bytes,
        max_bytes=settings.max_bytes,
        isolation_level=settings.isolation,
        topics=[
            FetchRequest.FetchTopic(topic=topic, partitions=parts, **({"topic_id": ids[topic]} if by_id else {}))
            for topic, parts in topics.items()
        ],
        rack_id=settings.rack,
        entry_places=settings.places,
        entry_schemas=settings.schemas,
        min_version=4,
        max_version=17 if by_id else _BY_ID - 1,
    )
