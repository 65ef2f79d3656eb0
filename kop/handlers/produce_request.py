"""A Produce request as its handler gets it.

Owns: reading the body, with the checks of each batch that need to know no topic, in one call where the compiled module
is there. Without it, and where something is wrong, the fields alone are read: the handler checks the batches then, and
says what is wrong. Either way leads to the same answer.
Must not know: topics, logs, answers.

No class is made for what is read: there is some of it for each partition of each request.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, TypeAlias
from uuid import UUID

from kop.compiled import compiled
from kop.records.batch import is_transactional
from kop.storage.base import Buffer
from kop.wire.produce import parse

HeaderFields: TypeAlias = tuple[int, int, int, int, int, int, int, int, int, int, int, int, int]
"""The type of a batch header as a plain tuple, with the fields of `kop.records.batch.BatchHeader`."""
Times: TypeAlias = tuple[int, int, bool]
"""The type of the timestamps in a batch: the smallest and the largest (-1 if no record has one), and True if a record
has no key.
"""
ReadBatch: TypeAlias = tuple[int, Buffer | None, HeaderFields | None, Times | None]
"""The type of a batch as it was read: partition, records (None for null), header (None: to be checked), times (None:
its records were not checked).

With a header the batch is right as `kop.records.batch.check_produced` sees it, but for the topic's limit of its size,
and is none of LogAppendTime; with times its records are what `kop.records.validation.check_records` lets through on a
topic that is not compacted.
"""
ReadTopic: TypeAlias = tuple[str | bytes, list[ReadBatch]]
"""The type of a topic as it was read: its name, or, from version 13 on, the 16 bytes of its id; and its batches."""
ReadProduce: TypeAlias = tuple[str | None, int, int, bool, list[ReadTopic]]
"""The type of a Produce that was read: transactional id, acks, timeout_ms, True if a batch says that it belongs to a
transaction, topics in their order.
"""


def read(body: memoryview, version: int, *, walks: bool, copies: bool) -> ReadProduce:
    """Read the body of a Produce, and return its fields as plain tuples. DecodeError if it is malformed.

    With `walks` the records of uncompressed batches are checked, too. With `copies` the batches without an error come
    as copies, which may be kept and changed; all others are views into `body`.
    """
    request = twin.read_produce(body, version, walks, copies)
    return request if request is not None else _fields(body, version)


def read_produce(body: memoryview, version: int, walks: bool, copies: bool) -> ReadProduce | None:
    """Return None: without the compiled function of this name, which reads a Produce and returns None for one with an
    error, `read` reads the fields alone and leaves the checks to the handler.
    """
    return None


def _fields(body: memoryview, version: int) -> ReadProduce:
    call = parse(body, version)
    transactional = any(
        part.records is not None and is_transactional(part.records)
        for topic_data in call.topics
        for part in topic_data.partitions
    )
    topics: list[ReadTopic] = [
        (
            topic_data.topic.bytes if isinstance(topic_data.topic, UUID) else topic_data.topic,
            [(part.partition, part.records, None, None) for part in topic_data.partitions],
        )
        for topic_data in call.topics
    ]
    return call.transactional_id, call.acks, call.timeout_ms, transactional, topics


if TYPE_CHECKING:
    from kop import _native as twin
else:
    twin = compiled(sys.modules[__name__])
"""The module that `read` asks: the compiled one if it was built, else this one."""
