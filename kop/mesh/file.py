"""The file of a mesh: read, every part checked by itself.

Owns: the fields of the file in our own form.
Must not know: how parts fit together (that is `check`), the other forms (they are translated before).
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeVar

import yaml

from kop.functions.config_fields import FunctionConfig
from kop.functions.config_fields import Path as FieldPath
from kop.functions.config_reading import read_values
from kop.functions.spec import FunctionSpec, name_mistake
from kop.functions.topics import HOME, TopicNameError, TopicNames
from kop.mesh.mend import is_mendable, mended
from kop.mesh.nodes import MeshError, Mistake, Mistakes, Section, documents, is_null, items_of, line_of, near
from kop.mesh.spec import FunctionPart, Kind, Mesh, Outline, OutputMode, QueryPart, SinkPart, SourcePart, Trigger, View
from kop.mesh.tables import tables_of
from kop.mesh.translate import MESH_WIDE, Translated, translated

P = TypeVar("P")

MESH_FIELDS: Final = ("tenant", "namespace", "name", "functions", "sources", "sinks", *MESH_WIDE)
FORMAT_FIELDS: Final = ("valueFormat", "keyFormat", "kopOptions")
SOURCE_FIELDS: Final = ("name", "format", "options", "schema", "output", *FORMAT_FIELDS)
SINK_FIELDS: Final = ("name", "inputs", "format", "options", "columns", *FORMAT_FIELDS)
QUERY_FIELDS: Final = ("name", "sql", "views", "outputMode", "output", *FORMAT_FIELDS)
OWN_FUNCTION_FIELDS: Final = ("keepsKey", "private")
"""The fields that a function has in a mesh alone."""
FUNCTION_FIELDS: Final = (*(str(field.alias) for field in FunctionConfig.model_fields.values()), *OWN_FUNCTION_FIELDS)
TRIGGERS: Final[tuple[Trigger, ...]] = ("continuous", "batch")
OUTPUT_MODES: Final[tuple[OutputMode, ...]] = ("append", "update", "complete")
_WATERMARK: Final = re.compile(r"[\w.`]+\s+\d+\s*[a-z]+", re.ASCII | re.IGNORECASE)
_FORMATS: Final = ("bytes", "string", "json", "avro", "protobuf", "auto")
_MENDED: Final = "a field stands below an item of the list before it; so it would be beside the list"
_NO_PARALLELISM: Final = (
    "parallelism: has no effect in a mesh: each component has as many tasks as Spark has cores for it, and its inputs "
    "partitions"
)


@dataclass(frozen=True)
class Draft:
    """A file as far as it could be read."""

    mesh: Mesh
    """The parts that are right by themselves."""
    outlines: tuple[Outline, ...]
    """The others."""
    mistakes: Mistakes
    without_code: bool = False
    """True if the code of functions cannot be looked at: it is not in Python."""


def text_of(path: str | Path) -> str:
    """Return the text of a mesh's file. MeshError if it is not UTF-8."""
    try:
        return Path(path).read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        line = error.object.count(b"\n", 0, error.start) + 1
        raise MeshError(str(path), [Mistake(line, f"is no text in UTF-8: {error.reason}")]) from None


def read_mesh(text: str, path: str | Path, topic_names: TopicNames = HOME) -> Mesh:
    """Return the mesh of a file's text, each part of it checked by itself. MeshError with every mistake, if there are
    any.

    Relative paths of code start at the folder of `path`, which need not exist. `topic_names` makes the server's names
    of the topics' names in the text.
    """
    draft = draft_of(text, path, topic_names)
    if draft.mistakes:
        raise MeshError(str(path), draft.mistakes)
    return draft.mesh


def draft_of(text: str, path: str | Path, topic_names: TopicNames = HOME) -> Draft:
    """Return a file as far as it can be read, with all mistakes in it; of a text that is no YAML, or no mesh, that is a
    mesh without name and parts. If only its indentation is wrong, the rest is read as if that were mended, and the
    mistake tells the mended lines.
    """
    mistakes = Mistakes()
    nodes = documents(text, mistakes)
    if not nodes and any(is_mendable(mistake.text) for mistake in mistakes):
        better, changed = mended(text)
        if changed:
            at, told = mistakes[0].line, "\n".join(f"  {number:>4} | {line}" for number, line in changed.items())
            mistakes[0] = Mistake(at, f"{mistakes[0].text}: {_MENDED}:\n{told}")
            nodes = documents(better, mistakes)
    if not nodes:
        if not mistakes:
            mistakes.add(1, "is empty: a mesh has name and functions")
        return Draft(Mesh(name=""), (), mistakes)
    own = translated(nodes, mistakes)
    if own is None:
        return Draft(Mesh(name=""), (), mistakes)
    return _Reader(Path(path).parent, topic_names, mistakes, own).mesh()


