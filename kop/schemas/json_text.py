"""JSON texts into columns, strictly: what a column's type does not take is told, and never half of a record.

Owns: which texts pyarrow may read in one go, and the reading of one text after the other if it may not.
Must not know: registries, frames, where a type comes from.

A field that the type does not have is left out, one that the text does not have is null, and a column of texts gets
the JSON of what is no text, as `from_json` of Spark does.
"""

from __future__ import annotations

import base64
import json
import math
import re
from collections.abc import Callable, Sequence
from datetime import UTC, date, datetime, timedelta
from decimal import MAX_EMAX, MAX_PREC, MIN_EMIN, Context, Decimal, InvalidOperation
from io import BytesIO
from typing import Any, Final, NoReturn

import pyarrow as pa
import pyarrow.json as arrow_json
from pyarrow import compute, types

from kop.schemas.builders import builder
from kop.schemas.errors import BadRecordError, below
from kop.schemas.types import with_leaves

_MOST_FLOAT: Final = 3.4028234663852886e38
"""The largest number of 32 bits."""
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND: Final = timedelta(microseconds=1)
_EXACT: Final = Context(prec=MAX_PREC, Emin=MIN_EMIN, Emax=MAX_EMAX)
"""The context that rounds nothing: a JSON text may have any number of digits."""
_INTEGERS: Final = {pa.int8(): 8, pa.int16(): 16, pa.int32(): 32, pa.int64(): 64}

_PLAIN: Final = {pa.bool_(), pa.float64(), pa.string(), *_INTEGERS}
_DAY: Final = r"^\d{4}-\d\d-\d\d"
_CLOCK: Final = r"T([01]\d|2[0-3]):[0-5]\d:[0-5]\d(\.\d{1,6})?"
_MICROSECONDS: Final = (-62_135_596_800_000_000, 253_402_300_799_999_999)
_TIMES: Final = {
    pa.date32(): (_DAY + "$", -719_162, 2_932_896),
    pa.timestamp("us"): (_DAY + _CLOCK + "$", *_MICROSECONDS),
    pa.timestamp("us", tz="UTC"): (_DAY + _CLOCK + r"(Z|[+-]([01]\d|2[0-3]):[0-5]\d)$", *_MICROSECONDS),
}
"""Of each type of times the form in which pyarrow may read them, and the first and last that Python has, in years 1 to
9999.
"""

_NO_NUMBER: Final = re.compile(rb"[:\[,][ \t\r\n]*-?(NaN|Inf)")
"""The beginning of a value that may be a number which JSON has not."""

Convert = Callable[[Any], Any]
"""A function from a value of JSON, which is not null, to one that builders take; BadRecordError."""


class JsonReader:
    """The reader of JSON texts into a column of a type."""

    def __init__(self, kind: pa.DataType) -> None:
        self.kind = kind
        self._convert = _conversion(kind, "")
        self._into = builder(kind)
        self._schema = (
            pa.schema(list(_as_texts(kind))) if types.is_struct(kind) and kind.num_fields and _is_plain(kind) else None
        )

    def decode(self, records: Sequence[bytes], start: int = 0) -> tuple[pa.Array, dict[int, str]]:
        """Return a column with a row for each text, and by row the errors of texts that are null because they are bad.
        A text begins at `start` of its record; an empty or blank one is null without an error.
        """
        texts = (
            [record[start:].strip(b" \t\r\n") for record in records]
            if start
            else [record.strip(b" \t\r\n") for record in records]
        )
        column = self._at_once(texts)
        return (column, {}) if column is not None else self._each(texts)

    def _at_once(self, texts: list[bytes]) -> pa.Array | None:
        """Return the column if pyarrow can read all texts, and each is surely exactly one object; else None, also if
        all are empty. An empty text is null.

        Each text that is not empty begins with a brace and ends with one. Between two of these a text cannot go on, so
        every text is at least one object, and if there are as many objects as texts it is exactly one.
        """
        if self._schema is None:
            return None
        present = [text for text in texts if text]
        if not present or not all(text[0] == 0x7B and text[-1] == 0x7D for text in present):
            return None
        whole = b"\n".join(present)
        if (b"NaN" in whole or b"Inf" in whole) and _NO_NUMBER.search(whole):
            return None  # pyarrow takes it, also in fields that no column has
        try:
            whole.decode()  # pyarrow does not look at it
            table = arrow_json.read_json(
                BytesIO(whole),
                arrow_json.ReadOptions(use_threads=False, block_size=len(whole) + 1),
                arrow_json.ParseOptions(
                    explicit_schema=self._schema, newlines_in_values=True, unexpected_field_behavior="ignore"
                ),
            )
        except (pa.ArrowException, ValueError, TypeError):
            return None
        if table.num_rows != len(present):
            return None
        columns = [_one(column) for column in table.select(self._schema.names).columns]
        if not all(map(_is_finite, columns)):  # pyarrow takes numbers that are too large
            return None
        made = _with_times(pa.StructArray.from_arrays(columns, fields=list(self._schema)), self.kind)
        if made is None:
            return None
        if len(present) == len(texts):
            return made
        places = compute.cumulative_sum(pa.array([1 if text else 0 for text in texts], pa.int64()))
        rows = compute.if_else(pa.array([bool(text) for text in texts]), compute.subtract(places, 1), None)
        return made.take(rows)

    def _each(self, texts: list[bytes]) -> tuple[pa.Array, dict[int, str]]:
        failures: dict[int, str] = {}
        into = self._into
        for row, text in enumerate(texts):
            try:
                value = (
                    json.loads(text.decode(), parse_constant=_no_number, parse_float=_WrittenNumber) if text else None
                )
                into.add(None if value is None else self._convert(value))
                continue
            except UnicodeDecodeError:
                reason = "it is no UTF-8"
            except json.JSONDecodeError as error:
                reason = f"it is no JSON: {error}"
            except RecursionError:
                reason = "it is nested too deeply"
            except (BadRecordError, ValueError, OverflowError) as error:
                reason = str(error)
            into.truncate(row)
            into.add_null()
            failures[row] = reason
        return into.finish(), failures


