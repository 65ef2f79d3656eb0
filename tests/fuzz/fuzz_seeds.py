"""What the fuzzers start from: well-formed requests of every API and version, batches of every kind, and the corpus.

Owns: the seeds, and the names that they may use: none of them is the victim's (see test_fuzz.py).
Must not know: how they are mutated, what a gateway makes of them.
"""

from __future__ import annotations

import base64
import gzip
import json
import random
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple
from uuid import UUID

from kafka.protocol.schemas.fields.array import ArrayField
from kafka.protocol.schemas.fields.struct import StructField
from kafka.protocol.schemas.fields.struct_array import StructArrayField
from support.bodies import encode_body
from support.gateway import frame
from support.random_messages import fields_of, kind_of

from kop.handlers.registry import build as registry
from kop.records.batch import Codec, Record, build
from kop.wire.messages import REQUESTS

CORPUS = Path(__file__).parent / "corpus"
VECTORS = Path(__file__).parents[2] / "conformance" / "vectors" / "messages.jsonl.gz"

TOPICS = ["fuzz-plain", "fuzz-compact", "fuzz-time", "fuzz-recompressed"]
"""Topics that a gateway under test should have; all others are unknown to it."""
GROUPS = ["fuzz-group", "fuzz-group-2"]
_NAMES = [*TOPICS, "fuzz-unknown", "", "__consumer_offsets", "fuzz\N{GREEK SMALL LETTER OMEGA}", "f" * 250, ".."]
_CONFIGS = {
    "retention.ms": ["1000", "-1", "-2", "9223372036854775808", "", "x"],
    "cleanup.policy": ["compact", "delete", "compact,delete", "", "neither"],
    "compression.type": ["gzip", "zstd", "producer", "lz5"],
    "max.message.bytes": ["0", "100", "1048588", "2147483648"],
    "message.timestamp.type": ["LogAppendTime", "CreateTime"],
    "min.cleanable.dirty.ratio": ["0", "1", "nan", "1e999"],
    "segment.bytes": ["1048576"],
    "no.such.config": ["1"],
}
_NUMBERS = [0, 0, 0, 1, 1, -1, 2, 3, 100, 1000, 127, -128]
_LARGE = [2**15 - 1, -(2**15), 2**31 - 1, -(2**31), 2**63 - 1, -(2**63)]
_BITS = {"int8": 8, "int16": 16, "int32": 32, "int64": 64}
SUBSCRIPTION = b"\0\1\0\0\0\1\0\12fuzz-plain\xff\xff\xff\xff\0\0\0\0"


class Seed(NamedTuple):
    """One request's body."""

    key: int
    version: int
    body: bytes

    def frame(self, correlation: int = 7) -> bytes:
        """The whole frame."""
        return frame(self.key, self.version, correlation, self.body, "fuzz")


@cache
def batches() -> list[bytes]:
    """Record batches as producers send them: every codec, keys, headers, nulls, idempotent and transactional ones."""
    rows = [
        Record(index, 1_700_000_000_000 + index, b"k%d" % (index % 3), b"v" * (index * 7 % 50), [])
        for index in range(20)
    ]
    odd = [
        Record(0, 0, None, None, []),
        Record(1, 5, b"", b"", [(b"h", b"v"), (b"h", None), (b"", b"")]),
        Record(2, -1, b"key", b"x" * 300, [(b"trace", b"\0" * 16)]),
    ]
    keyed = [record._replace(key=b"key") for record in odd]
    buffers = [bytes(build(rows, codec=each)) for each in Codec]
    buffers += [bytes(build(records, codec=each)) for records in (odd, keyed) for each in (Codec.NONE, Codec.LZ4)]
    buffers += [bytes(build(rows, producer_id=4000, producer_epoch=0, base_sequence=at)) for at in (0, 20, 2**31 - 10)]
    buffers += [
        bytes(build(odd, producer_id=1, producer_epoch=3, base_sequence=5, transactional=True)),
        bytes(build(odd, log_append_time=True)),
        bytes(build(rows[:1], control=True)),
        bytes(build(rows[3:])),
        buffers[0] + buffers[1],
        b"",
    ]
    return buffers


