"""The columns between the topics and the formats of a mesh's sources, queries and sinks.

Owns: which columns a topic gets of a format's rows, and a format of a topic's.
Must not know: pyspark, options, when queries start.
"""

from __future__ import annotations

from typing import Any, Final

from kop.client.errors import ClientError
from kop.mesh.spec import SinkPart
from kop.spark.decoding import ERROR
from kop.spark.mesh.part_options import TYPED

TABLE: Final = "jdbc"
"""The format of tables of databases."""
_TEXT_FORMATS: Final = ("csv", "json", "text", "xml", "console")
"""Formats in which bytes would be unreadable."""
_FLAT_FORMATS: Final = ("csv", "text", TABLE)
"""Formats whose columns hold no other columns."""
_NESTED: Final = ("struct<", "array<", "map<")
_PLAIN: Final = ("binary", "string")


def to_rows(frame: Any, value_format: str = "", key_format: str = "") -> Any:
    """Return the rows of a frame as the columns of a topic: `value` and, if the frame has one, `key`.

    If `value_format` has types (JSON, Avro, Protobuf), the value is the column `value` as it is, or without one a
    struct of all columns but the key. Else the value is the column `value` if that is text or bytes, JSON of it if it
    is a struct, and otherwise JSON of all columns but the key. A key that is neither text, bytes nor of such a format
    becomes text.
    """
    types = {column.lower(): kind for column, kind in frame.dtypes}
    key = []
    if "key" in types:
        is_key = key_format in TYPED or types["key"] in _PLAIN
        key = ["key"] if is_key else ["cast(key AS string) AS key"]
    names = [column.replace("`", "``") for column in frame.columns if column.lower() != "key"]
    row = f"struct({', '.join(f'`{name}`' for name in names)})"
    value = types.get("value", "")
    if value_format in TYPED:
        return frame.selectExpr(*key, "value" if value else f"{row} AS value")
    if value in _PLAIN:
        return frame.selectExpr(*key, "value")
    return frame.selectExpr(*key, f"to_json({'value' if value.startswith('struct<') else row}) AS value")


def from_rows(frame: Any, part: SinkPart) -> Any:
    """Return the rows read from topics with the columns that a sink writes: those that it names, else key, value,
    topic, partition, offset and timestamp; for the format text the value alone. Keys and values become text if a text
    format could not show their bytes. ClientError if a column has fields, and the sink's format is flat.
    """
    types = dict(frame.dtypes)
    if part.columns:
        rows = frame.selectExpr(*part.columns)
    else:
        key, value = (
            f"string({name}) AS {name}" if types[name] == "binary" and _is_text(part, given) else name
            for name, given in (("key", part.key_format), ("value", part.value_format))
        )
        if part.format == "text":
            return frame.selectExpr(f"to_json({value}) AS value" if types["value"].startswith(_NESTED) else value)
        more = [ERROR] if ERROR in frame.columns else []
        rows = frame.selectExpr(key, value, "topic", "partition", "offset", "timestamp", *more)
    if part.format in _FLAT_FORMATS:
        for name, kind in rows.dtypes:
            if kind.startswith(_NESTED):
                told = f"columns: [value.ID, ...] of the sink {part.name}"
                raise ClientError(f"name fields, {told}: {part.format} has no place for the {kind} of {name}")
    return rows


def _is_text(part: SinkPart, given: str) -> bool:
    return given == "string" or (part.format in _TEXT_FORMATS and not given)
