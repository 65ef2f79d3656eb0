"""The answer to any request that has nothing but an error in it, at the places where Kafka's own brokers put it.

Owns: the places: the error of the whole answer, else one for each thing that the request names.
Must not know: why the error is wanted.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final

from kafka.protocol.schemas.fields.struct_array import StructArrayField

from kop.errors import ErrorCode
from kop.wire import codec
from kop.wire.messages import RESPONSES, FetchRequest, Message, MetadataRequest

_IN_ROWS: Final = (FetchRequest, MetadataRequest)
"""The requests to be answered with an error in every row, although their answers have an error of the whole: clients
take that one for something else.
"""
_LISTS: Final = {
    "responses": ("topic_data", "topics", "topic_names", "resources"),
    "partition_responses": ("partition_data",),
    "partitions": ("partitions", "partition_indexes"),
    "results": ("topics", "groups_names", "creations", "resources", "deletions", "upsertions"),
    "coordinators": ("coordinator_keys",),
    "filter_results": ("filters",),
    "transaction_states": ("transactional_ids",),
    "results_by_topic_v3_and_below": ("v3_and_below_topics",),
    "results_by_partition": ("partitions",),
    "replica_election_results": ("topic_partitions",),
    "partition_result": ("partitions",),
}
"""The names of lists in a request, by the name of the list in its answer that has a row for each of their items, if
that differs.
"""
_FIELDS: Final = {"partition_index": ("partition_index", "partition"), "user": ("name",)}
"""The names of fields in a row of a request, by the name of the field in the answer that repeats them, if that
differs.
"""
_KEYS: Final = ("name", "group_id", "key", "transactional_id", "partition_index", "partition_id")
"""The fields of an answer's row that repeat an item of the request which is a plain name or number."""


def refusal(request: Message, code: ErrorCode) -> Message:
    """Return the answer to a decoded request in which all that it asks for has failed with `code`: as the error of the
    whole answer, or of each of its rows.
    """
    version = request.API_VERSION
    response_class = RESPONSES[request.API_KEY]
    whole = codec.refusal(response_class, version, code)
    if whole is not None and not isinstance(request, _IN_ROWS):
        return whole
    lists = dict(_rows_of(response_class._struct, request, version, code))
    if lists or whole is None:
        return response_class(version=version, **lists)
    return whole  # a Fetch of a session names no partitions


def _rows_of(struct: Any, asked: Any, version: int, code: ErrorCode) -> Iterator[tuple[str, list[Message]]]:
    """Yield each list of an answer (or of a row of it) that holds errors, by its name, with a row for each item that
    `asked`, the request or a row of it, has. Each row has the error `code`.
    """
    for field in struct.fields.values():
        if isinstance(field, StructArrayField) and field.for_version_q(version):
            row_struct = field.array_of
            names = [inner.name for inner in row_struct.fields.values() if inner.for_version_q(version)]
            candidates = _LISTS.get(field.name, (field.name,))
            items = [item for name in candidates for item in getattr(asked, name, None) or ()]
            if items and any(name.endswith("error_code") or _holds_lists(row_struct, name) for name in names):
                yield field.name, [_row(field, names, item, version, code) for item in items]


def _holds_lists(struct: Any, name: str) -> bool:
    return isinstance(struct.fields[name], StructArrayField)


def _row(field: Any, names: Sequence[str], item: Any, version: int, code: ErrorCode) -> Message:
    values: dict[str, Any] = {}
    for name in names:
        if name in {"error_code", "partition_error_code"}:
            values[name] = code
        elif isinstance(item, str | int):
            if name in _KEYS:
                values[name] = item
        else:
            candidates = [getattr(item, own, None) for own in _FIELDS.get(name, (name,))]
            value = next((value for value in candidates if value is not None), None)
            if value is not None and not isinstance(value, list):
                values[name] = value
    if not any(name.endswith("error_code") for name in names):
        values |= dict(_rows_of(field.array_of, item, version, code))
    return field.data_class(version=version, **values)
