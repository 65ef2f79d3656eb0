"""Records that confluent-kafka's serializers and pulsar-client wrote are the rows that they say, in three versions."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from conformance.stub_registry import StubRegistry
from kop.schemas.access import RegistryAccess
from kop.schemas.columns import ColumnPlan, SchemaSource, plan, reader_of
from kop.schemas.confluent import Schema

VECTORS: dict[str, Any] = json.loads(Path(__file__).with_name("schema_vectors.json").read_text())


@contextmanager
def registry_of(group: str) -> Iterator[StubRegistry]:
    with StubRegistry() as registry:
        registry.schemas = VECTORS[group]["schemas"]
        registry.subjects = VECTORS[group]["subjects"]
        yield registry


def shown(value: Any) -> Any:
    """A value as make_schema_vectors.py has it."""
    if isinstance(value, dict):
        return {name: shown(inner) for name, inner in value.items()}
    if isinstance(value, list):
        if value and isinstance(value[0], tuple):
            return {key: shown(inner) for key, inner in value}
        return [shown(item) for item in value]
    if isinstance(value, bytes):
        return value.hex()
    return value if isinstance(value, (int, float, str, bool)) or value is None else str(value)


def read(how: ColumnPlan, *records: bytes | None) -> tuple[list[Any], dict[int, str]]:
    values, failures = reader_of(how).read(pa.array(records, pa.binary()))
    values.validate(full=True)
    assert values.type.equals(how.kind)
    return [shown(value) for value in values.to_pylist()], failures


def data(group: str) -> list[bytes]:
    return [bytes.fromhex(record["data"]) for record in VECTORS[group]["records"]]


def source(registry: StubRegistry, how: str, version: int | None = None, message: str = "") -> SchemaSource:
    return SchemaSource(
        "value",
        how,
        message=message or ("shop.Order" if how == "protobuf" else ""),
        registry=RegistryAccess(registry.url),
        subject="orders-value",
        version=version,
    )


GROUPS = {"avro": "avro", "avro_with_references": "avro", "json_schema": "json", "protobuf": "protobuf"}


@pytest.mark.parametrize("group", GROUPS)
def test_each_version_is_read_by_itself(group: str) -> None:
    with registry_of(group) as registry:
        for record in VECTORS[group]["records"]:
            how = plan(source(registry, GROUPS[group], record["version"], record.get("message", "")))
            assert read(how, bytes.fromhex(record["data"])) == ([record["row"]], {})
            auto = source(registry, "auto", record["version"], how.message)
            assert plan(auto) == how
    assert registry.requests[0] == "GET /subjects/orders-value/versions/1"


def test_versions_of_avro_are_resolved_into_the_reader_s() -> None:
    first, second, third = (record["row"] for record in VECTORS["avro"]["records"])
    with registry_of("avro") as registry:
        latest = plan(source(registry, "avro"))
        assert latest == plan(source(registry, "avro", 3))
        rows, failures = read(latest, data("avro")[0], None, *data("avro")[1:])
        without = {name: value for name, value in first.items() if name != "item"}
        assert rows == [without | {"more": None, "ok": True}, None, without | {"more": 1.5, "ok": True}, third]
        assert failures == {}
        rows, failures = read(plan(source(registry, "avro", 1)), *data("avro"))
        assert rows == [first, {name: second[name] for name in first}, None]
        assert failures == {2: "schema 3 cannot be resolved: item is not in it, and the reader's schema has no default"}


def test_versions_of_json_are_read_by_the_reader_s_names() -> None:
    first, second, third = (record["row"] for record in VECTORS["json_schema"]["records"])
    with registry_of("json_schema") as registry:
        rows, failures = read(plan(source(registry, "json", 1)), *data("json_schema"))
        assert (rows, failures) == ([first, first, first | {"item": None}], {})
        rows, failures = read(plan(source(registry, "json")), *data("json_schema"))
        assert (rows, failures) == ([third | {"more": None}, third, third], {})
        assert second["item"] == "Grüntee"


def test_versions_of_protobuf_are_read_by_the_reader_s_numbers() -> None:
    first, second, third, _ = (record["row"] for record in VECTORS["protobuf"]["records"])
    with registry_of("protobuf") as registry:
        rows, failures = read(plan(source(registry, "protobuf")), *data("protobuf"))
        without = {name: value for name, value in first.items() if name != "state"}
        assert rows == [without | {"more": 0.0, "big": "0"}, without | {"more": 1.5, "big": "0"}, third, None]
        assert failures == {3: "schema 3 cannot be resolved: it is of the message shop.Order.Detail, not shop.Order"}
        rows, failures = read(plan(source(registry, "protobuf", 1)), *data("protobuf")[:2])
        assert rows == [first, None]  # its id may have more bits than the reader's
        assert "Order.id has another type" in failures[1]
        assert second["id"] == 5


@pytest.mark.parametrize("group", ["pulsar_avro", "pulsar_json"])
def test_records_of_pulsar_s_client_are_read_by_their_version(group: str) -> None:
    for record in VECTORS[group]["records"]:
        schema = Schema("AVRO", record["schema"])
        how = ColumnPlan(group.removeprefix("pulsar_"), schema)
        rows, failures = read(how, bytes.fromhex(record["data"]))
        fields = {field["name"] for field in json.loads(record["schema"])["fields"]}
        assert (rows, failures) == ([dict.fromkeys(fields) | record["row"]], {})


def test_an_unknown_id_and_a_schema_of_another_kind_are_told_and_the_others_are_read() -> None:
    with registry_of("avro") as registry:
        registry.schemas.append({"schema": "{}", "schemaType": "JSON", "references": []})
        good = data("avro")[2]
        bad = [b"\0\0\0\0\x63" + good[5:], b"\0\0\0\0\x04" + good[5:], b"\1" + good[1:], b"\0\0", good[:-1]]
        rows, failures = read(plan(source(registry, "avro")), *bad, good)
        assert rows == [None] * 5 + [VECTORS["avro"]["records"][2]["row"]]
        assert failures[0].startswith("schema 99 is not known: the registry has nothing at schemas/ids/99")
        assert failures[1] == "schema 4 is JSON, not AVRO"
        assert failures[2] == failures[3]
        assert failures[2].startswith("it does not begin with 0")
        assert failures[4] == "by schema 3 it is cut short"
        registry.schemas.pop()
