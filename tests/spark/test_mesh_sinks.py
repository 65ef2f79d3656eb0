"""Typed sinks, sources and queries of a mesh: their options, their columns, and what is told of a bad record."""

from __future__ import annotations

import re
from typing import Any

import pytest

from kop.client.errors import ClientError
from kop.mesh.spec import QueryPart, SinkPart, SourcePart, View
from kop.spark.mesh.error_texts import told, told_of
from kop.spark.mesh.part_options import PartOptions
from kop.spark.mesh.part_rows import from_rows, to_rows

SERVERS = {"kafka.bootstrap.servers": "127.0.0.1:1"}
JSON = {"valueSchema": "n INT"}


def sink(form: str = "parquet", value: str = "json", **more: Any) -> SinkPart:
    return SinkPart(name="s", inputs=("t",), format=form, value_format=value, **more)


def checked(part: Any, **shared: str) -> dict[str, str]:
    """The options that a part reads by, or writes by if it is a source; those of the connection are left out."""
    options = PartOptions(SERVERS, {name.replace("__", "."): value for name, value in shared.items()})
    options.check(part)
    made = options.write(part) if isinstance(part, SourcePart) else next(iter(options.reads(part).values()))
    return {name: value for name, value in made.items() if name not in SERVERS}


def test_a_mode_of_the_mesh_reaches_the_parts_in_which_records_can_be_bad() -> None:
    assert checked(sink(kop_options=JSON), mode="PERMISSIVE")["mode"] == "PERMISSIVE"
    assert checked(sink(kop_options=JSON | {"mode": "FAILFAST"}), mode="PERMISSIVE")["mode"] == "FAILFAST"
    assert "mode" not in checked(sink(kop_options=JSON))
    for value in ("", "bytes", "string"):  # of a text nothing is bad for a sink
        assert "mode" not in checked(sink(value=value), mode="PERMISSIVE")
    query = QueryPart(name="q", sql="SELECT 1 FROM t", views={"t": View("t", {"valueFormat": "string"})}, output="o")
    assert checked(query, mode="PERMISSIVE")["mode"] == "PERMISSIVE"
    decoder = sink(value="", kop_options={"decoder": "a:b", "decoderSchema": "n INT"})
    assert checked(decoder, mode="PERMISSIVE")["mode"] == "PERMISSIVE"


def test_a_source_writes_by_a_registry_and_has_no_mode() -> None:
    source = SourcePart(
        name="f", format="json", output="t", value_format="avro", kop_options={"registerSchema": "true"}
    )
    made = checked(source, mode="PERMISSIVE", schema__registry__url="http://127.0.0.1:1")
    assert made == {
        "deliveryGuarantee": "exactly-once",
        "exactlyOnceTasks": "2",
        "valueFormat": "avro",
        "registerSchema": "true",
        "schema.registry.url": "http://127.0.0.1:1",
        "topic": "t",
    }
    own = SourcePart(name="f", format="json", output="t", value_format="json", kop_options={"mode": "PERMISSIVE"})
    with pytest.raises(ClientError, match=r"source f: .*mode"):
        checked(own)
    assert "schema.registry.url" not in checked(sink(kop_options=JSON), schema__registry__url="http://127.0.0.1:1")


class Frame:
    """A DataFrame as far as its columns go."""

    def __init__(self, **types: str) -> None:
        self.dtypes = list(types.items())
        self.columns = list(types)

    def selectExpr(self, *columns: str) -> Frame:
        known = dict(self.dtypes)
        return Frame(**{(name := text.rpartition(" AS ")[2]): known.get(name, "string") for text in columns})


READ = {"key": "binary", "value": "struct<n:int>", "topic": "string", "partition": "int", "offset": "bigint",
        "timestamp": "timestamp", "timestampType": "int"}  # fmt: skip


def test_a_sink_gets_the_reason_beside_what_it_is_of() -> None:
    written = ["key", "value", "topic", "partition", "offset", "timestamp"]
    assert from_rows(Frame(**READ), sink()).columns == written
    permissive = Frame(**READ, decodeError="string")
    assert from_rows(permissive, sink()).columns == [*written, "decodeError"]
    chosen = sink("csv", columns=("value.n AS n", "decodeError"))
    assert from_rows(permissive, chosen).columns == ["n", "decodeError"]
    with pytest.raises(ClientError, match=re.escape("columns: [value.ID, ...] of the sink s: csv has no place")):
        from_rows(permissive, sink("csv"))
    assert from_rows(permissive, sink("text")).columns == ["value"]


def test_rows_of_typed_values_are_structs() -> None:
    assert to_rows(Frame(id="bigint", key="string"), "avro").columns == ["key", "value"]
    assert to_rows(Frame(key="struct<a:int>", value="struct<n:int>"), "avro", "avro").columns == ["key", "value"]


BAD = (
    "RecordDecodeError: set mode to PERMISSIVE to go on with null, or let the query begin behind it: the record of "
    "topic orders partition 3 offset 8 is bad; value: by schema 1 it is cut short"
)
NEWEST = f"""[PYTHON_EXCEPTION] An exception was thrown from the Python worker: Traceback (most recent call last):
  File "/kop/spark/typed_columns.py", line 90, in add
    raise RecordDecodeError(
kop.spark.decoding.{BAD}
 SQLSTATE: 38000
=== Streaming Query ===
Identifier: public/default/m/s [id = f0cc2f64, runId = 33a1f03e]
Current State: ACTIVE
"""
OLDEST = f"""Job aborted due to stage failure: Task 0 in stage 0.0 failed 1 times, most recent failure: \
Lost task 0.0 in stage 0.0 (TID 0) (here executor driver): \
org.apache.spark.api.python.PythonException: Traceback (most recent call last):
  File "/kop/spark/typed_columns.py", line 90, in add
    raise RecordDecodeError(
kop.spark.decoding.{BAD}

\tat org.apache.spark.api.python.BasePythonRunner$ReaderIterator.handlePythonException(PythonRunner.scala:581)
\tat java.base/java.lang.Thread.run(Thread.java:840)

Driver stacktrace:
=== Streaming Query ===
"""


@pytest.mark.parametrize("text", [NEWEST, OLDEST])
def test_the_bad_record_is_told_out_of_spark_s_error(text: str) -> None:
    assert told(text) == BAD


def test_errors_without_a_task_are_told_by_their_first_line() -> None:
    assert told("Table or view not found\n at x") == "Table or view not found"
    assert told("") == "no reason is known"
    gone = "the driver of the mesh is gone"
    assert told(f"kop.spark.mesh.link.NotPlannedError: {gone}") == f"NotPlannedError: {gone}"
    assert told("kop.spark.mesh.link.NotPlannedError: UnreachableError: no server") == "UnreachableError: no server"
    assert told("...\nPython worker exited unexpectedly (crashed)") == "its Python worker has ended"


def test_an_error_that_is_not_spark_s_is_told_with_its_type() -> None:
    of_spark = type("Py4JJavaError", (Exception,), {"__module__": "py4j.protocol"})
    assert told_of(of_spark("An error occurred.\n: java.io.IOException: no disk")) == "IOException: no disk"
    assert told_of(TimeoutError()) == "TimeoutError:"
    assert told_of(KeyError("x")) == "KeyError: 'x'"