class _WrittenNumber(str):
    """A number with a fraction or an exponent, as it is written."""


def _no_number(name: str) -> NoReturn:
    raise BadRecordError(f"it has {name}, which is no JSON")


def _one(column: pa.ChunkedArray) -> pa.Array:
    return column.combine_chunks() if column.num_chunks != 1 else column.chunk(0)


def _is_finite(column: pa.Array) -> bool:
    if types.is_struct(column.type):
        return all(map(_is_finite, column.flatten()))
    if types.is_list(column.type):
        return _is_finite(column.flatten())
    return not types.is_floating(column.type) or compute.all(compute.is_finite(column)).as_py() is not False


def _is_plain(kind: pa.DataType) -> bool:
    """Return true for a type whose values pyarrow may read from JSON: where it takes a text at all, it makes the same
    of it as the reading of one text after the other.
    """
    if types.is_struct(kind):
        return kind.num_fields > 0 and all(_is_plain(field.type) for field in kind)
    if types.is_list(kind):
        return _is_plain(kind.value_type)
    return kind in _PLAIN or kind in _TIMES


def _as_texts(kind: pa.DataType) -> pa.DataType:
    """Return a type with texts in place of its times, at any depth: pyarrow takes more forms for times than are allowed
    here, so it reads texts, which `_with_times` checks.
    """
    return with_leaves(kind, lambda leaf: pa.string() if leaf in _TIMES else leaf)


def _with_times(column: pa.Array, kind: pa.DataType) -> pa.Array | None:
    """Return a column of type `kind` from one that has texts in place of times. None if a text is not surely a time as
    the reading of one text after the other takes it; that then decides.
    """
    if column.type.equals(kind):
        return column
    mask = column.is_null() if column.null_count else None
    if types.is_struct(kind):
        fields = [_with_times(column.field(at), field.type) for at, field in enumerate(kind)]
        return None if None in fields else pa.StructArray.from_arrays(fields, fields=list(kind), mask=mask)
    if types.is_list(kind):
        items = _with_times(column.values, kind.value_type)
        return None if items is None else pa.ListArray.from_arrays(column.offsets, items, type=kind, mask=mask)
    pattern, least, most = _TIMES[kind]
    if compute.all(compute.match_substring_regex(column, pattern)).as_py() is False:
        return None
    try:
        made = column.cast(kind)
    except pa.ArrowInvalid:  # a day that no month has
        return None
    bounds = compute.min_max(made.cast(pa.int32() if types.is_date32(kind) else pa.int64())).as_py()
    inside = bounds["min"] is None or (least <= bounds["min"] and bounds["max"] <= most)
    return made if inside else None


def _conversion(kind: pa.DataType, path: str) -> Convert:
    """Return the function that turns a value of JSON, not null, into one that a builder of columns of type `kind`
    takes, or raises BadRecordError; `path` names the value in the error.
    """
    if types.is_struct(kind):
        return _of_object(kind, path)
    if types.is_map(kind):
        item = _nullable(_conversion(kind.item_type, f"{path}[]"))
        key_of = _conversion(kind.key_type, f"{path}[]")

        def to_map(value: Any) -> Any:
            _expect(value, dict, "an object", path)
            return {key_of(key): item(inner) for key, inner in value.items()}

        return to_map
    if types.is_list(kind):
        inner = _nullable(_conversion(kind.value_type, f"{path}[]"))

        def to_list(value: Any) -> Any:
            _expect(value, list, "an array", path)
            return [inner(item) for item in value]

        return to_list
    return _of_leaf(kind, path)


def _of_object(kind: pa.DataType, path: str) -> Convert:
    fields = [(field.name, _nullable(_conversion(field.type, below(path, field.name)))) for field in kind]

    def to_struct(value: Any) -> Any:
        _expect(value, dict, "an object", path)
        return {name: convert(value.get(name)) for name, convert in fields}

    return to_struct


def _nullable(convert: Convert) -> Convert:
    def to_value(value: Any) -> Any:
        return None if value is None else convert(value)

    return to_value


