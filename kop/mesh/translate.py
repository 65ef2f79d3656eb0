"""The other forms of a mesh's file, translated into ours: Function Mesh's objects for Kubernetes, and the short form.

Owns: the tables of fields, what is Kubernetes' or the JVM's and is left out.
Must not know: what fields of our form mean.

Translation is of nodes, so that every value keeps its line.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

import yaml

from kop.mesh.nodes import Mistakes, is_null, items_of, line_of, near

_TEXT: Final = "tag:yaml.org,2002:str"
_MAP: Final = "tag:yaml.org,2002:map"
_LIST: Final = "tag:yaml.org,2002:seq"

MESH_WIDE: Final = ("trigger", "batchSeconds", "fuse", "externalWriters", "kopOptions", "queries")
"""Fields of our form that the others take, too, where they have the mesh's own."""
OF_FUNCTIONS: Final = ("keepsKey", "private", "stateScope")
"""The same of a function."""

FUNCTION: Final = {
    "name": "name",
    "className": "className",
    "tenant": "tenant",
    "namespace": "namespace",
    "replicas": "parallelism",
    "input.topics": "inputs",
    "input.topicPattern": "topicsPattern",
    "input.typeClassName": "inputTypeClassName",
    "input.customSerdeSources": "customSerdeInputs",
    "input.customSchemaSources": "customSchemaInputs",
    "input.sourceSpecs": "inputSpecs",
    "output.topic": "output",
    "output.typeClassName": "outputTypeClassName",
    "output.sinkSerdeClassName": "outputSerdeClassName",
    "output.sinkSchemaType": "outputSchemaType",
    "output.customSchemaSinks": "customSchemaOutputs",
    "output.producerConf": "producerConfig",
    "python.py": "py",
    "logTopic": "logTopic",
    "funcConfig": "userConfig",
    "secretsMap": "secrets",
    "timeout": "timeoutMs",
    "autoAck": "autoAck",
    "maxMessageRetry": "maxMessageRetries",
    "processingGuarantee": "processingGuarantees",
    "retainOrdering": "retainOrdering",
    "retainKeyOrdering": "retainKeyOrdering",
    "deadLetterTopic": "deadLetterTopic",
    "forwardSourceMessageProperty": "forwardSourceMessageProperty",
    "maxPendingAsyncRequests": "maxPendingAsyncRequests",
    "runtimeFlags": "runtimeFlags",
    "subscriptionName": "subName",
    "subscriptionPosition": "subscriptionPosition",
    "cleanupSubscription": "cleanupSubscription",
    "skipToLatest": "skipToLatest",
    "windowConfig": "windowConfig",
    "statefulConfig": "stateScope",
    **dict(zip(OF_FUNCTIONS, OF_FUNCTIONS, strict=True)),
}
"""Function Mesh's field of a function to ours; a dot is a field within."""
SOURCE: Final = {
    "name": "name",
    "sourceType": "format",
    "sourceConfig": "options",
    "output.topic": "output",
    "output.sinkSchemaType": "valueFormat",
    "schema": "schema",
    "keyFormat": "keyFormat",
}
SINK: Final = {
    "name": "name",
    "sinkType": "format",
    "sinkConfig": "options",
    "input.topics": "inputs",
    "valueFormat": "valueFormat",
    "keyFormat": "keyFormat",
}
KUBERNETES: Final = {
    "clusterName",
    "minReplicas",
    "maxReplicas",
    "showPreciseParallelism",
    "downloaderImage",
    "cleanupImage",
    "filebeatImage",
    "logTopicAgent",
    "resources",
    "volumeMounts",
    "image",
    "imagePullPolicy",
    "imageHasPulsarctl",
    "imageHasGet",
    "imageWithPulsarctl",
    "pod",
    "volumeClaimTemplates",
    "persistentVolumeClaimRetentionPolicy",
    "pulsar.authSecret",
    "pulsar.tlsSecret",
    "pulsar.tlsConfig",
    "pulsar.authConfig",
    "pulsar.cleanupAuthConfig",
    "python.pyLocation",
    "python.log",
    "genericRuntime.functionFileLocation",
    "genericRuntime.log",
}
"""Fields that are Kubernetes' and are left out."""
JVM: Final = {"java", "sourceType", "sinkType", "jarFile"}
"""Fields that are the JVM's and are left out of functions in Python."""
RUNTIMES: Final = {*JVM, "golang", "genericRuntime.language", "genericRuntime.functionFile"}
CONNECTORS: Final = {
    "tenant",
    "namespace",
    "className",
    "replicas",
    "secretsMap",
    "processingGuarantee",
    "runtimeFlags",
    "forwardSourceMessageProperty",
    "statefulConfig",
    "java",
    "python",
    "golang",
    "genericRuntime",
    "timeout",
    "negativeAckRedeliveryDelayMs",
    "autoAck",
    "maxMessageRetry",
    "retainOrdering",
    "retainKeyOrdering",
    "deadLetterTopic",
    "subscriptionName",
    "cleanupSubscription",
    "subscriptionPosition",
    "output.typeClassName",
    "output.sinkSerdeClassName",
    "output.producerConf",
    "output.customSchemaSinks",
    "input.typeClassName",
    "input.sourceSpecs",
    "input.customSerdeSources",
    "input.customSchemaSources",
    "batchSourceConfig",
}
"""Fields of Pulsar's connectors that formats of Spark have not."""
OF_OBJECTS: Final = ("apiVersion", "kind", "metadata", "spec", "status")
SHORT: Final = {"classname": "className", "replicas": "parallelism"}
"""Fields of a function of the short form that have another name in ours."""

