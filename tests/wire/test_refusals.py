"""Any request can be answered with an error, in each version, at places where clients look for it."""

from __future__ import annotations

from collections.abc import Iterator
from copy import copy
from typing import Any
from uuid import UUID

import pytest
from kafka.protocol.schemas.fields.array import ArrayField
from kafka.protocol.schemas.fields.struct_array import StructArrayField

from kop.errors import ErrorCode
from kop.handlers import registry
from kop.handlers.api import Api
from kop.wire import codec
from kop.wire.messages import (
    REQUESTS,
    RESPONSES,
    DeleteTopicsRequest,
    FetchRequest,
    Message,
    OffsetFetchRequest,
    ProduceRequest,
)
from kop.wire.refusals import refusal

CODE = ErrorCode.NOT_LEADER_OR_FOLLOWER
TOPIC_ID = UUID(int=7 << 64 | 300)
VALUES: dict[str, Any] = {"string": "n", "uuid": TOPIC_ID, "bytes": b"", "records": b"", "bool": False}


def named(struct: Any, version: int) -> dict[str, Any]:
    """Fields of a request that names one thing wherever it may name some."""
    values: dict[str, Any] = {}
    for field in struct.fields.values():
        if not field.for_version_q(version):
            continue
        if isinstance(field, StructArrayField):
            values[field.name] = [field.data_class(version=version, **named(field.array_of, version))]
        elif isinstance(field, ArrayField):
            values[field.name] = ["n"] if field.array_of._type_str == "string" else [0]
        elif (kind := getattr(field, "_type_str", "")) in VALUES:
            values[field.name] = VALUES[kind]
        elif kind.startswith("int"):
            values[field.name] = 0
    return values


def request_of(key: int, version: int) -> Message:
    return REQUESTS[key](version=version, **named(REQUESTS[key]._struct, version))


def answered(request: Message) -> Message:
    """The answer as a client decodes it."""
    key, version = request.API_KEY, request.API_VERSION
    frame = codec.encode_response(1, refusal(request, CODE))
    flexible = RESPONSES[key].flexible_version_q(version) and key != 18
    return codec.decode(RESPONSES[key], version, memoryview(frame), 9 if flexible else 8)


@pytest.mark.parametrize("api", registry.build().values(), ids=lambda api: str(api.key))
def test_every_request_has_an_answer_with_that_error_and_no_other(api: Api) -> None:
    for version in range(api.advertised_min, api.max_version + 1):
        assert set(codec.error_codes(answered(request_of(api.key, version)))) == {CODE}, version


def rows(message: Message, *path: str) -> Iterator[Message]:
    if not path:
        yield message
        return
    for row in getattr(message, path[0]):
        yield from rows(row, *path[1:])


def test_each_partition_of_a_produce_has_its_error() -> None:
    request = request_of(ProduceRequest.API_KEY, 9)
    (topic,) = request.topic_data
    (partition,) = topic.partition_data
    topic.partition_data = [copy(partition) for _ in range(2)]
    topic.partition_data[1].index = 5
    request.topic_data = [topic, copy(topic)]
    request.topic_data[1].name = "b"
    places = [(topic.name, row) for topic in answered(request).responses for row in topic.partition_responses]
    assert [(name, row.index) for name, row in places] == [("n", 0), ("n", 5), ("b", 0), ("b", 5)]
    assert {row.error_code for _, row in places} == {CODE}


def test_a_fetch_by_topic_id_has_it_at_the_partition_and_one_of_a_session_as_a_whole() -> None:
    answer = answered(request_of(1, 17))
    assert answer.error_code == 0
    (row,) = rows(answer, "responses", "partitions")
    assert (answer.responses[0].topic_id, row.partition_index, row.error_code) == (TOPIC_ID, 0, CODE)
    of_session = FetchRequest(version=17, max_wait_ms=1, min_bytes=1, session_id=7, session_epoch=2, topics=[])
    assert answered(of_session).error_code == CODE


def test_offsets_of_groups_have_it_at_the_group() -> None:
    answer = answered(request_of(OffsetFetchRequest.API_KEY, 8))
    (group,) = answer.groups
    assert (group.group_id, group.error_code, group.topics) == ("n", CODE, [])


def test_topics_to_be_deleted_go_by_name_or_by_id() -> None:
    by_name = DeleteTopicsRequest(version=4, topic_names=["a", "b"], timeout_ms=1)
    assert [(row.name, row.error_code) for row in answered(by_name).responses] == [("a", CODE), ("b", CODE)]
    (row,) = answered(request_of(20, 6)).responses
    assert (row.topic_id, row.error_code) == (TOPIC_ID, CODE)