class _Reader:
    """Reads the nodes of our own form."""

    def __init__(self, folder: Path, topic_names: TopicNames, mistakes: Mistakes, own: Translated) -> None:
        self._own = own
        self._folder = folder
        self._topic_names = topic_names
        self._mistakes = mistakes
        self._outlines: list[Outline] = []
        self._notes = list(own.notes)
        self._tenant = "public"
        self._namespace = "default"

    def mesh(self) -> Draft:
        """Return the mesh as far as it can be read, and the mistakes."""
        node = self._own.node
        top = Section(node, "", self._mistakes, MESH_FIELDS, self._own.written)
        name = top.text("name", is_needed="the name of the mesh") if isinstance(node, yaml.MappingNode) else ""
        self._tenant = top.text("tenant") or "public"
        self._namespace = top.text("namespace") or "default"
        for field, given in (("tenant", self._tenant), ("namespace", self._namespace), ("name", name)):
            if given and (mistake := name_mistake(given)):
                top.wrong(top.line_at(field), f"{field}: {mistake}")
        functions = tuple(self._parts(top, "functions", self._function))
        sources = tuple(self._parts(top, "sources", self._source))
        sinks = tuple(self._parts(top, "sinks", self._sink))
        queries = tuple(self._parts(top, "queries", self._query))
        if not (functions or sources or sinks or queries or self._outlines or self._mistakes):
            top.wrong(top.line, "has no parts: functions, sources, sinks or queries")
        external = {self._topic(top, "externalWriters", line, text) for line, text in top.texts("externalWriters")}
        mesh = Mesh(
            tenant=self._tenant,
            namespace=self._namespace,
            name=name,
            functions=functions,
            sources=sources,
            sinks=sinks,
            queries=queries,
            trigger=top.choice("trigger", TRIGGERS, "continuous"),
            batch_seconds=top.number("batchSeconds", 10.0),
            fuse=top.truth("fuse", default=True),
            external_writers=frozenset(external),
            kop_options=top.options("kopOptions"),
            notes=tuple(self._notes),
            line=top.line,
        )
        return Draft(mesh, tuple(self._outlines), self._mistakes, self._own.without_code)

    def _parts(self, top: Section, name: str, read: Callable[[yaml.Node, int], P | None]) -> Iterator[P]:
        if name not in top.fields:
            return
        line, node = top.fields[name]
        if not isinstance(node, yaml.SequenceNode):
            top.wrong(line, f"{name}: must be a list, each part begins with a dash: - name: NAME")
            return
        for index, item in enumerate(node.value):
            part = read(item, index)
            if part is not None:
                yield part

    def _topic(self, section: Section, field: str, line: int, name: str) -> str:
        """Return the server's name of a topic. If it is no name of a topic, that is noted as a mistake of the field,
        and the name is returned as it is.
        """
        try:
            return self._topic_names.kafka_name(name)
        except TopicNameError as error:
            section.wrong(line, f"{field}: {error}")
            return name

    def _meant(self, name: str) -> str:
        """Return the server's name of a topic; the name as it is if it is none, which is noted elsewhere."""
        try:
            return self._topic_names.kafka_name(name)
        except TopicNameError:
            return name

    def _section(self, node: yaml.Node, index: int, kind: Kind, names: tuple[str, ...]) -> tuple[Section, str, int]:
        """Return the fields of a part, its name (empty if it has none), and the number of mistakes before it was read.
        Notes mistakes of the name, and fields that are not in `names`.
        """
        before = len(self._mistakes)
        given = {name: value for name, _, value in items_of(node)}.get("name")
        name = given.value if isinstance(given, yaml.ScalarNode) and not is_null(given) else ""
        section = Section(node, f"{kind} {name or index + 1}", self._mistakes, names, self._own.written)
        if isinstance(node, yaml.MappingNode):
            section.text("name", is_needed=f"the name of the {kind}")
        if name and (mistake := name_mistake(name)):
            section.wrong(section.line_at("name"), f"name: {mistake}")
        return section, name, before

    def _kept(self, part: P, kind: Kind, name: str, section: Section, topics: Any, before: int) -> P | None:
        """Return a part if nothing was wrong with it since there were `before` mistakes. Else return None, and keep its
        inputs and outputs (`topics`) for the checks of the others.
        """
        if len(self._mistakes) == before:
            return part
        inputs, outputs = topics
        self._outlines.append(
            Outline(kind, name, tuple(filter(None, inputs)), tuple(filter(None, outputs)), section.line)
        )
        return None

    def _output(self, section: Section) -> str:
        name = section.text("output", is_needed="the topic to write")
        return self._topic(section, "output", section.line_at("output"), name)

    def _formats(self, section: Section) -> dict[str, Any]:
        return {
            "value_format": section.choice("valueFormat", _FORMATS, ""),
            "key_format": section.choice("keyFormat", _FORMATS, ""),
            "kop_options": section.options("kopOptions"),
        }

    def _source(self, node: yaml.Node, index: int) -> SourcePart | None:
        section, name, before = self._section(node, index, "source", SOURCE_FIELDS)
        output = self._output(section)
        formats = self._formats(section)
        part = SourcePart(
            name=name,
            format=_short(section.text("format", is_needed="a format that Spark reads, as json, csv or rate")),
            options=section.options("options"),
            schema=section.text("schema"),
            output=output,
            **formats,
            line=section.line,
        )
        return self._kept(part, "source", name, section, ((), (output,)), before)

    def _sink(self, node: yaml.Node, index: int) -> SinkPart | None:
        section, name, before = self._section(node, index, "sink", SINK_FIELDS)
        inputs = tuple(self._topic(section, "inputs", line, text) for line, text in section.texts("inputs"))
        if not inputs:
            section.wrong(section.line_at("inputs"), "inputs: is missing: the topics to read")
        formats = self._formats(section)
        part = SinkPart(
            name=name,
            inputs=tuple(dict.fromkeys(inputs)),
            format=_short(section.text("format", is_needed="a format that Spark writes, as parquet, csv or jdbc")),
            options=section.options("options"),
            columns=tuple(text for _, text in section.texts("columns")),
            **formats,
            line=section.line,
        )
        return self._kept(part, "sink", name, section, (inputs, ()), before)

    def _query(self, node: yaml.Node, index: int) -> QueryPart | None:
        section, name, before = self._section(node, index, "query", QUERY_FIELDS)
        sql = section.text("sql", is_needed="what it selects")
        output = self._output(section)
        views = self._views(section, sql)
        if sql and not views:
            section.wrong(section.line_at("sql"), "sql: names no topic after FROM or JOIN")
        formats = self._formats(section)
        part = QueryPart(
            name=name,
            sql=sql,
            views=views,
            output=output,
            output_mode=section.choice("outputMode", OUTPUT_MODES, "append"),
            **formats,
            line=section.line,
        )
        return self._kept(part, "query", name, section, (part.inputs, (output,)), before)

    def _views(self, section: Section, sql: str) -> dict[str, View]:
        """Return the tables that an SQL text names, each with the topic, the options and the watermark that the field
        `views` gives it; without a topic there, the table's name is the topic's. Notes as mistakes what is no
        watermark, and tables in `views` that the SQL does not name.
        """
        tables = tables_of(sql)
        said: dict[str, tuple[int, dict[str, str]]] = {}
        if "views" in section.fields:
            line, node = section.fields["views"]
            if not isinstance(node, yaml.MappingNode):
                section.wrong(line, "views: must be fields, TABLE: {OPTION: VALUE}")
            for table, at, given in items_of(node):
                if table not in tables:
                    section.wrong(at, f"views.{table}: sql names no such table{near(table, tables)}")
                said[table] = at, section.options_of(f"views.{table}", at, given)
        views: dict[str, View] = {}
        for table in tables:
            line, options = said.get(table, (section.line_at("sql"), {}))
            for name, value in options.items():
                if name.lower() in {"valueformat", "keyformat"} and value.lower() not in {"", *_FORMATS}:
                    told = f"must be {' or '.join(_FORMATS)}, got {value}{near(value, _FORMATS)}"
                    section.wrong(line, f"views.{table}.{name}: {told}")
            watermark = options.pop("watermark", "").strip()
            if watermark and not _WATERMARK.fullmatch(watermark):
                section.wrong(line, f"views.{table}.watermark: must be COLUMN DELAY, as in timestamp 10 minutes")
            topic = self._topic(section, "sql", line, options.pop("subscribe", table))
            views[table] = View(topic, options, watermark)
        return views

    # -- functions

    def _function(self, node: yaml.Node, index: int) -> FunctionPart | None:
        section, name, before = self._section(node, index, "function", FUNCTION_FIELDS)
        if not isinstance(node, yaml.MappingNode):
            return None
        keeps_key, is_private = section.truth("keepsKey"), section.truth("private")
        lines: dict[FieldPath, int] = {}
        fields = {name: given for name, given in section.fields.items() if name not in OWN_FUNCTION_FIELDS}
        config = {
            name: _value(node, (name,), section, line, lines, is_free=name == "userConfig")
            for name, (line, node) in fields.items()
        } | self._fixed(section)
        spec = self._checked(section, config, lines)
        if is_private and not config.get("output"):
            section.wrong(section.line_at("private"), "private: there is no output that could be private")
        if spec is None or len(self._mistakes) > before:
            texts = [text for _, text in section.texts("inputs")]
            inputs = map(self._meant, texts) if spec is None else spec.named_inputs
            return self._kept(None, "function", name, section, (inputs, (self._meant(section.text("output")),)), before)
        config = FunctionConfig.model_validate(config).model_dump(
            by_alias=True, exclude_unset=True, exclude_none=True, mode="json"
        )
        if spec.parallelism > 1:
            self._notes.append(f"line {section.line_at('parallelism')}: {section.told(_NO_PARALLELISM)}")
        return FunctionPart(
            spec=spec,
            config=config,
            keeps_key=keeps_key,
            is_private=is_private,
            has_state="stateScope" in config,
            line=section.line,
        )

    def _checked(self, section: Section, config: dict[str, Any], lines: dict[FieldPath, int]) -> FunctionSpec | None:
        """Return a function if it passes the checks of functions, and keep what these tell its author for the notes of
        the mesh; else note its mistakes and return None.
        """
        spec, told = read_values(config, lines, self._topic_names)
        for line, text in told:
            if spec is None:
                section.wrong(line or section.line, text)
            else:
                self._notes.append(f"line {line or section.line}: {section.place}: {text}")
        return spec

    def _fixed(self, section: Section) -> dict[str, str]:
        """Return the fields of a function that do not come from its own text alone: the mesh's tenant and namespace, if
        it does not give its own, and the path of its code with the folder of the mesh's file before it.
        """
        fixed = {} if "fqfn" in section.fields else {"tenant": self._tenant, "namespace": self._namespace}
        fixed = {name: text for name, text in fixed.items() if name not in section.fields}
        py = section.text("py")
        return fixed | ({"py": str(self._folder / py)} if py else {})