Written = Mapping[str, str]
"""Field of our form to the name by which the author wrote it."""


@dataclass(frozen=True)
class Translated:
    """A file in our form."""

    node: yaml.Node
    written: Written = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    without_code: bool = False
    """True if some function has no file of Python, which is told: code is not looked at."""


def translated(nodes: Sequence[yaml.Node], mistakes: Mistakes) -> Translated | None:
    """Return the mesh of a file's documents in kop's own form; None, with a mistake noted, if there is none."""
    kinds = [_text_of(_fields(node).get("kind")) for node in nodes]
    if any(kinds) or any({"apiVersion", "spec"} & _fields(node).keys() for node in nodes):
        return _Objects(mistakes).mesh(nodes, kinds)
    if len(nodes) > 1:
        mistakes.add(line_of(nodes[1]), "a second document: a file has one mesh")
    if "functionInfos" in _fields(nodes[0]):
        return _short(nodes[0], mistakes)
    return Translated(nodes[0])


# -- nodes


def _fields(node: yaml.Node | None) -> dict[str, yaml.Node]:
    return {} if node is None else {name: value for name, _, value in items_of(node) if not is_null(value)}


def _text_of(node: yaml.Node | None) -> str:
    return str(node.value) if isinstance(node, yaml.ScalarNode) else ""


def _scalar(text: str, like: yaml.Node) -> yaml.ScalarNode:
    return yaml.ScalarNode(_TEXT, text, like.start_mark, like.end_mark)


def _mapping(items: Sequence[tuple[yaml.Node, yaml.Node]], like: yaml.Node) -> yaml.MappingNode:
    return yaml.MappingNode(_MAP, list(items), like.start_mark, like.end_mark)


def _list(items: Sequence[yaml.Node], like: yaml.Node) -> yaml.SequenceNode:
    return yaml.SequenceNode(_LIST, list(items), like.start_mark, like.end_mark)


def _renamed(node: yaml.Node, names: Mapping[str, str]) -> yaml.Node:
    if not isinstance(node, yaml.MappingNode):
        return node
    return _mapping(
        [
            (_scalar(names[key.value], key) if isinstance(key, yaml.ScalarNode) and key.value in names else key, value)
            for key, value in node.value
        ],
        node,
    )


def _with_option(
    items: Sequence[tuple[yaml.Node, yaml.Node]], name: yaml.Node, value: yaml.Node
) -> list[tuple[yaml.Node, yaml.Node]]:
    """Return the fields of a mesh with an option in their kopOptions; one of this name that is there stays."""
    others = [item for item in items if _text_of(item[0]) != "kopOptions"]
    given = next((item[1] for item in items if _text_of(item[0]) == "kopOptions" and not is_null(item[1])), None)
    if given is None:
        given = _mapping([], value)
    if isinstance(given, yaml.MappingNode):
        given = _mapping([*given.value, (name, value)], given)
    return [*others, (_scalar("kopOptions", given), given)]


# -- Function Mesh


