"""Messages made by Kafka's own Java codec (conformance/vectors), read and written again by ours.

Owns: what the strict decoder reads equals what Java wrote, field by field, and encoding it gives the same bytes.
Must not know: Java; the vectors are committed, and conformance/vectors/regenerate.sh makes them anew.
"""

from __future__ import annotations

import base64
import gzip
import json
import re
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from kafka.protocol.schemas.fields.codecs.types import BitField

from kop.wire.codec import DecodeError, decode, encode_body
from kop.wire.messages import REQUESTS, RESPONSES

VECTORS = Path(__file__).parents[2] / "conformance" / "vectors" / "messages.jsonl.gz"
ZERO_UUID = "A" * 22


def load() -> list[dict[str, Any]]:
    with gzip.open(VECTORS, "rt", encoding="utf-8") as lines:
        return [json.loads(line) for line in lines]


MESSAGES = [vector for vector in load() if vector["kind"] in ("request", "response")]


def class_of(vector: dict[str, Any]) -> Any:
    return (REQUESTS if vector["kind"] == "request" else RESPONSES)[vector["key"]]


def groups() -> list[Any]:
    """One test a class and version, each with all its vectors."""
    found: dict[str, list[dict[str, Any]]] = {}
    for vector in MESSAGES:
        found.setdefault(f"{vector['api']}-{vector['kind']}-v{vector['version']}", []).append(vector)
    return [pytest.param(vectors, id=name) for name, vectors in found.items()]


def attribute(message: Any, name: str) -> str:
    """The attribute that kafka-python makes of a field's name."""
    name = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).lower()
    return name if hasattr(message, name) else re.sub("^(cluster|topic)_", "", name)


def differences(ours: Any, java: Any, path: str = "") -> list[str]:
    """Where the decoded value and Kafka's JSON form of the message differ."""
    if isinstance(java, dict):
        if ours is None:
            return [f"{path}: None, Java has {java}"]
        found = []
        for name, value in java.items():
            if name == "recordsSizeInBytes":
                records = ours.records
                if len(records or b"") != value:
                    found.append(f"{path}.{name}: {len(records or b'')}, Java has {value}")
            else:
                found += differences(getattr(ours, attribute(ours, name)), value, f"{path}.{name}")
        return found
    if isinstance(java, list):
        if ours is None or len(ours) != len(java):
            return [f"{path}: {ours}, Java has {len(java)} elements"]
        return [
            text
            for index, (mine, theirs) in enumerate(zip(ours, java, strict=True))
            for text in differences(mine, theirs, f"{path}[{index}]")
        ]
    if isinstance(ours, bytes):
        ours = base64.b64encode(ours).decode()
    elif isinstance(ours, UUID):
        ours = base64.urlsafe_b64encode(ours.bytes).decode().rstrip("=")
    elif ours is None and java == ZERO_UUID:
        ours = ZERO_UUID
    elif isinstance(ours, set) or (ours is None and java == -(2**31)):  # authorized operations
        ours = int.from_bytes(
            BitField.to_32_bit_field(ours if ours is not None else {31}).to_bytes(4, "big"), "big", signed=True
        )
    return [] if ours == java and type(ours) is type(java) else [f"{path}: {ours!r}, Java has {java!r}"]


@pytest.mark.parametrize("vectors", groups())
def test_reads_what_java_wrote_and_writes_the_same_bytes(vectors: list[dict[str, Any]]) -> None:
    for vector in vectors:
        raw = base64.b64decode(vector["bytes"])
        message = decode(class_of(vector), vector["version"], memoryview(raw))
        assert differences(message, vector["json"]) == []
        if not vector["unknown_tags"]:  # the decoder steps over those: it has no use for them
            assert encode_body(message).hex() == raw.hex()


def test_every_served_api_and_version_has_vectors() -> None:
    held = {(vector["kind"], vector["key"], vector["version"]) for vector in MESSAGES}
    for kind, classes in (("request", REQUESTS), ("response", RESPONSES)):
        for key, cls in classes.items():
            low, high = cls.valid_versions
            if key == 22:
                high = 5  # 6 is for two-phase commit; Kafka 4.3.1 does not serve it
            assert {(kind, key, version) for version in range(low, high + 1)} <= held, cls.name
    assert sum(1 for vector in MESSAGES if vector["unknown_tags"]) > 100


@pytest.mark.parametrize("vectors", groups())
def test_a_message_cut_short_or_followed_by_a_byte_is_refused(vectors: list[dict[str, Any]]) -> None:
    for vector in vectors:
        raw, cls, version = base64.b64decode(vector["bytes"]), class_of(vector), vector["version"]
        for size in range(0, len(raw), 1 + len(raw) // 40):
            with pytest.raises(DecodeError):
                decode(cls, version, memoryview(raw)[:size])
        with pytest.raises(DecodeError):
            decode(cls, version, memoryview(raw + b"\x00"))
