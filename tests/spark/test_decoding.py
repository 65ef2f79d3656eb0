"""What a user's decoder gives becomes a column, and a record that it does not take is named."""

from __future__ import annotations

from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from kop.records.arrow import schema
from kop.spark.decoding import Decoder, DecoderOptions, DecoderRecord, RecordDecodeError

KIND = pa.struct([("id", pa.int64()), ("name", pa.string())])
NOON = datetime(2026, 1, 31, 12, tzinfo=UTC)
seen: list[DecoderRecord] = []
to_give: list[Any] = []


def decode(record: DecoderRecord) -> dict[str, object] | None:
    """The decoder of these tests: `id name` as text; no value is null."""
    seen.append(record)
    if record.value is None:
        return None
    number, _, name = record.value.decode().partition(" ")
    if name == "wrong type":
        return {"id": number, "name": name}
    if name == "fraction":
        return {"id": int(number) + 0.5, "name": name}
    if name == "surrogate":
        raise ValueError("Error \ud800")
    return {"id": int(number), "name": name}


def given(record: DecoderRecord) -> Any:
    """The decoder of a test that says by `to_give` what it gives."""
    return to_give[0]


def rows(*values: bytes | None) -> pa.RecordBatch:
    records = [
        {
            "key": b"k",
            "value": value,
            "topic": "t",
            "partition": 3,
            "offset": 40 + at,
            "timestamp": NOON,
            "timestampType": 0,
            "headers": [{"key": "h", "value": b"x"}, {"key": "h", "value": None}] if at == 0 else None,
        }
        for at, value in enumerate(values)
    ]
    return pa.RecordBatch.from_pylist(records, schema=schema(headers=True))


def decoder(function: str = "decode", permissive: bool = False) -> Decoder:
    return Decoder(DecoderOptions(f"{__name__}:{function}", "id BIGINT, name STRING", permissive), KIND)


def test_a_decoder_gets_the_whole_record() -> None:
    seen.clear()
    decoded = decoder().add(rows(b"1 one", None))
    assert decoded.schema.names == [*schema(headers=True).names, "decoded"]
    assert decoded.column("decoded").to_pylist() == [{"id": 1, "name": "one"}, None]
    assert seen[0] == DecoderRecord(b"k", b"1 one", "t", 3, 40, NOON, 0, [("h", b"x"), ("h", None)])
    assert seen[1].headers == []


def test_a_decoder_gets_the_metadata_of_a_record_that_has_it() -> None:
    seen.clear()
    plain = rows(b"1 one", b"2 two")
    kind = pa.struct([("message_id", pa.string()), ("publish_time", plain.schema.field("timestamp").type)])
    column = pa.array([{"message_id": f"7:1:{at}", "publish_time": NOON} for at in range(2)], kind)
    decoded = decoder().add(plain.append_column("metadata", column))
    assert decoded.schema.names == [*plain.schema.names, "metadata", "decoded"]
    assert [(record.offset, record.message_id, record.publish_time) for record in seen] == [
        (40, "7:1:0", NOON),
        (41, "7:1:1", NOON),
    ]


@pytest.mark.parametrize("value", [b"x y", b"\xff", b"7 wrong type", b"7 fraction", b"7 surrogate"])
def test_a_record_that_is_not_taken_ends_the_read_or_is_null(value: bytes) -> None:
    with pytest.raises(RecordDecodeError, match=r"set mode to PERMISSIVE.*topic t partition 3 offset 41: \w+:"):
        decoder().add(rows(b"1 one", value, b"2 two"))
    decoded = decoder(permissive=True).add(rows(b"1 one", value, b"2 two"))
    assert decoded.column("decoded").to_pylist() == [{"id": 1, "name": "one"}, None, {"id": 2, "name": "two"}]
    errors = decoded.column("decodeError").to_pylist()
    assert [errors[0], errors[2]] == [None, None]
    assert "Error" in errors[1] or "Arrow" in errors[1]


@pytest.mark.parametrize("value", [{"a": 1, "b": 1.5}, [("a", 1), ("b", Decimal("1.5"))]])
def test_a_fraction_in_a_map_of_whole_numbers_is_told(value: Any) -> None:
    kind = pa.struct([("m", pa.map_(pa.string(), pa.int32())), ("l", pa.list_(pa.map_(pa.int64(), pa.int64())))])
    options = DecoderOptions(f"{__name__}:given", "m MAP<STRING, INT>, l ARRAY<MAP<BIGINT, BIGINT>>", False)
    for row, fits in (({"m": value}, False), ({"l": [None, {1.5: 1}]}, False), ({"l": [{1.0: 2.0}]}, True)):
        to_give[:] = [row]
        if fits:
            decoded = Decoder(options, kind).add(rows(b"")).column("decoded").to_pylist()
            assert decoded == [{"m": None, "l": [[(1, 2)]]}]
        else:
            with pytest.raises(RecordDecodeError, match=r"ValueError: 1\.5 is no whole number"):
                Decoder(options, kind).add(rows(b""))


def test_a_time_that_python_does_not_hold_is_of_one_record() -> None:
    """Microseconds in the place of milliseconds: the record is named, and the others are read."""
    batch = rows(b"1 one", b"2 two")
    times = pa.array([NOON.timestamp() * 1e6, NOON.timestamp() * 1e9], pa.int64()).cast(batch.column("timestamp").type)
    batch = batch.set_column(5, batch.schema.field("timestamp"), times)
    with pytest.raises(RecordDecodeError, match="offset 41: OverflowError: its timestamp"):
        decoder().add(batch)
    decoded = decoder(permissive=True).add(batch)
    assert decoded.column("decoded").to_pylist() == [{"id": 1, "name": "one"}, None]
    assert decoded.column("timestamp").equals(times)


@pytest.mark.parametrize("name", ["kop_no_such_module:decode", f"{__name__}:no_such_function"])
def test_a_decoder_that_a_worker_does_not_have(name: str) -> None:
    with pytest.raises(RecordDecodeError, match="give every worker the module"):
        Decoder(DecoderOptions(name, "id BIGINT", False), KIND)
