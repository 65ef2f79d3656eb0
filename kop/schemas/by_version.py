"""Records of a topic whose schema Pulsar has, each read by the version that it names.

Owns: which version's reader a record has, when versions are asked for, what a record of a version that there is not, or
that the column cannot have, is told.
Must not know: formats, how versions are asked for, pyspark.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

import pyarrow as pa

from kop.schemas.errors import SchemaError, UnknownSchemaError, UnresolvableError
from kop.schemas.pulsar import PulsarSchema
from kop.schemas.schema_reader import Decoded, SchemaReader, in_order


class Versions:
    """The versions of a topic's schema, each with its reader, or the reason why there is none.

    `fetch` returns the versions that there are now; `make` makes the reader of one, `own` that of the version `number`.
    """

    def __init__(
        self,
        fetch: Callable[[], Mapping[int, PulsarSchema]],
        make: Callable[[PulsarSchema], SchemaReader],
        own: Callable[[], SchemaReader],
        number: int | None,
    ) -> None:
        self._fetch = fetch
        self._make = make
        self._own = own
        self._number = number
        self._readers: dict[int, SchemaReader | str] = {}

    def reader(self, version: int) -> SchemaReader | str:
        """Return the reader of a version, or as a text the reason why its records cannot be read: also if `learn` was
        not called with the version, or did not find it.
        """
        return self._readers.get(version, f"version {version} of its schema is not known")

    def learn(self, wanted: Iterable[int]) -> None:
        """Make and keep the readers of these versions, which records name; Pulsar is asked if one is new. A version
        that Pulsar does not have is asked for again by the next call. SchemaError if Pulsar does not tell the schemas.
        """
        new = set(wanted) - self._readers.keys()
        if self._number in new:
            new.remove(self._number)
            self._readers[self._number] = self._own()
        if not new:
            return
        try:
            known = self._fetch()
        except UnknownSchemaError:
            known = {}
        for version in new & known.keys():  # the others may be there later
            self._readers[version] = self._made(version, known[version])

    def _made(self, version: int, schema: PulsarSchema) -> SchemaReader | str:
        try:
            return self._make(schema)
        except UnresolvableError as error:
            return f"version {version} of its schema cannot be resolved: {error}"
        except SchemaError as error:
            return f"version {version} of its schema cannot be read: {error}"


class ByVersionReader:
    """The reader of records that name versions of their schema, and of those that name none."""

    def __init__(
        self, kind: pa.DataType, unversioned: Callable[[], SchemaReader], versions: Versions | None = None
    ) -> None:
        """Make a reader into columns of type `kind`. `unversioned` makes the reader of records that name no version;
        without `versions` it reads all.
        """
        self._kind = kind
        self._make_unversioned = unversioned
        self._unversioned: SchemaReader | None = None
        self._versions = versions

    def decode(self, records: Sequence[bytes], versions: Sequence[int | None] | None) -> Decoded:
        """Return a column with a row for each record, and by row the errors of records that are null because they are
        bad, or of a version that cannot be read. `versions` are the versions that the records name, None for a record
        without one, or None for all. SchemaError if Pulsar has to be asked for versions and does not tell them.
        """
        if versions is None or self._versions is None:
            return self._without(records)
        different = set(versions)
        self._versions.learn(version for version in different if version is not None)
        if len(different) == 1:
            return self._of_version(records, versions[0])
        parts: list[tuple[list[int], pa.Array]] = []
        failures: dict[int, str] = {}
        for version in different:
            rows = [row for row, of_row in enumerate(versions) if of_row == version]
            values, bad = self._of_version([records[row] for row in rows], version)
            parts.append((rows, values))
            failures |= {rows[at]: reason for at, reason in bad.items()}
        return in_order(self._kind, len(records), parts), failures

    def _without(self, records: Sequence[bytes]) -> Decoded:
        if self._unversioned is None:
            self._unversioned = self._make_unversioned()
        return self._unversioned.decode(records)

    def _of_version(self, records: Sequence[bytes], version: int | None) -> Decoded:
        if version is None or self._versions is None:
            return self._without(records)
        reader = self._versions.reader(version)
        if isinstance(reader, str):
            return pa.nulls(len(records), self._kind), dict.fromkeys(range(len(records)), reader)
        values, bad = reader.decode(records)
        return values, {row: f"by version {version} of its schema {reason}" for row, reason in bad.items()}


def named(versions: pa.Array | None, rows: Sequence[int]) -> list[int | None] | None:
    """Return the versions that the records of these rows name; None if `versions` is None or all null, so that no
    version is known.
    """
    if versions is None or versions.null_count == len(versions):
        return None
    every = versions.to_pylist()
    return every if len(rows) == len(every) else [every[row] for row in rows]
