"""Messages made by Kafka's own Java codec (conformance/vectors), read and written again by ours.

Owns: what the strict decoder reads equals what Java wrote, field by field, and encoding it gives the same bytes.
Must not know: Java; the vectors are committed, and conformance/vectors/regenerate.sh makes them again.
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
from kafka.protocol.consumer import FetchRequest, FetchResponse
from kafka.protocol.schemas.fields.codecs.types import BitField
from support.bodies import encode_body
from support.random_messages import fields_of

from kop.wire import fetch, produce
from kop.wire.codec import decode, encode_response
from kop.wire.frame import parse_header
from kop.wire.messages import REQUESTS, RESPONSES, Message
from kop.wire.primitives import DecodeError, encode_tags

FILE = Path(__file__).parents[2] / "conformance" / "vectors" / "messages.jsonl.gz"
ZERO_UUID = "A" * 22


def load() -> list[dict[str, Any]]:
    with gzip.open(FILE, "rt", encoding="utf-8") as lines:
        return [json.loads(line) for line in lines]


VECTORS = load()
MESSAGES = [vector for vector in VECTORS if vector["kind"] in ("request", "response")]
REQUEST_HEADERS = [vector for vector in VECTORS if vector["kind"] == "request_header"]


def class_of(vector: dict[str, Any]) -> Any:
    return (REQUESTS if vector["kind"] == "request" else RESPONSES)[vector["key"]]


def groups() -> list[Any]:
    """One test a class, each with the vectors of all its versions."""
    by_message: dict[str, list[dict[str, Any]]] = {}
    for vector in MESSAGES:
        by_message.setdefault(f"{vector['api']}-{vector['kind']}", []).append(vector)
    return [pytest.param(vectors, id=name) for name, vectors in by_message.items()]


def attribute(message: Any, name: str) -> str:
    """The attribute that kafka-python makes of a field's name."""
    name = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).lower()
    return name if hasattr(message, name) else re.sub("^(cluster|topic)_", "", name)


def differences(ours: Any, java: Any, path: str = "") -> list[str]:
    """Where the decoded value and Kafka's JSON form of the message differ."""
    if isinstance(java, dict):
        if ours is None:
            return [f"{path}: None, Java has {java}"]
        differing = []
        for name, value in java.items():
            if name == "recordsSizeInBytes":
                records = ours.records
                if len(records or b"") != value:
                    differing.append(f"{path}.{name}: {len(records or b'')}, Java has {value}")
            else:
                differing += differences(getattr(ours, attribute(ours, name)), value, f"{path}.{name}")
        return differing
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
        assert differences(message, vector["json"], f"v{vector['version']}") == []
        if not vector["unknown_tags"]:  # the decoder steps over those: it has no use for them
            assert encode_body(message).hex() == raw.hex(), vector["version"]


