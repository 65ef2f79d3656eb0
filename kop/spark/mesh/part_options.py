"""The options of `format("kop")` for the sources, sinks and queries of a mesh.

Owns: which options of the mesh reach which part.
Must not know: pyspark, columns, when queries start.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Final, TypeAlias

from kop.client.errors import ClientError
from kop.mesh.spec import QueryPart, SinkPart, SourcePart, View
from kop.spark import options as read
from kop.spark import write_options as write
from kop.spark.formats import PULSAR_OPTIONS, REGISTRY_OPTIONS
from kop.spark.given import Given, OptionError

Part: TypeAlias = SourcePart | SinkPart | QueryPart

TASKS: Final = 2
"""The number of tasks that write a batch into a topic; exactly-once writing depends on this number."""
_READ: Final = (*read.OPTIONS, *read.CONNECTION_OPTIONS, *read.FETCH_OPTIONS)
_WRITE: Final = (*write.OPTIONS, *write.PRODUCER_OPTIONS, *read.CONNECTION_OPTIONS)
_WITH_REGISTRY: Final = ("avro", "protobuf", "auto")
"""The formats that have their schemas from a registry that is named for all parts."""
TYPED: Final = ("json", *_WITH_REGISTRY)
"""The formats whose values are columns."""


class PartOptions:
    """The options of parts. `kafka` are those for the connection, `shared` those of the mesh."""

    def __init__(self, kafka: Mapping[str, str], shared: Mapping[str, str]) -> None:
        self._kafka = dict(kafka)
        self._shared = dict(shared)

    def check(self, part: Part) -> None:
        """Raise ClientError if `format("kop")` has no option of a name that the mesh gives, or refuses the options of
        the part: one is unknown, has a wrong value, or does not fit another one.
        """
        known = {name.lower() for name in (*_READ, *_WRITE)}
        for name in self._shared:
            if name.lower() not in known:
                raise ClientError(f'leave {name} out of kopOptions of the mesh: format("kop") has no such option')
        try:
            if not isinstance(part, SourcePart):
                for options in self.reads(part).values():
                    read.stream_options(options)
            if not isinstance(part, SinkPart):
                write.write_options({"exactlyOnceId": "query", **self.write(part)}, streaming=False)
        except OptionError as error:
            raise ClientError(f"{part.kind} {part.name}: {error}") from None

    def reads(self, part: SinkPart | QueryPart) -> dict[str, dict[str, str]]:
        """Return the options of `format("kop")` for each read of a part, by the name of the table that its SQL selects
        from. A sink has one read of all its inputs, by the name "". The part's own options go before those of the mesh.
        """
        if isinstance(part, SinkPart):
            formats = {
                name: value for name, value in _formats(part).items() if value in TYPED
            }  # of a text, what is no UTF-8 is no bad record for a sink
            views = {"": View(",".join(part.inputs), {**formats, **part.kop_options})}
        else:
            views = dict(part.views)
        return {
            table: {
                **self._kafka,
                "startingOffsets": "earliest",
                "kafka.isolation.level": "read_committed",
                **self._of_mesh(_READ, view.options),
                **view.options,
                "subscribe": view.topic,
            }
            for table, view in views.items()
        }

    def write(self, part: SourcePart | QueryPart) -> dict[str, str]:
        """Return the options of `format("kop")` with which a part writes into its topic, exactly once. The part's own
        options go before those of the mesh.
        """
        own = {**{name: value for name, value in _formats(part).items() if value in TYPED}, **part.kop_options}
        return {
            **self._kafka,
            **self._of_mesh(_WRITE, own),
            "deliveryGuarantee": "exactly-once",
            "exactlyOnceTasks": str(TASKS),
            **own,
            "topic": part.output,
        }

    def _of_mesh(self, known: Collection[str], own: Mapping[str, str]) -> dict[str, str]:
        """Return the mesh's options whose names are in `known`: the names of those that a read, or a write, has. `own`
        are the part's own options, which go before those of the mesh when it is asked which formats there are.

        Options of registries are left out if no format needs a registry, and `mode`, which says what becomes of bad
        records, if values and keys are bytes and there is no decoder, so that no record can be bad.
        """
        names = {name.lower() for name in known}
        both = Given({**self._shared, **own})
        formats = {both.value(option).lower() for option in ("valueFormat", "keyFormat")}
        if not formats.intersection(_WITH_REGISTRY):
            names -= {name.lower() for name in (*REGISTRY_OPTIONS, *PULSAR_OPTIONS)}
        if formats <= {"", "bytes"} and not both.has("decoder"):
            names.discard("mode")
        return {name: value for name, value in self._shared.items() if name.lower() in names}


def _formats(part: Part) -> dict[str, str]:
    given = {"valueFormat": part.value_format, "keyFormat": part.key_format}
    return {name: value for name, value in given.items() if value}
