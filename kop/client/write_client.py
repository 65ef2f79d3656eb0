"""The requests of a writer to Kafka servers: Produce, producer ids, transactions, topics, offsets of groups.

Owns: these requests, and what their errors mean to whoever writes.
Must not know: who writes, how records become batches (`kop.client.batches`), how requests are sent again
(`kop.client.connection`).

The versions of requests are those of version 1 of transactions, which every cluster from Kafka 0.11 on and every
gateway speaks.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, TypeAlias, TypeVar

from kafka import errors
from kafka.protocol.admin import CreatePartitionsRequest, CreateTopicsRequest, DeleteGroupsRequest
from kafka.protocol.consumer import HeartbeatRequest, OffsetCommitRequest, OffsetFetchRequest
from kafka.protocol.producer import (
    AddOffsetsToTxnRequest,
    AddPartitionsToTxnRequest,
    EndTxnRequest,
    InitProducerIdRequest,
    ProduceRequest,
    TxnOffsetCommitRequest,
)

from kop import clock
from kop.client.connection import GROUP, IN_FLIGHT, TEMPORARY, TRANSACTION, ClusterClient, Coordinated
from kop.client.errors import ClientError, FencedError, NotAllowedError, NotMemberError, NoTransactionsError
from kop.client.offsets import TopicPartition
from kop.records.batch import read_header

METADATA_SECONDS: Final = 60.0
DEFAULT_PARTITIONS: Final = -1
"""In the place of their number: as many as the cluster gives by default (KIP-464)."""
REQUEST_BYTES: Final = 1 << 20
"""The most bytes of a Produce request, as many as Java's max.request.size."""
REQUEST_ROOM: Final = 1024
"""Bytes that a Produce request takes beside the batch of one partition."""
PATIENCE_SECONDS: Final = 120.0
"""The seconds for which a request that fails for a time is tried again: as many as Java's delivery.timeout.ms."""
_DONE: Final = (0, 46)
"""NONE and DUPLICATE_SEQUENCE_NUMBER: an earlier answer to the same batch was lost."""

T = TypeVar("T")
_Cut: TypeAlias = Mapping[TopicPartition, bytes | bytearray]
"""The content of one Produce request: a batch for each of its partitions."""


class Identity(NamedTuple):
    """A producer as the cluster knows it."""

    producer_id: int
    epoch: int
    transactional_id: str | None = None


class MemberIdentity(NamedTuple):
    """A member of a consumer group, in one of its generations."""

    member_id: str
    generation: int


NO_MEMBER: Final = MemberIdentity("", -1)
"""Whoever commits for a group without members."""


@dataclass(slots=True)
class _Topic:
    leaders: Mapping[int, int]
    known_at: float