class _Filler:
    """Makes messages whose fields are plausible, now and then extreme."""

    def __init__(self, rng: random.Random, topic_ids: list[UUID]) -> None:
        self._rng = rng
        self._topic_ids = topic_ids

    def message(self, cls: Any, version: int) -> Any:
        return cls(version=version, **self._values(fields_of(cls).values(), version))

    def _values(self, fields: Any, version: int) -> dict[str, Any]:
        config = self._rng.choice(list(_CONFIGS))
        return {
            field.name: self._value(field, version, config)
            for field in fields
            if field.for_version_q(version) and not (field.tagged_field_q(version) and self._rng.random() < 0.5)
        }

    def _value(self, field: Any, version: int, config: str) -> Any:
        if field.nullable_for_version_q(version) and self._rng.random() < 0.2:
            return None
        if isinstance(field, ArrayField):
            count = self._rng.choice([0, 1, 1, 1, 2, 3])
            if isinstance(field, StructArrayField):
                return [self._row(field, version) for _ in range(count)]
            return [self._simple(field.array_of, field.name, config) for _ in range(count)]
        if isinstance(field, StructField):
            return self._row(field, version)
        return self._simple(field, field.name, config)

    def _row(self, field: Any, version: int) -> Any:
        return field.data_class(version=version, **self._values(field.fields.values(), version))

    def _simple(self, field: Any, name: str, config: str) -> Any:
        kind, rng = kind_of(field), self._rng
        if kind in _BITS:
            number = rng.choice(_NUMBERS if rng.random() < 0.9 else _LARGE)
            if "timeout" in name:
                number = rng.choice([0, 10, 6000, 10_000, number])
            elif "partition" in name:
                number = rng.choice([0, 0, 0, number])
            elif name == "resource_type":
                number = rng.choice([2, 2, 2, number])
            half = 1 << _BITS[kind] - 1
            return (number + half) % (2 * half) - half
        if kind == "string":
            return self._text(name, config)
        if kind == "records":
            return rng.choice(batches())
        if kind == "bytes":
            return rng.choice([b"", SUBSCRIPTION, SUBSCRIPTION, b"\xff" * 9])
        if kind == "uuid":
            return rng.choice([*self._topic_ids, UUID(int=rng.getrandbits(128)), None])
        if kind == "bool":
            return rng.random() < 0.5
        if kind == "float64":
            return rng.choice([0.0, -1.5, float("inf"), float("nan")])
        return rng.choice([{0}, {3, 4}]) if kind == "bitfield" else rng.randrange(2**16)

    def _text(self, name: str, config: str) -> str:
        rng = self._rng
        if "group" in name or name == "key":
            return rng.choice([*GROUPS, *GROUPS, "fuzz-group-none", ""])
        if "protocol" in name:
            return rng.choice(["consumer", "range"])
        if "member" in name or "instance" in name:
            return rng.choice(["", "fuzz-member"])
        if name in ("value", "config_value"):
            return rng.choice(_CONFIGS[config])
        if "config" in name or (name == "name" and rng.random() < 0.4):
            return config
        return rng.choice(TOPICS if rng.random() < 0.7 else _NAMES)


def filled(rng: random.Random, topic_ids: list[UUID]) -> list[Seed]:
    """One message a served API and version, each filled with new values from `rng`."""
    filler = _Filler(rng, topic_ids)
    return [
        Seed(key, version, encode_body(filler.message(REQUESTS[key], version)))
        for key, api in registry().items()
        for version in range(api.min_version, api.max_version + 1)
    ]


@cache
def java() -> list[Seed]:
    """The requests among the vectors that Kafka's own codec made, of served APIs and versions."""
    apis = registry()
    seeds = []
    with gzip.open(VECTORS, "rt", encoding="utf-8") as lines:
        for line in lines:
            vector = json.loads(line)
            api = apis.get(vector["key"]) if vector["kind"] == "request" else None
            if api is not None and api.min_version <= vector["version"] <= api.max_version:
                seeds.append(Seed(vector["key"], vector["version"], base64.b64decode(vector["bytes"])))
    return seeds


@cache
def corpus() -> dict[str, bytes]:
    """The frames of corpus/ by their files' names: bytes as a connection sends them."""
    frames = {}
    for path in sorted(CORPUS.iterdir()):
        if path.suffix == ".hex":
            frames[path.stem] = bytes.fromhex(path.read_text(encoding="ascii"))
        elif path.suffix == ".gz":
            frames[path.name.split(".")[0]] = gzip.decompress(path.read_bytes())
    return frames