def _short(name: str) -> str:
    """Return the name of a format of Spark in lower case, as Spark takes it in any case; the name of a class, which has
    a dot, is returned as it is.
    """
    return name if "." in name else name.lower()


def _value(
    node: yaml.Node, path: FieldPath, section: Section, line: int, lines: dict[FieldPath, int], *, is_free: bool
) -> Any:
    """Return the value of a field as JSON has it, and note in `lines` on which lines its parts stand; `path` is that of
    the field, `line` its own.

    What YAML takes for numbers or dates stays text; if `is_free`, only dates do, and what is no value of JSON is noted
    as a mistake of the section.
    """
    lines[path] = line
    if isinstance(node, yaml.MappingNode):
        inner = items_of(node)
        return {name: _value(value, (*path, name), section, at, lines, is_free=is_free) for name, at, value in inner}
    if isinstance(node, yaml.SequenceNode):
        items = enumerate(node.value)
        return [_value(item, (*path, index), section, line_of(item), lines, is_free=is_free) for index, item in items]
    if is_null(node):
        return None
    if is_free and node.tag != "tag:yaml.org,2002:timestamp":
        return _free(node, path, section, line)
    return node.value


def _free(node: yaml.Node, path: FieldPath, section: Section, line: int) -> Any:
    """Return the number, the truth or the text that YAML takes a value for. None if it is none that JSON has, which is
    noted as a mistake of the section.
    """
    try:
        value = yaml.safe_load(yaml.serialize(node))
    except (yaml.YAMLError, ValueError, KeyError):
        value = math.nan
    if isinstance(value, float) and not math.isfinite(value):
        place, shown = ".".join(map(str, path)), node.value if len(node.value) <= 40 else f"{node.value[:40]}…"
        section.wrong(line, f"{place}: {shown} is no number that can be kept: put it in quotes to have a text")
        return None
    return value