class _Objects:
    """Translates objects of Kubernetes."""

    def __init__(self, mistakes: Mistakes) -> None:
        self._mistakes = mistakes
        self._ignored: dict[str, dict[str, int]] = {}
        """Whose fields are left out, to their names and the line of the first of each."""
        self._config_names: dict[str, int] = {}
        self._without_code = False

    def mesh(self, nodes: Sequence[yaml.Node], kinds: Sequence[str]) -> Translated | None:
        meshes = [node for node, kind in zip(nodes, kinds, strict=True) if kind == "FunctionMesh"]
        if len(meshes) != 1:
            line = line_of(meshes[1] if meshes else nodes[0])
            given = f", got {', '.join(filter(None, kinds))}" if any(kinds) and not meshes else ""
            self._mistakes.add(line, f"kind: one object must be a FunctionMesh{given}")
            return None
        for node, kind in zip(nodes, kinds, strict=True):
            if not kind:
                told = "is missing: each document is an object of Kubernetes, FunctionMesh or ConfigMap"
                self._mistakes.add(line_of(node), f"kind: {told}")
            elif kind not in {"FunctionMesh", "ConfigMap"}:
                self._ignore("Kubernetes'", f"the object {kind}", line_of(node))
        node = meshes[0]
        top = _fields(node)
        for name, line, _ in items_of(node):
            if name == "status":
                self._ignore("Kubernetes'", name, line)
            elif name not in OF_OBJECTS:
                self._mistakes.add(line, f"{name}: there is no such field{near(name, OF_OBJECTS)}")
        items: list[tuple[yaml.Node, yaml.Node]] = []
        metadata, spec = top.get("metadata"), top.get("spec")
        for name, line, value in items_of(metadata) if metadata is not None else ():
            if name == "name":
                items.append((_scalar("name", value), value))
            else:
                self._ignore("Kubernetes'", f"metadata.{name}", line)
        if spec is None:
            self._mistakes.add(line_of(node), "spec: is missing: functions, sources and sinks")
            return None
        for name, line, value in items_of(spec):
            if name in {"functions", "sources", "sinks"}:
                if isinstance(value, yaml.SequenceNode):
                    value = _list([self._part(name, part) for part in value.value], value)  # noqa: PLW2901
            elif name not in MESH_WIDE:
                known = ("functions", "sources", "sinks", *MESH_WIDE)
                self._mistakes.add(line, f"spec.{name}: there is no such field{near(name, known)}")
                continue
            items.append((_scalar(name, value), value))
        items += self._of_first(spec)
        url = self._admin_url(nodes, kinds)
        if url is not None:
            items = _with_option(items, _scalar("pulsar.admin.url", url), url)
        notes = [
            f"line {min(names.values())}: {whose} fields are left out: {', '.join(names)}"
            for whose, names in self._ignored.items()
        ]
        written = {ours: theirs for theirs, ours in FUNCTION.items() if ours != theirs}
        return Translated(_mapping(items, node), written, tuple(notes), self._without_code)

    def _of_first(self, spec: yaml.Node) -> list[tuple[yaml.Node, yaml.Node]]:
        """Return tenant and namespace, each of the first function that gives it, as fields of the mesh: pairs of name
        and value.
        """
        functions = _fields(spec).get("functions")
        parts = functions.value if isinstance(functions, yaml.SequenceNode) else []
        given = [
            (name, value) for name in ("tenant", "namespace") for part in parts if (value := _fields(part).get(name))
        ]
        return [(_scalar(name, value), value) for name, value in dict(reversed(given)).items()]

    def _admin_url(self, nodes: Sequence[yaml.Node], kinds: Sequence[str]) -> yaml.Node | None:
        """Return the admin address in the ConfigMaps that parts refer to; None if there is none. Parts have to be
        translated before: that notes what they refer to. Notes a mistake if a ConfigMap is not in the file, or two have
        different addresses; their other data is left out, and told.
        """
        maps = {
            _text_of(_fields(_fields(node).get("metadata")).get("name")): node
            for node, kind in zip(nodes, kinds, strict=True)
            if kind == "ConfigMap"
        }
        url: yaml.Node | None = None
        for name, line in self._config_names.items():
            if name not in maps:
                given = near(name, maps)
                self._mistakes.add(line, f"pulsar.pulsarConfig: there is no ConfigMap {name} in the file{given}")
                continue
            data = _fields(_fields(maps[name]).get("data"))
            address = data.get("webServiceURL")
            if address is not None and url is not None and _text_of(address) != _text_of(url):
                self._mistakes.add(line, f"pulsar.pulsarConfig: {name} names another cluster: a mesh has one")
            url = url or address
            for field_name, node in data.items():
                if field_name != "webServiceURL":
                    self._ignore("Pulsar's client's", f"{name}.{field_name}", line_of(node))
        return url

    def _ignore(self, whose: str, name: str, line: int) -> None:
        self._ignored.setdefault(whose, {}).setdefault(name, line)

    def _flat(
        self, node: yaml.Node, known: Mapping[str, str], place: str, dropped: set[str]
    ) -> dict[str, tuple[int, yaml.Node]]:
        """Return the fields of a part that are translated (`known`), by their names with dots, each with its line and
        value. Kubernetes' fields and those in `dropped` are left out, which is told; a reference to a ConfigMap is kept
        for later. Any other field is noted as a mistake of `place`, the part in words.
        """
        within = {name.partition(".")[0] for name in (*known, *KUBERNETES, *dropped) if "." in name} | {
            "pulsar",
            "genericRuntime",
        }
        flat: dict[str, tuple[int, yaml.Node]] = {}
        for name, line, value in items_of(node):
            if name in within and name not in dropped and not isinstance(value, yaml.MappingNode):
                if not is_null(value):
                    self._mistakes.add(line, f"{place}: {name}: must be fields, NAME: VALUE")
                continue
            inner = [(f"{name}.{key}", at, item) for key, at, item in items_of(value)]
            if name not in within or name in dropped:
                inner = [(name, line, value)]
            for path, at, item in inner:
                if path in known and path not in dropped:
                    flat[path] = (at, item)
                elif path in KUBERNETES:
                    self._ignore("Kubernetes'", path, at)
                elif path in dropped:
                    self._ignore("Pulsar's connectors'", path, at)
                elif path == "pulsar.pulsarConfig":
                    if not is_null(item):
                        self._config_names.setdefault(_text_of(item), at)
                elif known is FUNCTION and path in RUNTIMES:
                    if not is_null(item):
                        flat[path] = (at, item)
                else:
                    names = (*known, *KUBERNETES, "pulsar.pulsarConfig")
                    self._mistakes.add(at, f"{place}: {path}: there is no such field{near(path, names)}")
        return flat

    def _part(self, name: str, node: yaml.Node) -> yaml.Node:
        """Return a part, an item of the field with this name, in our form; what is no part is returned as it is."""
        if not isinstance(node, yaml.MappingNode):
            return node
        place = f"{name.removesuffix('s')} {_text_of(_fields(node).get('name')) or '?'}"
        if name == "functions":
            return self._function(node, place)
        return self._connector(node, place, SOURCE if name == "sources" else SINK)

    def _function(self, node: yaml.MappingNode, place: str) -> yaml.Node:
        flat = self._flat(node, FUNCTION, place, set())
        language = flat.pop("genericRuntime.language", None)
        file = flat.pop("genericRuntime.functionFile", None)
        if language is not None and _text_of(language[1]).lower() == "python":
            if file is not None:
                flat.setdefault("python.py", file)
        elif language is not None:
            self._mistakes.add(
                language[0], f"{place}: genericRuntime: functions in {_text_of(language[1])} are not run"
            )
        for name in ("java", "golang"):
            if name in flat and "python.py" not in flat:
                told = f"functions in {name.capitalize()} are not run: name a file of Python, python: {{py: FILE}}"
                self._mistakes.add(flat[name][0], f"{place}: {name}: {told}")
                flat["python.py"] = (flat[name][0], _scalar("none.py", flat[name][1]))
                self._without_code = True
        if not is_null(flat["stateScope"][1] if "stateScope" in flat else None):
            flat.pop("statefulConfig", None)
        items: list[tuple[yaml.Node, yaml.Node]] = []
        for path, (line, value) in flat.items():
            if is_null(value):
                continue
            if path in {"golang", *JVM}:
                self._ignore("the JVM's" if path != "golang" else "Go's", path, line)
            elif path.endswith("ypeClassName") and _text_of(value).startswith(("java.", "[")):
                self._ignore("the JVM's", path, line)
            else:
                items.append((_at(FUNCTION[path], line, value), _function_value(path, value)))
        return _mapping(items, node)

    def _connector(self, node: yaml.MappingNode, place: str, table: Mapping[str, str]) -> yaml.Node:
        kind = place.partition(" ")[0]
        dropped = CONNECTORS - set(table)
        items: list[tuple[yaml.Node, yaml.Node]] = []
        flat = self._flat(node, table, place, dropped)
        given = flat.get(f"{kind}Type")
        if given is None:
            line = line_of(node)
            self._mistakes.add(line, f"{place}: {kind}Type: is missing: spark:FORMAT; connectors in Java are not run")
            flat[f"{kind}Type"] = (line, _scalar("spark:none", node))
        elif not _text_of(given[1]).startswith("spark:"):
            told = f"connectors in Java are not run: spark:FORMAT names a format of Spark, got {_text_of(given[1])}"
            self._mistakes.add(given[0], f"{place}: {kind}Type: {told}")
        for path, (line, value) in flat.items():
            if path in table:
                text = _text_of(value)
                if path.endswith("Type") and not path.endswith("SchemaType"):
                    value = _scalar(text.removeprefix("spark:"), value)  # noqa: PLW2901
                elif path.endswith("SchemaType"):
                    value = _scalar(text.lower(), value)  # noqa: PLW2901
                items.append((_at(table[path], line, value), value))
        return _mapping(items, node)