def _expect(value: Any, kind: type, what: str, path: str) -> None:
    if not isinstance(value, kind) or isinstance(value, _WrittenNumber):
        raise BadRecordError(f"{path or 'it'} is {_shown(value)}, not {what}")


def _shown(value: Any) -> str:
    text = _as_json(value)
    return text if len(text) <= 60 else text[:60] + "..."


def _of_leaf(kind: pa.DataType, path: str) -> Convert:
    if types.is_boolean(kind):
        return lambda value: _boolean(value, path)
    if types.is_integer(kind):
        bits = _INTEGERS.get(kind, 64)
        return lambda value: _whole(value, bits, path)
    if types.is_floating(kind):
        most = _MOST_FLOAT if types.is_float32(kind) else math.inf
        return lambda value: _float(value, most, path)
    if types.is_decimal(kind):
        return lambda value: _decimal(value, kind, path)
    if types.is_timestamp(kind):
        return lambda value: _time(value, kind.tz is not None, path)
    if types.is_date(kind):
        return lambda value: _day(value, path)
    if types.is_binary(kind):
        return lambda value: _binary(value, path)
    return _text


def _boolean(value: Any, path: str) -> bool:
    if not isinstance(value, bool):
        raise BadRecordError(f"{path or 'it'} is {_shown(value)}, not true or false")
    return value


def _float(value: Any, most: float, path: str) -> float:
    try:
        number = float(value) if _is_number(value) else math.inf
    except OverflowError:
        number = math.inf
    if not math.isfinite(number) or abs(number) > most:
        raise BadRecordError(f"{path or 'it'} is {_shown(value)}, not a number that a column holds")
    return number


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, _WrittenNumber)) and not isinstance(value, bool)


def _whole(value: Any, bits: int, path: str) -> int:
    if type(value) is not int:
        number = _as_decimal(value) if isinstance(value, _WrittenNumber) else None
        if number is None or abs(number.adjusted()) > 20 or number != int(number):
            raise BadRecordError(f"{path or 'it'} is {_shown(value)}, not a whole number")
        value = int(number)
    if not -(1 << (bits - 1)) <= value < 1 << (bits - 1):
        raise BadRecordError(f"{path or 'it'} is {value}, which has more than {bits} bits")
    made: int = value
    return made


def _as_decimal(value: Any) -> Decimal | None:
    try:
        made = Decimal(str(value))
    except InvalidOperation:
        return None
    return made if made.is_finite() else None


def _decimal(value: Any, kind: pa.DataType, path: str) -> Decimal:
    number = _as_decimal(value) if not isinstance(value, bool) and isinstance(value, (int, str)) else None
    if number is None:
        raise BadRecordError(f"{path or 'it'} is {_shown(value)}, not a decimal number")
    stripped = number.normalize(_EXACT) if number else Decimal(0)
    _, digits, exponent = stripped.as_tuple()
    assert isinstance(exponent, int)
    if number and (-exponent > kind.scale or len(digits) + exponent > kind.precision - kind.scale):
        raise BadRecordError(
            f"{path or 'it'} is {_shown(value)}, which does not fit decimal({kind.precision}, {kind.scale})"
        )
    return stripped


def _time(value: Any, zoned: bool, path: str) -> int:
    try:
        made = (
            datetime.fromisoformat(value) if isinstance(value, str) and not isinstance(value, _WrittenNumber) else None
        )
    except ValueError:
        made = None
    if made is None or (made.tzinfo is None) == zoned:
        form = "2026-01-31T12:30:00Z" if zoned else "2026-01-31T12:30:00"
        raise BadRecordError(f"{path or 'it'} is {_shown(value)}, not a time as {form}")
    return (made if zoned else made.replace(tzinfo=UTC)).astimezone(UTC).__sub__(_EPOCH) // _MICROSECOND


def _day(value: Any, path: str) -> int:
    try:
        made = date.fromisoformat(value) if isinstance(value, str) else None
    except ValueError:
        made = None
    if made is None:
        raise BadRecordError(f"{path or 'it'} is {_shown(value)}, not a day as 2026-01-31")
    return made.toordinal() - _EPOCH.toordinal()


def _binary(value: Any, path: str) -> bytes:
    if isinstance(value, str) and not isinstance(value, _WrittenNumber):
        try:
            return base64.b64decode(value, validate=True)
        except ValueError:
            pass
    raise BadRecordError(f"{path or 'it'} is {_shown(value)}, not bytes in base64")


def _text(value: Any) -> str:
    made: str = value if type(value) is str else _as_json(value)
    made.encode()  # a lone surrogate is no text
    return made


def _as_json(value: Any) -> str:
    """Return a JSON value as text, with its numbers as they were written."""
    if isinstance(value, _WrittenNumber):
        return str(value)
    if isinstance(value, list):
        return f"[{', '.join(map(_as_json, value))}]"
    if isinstance(value, dict):
        return f"{{{', '.join(f'{_as_json(name)}: {_as_json(inner)}' for name, inner in value.items())}}}"
    return json.dumps(value, ensure_ascii=False)
