"""The names in requests and responses: of topics, groups, transactional ids, and of resources that are one of these.

Owns: which fields of which API hold such names, and how all names of a message become stored ones, and back.
Must not know: what a name stands for, what spaces of names there are.

A client that works in a space of names has its requests changed by `inward` before anything looks at them, and its
responses by `outward` before they are encoded: what is between the two knows stored names alone. A row of a response
whose name is not of the space is left out.

Fields go by the schema's names, a path for each. Names of APIs that are parsed by hand, in Produce, Fetch and Metadata,
are changed where these are parsed and encoded.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from types import MappingProxyType
from typing import Any, Final, NamedTuple, Protocol, TypeAlias, cast

from kop.wire.codec import text_fields
from kop.wire.fetch import FetchCall
from kop.wire.messages import RESPONSES
from kop.wire.offset_commit import OffsetCommitAnswer, OffsetCommitCall


class Translator(Protocol):
    """The names of a space and the stored ones: `kop.security.tenants.Space` is one."""

    @property
    def prefix(self) -> str:
        """The beginning of the stored names of the space."""

    def inward(self, name: str) -> str:
        """Return the stored name for a client's name."""

    def outward(self, name: str) -> str | None:
        """Return a client's name for a stored one; None if it is not of the space."""


class Names(NamedTuple):
    """The fields of an API that hold names."""

    request: tuple[str, ...]
    response: tuple[str, ...]
    empty: bool = False
    """True if an empty group id is that of a group here, in which offsets are kept without members; else no group has
    it, and it stays empty so that it is refused.
    """


NAMES: Final[Mapping[int, Names]] = MappingProxyType(
    {
        0: Names(("transactional_id", "topic_data.name"), ("responses.name",)),
        1: Names(("topics.topic", "forgotten_topics_data.topic"), ("responses.topic",)),
        2: Names(("topics.name",), ("topics.name",)),
        3: Names(("topics.name",), ("topics.name",)),
        8: Names(("group_id", "topics.name"), ("topics.name",), empty=True),
        9: Names(
            ("group_id", "topics.name", "groups.group_id", "groups.topics.name"),
            ("topics.name", "groups.group_id", "groups.topics.name"),
            empty=True,
        ),
        10: Names(("key", "coordinator_keys"), ("coordinators.key",), empty=True),
        11: Names(("group_id",), ()),
        12: Names(("group_id",), ()),
        13: Names(("group_id",), ()),
        14: Names(("group_id",), ()),
        15: Names(("groups",), ("groups.group_id",)),
        16: Names((), ("groups.group_id",)),
        19: Names(("topics.name",), ("topics.name",)),
        20: Names(("topics.name", "topic_names"), ("responses.name",)),
        21: Names(("topics.name",), ("topics.name",)),
        22: Names(("transactional_id",), ()),
        23: Names(("topics.topic",), ("topics.topic",)),
        24: Names(
            (
                "transactions.transactional_id",
                "transactions.topics.name",
                "v3_and_below_transactional_id",
                "v3_and_below_topics.name",
            ),
            (
                "results_by_transaction.transactional_id",
                "results_by_transaction.topic_results.name",
                "results_by_topic_v3_and_below.name",
            ),
        ),
        25: Names(("transactional_id", "group_id"), ()),
        26: Names(("transactional_id",), ()),
        27: Names(("markers.topics.name",), ("markers.topics.name",)),
        28: Names(("transactional_id", "group_id", "topics.name"), ("topics.name",)),
        32: Names(("resources.resource_name",), ("results.resource_name",)),
        33: Names(("resources.resource_name",), ("responses.resource_name",)),
        35: Names(("topics.topic",), ("results.topics.name",)),
        37: Names(("topics.name",), ("results.name",)),
        42: Names(("groups_names",), ("results.group_id",)),
        43: Names(("topic_partitions.topic",), ("replica_election_results.topic",)),
        44: Names(("resources.resource_name",), ("responses.resource_name",)),
        46: Names(("topics.name",), ("topics.name",)),
        47: Names(("group_id", "topics.name"), ("topics.name",)),
        55: Names(("topics.topic_name",), ("topics.topic_name",)),
        61: Names(("topics.name",), ("topics.name",)),
        65: Names(
            ("transactional_ids",), ("transaction_states.transactional_id", "transaction_states.topics.topic")
        ),
        66: Names((), ("transaction_states.transactional_id",)),
        74: Names((), ("config_resources.resource_name",)),
        75: Names(("topics.name", "cursor.topic_name"), ("topics.name", "next_cursor.topic_name")),
    }
)  # fmt: skip
"""The fields that hold names, by API key."""
NAMED_RESOURCES: Final = frozenset({2, 32})
"""The types of configs' resources that go by such names: topics and groups. The others are brokers and their like."""
TEXTS: Final = frozenset({"error_message", "batch_index_error_message"})
"""The fields of responses that hold texts about what went wrong, at any depth. They may contain stored names."""

