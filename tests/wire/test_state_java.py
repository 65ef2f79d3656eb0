"""Records of __consumer_offsets made by Kafka's own Java codec (conformance/vectors), in every version.

Owns: equality with Kafka's JSON form of each record, and the same bytes again.
Must not know: who stores them. test_state.py has the cases worth a name.
"""

from __future__ import annotations

import base64
import gzip
import json
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from kop.wire import state

FILE = Path(__file__).parents[2] / "conformance" / "vectors" / "state.jsonl.gz"


def vectors(*names: str) -> list[Any]:
    with gzip.open(FILE, "rt", encoding="utf-8") as lines:
        rows = [json.loads(line) for line in lines]
    chosen = [v for v in rows if v["name"] in names]
    assert chosen
    return [pytest.param(v, id=f"{v['name']}-v{v['version']}-{v['fill']}") for v in chosen]


def same_bytes(vector: dict[str, Any], ours: bytes, raw: bytes) -> None:
    if not vector["unknown_tags"]:
        assert ours.hex() == raw.hex()


@pytest.mark.parametrize("vector", vectors("OffsetCommitKey", "GroupMetadataKey"))
def test_keys(vector: dict[str, Any]) -> None:
    raw, java = base64.b64decode(vector["bytes"]), vector["json"]
    key = state.decode_key(raw)
    assert not isinstance(key, state.UnknownKey)
    if vector["name"] == "GroupMetadataKey":
        assert key == state.GroupMetadataKey(java["group"])
    else:
        assert key == state.OffsetCommitKey(java["group"], java["topic"], java["partition"])
    same_bytes(vector, state.encode_key(key), raw)


@pytest.mark.parametrize("vector", vectors("OffsetCommitValue"))
def test_offset_values(vector: dict[str, Any]) -> None:
    raw, java = base64.b64decode(vector["bytes"]), vector["json"]
    value = state.decode_offset_value(raw)
    assert (value.offset, value.metadata) == (java["offset"], java["metadata"])
    assert value.leader_epoch == java.get("leaderEpoch", -1)
    assert value.commit_timestamp == java["commitTimestamp"]
    assert value.expire_timestamp == java.get("expireTimestamp", -1)
    topic_id = java.get("topicId")
    assert value.topic_id == (UUID(bytes=base64.urlsafe_b64decode(topic_id + "==")) if topic_id else None)
    same_bytes(vector, state.encode_offset_value(value, vector["version"]), raw)


@pytest.mark.parametrize("vector", vectors("GroupMetadataValue"))
def test_group_values(vector: dict[str, Any]) -> None:
    raw, java = base64.b64decode(vector["bytes"]), vector["json"]
    value = state.decode_group_value(raw)
    assert (value.protocol_type, value.generation) == (java["protocolType"], java["generation"])
    assert (value.protocol, value.leader) == (java["protocol"], java["leader"])
    assert value.current_state_timestamp == java.get("currentStateTimestamp", -1)
    assert [(m.member_id, m.instance_id, m.client_id, m.client_host, m.session_timeout_ms) for m in value.members] == [
        (m["memberId"], m.get("groupInstanceId"), m["clientId"], m["clientHost"], m["sessionTimeout"])
        for m in java["members"]
    ]
    for ours, theirs in zip(value.members, java["members"], strict=True):
        assert ours.rebalance_timeout_ms == theirs.get("rebalanceTimeout", -1)  # none in version 0
        assert base64.b64encode(ours.subscription).decode() == theirs["subscription"]
        assert base64.b64encode(ours.assignment).decode() == theirs["assignment"]
    same_bytes(vector, state.encode_group_value(value, vector["version"]), raw)
