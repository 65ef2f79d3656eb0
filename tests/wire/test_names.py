"""Every field of the served APIs that holds text is known as a name, or as something else, and why."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from kop.handlers import registry
from kop.wire import names
from kop.wire.codec import text_fields
from kop.wire.messages import REQUESTS, RESPONSES, Message

_NO_NAMES = {
    "host rack cluster_id node_endpoints.host node_endpoints.rack": "places of brokers, and the cluster",
    "member_id group_instance_id leader reason protocol_type protocol_name protocols.name protocol_data client_id "
    "client_host": "of a group's members, who are all of one space",
    "group_state group_type states_filter types_filter transaction_state state_filters unknown_state_filters": (
        "states and types"
    ),
    "committed_metadata metadata": "the client's own text",
    "configs.name configs.value configs.synonyms.name configs.synonyms.value configs.documentation "
    "configuration_keys": "configs, whose values name nothing that is stored",
    "mechanism mechanisms client_software_name client_software_version supported_features.name "
    "finalized_features.name feature": "mechanisms, software and features",
    "log_dir nodes.listeners.name": "a directory, and a listener",
    "rack_id": "a place",
    "transactional_id_pattern": "a pattern of the client's names, which the handler matches with these",
}
"""Ends of the paths of fields that hold no name, and why."""
_OF_HANDLERS = {
    29: "the handler translates: with its pattern a name may stand for all of the space",
    30: "as 29",
    31: "as 29",
    38: "principals",
    41: "principals",
    48: "users and client ids",
    49: "users and client ids",
    50: "users",
    51: "users",
}
"""APIs whose fields of names are not translated by the table, and why."""


@dataclass(frozen=True)
class _Space:
    prefix: str = "T/N/"

    def inward(self, name: str) -> str:
        return self.prefix + name

    def outward(self, name: str) -> str | None:
        return name.removeprefix(self.prefix) if name.startswith(self.prefix) else None


SPACE = _Space()


def _is_no_name(path: str) -> bool:
    return any(path == end or path.endswith("." + end) for ends in _NO_NAMES for end in ends.split())


@pytest.mark.parametrize("key", sorted(registry.build()))
def test_every_text_of_an_api_is_a_name_or_known_to_be_none(key: int) -> None:
    of_api = names.NAMES.get(key, names.Names((), ()))
    for message, paths in ((REQUESTS[key], of_api.request), (RESPONSES[key], of_api.response)):
        fields = set(text_fields(message))
        assert set(paths) <= fields, "there is no such field"
        assert not any(map(_is_no_name, paths))
        unknown = {path for path in fields - set(paths) if path.rpartition(".")[2] not in names.TEXTS}
        assert {path for path in unknown if not _is_no_name(path)} == set() or key in _OF_HANDLERS


def test_apis_without_names_of_the_table_are_the_known_ones() -> None:
    assert not names.NAMES.keys() & _OF_HANDLERS.keys()
    assert names.NAMES.keys() <= registry.build().keys()
    assert registry.build().keys() - names.NAMES.keys() - _OF_HANDLERS.keys() == {17, 18, 36, 39, 40, 57, 60}


def test_no_api_has_a_field_that_is_an_exception_for_nothing() -> None:
    fields = {
        path for key in registry.build() for message in (REQUESTS[key], RESPONSES[key]) for path in text_fields(message)
    }
    for end in (end for ends in _NO_NAMES for end in ends.split()):
        assert any(path == end or path.endswith("." + end) for path in fields), end


def request(key: int, version: int, **fields: object) -> Message:
    """Return a request as it was decoded."""
    return REQUESTS[key](version=version, **fields)


def test_names_at_any_depth_become_stored_ones() -> None:
    topic = REQUESTS[28].TxnOffsetCommitRequestTopic(version=3, name="t", partitions=[])
    message = names.inward(28, request(28, 3, transactional_id="x", group_id="g", topics=[topic]), SPACE)
    assert (message.transactional_id, message.group_id, message.topics[0].name) == ("T/N/x", "T/N/g", "T/N/t")


def test_lists_of_names_become_stored_ones() -> None:
    assert names.inward(15, request(15, 5, groups=["a", "b"]), SPACE).groups == ["T/N/a", "T/N/b"]
    assert names.inward(10, request(10, 4, coordinator_keys=["a", ""]), SPACE).coordinator_keys == ["T/N/a", "T/N/"]


def test_an_empty_group_id_stays_empty_where_it_is_refused() -> None:
    assert names.inward(12, request(12, 3, group_id=""), SPACE).group_id == ""
    assert names.inward(9, request(9, 5, group_id="", topics=None), SPACE).group_id == "T/N/"


def test_resources_that_are_neither_topics_nor_groups_keep_their_names() -> None:
    resource = REQUESTS[32].DescribeConfigsResource
    rows = [resource(version=1, resource_type=kind, resource_name="1", configuration_keys=None) for kind in (2, 4, 32)]
    message = names.inward(32, request(32, 1, resources=rows), SPACE)
    assert [row.resource_name for row in message.resources] == ["T/N/1", "1", "T/N/1"]


def test_rows_of_other_spaces_are_left_out() -> None:
    group = RESPONSES[16].ListedGroup
    rows = [group(version=3, group_id=name, protocol_type="") for name in ("T/N/a", "T/M/a", "a", "T/N/T/M/a")]
    message = names.outward(16, RESPONSES[16](version=3, groups=rows), SPACE)
    assert [row.group_id for row in message.groups] == ["a", "T/M/a"]


def test_a_cursor_of_another_space_is_none() -> None:
    cursor = RESPONSES[75].Cursor
    for name, told in (("T/N/a", "a"), ("T/M/a", None)):
        message = RESPONSES[75](version=0, topics=[], next_cursor=cursor(version=0, topic_name=name, partition_index=0))
        message = names.outward(75, message, SPACE)
        assert (message.next_cursor and message.next_cursor.topic_name) == told


def test_texts_name_what_the_client_named() -> None:
    topic = RESPONSES[19].CreatableTopicResult(version=5, name="T/N/a", error_message="Topic 'T/N/a' already exists.")
    message = names.outward(19, RESPONSES[19](version=5, topics=[topic]), SPACE)
    assert message.topics[0].error_message == "Topic 'a' already exists."
