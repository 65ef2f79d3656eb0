"""DescribeProducers (61) 0: the idempotent producers that a partition remembers, and their open transactions (KIP-664).

Where several brokers serve one log, each remembers the producers that write through it: all of them are asked, and the
answer names each producer once. A request of another broker asks for this broker's producers alone.

Where logs hold no markers, they do not know which transactions are open; the transactions' coordinators do. So each
broker tells of those that it coordinates, too. Such a transaction begins at the offset at which readers are held back,
or behind it: that offset is told as its start.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Mapping
from dataclasses import fields, replace
from typing import Any, Final, TypeAlias

from kop.errors import ErrorCode, KopError
from kop.handlers.access import Need, is_refusal, named_topics
from kop.handlers.api import Api, Context
from kop.handlers.gateway import Gateway
from kop.security.rights import AclOperation, ResourceType
from kop.storage.base import ProducerView
from kop.transactions.machine import Transaction
from kop.turns import LOOKED_AT, with_pauses
from kop.wire.messages import DescribeProducersRequest, Message
from kop.wire.rows import Response
from kop.wire.transaction_state import TransactionStatus

_UNKNOWN_PARTITION = "This server does not host this topic-partition."

_log = logging.getLogger(__name__)

_Partition: TypeAlias = tuple[str, int]
_Producers: TypeAlias = Mapping[_Partition, list[ProducerView]]
_Transactions: TypeAlias = Mapping[_Partition, list[Transaction]]
_WITHOUT_END: Final = (TransactionStatus.ONGOING, TransactionStatus.PREPARE_COMMIT, TransactionStatus.PREPARE_ABORT)
_NO_SEQUENCE: Final = -1
_FIELDS: Final = tuple(field.name for field in fields(ProducerView))
"""The fields of a producer, whose names are those of the schema."""


async def describe_producers(gw: Gateway, ctx: Context, request: Message) -> Response:
    """Answer DescribeProducers with the producers of each partition, as all brokers know them. NOT_LEADER_OR_FOLLOWER,
    after which clients try again, for all partitions if another broker does not answer.
    """
    others = [] if ctx.asking_broker() is not None else [id_ for id_ in gw.cluster.ids if id_ != gw.cluster.broker_id]
    answers = await asyncio.gather(*(_of_broker(gw, broker_id, request) for broker_id in others))
    remembered = [answer for answer in answers if not isinstance(answer, KopError)]
    silent = next((answer for answer in answers if isinstance(answer, KopError)), None)
    coordinated = await _coordinated(gw)
    if isinstance(coordinated, KopError):
        silent, coordinated = coordinated, {}
    return ctx.response(
        topics=[
            dict(
                name=topic.name,
                partitions=[
                    _row(gw, ctx, (topic.name, index), coordinated, remembered, silent)
                    for index in topic.partition_indexes
                ],
            )
            for topic in request.topics
        ]
    )


async def _coordinated(gw: Gateway) -> _Transactions | KopError:
    """Return the open transactions that this broker coordinates, by partition (name of the topic, index), or the error
    while they are being loaded; none if logs hold markers and know their transactions themselves.
    """
    by_partition: dict[_Partition, list[Transaction]] = {}
    if gw.engine.promises.writes_markers:
        return by_partition
    transactions, error = gw.transactions.listed()
    if error:
        return KopError("transactional ids are still being loaded", error)
    async for _, transaction in with_pauses(transactions, LOOKED_AT):
        if transaction.status in _WITHOUT_END:
            for partition in transaction.partitions:
                by_partition.setdefault(partition, []).append(transaction)
    return by_partition


async def _of_broker(gw: Gateway, broker_id: int, request: Message) -> _Producers | KopError:
    row = DescribeProducersRequest.TopicRequest
    topics = [row(version=0, name=topic.name, partition_indexes=topic.partition_indexes) for topic in request.topics]
    try:
        answer = await gw.peers.call(broker_id, DescribeProducersRequest(version=0, topics=topics))
    except KopError as error:
        _log.warning(
            "clients that ask for the producers of partitions are told to try again: %s; start that broker, or wait "
            "until the cluster has given it up",
            error,
        )
        error.__traceback__ = error.__context__ = None
        return error
    return {
        (topic.name, part.partition_index): [
            ProducerView(**{field: getattr(producer, field) for field in _FIELDS}) for producer in part.active_producers
        ]
        for topic in answer.message.topics
        for part in topic.partitions
    }


def _row(
    gw: Gateway,
    ctx: Context,
    partition: _Partition,
    coordinated: _Transactions,
    remembered: Iterable[_Producers],
    silent: KopError | None,
) -> dict[str, Any]:
    name, index = partition
    code, message = ErrorCode.NONE, None
    producers: list[ProducerView] = []
    topic = ctx.topic(name, AclOperation.READ)
    log = None if isinstance(topic, ErrorCode) else gw.topics.log(topic.topic_id, index)
    if log is None:
        code, message = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, _UNKNOWN_PARTITION
        if isinstance(topic, ErrorCode):
            code = topic
            try:
                if not is_refusal(code):
                    gw.topics.check_name(name)
            except KopError as error:
                code, message = error.code, error.message
    elif silent is not None:
        code, message = ErrorCode.NOT_LEADER_OR_FOLLOWER, silent.message
    else:
        begun = [
            ProducerView(
                transaction.producer_id,
                transaction.producer_epoch,
                _NO_SEQUENCE,
                transaction.last_update_timestamp,
                log.last_stable_offset,
            )
            for transaction in coordinated.get((log.topic.name, index), ())
        ]
        producers = merged(log.producers(), begun, *(of_broker.get(partition, ()) for of_broker in remembered))
    return dict(
        partition_index=index,
        error_code=code,
        error_message=message,
        active_producers=[{field: getattr(producer, field) for field in _FIELDS} for producer in producers],
    )


def merged(*of_brokers: Iterable[ProducerView]) -> list[ProducerView]:
    """Return the producers of one partition, sorted by id, merged from the lists of several brokers.

    Of several rows of a producer the newest counts: that with the newest epoch, and then that with the last batch. Its
    transaction begins at the lowest offset that a row with that epoch gives.
    """
    by_producer_id: dict[int, ProducerView] = {}
    for producers in of_brokers:
        for view in producers:
            earlier = by_producer_id.get(view.producer_id)
            if earlier is None:
                by_producer_id[view.producer_id] = view
                continue
            last = max(earlier, view, key=_age)
            begun = [
                each.current_txn_start_offset
                for each in (earlier, view)
                if each.producer_epoch == last.producer_epoch and each.current_txn_start_offset >= 0
            ]
            by_producer_id[view.producer_id] = replace(last, current_txn_start_offset=min(begun, default=-1))
    return [by_producer_id[producer_id] for producer_id in sorted(by_producer_id)]


def _age(view: ProducerView) -> tuple[int, bool, int, int]:
    return view.producer_epoch, view.last_sequence != _NO_SEQUENCE, view.last_timestamp, view.last_sequence


APIS = (
    Api(
        61,
        0,
        0,
        describe_producers,
        (Need(AclOperation.READ, ResourceType.TOPIC, named_topics),),
        overlaps=True,
        rows=("topics", "topics"),
    ),
)
