"""Typed columns of a read: keys and values as what their schemas say, instead of bytes.

Owns: how options become the plan of a column, and what becomes of records that are bad.
Must not know: pyspark, formats, how registries are asked.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from kop.schemas import columns
from kop.schemas.confluent import RegistryOptions
from kop.schemas.errors import SchemaError
from kop.spark.decoding import ERROR, RecordDecodeError
from kop.spark.given import OptionError

if TYPE_CHECKING:
    from kop.spark.formats import FormatOptions, Formats
    from kop.spark.options import ReadOptions


@dataclass(frozen=True)
class TypedPlan:
    """The plan of the columns of a read that are no bytes, pickled for its tasks."""

    plans: Mapping[str, columns.Plan]
    permissive: bool

    @property
    def declared(self) -> dict[str, str]:
        """The types of the columns in Spark's words."""
        return {name: plan.sql for name, plan in self.plans.items()}

    def of_types(self, kinds: Mapping[str, pa.DataType]) -> TypedPlan:
        """Return the plan for columns of these types, as Spark has them; OptionError if the schemas say other ones."""
        made = {}
        for name, plan in self.plans.items():
            try:
                made[name] = plan.of_type(kinds[name])
            except SchemaError as error:
                raise OptionError(f"leave .schema() out: the column {name} {error}") from None
        return replace(self, plans=made)

    def make(self) -> TypedRows:
        """Return what makes the rows of one task."""
        return TypedRows(self)


class TypedRows:
    """The columns of one task; what they know of schemas they keep from batch to batch."""

    def __init__(self, plan: TypedPlan) -> None:
        self._permissive = plan.permissive
        self._readers = {name: columns.reader_of(of_column) for name, of_column in plan.plans.items()}

    def add(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return the rows with typed columns, and `decodeError` behind them if bad records are to be null.
        RecordDecodeError for a bad record else.
        """
        made = batch
        reasons: dict[int, list[str]] = {}
        for name, reader in self._readers.items():
            place = made.schema.get_field_index(name)
            values, failures = reader.read(batch.column(place))
            made = made.set_column(place, pa.field(name, values.type), values)
            for row, reason in failures.items():
                reasons.setdefault(row, []).append(f"{name}: {reason}")
        if reasons and not self._permissive:
            row = min(reasons)
            topic, partition, offset = (batch.column(name)[row] for name in ("topic", "partition", "offset"))
            raise RecordDecodeError(
                "set mode to PERMISSIVE to go on with null, or let the query begin behind it: the record of "
                f"topic {topic} partition {partition} offset {offset} is bad; {'; '.join(reasons[row])}"
            )
        if self._permissive:
            texts = [None if row not in reasons else "; ".join(reasons[row]) for row in range(batch.num_rows)]
            made = made.append_column(pa.field(ERROR, pa.string()), pa.array(texts, pa.string()))
        return made


def plan_columns(options: ReadOptions) -> TypedPlan | None:
    """Return the plan of the typed columns, for which registries are asked; None if all are bytes. OptionError."""
    formats = options.formats
    if formats is None:
        return None
    plans = {name: _plan(name, of_column, formats, options) for name, of_column in formats.columns.items()}
    return TypedPlan(plans, options.permissive)


def _plan(name: str, wanted: FormatOptions, formats: Formats, options: ReadOptions) -> columns.Plan:
    source = columns.Source(
        wanted.format,
        registry=registry_options(formats),
        subject=wanted.subject or f"{_topic(name, options)}-{name}",
        version=wanted.version,
    )
    try:
        return columns.plan(source)
    except SchemaError as error:
        raise OptionError(f"the column {name}: {error}") from None


def registry_options(formats: Formats) -> RegistryOptions | None:
    """Return the access to the registry that the options name."""
    access: Any = formats.registry
    return None if access is None else RegistryOptions(access.url, access.user_info, access.token, access.ca_file)


def _topic(name: str, options: ReadOptions) -> str:
    topics = set(options.topics) | {topic for topic, _ in options.assign}
    if len(topics) != 1:
        raise OptionError(
            f"set {name}Subject to the subject whose schema the column {name} has: the read is of more than one topic"
        )
    return topics.pop()