def is_read(cls: Any, version: int, data: memoryview) -> bool:
    """Return false for a message that is refused."""
    try:
        decode(cls, version, data)
    except DecodeError:
        return False
    return True


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
        wrong = [memoryview(raw)[:size] for size in range(0, len(raw), 1 + len(raw) // 40)]
        for data in (*wrong, memoryview(raw + b"\x00")):
            assert not is_read(cls, version, data), f"v{version}: {len(data)} bytes of {len(raw)}"


# --- headers


@pytest.mark.parametrize("header", REQUEST_HEADERS, ids=lambda v: f"v{v['version']}-{v['fill']}")
def test_request_headers(header: dict[str, Any]) -> None:
    """A header's own bytes name an API at random; the API and version of each body are put in their place."""
    for body in (v for v in MESSAGES if v["kind"] == "request" and v["header_version"] == header["version"]):
        named = body["key"].to_bytes(2, "big") + body["version"].to_bytes(2, "big")
        raw = named + base64.b64decode(header["bytes"])[4:] + base64.b64decode(body["bytes"])
        parsed = parse_header(memoryview(raw))
        assert (parsed.api_key, parsed.api_version) == (body["key"], body["version"])
        assert parsed.correlation_id == header["json"]["correlationId"]
        assert parsed.client_id == header["json"]["clientId"]
        assert raw[parsed.body :] == base64.b64decode(body["bytes"]), body["api"]


def test_response_headers_are_of_kafkas_version() -> None:
    for vector in MESSAGES:
        if vector["kind"] == "response" and vector["fill"] == "minimal":
            body = base64.b64decode(vector["bytes"])
            frame = encode_response(77, decode(class_of(vector), vector["version"], memoryview(body)))
            header = (77).to_bytes(4, "big") + (b"\0" if vector["header_version"] else b"")
            assert frame == (len(header) + len(body)).to_bytes(4, "big") + header + body, vector["api"]


# --- Produce and Fetch by hand


def of(kind: str, api: str) -> list[Any]:
    return [
        pytest.param(v, id=f"v{v['version']}-{v['fill']}") for v in MESSAGES if (v["kind"], v["api"]) == (kind, api)
    ]


def generic(vector: dict[str, Any]) -> tuple[memoryview, Message]:
    raw = memoryview(base64.b64decode(vector["bytes"]))
    return raw, decode(class_of(vector), vector["version"], raw)


def topic_of(row: Any, version: int, by_id_from: int = 13) -> str | UUID:
    """How the hand-written paths name a topic; an id of zeros, which the schemas make None, stays one."""
    if version < by_id_from:
        return str(row.name if hasattr(row, "name") else row.topic)
    topic_id: UUID | None = row.topic_id
    return topic_id or UUID(int=0)


@pytest.mark.parametrize("vector", of("request", "Produce"))
def test_produce_by_hand_reads_the_same(vector: dict[str, Any]) -> None:
    raw, message = generic(vector)
    version = vector["version"]
    call = produce.parse(raw, version)
    transactional_id = message.transactional_id if version >= 3 else None
    assert (call.transactional_id, call.acks, call.timeout_ms) == (transactional_id, message.acks, message.timeout_ms)
    assert [
        (topic.topic, [(p.partition, None if p.records is None else bytes(p.records)) for p in topic.partitions])
        for topic in call.topics
    ] == [
        (topic_of(topic, version), [(p.index, p.records) for p in topic.partition_data]) for topic in message.topic_data
    ]
    for size in range(0, len(raw), 1 + len(raw) // 40):
        with pytest.raises(DecodeError):
            produce.parse(raw[:size], version)
    with pytest.raises(DecodeError):
        produce.parse(memoryview(bytes(raw) + b"\0"), version)


@pytest.mark.parametrize("vector", of("response", "Produce"))
def test_produce_by_hand_writes_the_same(vector: dict[str, Any]) -> None:
    _, message = generic(vector)
    version = vector["version"]
    without_tags(message)
    topics = []
    for topic in message.responses:
        answers = []
        for row in topic.partition_responses:
            errors = (
                [(e.batch_index, e.batch_index_error_message) for e in row.record_errors or []] if version >= 8 else []
            )
            answers.append(
                produce.ProducePartitionAnswer(
                    row.index,
                    row.error_code,
                    row.base_offset,
                    row.log_append_time_ms if version >= 2 else -1,
                    row.log_start_offset if version >= 5 else -1,
                    row.error_message if version >= 8 else None,
                    errors,
                )
            )
        topics.append((topic_of(topic, version), answers))
    for throttle_ms in (0, 1234):
        message.throttle_time_ms = throttle_ms
        assert produce.encode_response(5, version, topics, throttle_ms) == encode_response(5, message)


@pytest.mark.parametrize("vector", of("request", "Fetch"))
def test_fetch_by_hand_reads_the_same(vector: dict[str, Any]) -> None:
    raw, message = generic(vector)
    version = vector["version"]
    call = fetch.parse(raw, version)
    state = message.replica_state if version >= 15 else None
    assert call.replica_id == (message.replica_id if state is None else state.replica_id)
    assert (call.max_wait_ms, call.min_bytes, call.max_bytes) == (
        message.max_wait_ms,
        message.min_bytes,
        message.max_bytes,
    )
    assert call.isolation_level == message.isolation_level
    if version >= 7:
        assert (call.session_id, call.session_epoch) == (message.session_id, message.session_epoch)
    assert call.partitions == [
        fetch.FetchPartition(
            topic_of(topic, version),
            row.partition,
            row.fetch_offset,
            row.partition_max_bytes,
            row.current_leader_epoch if version >= 9 else -1,
            row.last_fetched_epoch if version >= 12 else -1,
        )
        for topic in message.topics
        for row in topic.partitions
    ]
    forgotten = message.forgotten_topics_data if version >= 7 else []
    assert call.forgotten == [(topic_of(topic, version), index) for topic in forgotten for index in topic.partitions]
    for size in range(0, len(raw), 1 + len(raw) // 40):
        with pytest.raises(DecodeError):
            fetch.parse(raw[:size], version)
    with pytest.raises(DecodeError):
        fetch.parse(memoryview(bytes(raw) + b"\0"), version)


@pytest.mark.parametrize("vector", of("response", "Fetch"))
def test_fetch_by_hand_writes_the_same(vector: dict[str, Any]) -> None:
    """With what a gateway never says set aside: throttling, another replica to read from."""
    _, message = generic(vector)
    version = vector["version"]
    without_tags(message)
    message.throttle_time_ms = 0
    topics = []
    for topic in message.responses:
        answers = []
        for row in topic.partitions:
            row.records = row.records or b""
            row.preferred_read_replica = -1
            half = len(row.records) // 2
            parts = [part for part in (row.records[:half], row.records[half:]) if part]
            answers.append(
                fetch.FetchPartitionAnswer(
                    row.partition_index,
                    row.error_code,
                    row.high_watermark,
                    row.last_stable_offset,
                    row.log_start_offset if version >= 5 else -1,
                    parts,
                    len(row.records),
                    aborted_of(row),
                )
            )
        topics.append((topic_of(topic, version), answers))
    code, session = (message.error_code, message.session_id) if version >= 7 else (0, 0)
    frame = b"".join(fetch.encode_response(5, version, topics, error_code=code, session_id=session))
    assert frame == encode_response(5, message)


@pytest.mark.parametrize("version", range(12, 19))
def test_fetch_by_hand_knows_tagged_fields_that_are_not_kafkas(version: int) -> None:
    """Of the request their numbers; of an answer's partition what they hold, which a client that knows none skips."""
    topic: str | UUID = "t" if version < 13 else UUID(int=7)
    named = {"topic": "t"} if version < 13 else {"topic_id": topic}
    wanted = FetchRequest.FetchTopic(version=version, partitions=[], **named)
    body = encode_body(FetchRequest(version=version, topics=[wanted]))
    assert fetch.parse(memoryview(body), version).tags == frozenset()
    assert body[-1] == 0
    tagged = body[:-1] + encode_tags({9: b"x", 10_000: b"", 20_000: b"abc"})
    call = fetch.parse(memoryview(tagged), version)
    assert (call.tags, call.partitions) == ({10_000, 20_000}, [])

    answers = [
        fetch.FetchPartitionAnswer(3, 0, 9, 8, 1, [b"records"], 7, tags=encode_tags({10_000: b"places"})),
        fetch.FetchPartitionAnswer(4, 1),
    ]
    frame = b"".join(fetch.encode_response(5, version, [(topic, answers)]))
    message = FetchResponse.decode(frame[9:], version=version)  # ours drops what it does not know
    told, plain = message.responses[0].partitions
    assert (bytes(told.records), told.unknown_tags) == (b"records", {"_10000": b"places"})
    assert not plain.unknown_tags


def aborted_of(row: Any) -> list[tuple[int, int]] | None:
    if row.aborted_transactions is None:
        return None
    return [(aborted.producer_id, aborted.first_offset) for aborted in row.aborted_transactions]


@pytest.mark.parametrize("aborted", [None, [], [(1, 2)], [(2**62, 3 * number) for number in range(200)]])
@pytest.mark.parametrize("version", range(4, 19))
def test_fetch_by_hand_tells_aborted_transactions(version: int, aborted: list[tuple[int, int]] | None) -> None:
    topic: str | UUID = "t" if version < 13 else UUID(int=7)
    answers = [
        fetch.FetchPartitionAnswer(3, 0, 9, 8, 1, [b"rec", b"ords"], 7, aborted),
        fetch.FetchPartitionAnswer(4, 1, -1, -1, 0),
    ]
    frame = b"".join(fetch.encode_response(5, version, [(topic, answers)]))
    message = decode(RESPONSES[1], version, memoryview(frame)[9 if version >= 12 else 8 :])
    assert encode_response(5, message) == frame
    told, failed = message.responses[0].partitions
    assert aborted_of(told) == aborted
    assert (bytes(told.records), told.high_watermark, told.last_stable_offset) == (b"records", 9, 8)
    assert (failed.error_code, failed.aborted_transactions) == (1, None)


def without_tags(message: Message) -> None:
    """Forget every tagged field, at any depth: the hand-written responses have none."""
    message.tags = message.unknown_tags = None
    for name, field in fields_of(message).items():
        value = getattr(message, name, None)
        if field.tagged_field_q(message.version):
            setattr(message, name, field.default)
            continue
        for item in value if isinstance(value, list) else [value]:
            if hasattr(item, "unknown_tags"):
                without_tags(item)