_GROUP_FIELDS: Final = frozenset({"group_id", "key", "coordinator_keys"})
_Tree: TypeAlias = Mapping[str, "_Tree | None"]
"""The type of the fields of a message that have to be changed: None for a name or a list of them, else those inside."""
_NONE: Final = Names((), ())


def inward(api_key: int, request: Any, space: Translator) -> Any:
    """Return a client's request with the stored names in place of those that the client uses, which `space` translates.
    The request is changed in place and returned, except a FetchCall, of which a copy is returned.
    """
    if isinstance(request, OffsetCommitCall):
        request.group_id = space.inward(request.group_id)
        request.topics = [topic._replace(name=topic.name and space.inward(topic.name)) for topic in request.topics]
        return request
    if isinstance(request, FetchCall):
        return request._replace(
            partitions=[
                wanted._replace(topic=space.inward(wanted.topic)) if isinstance(wanted.topic, str) else wanted
                for wanted in request.partitions
            ],
            forgotten=[
                (space.inward(topic) if isinstance(topic, str) else topic, index) for topic, index in request.forgotten
            ],
        )
    names = NAMES.get(api_key, _NONE)
    _put_in(request, _tree(names.request), space, empty=names.empty)
    return request


def outward(api_key: int, response: Any, space: Translator) -> Any:
    """Return a response to a client of `space` with the names that the client uses, also in texts about errors, and
    without the rows of other spaces. It is changed in place.
    """
    if isinstance(response, OffsetCommitAnswer):
        own = [(space.outward(name) if name else name, *rest) for name, *rest in response.topics]
        response.topics = [cast(Any, row) for row in own if row[0] is not None]
        return response
    _put_out(response, _tree(NAMES.get(api_key, _NONE).response), space)
    _strip(response, _texts(api_key), space)
    return response


def outward_text(text: str | None, space: Translator) -> str | None:
    """Return an error text in which stored names of the space are replaced by the client's; None for None."""
    return text if text is None else text.replace(space.prefix, "")


def outward_rows(rows: Iterable[Sequence[Any]], place: int, space: Translator) -> list[tuple[Any, ...]]:
    """Return rows, which have a stored name or None at `place`, with the client's names; those of other spaces are left
    out.
    """
    own = []
    for row in rows:
        stored = row[place]
        name = space.outward(stored) if stored else stored
        if name is not None or stored is None:
            own.append((*row[:place], name, *row[place + 1 :]))
    return own


def _put_in(part: Any, tree: _Tree, space: Translator, *, empty: bool) -> None:
    for field, inner in tree.items():
        value = getattr(part, field, None)
        if value is None or (field == "resource_name" and part.resource_type not in NAMED_RESOURCES):
            continue
        if inner is None:
            may_be_empty = empty and field in _GROUP_FIELDS

            def stored(name: str, *, may_be_empty: bool = may_be_empty) -> str:
                return space.inward(name) if name or may_be_empty else name

            setattr(part, field, list(map(stored, value)) if isinstance(value, list) else stored(value))
        else:
            for row in value if isinstance(value, list) else (value,):
                _put_in(row, inner, space, empty=empty)


def _put_out(part: Any, tree: _Tree, space: Translator) -> bool:
    """Replace stored names in the fields `tree` of a part of a response by the client's, and remove rows of other
    spaces; return false if the part itself has to be left out, since its name is of another space.
    """
    for field, inner in tree.items():
        value = getattr(part, field, None)
        if not value or (field == "resource_name" and part.resource_type not in NAMED_RESOURCES):
            continue
        if isinstance(value, str):
            name = space.outward(value)
            if name is None:
                return False
            setattr(part, field, name)
        elif inner is not None and isinstance(value, list):
            setattr(part, field, [row for row in value if _put_out(row, inner, space)])
        elif inner is not None and not _put_out(value, inner, space):
            setattr(part, field, None)
    return True


def _strip(part: Any, tree: _Tree, space: Translator) -> None:
    for field, inner in tree.items():
        value = getattr(part, field, None)
        if not value:
            continue
        if inner is None:
            setattr(part, field, outward_text(value, space))
        else:
            for row in value if isinstance(value, list) else (value,):
                _strip(row, inner, space)


@cache
def _tree(paths: tuple[str, ...]) -> _Tree:
    tree: dict[str, Any] = {}
    for path in paths:
        *parts, last = path.split(".")
        node = tree
        for part in parts:
            node = node.setdefault(part, {})
        node[last] = None
    return tree


@cache
def _texts(api_key: int) -> _Tree:
    return _tree(tuple(path for path in text_fields(RESPONSES[api_key]) if path.rpartition(".")[2] in TEXTS))