def _at(name: str, line: int, like: yaml.Node) -> yaml.ScalarNode:
    """Return a node with the name of a field, as if it stood at this line."""
    mark = yaml.Mark(like.start_mark.name, 0, line - 1, 0, None, 0)
    return yaml.ScalarNode(_TEXT, name, mark, mark)


def _function_value(path: str, value: yaml.Node) -> yaml.Node:
    if path == "secretsMap" and isinstance(value, yaml.MappingNode):
        # Function Mesh gives a secret to the process as a variable of this name.
        return _mapping(
            [(key, _mapping([(_scalar("env", key), _scalar(_text_of(key), key))], item)) for key, item in value.value],
            value,
        )
    if path == "statefulConfig":
        return _scalar("function", value)
    if path == "input.sourceSpecs" and isinstance(value, yaml.MappingNode):
        return _mapping(
            [(key, _renamed(item, {"serdeClassname": "serdeClassName"})) for key, item in value.value], value
        )
    return value


# -- the short form


def _short(node: yaml.Node, mistakes: Mistakes) -> Translated:
    top = _fields(node)
    file = top.get("pyFile")
    notes: list[str] = []
    without_code = False
    jar = top.get("jarFile")
    if jar is not None and file is None:
        if _text_of(jar).endswith(".jar"):
            told = "functions in Java are not run: pyFile: FILE names the file of Python for all functions"
            mistakes.add(line_of(jar), f"jarFile: {told}")
            file = _scalar("none.py", jar)
            without_code = True
        else:
            file = jar
    elif jar is not None:
        notes.append(f"line {line_of(jar)}: the JVM's fields are left out: jarFile")
    items: list[tuple[yaml.Node, yaml.Node]] = []
    assert isinstance(node, yaml.MappingNode)
    for key, value in node.value:
        name = _text_of(key)
        if name == "functions":
            mistakes.add(line_of(key), "functions: stands beside functionInfos: one of them")
        elif name == "functionInfos":
            parts = value.value if isinstance(value, yaml.SequenceNode) else []
            made = _list([_short_function(part, file, mistakes) for part in parts], value)
            items.append((_scalar("functions", key), made if isinstance(value, yaml.SequenceNode) else value))
        elif name not in {"jarFile", "pyFile"}:
            items.append((key, value))
    written = {"functions": "functionInfos", "className": "classname", "parallelism": "replicas", "py": "pyFile"}
    return Translated(_mapping(items, node), written, tuple(notes), without_code)


def _short_function(node: yaml.Node, file: yaml.Node | None, mistakes: Mistakes) -> yaml.Node:
    if not isinstance(node, yaml.MappingNode):
        return node
    place = f"function {_text_of(_fields(node).get('name')) or '?'}"
    items: list[tuple[yaml.Node, yaml.Node]] = []
    written: dict[str, str] = {}
    """Field of our form to the name by which it was written first."""
    for key, value in node.value:
        name = _text_of(key)
        if name == "output" and isinstance(value, yaml.SequenceNode):
            if len(value.value) > 1:
                told = "a function has one output: let it publish to the others, context.publish(TOPIC, MESSAGE)"
                mistakes.add(line_of(value.value[1]), f"{place}: output: {told}")
            if value.value:
                items.append((key, value.value[0]))
            continue
        ours = SHORT.get(name, name)
        given = written.setdefault(ours, name)
        if given != name:
            mistakes.add(line_of(key), f"{place}: {name}: stands beside {given}: one of them")
        items.append((_scalar(ours, key), value))
    if file is not None and "py" not in _fields(node):
        items.append((_at("py", line_of(file), file), file))
    return _mapping(items, node)
