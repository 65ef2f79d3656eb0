"""The parts of a mesh: functions, sources, sinks and queries, between topics.

Owns: the parts of a mesh and their fields, checked one by one.
Must not know: files, how parts fit together, how they run.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, TypeAlias

from kop.functions.spec import FunctionSpec

Trigger: TypeAlias = Literal["continuous", "batch"]
Kind: TypeAlias = Literal["function", "source", "sink", "query"]
OutputMode: TypeAlias = Literal["append", "update", "complete"]
"""The rows that a query writes of its result: those that do not change any more, those that changed, all."""


@dataclass(frozen=True, kw_only=True)
class FunctionPart:
    """A function of a mesh. `line` is the one of the file where a part begins."""

    kind: ClassVar[Kind] = "function"

    spec: FunctionSpec
    """The path of its code goes from the folder in which the command runs."""
    config: Mapping[str, Any] = field(default_factory=dict)
    """The same as Pulsar's FunctionConfig, as a definition keeps it."""
    keeps_key: bool = False
    """True if each message that it gives out has the key of the message that came in."""
    is_private: bool = False
    """True if its output is not written where only functions of its component read it."""
    has_state: bool = False
    """True if `stateScope` is given: only then it may use state."""
    line: int = 1

    @property
    def name(self) -> str:
        """The name of the function, without tenant and namespace."""
        return self.spec.name

    @property
    def inputs(self) -> tuple[str, ...]:
        """The topics that it names as inputs, patterns left out."""
        return self.spec.named_inputs

    @property
    def outputs(self) -> tuple[str, ...]:
        """The topic of its results, if there is one."""
        return (self.spec.output,) if self.spec.output else ()

    @property
    def holds_order(self) -> str:
        """The reason to have all messages of a key in one place: `state`, `windows`, `key order`; empty if none."""
        if self.spec.window is not None:
            return "windows"
        if self.has_state:
            return "state"
        return "key order" if self.spec.retain_key_ordering else ""

    @property
    def is_whole(self) -> bool:
        """True if its state or windows belong to the whole function and not to a partition, so that one task has all
        partitions.
        """
        return self.holds_order in {"state", "windows"} and self.spec.state_scope == "function"


@dataclass(frozen=True, kw_only=True)
class _RowsPart:
    """A part that is a query of Spark: its topics hold rows in these formats, those that a query reads left out."""

    name: str
    value_format: str = ""
    key_format: str = ""
    kop_options: Mapping[str, str] = field(default_factory=dict)
    """Options of format("kop") for the topic, beside those of the mesh."""
    line: int = 1


@dataclass(frozen=True, kw_only=True)
class SourcePart(_RowsPart):
    """A query from a format of Spark to a topic."""

    kind: ClassVar[Kind] = "source"
    inputs: ClassVar[tuple[str, ...]] = ()

    format: str
    options: Mapping[str, str] = field(default_factory=dict)
    schema: str = ""
    """The columns as Spark's DDL, for formats that need it said."""
    output: str

    @property
    def outputs(self) -> tuple[str, ...]:
        """The topic that it writes."""
        return (self.output,)


@dataclass(frozen=True, kw_only=True)
class SinkPart(_RowsPart):
    """A query from topics to a format of Spark."""

    kind: ClassVar[Kind] = "sink"
    outputs: ClassVar[tuple[str, ...]] = ()

    inputs: tuple[str, ...]
    format: str
    options: Mapping[str, str] = field(default_factory=dict)
    columns: tuple[str, ...] = ()
    """The columns that the sink writes, as expressions of Spark's SQL; empty for all columns that a topic has."""


@dataclass(frozen=True)
class View:
    """A topic as a table of a query."""

    topic: str
    options: Mapping[str, str] = field(default_factory=dict)
    """Options of format("kop") for the topic, beside those of the mesh."""
    watermark: str = ""
    """COLUMN DELAY; empty if there is none."""


@dataclass(frozen=True, kw_only=True)
class QueryPart(_RowsPart):
    """SQL over topics; its rows go to a topic."""

    kind: ClassVar[Kind] = "query"

    sql: str
    views: Mapping[str, View]
    """The tables that the SQL names."""
    output: str
    output_mode: OutputMode = "append"

    @property
    def inputs(self) -> tuple[str, ...]:
        """The topics that the SQL names."""
        return tuple(dict.fromkeys(view.topic for view in self.views.values()))

    @property
    def outputs(self) -> tuple[str, ...]:
        """The topic that it writes."""
        return (self.output,)


@dataclass(frozen=True)
class Outline:
    """A part of which not all is right, as far as the others have to know it."""

    kind: Kind
    name: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    line: int


Part: TypeAlias = FunctionPart | SourcePart | SinkPart | QueryPart


@dataclass(frozen=True, kw_only=True)
class Mesh:
    """A mesh whose parts are right by themselves."""

    tenant: str = "public"
    namespace: str = "default"
    name: str
    functions: tuple[FunctionPart, ...] = ()
    sources: tuple[SourcePart, ...] = ()
    sinks: tuple[SinkPart, ...] = ()
    queries: tuple[QueryPart, ...] = ()
    trigger: Trigger = "continuous"
    batch_seconds: float = 10.0
    """The seconds that a batch lasts with the trigger `continuous`."""
    fuse: bool = True
    """False: each function is a component of its own."""
    external_writers: frozenset[str] = frozenset()
    """Topics that others write, too, or alone."""
    kop_options: Mapping[str, str] = field(default_factory=dict)
    """Options of format("kop") for its sources, sinks and queries."""
    notes: tuple[str, ...] = ()
    """Notes for the author of the mesh: fields without effect."""
    line: int = 1

    @property
    def full_name(self) -> str:
        """Tenant/namespace/name."""
        return f"{self.tenant}/{self.namespace}/{self.name}"

    @property
    def parts(self) -> tuple[Part, ...]:
        """All parts, in the order of the file within each kind."""
        return (*self.sources, *self.functions, *self.queries, *self.sinks)