class WriteClient(ClusterClient):
    """A client of one cluster.

    `settings` are kafka-python's. What fails for a time is tried again for `patience` seconds; then its error is
    raised. Other errors are raised at once: kafka-python's, ClientError if the user has to do something,
    FencedError if a newer client has taken the producer over.
    """

    def __init__(self, settings: Mapping[str, Any], patience: float = PATIENCE_SECONDS) -> None:
        super().__init__(settings, patience)
        self._topics: dict[str, _Topic] = {}

    # -- topics

    def leaders(self, topic: str, *, make: bool = True) -> Mapping[int, int]:
        """Return the server that leads each partition, -1 for none at the moment; empty if there is no such topic. An
        answer is kept for 60 s.

        `make`: a cluster that makes topics by their first use makes this one. ClientError if a topic cannot have this
        name, or, with `make`, does not exist.
        """
        known = self.known_leaders(topic)
        if known is not None:
            return known

        def ask() -> Mapping[int, int]:
            (described,) = self._connection.metadata([topic], make=make)
            if described.error_code == errors.UnknownTopicOrPartitionError.errno and not make:
                return {}
            _raise(described.error_code, f"topic {topic}")
            leaders = {partition.partition_index: partition.leader_id for partition in described.partitions}
            self._topics[topic] = _Topic(leaders, clock.monotonic())
            return leaders

        try:
            return self._patiently(ask)
        except errors.InvalidTopicError as error:
            raise ClientError(f"name another topic than {topic}: none can have this name ({error})") from error
        except errors.UnknownTopicOrPartitionError as error:
            raise ClientError(
                f"create the topic {topic}, or name another one: the cluster has none of this name, and makes none by "
                f"its first use ({error})"
            ) from error

    def known_leaders(self, topic: str) -> Mapping[int, int] | None:
        """Return what `leaders` returns if that is kept and no request is needed, else None. For any thread."""
        known = self._topics.get(topic)
        return None if known is None or clock.monotonic() >= known.known_at + METADATA_SECONDS else known.leaders

    def sees(self, topic: str) -> bool:
        """Return true if there is a topic that this user may see; no topic is made by asking."""
        try:
            return bool(self.leaders(topic, make=False))
        except errors.TopicAuthorizationFailedError:
            return False

    def takes_name(self, topic: str) -> bool:
        """Return true if a topic can have this name, and this user may know of it; there need not be one."""

        def ask() -> bool:
            (described,) = self._connection.metadata([topic])
            return described.error_code not in _NO_NAME

        return self._patiently(ask)

    def partitions_at_least(self, topic: str, count: int, configs: Mapping[str, str] | None = None) -> None:
        """Make a topic with `count` partitions and these configs, or give one that has fewer as many; returns once the
        cluster shows them. NotAllowedError if the user may not.
        """

        def ask() -> None:
            leaders = self.leaders(topic, make=False)
            if len(leaders) >= count:
                return
            self._topics.pop(topic, None)
            if leaders:
                asked = CreatePartitionsRequest.CreatePartitionsTopic(name=topic, count=count, assignments=None)
                answer = self._connection.send(
                    CreatePartitionsRequest(topics=[asked], timeout_ms=30_000, validate_only=False),
                    self._connection.controller,
                )
                code = answer.results[0].error_code
            else:
                code = self._create(topic, count, configs or {})
            if code in _NOT_ALLOWED:
                raise NotAllowedError(f"make the topic {topic} with {count} partitions or more, or allow this user to")
            # Another one may have been first: look again.
            if code not in (0, errors.TopicAlreadyExistsError.errno, errors.InvalidPartitionsError.errno):
                _raise(code, f"making {topic}")
            raise errors.LeaderNotAvailableError(f"topic {topic} is being made")

        self._patiently(ask)

    def make_topic(self, topic: str) -> bool:
        """Make a topic with as many partitions and replicas as the cluster gives by default, if it is not there, and
        wait until the cluster shows it.

        Returns true if it was made. NotAllowedError if the user may not.
        """
        if self.leaders(topic, make=False):
            return False

        def create() -> bool:
            self._connection.metadata([])  # which server makes topics
            code = self._create(topic, DEFAULT_PARTITIONS, {})
            if code in _NOT_ALLOWED:
                raise NotAllowedError(f"make the topic {topic}, or allow this user to")
            if code != errors.TopicAlreadyExistsError.errno:
                _raise(code, f"making {topic}")
            return code == 0

        def wait() -> None:
            if not self.leaders(topic, make=False):
                raise errors.LeaderNotAvailableError(f"topic {topic} is being made")

        made = self._patiently(create)
        self._patiently(wait)
        return made

    def _create(self, topic: str, count: int, configs: Mapping[str, str]) -> int:
        """Ask the controller for a topic of `count` partitions; return the error code of the answer, which is 0 if it
        was made.
        """
        config_class = CreateTopicsRequest.CreatableTopic.CreatableTopicConfig
        new = CreateTopicsRequest.CreatableTopic(
            name=topic,
            num_partitions=count,
            replication_factor=-1,
            assignments=[],
            configs=[config_class(name=name, value=value) for name, value in configs.items()],
        )
        answer = self._connection.send(
            CreateTopicsRequest(topics=[new], timeout_ms=30_000, validate_only=False, min_version=4, max_version=6),
            self._connection.controller,
        )
        code: int = answer.topics[0].error_code
        return code

    # -- producing

    def init_producer(self, transactional_id: str | None, timeout_ms: int) -> Identity:
        """Return a producer id and epoch. With a transactional id it fences earlier producers of that id and ends their
        transaction (KIP-98); `timeout_ms` is the longest time that a transaction may be open then. NotAllowedError if
        the user may have no producer id.
        """

        def ask() -> Identity:
            node = None if transactional_id is None else self._connection.coordinator((TRANSACTION, transactional_id))
            answer = self._connection.send(
                InitProducerIdRequest(
                    transactional_id=transactional_id,
                    transaction_timeout_ms=timeout_ms,
                    producer_id=-1,
                    producer_epoch=-1,
                    max_version=4,
                ),
                node,
            )
            if transactional_id is None and answer.error_code in _NOT_ALLOWED:
                raise NotAllowedError(
                    "let the user have a producer id by Write on a topic, or IdempotentWrite on the cluster"
                )
            _raise(answer.error_code, f"InitProducerId of {transactional_id or 'no transactional id'}")
            return Identity(answer.producer_id, answer.producer_epoch, transactional_id)

        return self._patiently(ask, coordinator=(TRANSACTION, transactional_id or ""))

    def add_partitions(self, producer: Identity, places: Iterable[TopicPartition], group: str | None = None) -> None:
        """Add partitions to the producer's transaction, which begins with the first of them; with `group`, also the
        offsets of that group. FencedError if a newer producer has the transactional id.
        """
        topics: dict[str, list[int]] = {}
        for topic, partition in places:
            topics.setdefault(topic, []).append(partition)
        topic_class = AddPartitionsToTxnRequest.AddPartitionsToTxnTopic
        name = producer.transactional_id
        add = AddPartitionsToTxnRequest(
            v3_and_below_transactional_id=name,
            v3_and_below_producer_id=producer.producer_id,
            v3_and_below_producer_epoch=producer.epoch,
            v3_and_below_topics=[topic_class(name=topic, partitions=some) for topic, some in topics.items()],
            max_version=3,
        )

        def ask() -> None:
            node = self._connection.coordinator((TRANSACTION, name or ""))
            requests = [(node, add)]
            if group is not None:
                requests.append((node, _of_producer(AddOffsetsToTxnRequest, producer, group_id=group)))
            answers = self._connection.send_all(requests)
            for answer in answers:
                if isinstance(answer, Exception):
                    raise answer
            codes = {
                partition.partition_error_code: f"{topic.name}-{partition.partition_index}"
                for topic in answers[0].results_by_topic_v3_and_below
                for partition in topic.results_by_partition
                if partition.partition_error_code
            }
            codes.pop(errors.OperationNotAttemptedError.errno, None)
            for code, place in codes.items():
                _raise(code, f"AddPartitionsToTxn of {place}")
            for answer in answers[1:]:
                _raise(answer.error_code, f"AddOffsetsToTxn of {name}")

        self._patiently(ask, coordinator=(TRANSACTION, name or ""))

    def produce(
        self,
        producer: Identity,
        batches: Mapping[TopicPartition, bytes | bytearray],
        acks: int = -1,
        max_bytes: int = REQUEST_BYTES,
    ) -> None:
        """Write one record batch to each of some partitions; returns when all are answered. Parameters and errors are
        those of `produce_all`.
        """
        self.produce_all(producer, {place: [batch] for place, batch in batches.items()}, acks, max_bytes)

    def produce_all(
        self,
        producer: Identity,
        batches: Mapping[TopicPartition, Iterable[bytes | bytearray]],
        acks: int = -1,
        max_bytes: int = REQUEST_BYTES,
    ) -> None:
        """Write the record batches of some partitions, each partition's in order; returns when all are answered as
        `acks` (Kafka's number) asks: with -1 they are durable.

        Up to four requests (IN_FLIGHT) are under way to a server, so those of one partition need sequences. A request
        has at most `max_bytes`, or a single batch. A batch is sent again as it is: its sequence makes the cluster drop
        it where only the answer was lost, and refuse those behind it where it was not taken. After an error some
        batches may be written.
        """
        left = {place: deque(some) for place, some in batches.items()}

        def ask() -> None:
            while waiting := [place for place, some in left.items() if some]:
                by_leader: dict[int, list[TopicPartition]] = {}
                for topic, partition in waiting:
                    leader = self.leaders(topic).get(partition, -1)
                    if leader < 0:
                        raise errors.LeaderNotAvailableError(f"topic {topic} partition {partition}")
                    by_leader.setdefault(leader, []).append((topic, partition))
                send([(node, cut) for node, places in by_leader.items() for cut in _cut(left, places, max_bytes)])

        def send(due: list[tuple[int, _Cut]]) -> None:
            answers = self._connection.send_all([(node, self._produce(producer, cut, acks)) for node, cut in due])
            failed: dict[TopicPartition, Exception] = {}
            for (_, cut), answer in zip(due, answers, strict=True):
                if isinstance(answer, Exception):
                    failed = dict.fromkeys(cut, answer) | failed
                    continue
                for topic in answer.responses:
                    for partition in topic.partition_responses:
                        place = topic.name, partition.index
                        if place in failed:
                            continue  # it is behind one that is written again, and so is this one
                        if partition.error_code in _DONE:
                            left[place].popleft()
                        else:
                            failed[place] = _error(partition.error_code, f"Produce to {place[0]}-{place[1]}")
            if failed:
                raise next((e for e in failed.values() if not isinstance(e, TEMPORARY)), next(iter(failed.values())))

        self._patiently(ask, forget=lambda: self._forget(topic for (topic, _), some in left.items() if some))

    @staticmethod
    def _produce(producer: Identity, batches: _Cut, acks: int) -> Any:
        topic_class = ProduceRequest.TopicProduceData
        topics: dict[str, list[Any]] = {}
        for (topic, partition), batch in batches.items():
            part = topic_class.PartitionProduceData(index=partition, records=bytes(batch))
            topics.setdefault(topic, []).append(part)
        return ProduceRequest(
            transactional_id=producer.transactional_id,
            acks=acks,
            timeout_ms=30_000,
            topic_data=[topic_class(name=name, partition_data=parts) for name, parts in topics.items()],
            min_version=3,
            max_version=9,
        )

    # -- offsets and the end

    def committed(
        self, group: str, places: Collection[TopicPartition], may_be_open: Collection[TopicPartition] = ()
    ) -> dict[TopicPartition, tuple[int, str]]:
        """Return offset and metadata that a group committed, for each of the places that has one. An offset that an
        open transaction holds is waited for, except that a place of `may_be_open` is left out then.
        """
        asked: dict[str, list[int]] = {}
        for topic, partition in sorted(places):
            asked.setdefault(topic, []).append(partition)

        def ask() -> dict[TopicPartition, tuple[int, str]]:
            group_class = OffsetFetchRequest.OffsetFetchRequestGroup
            answer = self._connection.send(
                OffsetFetchRequest(
                    group_id=group,
                    topics=[
                        OffsetFetchRequest.OffsetFetchRequestTopic(name=name, partition_indexes=some)
                        for name, some in asked.items()
                    ],
                    groups=[
                        group_class(
                            group_id=group,
                            topics=[
                                group_class.OffsetFetchRequestTopics(name=name, partition_indexes=some)
                                for name, some in asked.items()
                            ],
                        )
                    ],
                    require_stable=True,
                    min_version=7,
                    max_version=8,
                ),
                self._connection.coordinator((GROUP, group)),
            )
            response = answer.groups[0] if answer.API_VERSION >= 8 else answer
            _raise(response.error_code, f"OffsetFetch of group {group}")
            offsets: dict[TopicPartition, tuple[int, str]] = {}
            for row in response.topics:
                for partition in row.partitions:
                    place = row.name, partition.partition_index
                    if partition.error_code != _UNSTABLE or place not in may_be_open:
                        _raise(partition.error_code, f"OffsetFetch of group {group}")
                    if partition.committed_offset >= 0 and not partition.error_code:
                        offsets[place] = partition.committed_offset, partition.metadata or ""
            return offsets

        return self._patiently(ask, coordinator=(GROUP, group))

    def commit_in_transaction(
        self,
        producer: Identity,
        group: str,
        offsets: Mapping[TopicPartition, int],
        metadata: str = "",
        member: MemberIdentity = NO_MEMBER,
        *,
        added: bool = False,
    ) -> None:
        """Commit offsets of a group in the producer's transaction, which begins with them if nothing was before.
        `metadata` is kept with each offset.

        `added`: `add_partitions` was told of the group already. The transactional id fences others that would commit.
        With a `member`, its group does, too (KIP-447): NotMemberError if the member is not of the group's generation
        any more.
        """
        name = producer.transactional_id or ""
        topic_class = TxnOffsetCommitRequest.TxnOffsetCommitRequestTopic
        topics: dict[str, list[Any]] = {}
        for (topic, partition), offset in offsets.items():
            part = topic_class.TxnOffsetCommitRequestPartition(
                partition_index=partition,
                committed_offset=offset,
                committed_leader_epoch=-1,
                committed_metadata=metadata,
            )
            topics.setdefault(topic, []).append(part)

        if not added:
            self._change_transaction(producer, AddOffsetsToTxnRequest, group_id=group)

        def commit() -> None:
            answer = self._connection.send(
                TxnOffsetCommitRequest(
                    transactional_id=name,
                    group_id=group,
                    producer_id=producer.producer_id,
                    producer_epoch=producer.epoch,
                    generation_id=member.generation,
                    member_id=member.member_id,
                    group_instance_id=None,
                    topics=[topic_class(name=topic, partitions=parts) for topic, parts in topics.items()],
                    min_version=3 if member.member_id else 0,
                    max_version=3,
                ),
                self._connection.coordinator((GROUP, group)),
            )
            for row in answer.topics:
                for partition in row.partitions:
                    _raise(
                        partition.error_code,
                        f"TxnOffsetCommit of {row.name}-{partition.partition_index} to group {group}",
                    )

        try:
            self._patiently(commit, coordinator=(GROUP, group))
        except _NO_MEMBER as error:
            raise NotMemberError(f"{error}") from None

    def check_member(self, group: str, member: MemberIdentity) -> None:
        """Ask the server if `member` belongs to the present generation of a group, as it does while the group
        rebalances, too. NotMemberError if it does not.
        """

        def ask() -> None:
            answer = self._connection.send(
                HeartbeatRequest(
                    group_id=group, generation_id=member.generation, member_id=member.member_id, max_version=3
                ),
                self._connection.coordinator((GROUP, group)),
            )
            if answer.error_code != errors.RebalanceInProgressError.errno:  # it is a member, and is to join again
                _raise(answer.error_code, f"Heartbeat in group {group}")

        try:
            self._patiently(ask, coordinator=(GROUP, group))
        except _NO_MEMBER as error:
            raise NotMemberError(f"{error}") from None

    def delete_group(self, group: str) -> None:
        """Delete a group without members, with its offsets; do nothing if there is none. Raises kafka-python's error if
        it has members.
        """

        def ask() -> None:
            answer = self._connection.send(
                DeleteGroupsRequest(groups_names=[group]), self._connection.coordinator((GROUP, group))
            )
            code = answer.results[0].error_code
            if code != errors.GroupIdNotFoundError.errno:
                _raise(code, f"DeleteGroups of {group}")

        self._patiently(ask, coordinator=(GROUP, group))

    def commit(self, group: str, offsets: Mapping[TopicPartition, int]) -> dict[TopicPartition, Exception]:
        """Commit offsets of a group without members; return the errors of the partitions that do not exist or that the
        user may not read, none if all were taken. Any other error is raised.
        """
        topics: dict[str, list[Any]] = {}
        topic_class = OffsetCommitRequest.OffsetCommitRequestTopic
        for (topic, partition), offset in offsets.items():
            part = topic_class.OffsetCommitRequestPartition(
                partition_index=partition, committed_offset=offset, committed_leader_epoch=-1, committed_metadata=""
            )
            topics.setdefault(topic, []).append(part)

        def ask() -> dict[TopicPartition, Exception]:
            answer = self._connection.send(
                OffsetCommitRequest(
                    group_id=group,
                    generation_id_or_member_epoch=-1,
                    member_id="",
                    group_instance_id=None,
                    retention_time_ms=-1,
                    topics=[topic_class(name=name, partitions=parts) for name, parts in topics.items()],
                    max_version=8,
                ),
                self._connection.coordinator((GROUP, group)),
            )
            refused: dict[TopicPartition, Exception] = {}
            for row in answer.topics:
                for partition in row.partitions:
                    if partition.error_code in _OF_A_PARTITION:
                        refused[row.name, partition.partition_index] = _error(partition.error_code, "OffsetCommit")
                    else:
                        _raise(partition.error_code, f"OffsetCommit to group {group}")
            return refused

        return self._patiently(ask, coordinator=(GROUP, group))

    def end_transaction(self, producer: Identity, commit: bool = True) -> None:
        """Commit the producer's transaction, or abort it. The request is sent again if the answer was lost, which does
        no harm. FencedError if a newer producer has the transactional id.
        """
        self._change_transaction(producer, EndTxnRequest, committed=commit)

    # -- how requests are sent

    def _change_transaction(self, producer: Identity, request_class: Any, **fields: Any) -> None:
        """Send a request of this class and these fields, which changes the producer's transaction and is answered by an
        error code alone; raise the error that the code means.
        """
        of = TRANSACTION, producer.transactional_id or ""

        def ask() -> None:
            answer = self._connection.send(
                _of_producer(request_class, producer, **fields), self._connection.coordinator(of)
            )
            _raise(
                answer.error_code, f"{request_class.__name__.removesuffix('Request')} of {producer.transactional_id}"
            )

        self._patiently(ask, coordinator=of)

    def _patiently(
        self,
        ask: Callable[[], T],
        coordinator: Coordinated | None = None,
        forget: Callable[[], object] | None = None,
    ) -> T:
        try:
            return self._connection.patiently(ask, coordinator=coordinator, forget=forget)
        except errors.TransactionalIdAuthorizationFailedError as error:
            raise _error(error.errno, str(error)) from error
        except errors.UnsupportedVersionError as error:
            of_transaction = coordinator is not None and coordinator[0] == TRANSACTION and coordinator[1]
            raise (NoTransactionsError if of_transaction else ClientError)(
                "the cluster does not know a request that is needed; transactions and stable offsets need "
                f"Kafka 2.5: {error}"
            ) from error


_UNSTABLE: Final = errors.UnstableOffsetCommitError.errno
_OF_A_PARTITION: Final = (errors.UnknownTopicOrPartitionError.errno, errors.TopicAuthorizationFailedError.errno)
_NOT_ALLOWED: Final = (errors.TopicAuthorizationFailedError.errno, errors.ClusterAuthorizationFailedError.errno)
_NO_MEMBER: Final = (
    errors.IllegalGenerationError,
    errors.UnknownMemberIdError,
    errors.RebalanceInProgressError,
    errors.FencedInstanceIdError,
)
_NO_NAME: Final = (errors.InvalidTopicError.errno, errors.TopicAuthorizationFailedError.errno)
_FENCED: Final = (errors.ProducerFencedError.errno, errors.InvalidProducerEpochError.errno)


def _of_producer(request_class: Any, producer: Identity, **fields: Any) -> Any:
    return request_class(
        transactional_id=producer.transactional_id,
        producer_id=producer.producer_id,
        producer_epoch=producer.epoch,
        max_version=3,
        **fields,
    )


def _cut(
    batches: Mapping[TopicPartition, Sequence[bytes | bytearray]], places: Collection[TopicPartition], max_bytes: int
) -> Sequence[_Cut]:
    """Return the batches of each of the next requests, four at most, each with as many batches as fit into `max_bytes`,
    one at least.

    The next batch of a partition is in the request behind that of the one before it. The first batch of a producer goes
    alone: a server that knows no sequence yet would take the one behind it, too, if it did not take that one.
    """
    alone = {place for place in places if read_header(batches[place][0]).base_sequence <= 0}
    requests: list[dict[TopicPartition, bytes | bytearray]] = []
    row = 0
    while len(requests) < IN_FLIGHT and places:
        room = 0
        for place in places:
            batch = batches[place][row]
            size = len(batch) + REQUEST_ROOM
            if size > room:
                requests.append({})
                room = max_bytes
            requests[-1][place] = batch
            room -= size
        row += 1
        places = [place for place in places if place not in alone and len(batches[place]) > row]
    return requests[:IN_FLIGHT]


def _raise(code: int, doing: str) -> None:
    if code:
        raise _error(code, doing)


def _error(code: int, doing: str) -> Exception:
    if code in _FENCED:
        return FencedError(doing)
    if code == errors.TransactionalIdAuthorizationFailedError.errno:
        return NoTransactionsError(
            f"{doing}: this cluster refuses transactions. Over Pulsar they have to be switched on "
            "(transactionCoordinatorEnabled=true); elsewhere the user needs Write on the transactional id."
        )
    if code == errors.InvalidTransactionTimeoutError.errno:
        return ClientError(f"{doing}: set transaction.timeout.ms to at most the cluster's transaction.max.timeout.ms")
    made: Exception = errors.for_code(code)(doing)
    return made
