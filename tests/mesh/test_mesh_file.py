"""The file of a mesh: three forms, names that stay texts, mistakes with their lines."""

from __future__ import annotations

from pathlib import Path

import pytest

from kop.functions.spec import Guarantee, SecretPlace
from kop.functions.topics import TopicNames
from kop.mesh.file import draft_of, read_mesh, text_of
from kop.mesh.nodes import MeshError
from kop.mesh.spec import Mesh, QueryPart, SinkPart, SourcePart, View

OWN = """\
tenant: t
namespace: n
name: orders
trigger: batch
batchSeconds: 2.5
fuse: false
externalWriters: [orders, shared]
kopOptions: {schema.registry.url: http://registry}
functions:
  - name: check
    className: check.Check
    py: code/check.py
    inputs: [orders]
    output: checked
    processingGuarantees: EFFECTIVELY_ONCE
    keepsKey: true
    private: yes
    userConfig: {least: 5, deep: {on: yes}}
  - {name: count, className: count, py: /srv/count.py, inputs: [checked], stateScope: partition, parallelism: 4}
sources:
  - name: files
    format: json
    schema: id LONG, amount DOUBLE
    options: {path: data, maxFilesPerTrigger: 1, multiLine: true, none: ~}
    output: orders
    valueFormat: json
sinks:
  - {name: table, inputs: [checked, checked], format: parquet, options: {path: out}, valueFormat: auto, keyFormat: json}
queries:
  - name: large
    sql: SELECT value FROM checked WHERE amount > 10
    output: large
"""


def mistakes(text: str) -> list[str]:
    with pytest.raises(MeshError) as caught:
        read_mesh(text, "mesh.yaml")
    assert str(caught.value).startswith("mesh.yaml, line ")
    return [f"{mistake.line}: {mistake.text}" for mistake in caught.value.mistakes]


def test_a_file_is_text_in_utf_8(tmp_path: Path) -> None:
    path = tmp_path / "mesh.yaml"
    path.write_bytes("name: m # é\r\n".encode())
    assert text_of(path) == "name: m # é\n"
    path.write_bytes(b"name: m\n# \xe9\n")
    with pytest.raises(MeshError, match=r"mesh.yaml, line 2: is no text in UTF-8: invalid continuation byte"):
        text_of(path)


def test_all_fields_of_our_form() -> None:
    mesh = read_mesh(OWN, "/meshes/orders.yaml")
    assert (mesh.full_name, mesh.trigger, mesh.batch_seconds, mesh.fuse) == ("t/n/orders", "batch", 2.5, False)
    assert mesh.external_writers == {"orders", "shared"}
    assert mesh.kop_options == {"schema.registry.url": "http://registry"}
    check, count = mesh.functions
    assert (check.name, check.line, check.keeps_key, check.is_private, check.has_state) == (
        "check",
        10,
        True,
        True,
        False,
    )
    assert check.spec.fqfn == "t/n/check"
    assert check.spec.py == "/meshes/code/check.py"
    assert check.spec.processing_guarantees is Guarantee.EFFECTIVELY_ONCE
    assert check.config["userConfig"] == {"least": 5, "deep": {"on": True}}
    assert (check.inputs, check.outputs) == (("orders",), ("checked",))
    assert (count.spec.py, count.spec.parallelism, count.has_state, count.holds_order) == (
        "/srv/count.py",
        4,
        True,
        "state",
    )
    assert count.config == {
        "tenant": "t",
        "namespace": "n",
        "name": "count",
        "className": "count",
        "py": "/srv/count.py",
        "inputs": ["checked"],
        "stateScope": "partition",
        "parallelism": 4,
    }
    assert mesh.sources == (
        SourcePart(
            name="files",
            format="json",
            schema="id LONG, amount DOUBLE",
            options={"path": "data", "maxFilesPerTrigger": "1", "multiLine": "true", "none": ""},
            output="orders",
            value_format="json",
            line=21,
        ),
    )
    sink = SinkPart(
        name="table",
        inputs=("checked",),
        format="parquet",
        options={"path": "out"},
        value_format="auto",
        key_format="json",
        line=28,
    )
    assert mesh.sinks == (sink,)
    sql = "SELECT value FROM checked WHERE amount > 10"
    views = {"checked": View("checked")}
    assert mesh.queries == (QueryPart(name="large", sql=sql, views=views, output="large", line=30),)
    assert [part.name for part in mesh.parts] == ["files", "check", "count", "large", "table"]


QUERY = """\
name: m
queries:
  - name: q
    sql: SELECT a.key, b.value FROM a JOIN `b-c` b ON a.key = b.key
    views:
      a: {subscribe: other, valueFormat: json, watermark: value.at 5 minutes}
    outputMode: complete
    output: out
    valueFormat: avro
    kopOptions: {valueSubject: s}
sinks: [{name: s, inputs: out, format: jdbc, columns: [value.id AS number, key], kopOptions: {mode: PERMISSIVE}}]
"""


def test_tables_of_a_query_are_topics_with_options() -> None:
    mesh = read_mesh(QUERY, "mesh.yaml")
    (query,), (sink,) = mesh.queries, mesh.sinks
    assert query.views == {"a": View("other", {"valueFormat": "json"}, "value.at 5 minutes"), "b-c": View("b-c")}
    assert (query.inputs, query.output_mode, query.value_format) == (("other", "b-c"), "complete", "avro")
    assert query.kop_options == {"valueSubject": "s"}
    assert (sink.columns, sink.kop_options) == (("value.id AS number", "key"), {"mode": "PERMISSIVE"})


@pytest.mark.parametrize(("given", "made"), [("JDBC", "jdbc"), ("Parquet", "parquet"), ("a.B", "a.B")])
def test_formats_of_spark_mind_no_case(given: str, made: str) -> None:
    (sink,) = read_mesh(QUERY.replace("jdbc", given), "mesh.yaml").sinks
    assert sink.format == made


@pytest.mark.parametrize(
    ("old", "new", "told"),
    [
        ("      a: {", "      A1: {", "6: query q: views.A1: sql names no such table; is it a?"),
        ("at 5 minutes", "at soon", "6: query q: views.a.watermark: must be COLUMN DELAY, as in timestamp 10 minutes"),
        (
            "complete",
            "compleet",
            "7: query q: outputMode: must be append or update or complete, got compl",
        ),
        ("views:\n      a: {", "views: [{", "5: query q: views: must be fields, TABLE: {OPTION: VALUE}"),
        ("a: {subscribe: other, valueFormat: json, watermark: value.at 5 minutes}", "a: 5", "6: query q: views.a: mus"),
        (
            "valueFormat: json",
            "ValueFormat: jsn",
            "6: query q: views.a.ValueFormat: must be bytes or string or json or",
        ),
        ("value.at 5 minutes", "[at]", "6: query q: views.a.watermark: must be a text"),
    ],
)
def test_mistakes_of_queries(old: str, new: str, told: str) -> None:
    text = QUERY.replace(old, new)
    if "views: [{" in text:
        text = text.replace("5 minutes}", "5 minutes}]")
    assert any(mistake.startswith(told) for mistake in mistakes(text)), mistakes(text)


def test_what_looks_like_a_number_or_a_truth_value_stays_a_name() -> None:
    text = """
name: no
functions:
- name: 010
  className: 1e3
  py: on
  inputs: [12:30, 2024-01-01, 0x10]
  inputSpecs: {yes: {schemaType: JSON}}
  output: 1_000
  userConfig: {number: 010, text: "010"}
sinks:
- {name: true, inputs: 12:30, format: off, options: {1: 010}}
"""
    mesh = read_mesh(text, "mesh.yaml")
    spec = mesh.functions[0].spec
    assert (mesh.name, spec.name, spec.class_name, spec.py) == ("no", "010", "1e3", "on")
    assert (set(spec.inputs), spec.output) == ({"12:30", "2024-01-01", "0x10", "yes"}, "1_000")
    assert spec.user_config == {"number": 8, "text": "010"}
    sink = mesh.sinks[0]
    assert (sink.name, sink.inputs, sink.format, sink.options) == ("true", ("12:30",), "off", {"1": "010"})


def test_names_of_topics_are_those_of_the_server() -> None:
    text = """
name: m
externalWriters: ["persistent://a/b/x"]
functions: [{name: f, className: f, py: f.py, inputs: [a/b/x], output: "persistent://c/d/y"}]
sinks: [{name: s, inputs: c/d/y, format: json}]
"""
    mesh = read_mesh(text, "mesh.yaml", TopicNames(has_namespaces=True))
    assert mesh.external_writers == {"a/b/x"}
    assert mesh.functions[0].inputs == ("a/b/x",)
    assert mesh.sinks[0].inputs == mesh.functions[0].outputs == ("c/d/y",)
    assert [mistake.partition(": ")[0] for mistake in mistakes(text)] == ["3", "4", "4", "5"]


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("", "1: is empty: a mesh has name and functions"),
        ("# nothing\n---\n", "1: is empty: a mesh has name and functions"),
        ("- a", "1: must be fields, NAME: VALUE"),
        ("text", "1: must be fields, NAME: VALUE"),
        ("name: m", "1: has no parts: functions, sources, sinks or queries"),
        ("name: m\nfunctions: {a: 1}", "2: functions: must be a list, each part begins with a dash: - name: NAME"),
        ("name: m\nfunctions: [a]", "2: function 1: must be fields, NAME: VALUE"),
        ("name: m\nfunctions: [", "2: is no YAML: expected the node content, but found '<stream end>'"),
        ("name: m\nname: n\nsinks: []", "2: name: stands here a second time, after line 1"),
        ("name: &a m\nnamespace: *a\nsinks: []", "1: namespace: an alias (*): write the value again"),
        ("name: m\n<<: {fuse: true}\nsinks: []", "2: a merge (<<): write its fields here"),
        ("name: m\n? [a]\n: b", "2: a name must be a text"),
        (
            "name: !!python/object:os.system m\nsinks: []",
            "1: name: the tag tag:yaml.org,2002:python/object:os.system is",
        ),
        ('name: m\nsinks: [{name: "\\ud83d\\ude00"}]', "2: \\ud83d is no character: write the character itself"),
        ('name: m\n"\\ud800": 1', "2: \\ud800 is no character"),
        ("name: m\x01", "1: is no YAML: the character U+0001 may not stand in it"),
        ("name: m\n---\nname: n\n", "3: a second document: a file has one mesh"),
        ("name: m m\nsinks: []", "1: name: 'm m' may have letters, digits and -=:_. only"),
        (
            "name: m\ntrigger: continous\nsinks: []",
            "2: trigger: must be continuous or batch, got continous; is it continuous?",
        ),
        ("name: m\nfuse: maybe\nsinks: []", "2: fuse: must be true or false"),
        ("name: m\nbatchSeconds: -1\nsinks: []", "2: batchSeconds: must be a number above 0"),
        ("name: m\nsinks: [{name: s, format: json}]", "2: sink s: inputs: is missing: the topics to read"),
        ("name: m\nsinks: [{name: s, inputs: [[a]], format: json}]", "2: sink s: inputs: must be a list of texts"),
        ("name: m\nsources: [{name: s, format: json}]", "2: source s: output: is missing: the topic to write"),
        ("name: m\nsources: [{format: json, output: a}]", "2: source 1: name: is missing: the name of the source"),
        (
            "name: m\nsources: [{name: s, format: json, output: a, valueFormat: xml}]",
            "2: source s: valueFormat: must be bytes or string or json or avro or protobuf or auto, got xml",
        ),
        (
            "name: m\nqueries: [{name: q, sql: select 1, output: a}]",
            "2: query q: sql: names no topic after FROM or JOIN",
        ),
        (
            "name: m\nfunctions:\n- {name: f, className: f, py: f.py, inputs: [a], private: true}",
            "3: function f: private: there is no output that could be private",
        ),
        (
            "name: m\nfunctions:\n- name: f\n  inputs: [a]\n  py: f.py",
            "3: function f: className: is missing: MODULE.CLASS",
        ),
        (
            "name: m\nfunctions:\n- name: f\n  className: f\n  py: f.py\n  inputs: [a]\n  windowConfig:\n    maxLag: 1",
            "8: function f: windowConfig.maxLag: there is no such field; is it maxLagMs?",
        ),
        (
            "name: m\nfunctions:\n- name: f\n  className: f\n  py: f.py\n  inputs:\n  - a\n  - {b: c}",
            "8: function f: inputs.1: Input should be a valid string",
        ),
    ],
)
def test_malformed_files(text: str, told: str) -> None:
    assert any(mistake.startswith(told) for mistake in mistakes(text)), mistakes(text)


@pytest.mark.parametrize(
    "value",
    ["0x_", "0b_", "!!int five", "!!float five", "!!bool five", ".nan", "-.inf", "9" * 5000, "=", "{deep: [0x_]}"],
)
def test_what_yaml_takes_for_a_number_and_is_none_is_a_mistake_of_user_config(value: str) -> None:
    text = f"name: m\nfunctions:\n- {{name: f, className: f, py: f.py, inputs: [a], userConfig: {{\n  x: {value}}}}}"
    assert mistakes(text)[0].startswith("4: function f: userConfig.x")
    assert "put it in quotes" in mistakes(text)[0]
    assert len(mistakes(text)[0]) < 150


def test_a_text_in_a_list_is_not_null() -> None:
    draft = draft_of("name: m\nsinks: [{name: s, format: json, inputs: [~, a]}]", "mesh.yaml")
    assert [mistake.text for mistake in draft.mistakes] == ["sink s: inputs: must be a list of texts"]
    assert draft.outlines[0].inputs == ("a",)


@pytest.mark.parametrize("depth", [100, 5000])
def test_a_file_that_is_nested_without_end(depth: int) -> None:
    assert any(
        "nested deeper than 60 levels" in mistake for mistake in mistakes("name: m\na: " + "[" * depth + "]" * depth)
    )


def test_no_beginning_of_a_file_raises_anything_else() -> None:
    for end in range(0, len(OWN), 19):
        draft = draft_of(OWN[:end], Path("mesh.yaml"))
        assert draft.mistakes or draft.mesh.name == "orders"


# -- other forms

OBJECTS = """\
apiVersion: compute.functionmesh.io/v1alpha1
kind: FunctionMesh
metadata:
  name: sample
  labels: {a: b}
spec:
  functions:
    - name: ex1
      tenant: t
      namespace: n
      className: exclamation.Exclamation
      sourceType: java.lang.String
      replicas: 2
      maxReplicas: 4
      input:
        topics: [a]
        sourceSpecs: {b: {serdeClassname: exclamation.Serde}}
        typeClassName: "[B"
      output:
        topic: c
        producerConf: {compressionType: LZ4}
      funcConfig: {x: 1}
      secretsMap: {password: {path: secret, key: word}}
      timeout: 1000
      maxMessageRetry: 3
      processingGuarantee: effectively_once
      subscriptionName: sub
      subscriptionPosition: earliest
      statefulConfig: {pulsar: {serviceUrl: bk}}
      pulsar: {pulsarConfig: cluster, authSecret: x}
      python: {py: exclamation.py, pyLocation: a/b}
      pod: {labels: {}}
    - name: ex2
      className: f
      genericRuntime: {language: Python, functionFile: f.py, log: {level: debug}}
      input: {topics: [c]}
      pulsar: {pulsarConfig: cluster}
  sources:
    - name: in
      sourceType: spark:csv
      sourceConfig: {path: p}
      output: {topic: a, sinkSchemaType: JSON}
      java: {jar: x.jar}
      batchSourceConfig: {discoveryTriggererClassName: x}
  sinks:
    - {name: out, sinkType: spark:parquet, sinkConfig: {path: q}, input: {topics: [c]}}
---
apiVersion: v1
kind: ConfigMap
metadata: {name: cluster}
data:
  webServiceURL: http://pulsar:8080
  brokerServiceURL: pulsar://pulsar:6650
"""

SAME = """\
tenant: t
namespace: n
name: sample
kopOptions: {pulsar.admin.url: http://pulsar:8080}
functions:
  - name: ex1
    className: exclamation.Exclamation
    parallelism: 2
    inputs: [a]
    inputSpecs: {b: {serdeClassName: exclamation.Serde}}
    output: c
    producerConfig: {compressionType: LZ4}
    userConfig: {x: 1}
    secrets: {password: {env: password}}
    timeoutMs: 1000
    maxMessageRetries: 3
    processingGuarantees: EFFECTIVELY_ONCE
    subName: sub
    subscriptionPosition: Earliest
    stateScope: function
    py: exclamation.py
  - {name: ex2, className: f, py: f.py, inputs: [c]}
sources:
  - {name: in, format: csv, options: {path: p}, output: a, valueFormat: json}
sinks:
  - {name: out, format: parquet, options: {path: q}, inputs: [c]}
"""


def without_lines(mesh: Mesh) -> list[object]:
    """Return what two meshes have in common that were written in different forms."""
    functions = [(part.spec, dict(part.config), part.keeps_key, part.has_state) for part in mesh.functions]
    connected: list[SourcePart | SinkPart] = [*mesh.sources, *mesh.sinks]
    others = [
        (part.name, part.inputs, part.outputs, part.format, dict(part.options), part.value_format) for part in connected
    ]
    return [mesh.full_name, dict(mesh.kop_options), functions, others]


def test_function_meshs_objects_are_the_same_in_our_form() -> None:
    mesh = read_mesh(OBJECTS, "mesh.yaml")
    assert without_lines(mesh) == without_lines(read_mesh(SAME, "mesh.yaml"))
    assert mesh.functions[0].line == 8
    assert mesh.functions[0].spec.secrets == {"password": SecretPlace(env="password")}
    assert mesh.notes == (
        "line 5: Kubernetes' fields are left out: metadata.labels, maxReplicas, pulsar.authSecret, python.pyLocation, "
        "pod, genericRuntime.log",
        "line 12: the JVM's fields are left out: sourceType, input.typeClassName",
        "line 43: Pulsar's connectors' fields are left out: java, batchSourceConfig",
        "line 53: Pulsar's client's fields are left out: cluster.brokerServiceURL",
        "line 13: function ex1: replicas: has no effect in a mesh: each component has as many tasks as Spark has cores "
        "for it, and its inputs partitions",
    )


@pytest.mark.parametrize(
    ("given", "made"),
    [
        ("{mode: PERMISSIVE}", {"mode": "PERMISSIVE", "pulsar.admin.url": "http://pulsar:8080"}),
        ("{pulsar.admin.url: http://other}", {"pulsar.admin.url": "http://other"}),
        ("", {"pulsar.admin.url": "http://pulsar:8080"}),
    ],
)
def test_options_of_objects_get_the_address_of_their_config_map(given: str, made: dict[str, str]) -> None:
    text = OBJECTS.replace("spec:\n", f"spec:\n  kopOptions: {given}\n", 1)
    assert read_mesh(text, "mesh.yaml").kop_options == made
    wrong = OBJECTS.replace("spec:\n", "spec:\n  kopOptions: 5\n", 1)
    assert [told.partition(": ")[2] for told in mistakes(wrong)] == ["kopOptions: must be fields, NAME: VALUE"]


def test_mistakes_of_objects_have_the_names_that_they_were_written_with() -> None:
    text = (
        OBJECTS.replace("timeout: 1000", "timeout: -1")
        .replace("replicas: 2", "replicas: 0")
        .replace("pulsarConfig: cluster, ", "pulsarConfig: clustre, ")
        .replace("spark:csv", "kafka")
        .replace("        topics: [a]", "        topix: [a]")
        .replace("kind: ConfigMap", "kind: Secret")
    )
    assert mistakes(text) == [
        "13: function ex1: replicas: Input should be greater than or equal to 1, got '0'",
        "16: function ex1: input.topix: there is no such field; is it input.topics?",
        "24: function ex1: timeout: Input should be greater than or equal to 1, got '-1'",
        "30: pulsar.pulsarConfig: there is no ConfigMap clustre in the file",
        "37: pulsar.pulsarConfig: there is no ConfigMap cluster in the file",
        "40: source in: sourceType: connectors in Java are not run: spark:FORMAT names a format of Spark, got kafka",
    ]


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("kind: Function\nspec: {}", "1: kind: one object must be a FunctionMesh, got Function"),
        ("kind: FunctionMesh\nmetadata: {name: a}", "1: spec: is missing: functions, sources and sinks"),
        ("kind: FunctionMesh\nspec: {function: []}", "2: spec.function: there is no such field; is it functions?"),
        (
            "kind: FunctionMesh\nmetadata: {name: a}\nspec:\n  functions:\n"
            "  - {name: f, className: a.B, input: {topics: [a]}, java: {jar: a.jar}}",
            "5: function f: java: functions in Java are not run: name a file of Python, python: {py: FILE}",
        ),
        (
            "kind: FunctionMesh\nmetadata: {name: a}\nspec:\n  functions:\n"
            "  - {name: f, className: a.B, python: {py: a.py}}",
            "5: function f: input.topics: is missing: the topics to read",
        ),
        (
            "kind: FunctionMesh\nmetadata: {name: a}\nspec:\n  functions:\n"
            "  - {name: f, className: a.B, input: {topics: [a]}, output: b, python: {py: a.py}}",
            "5: function f: output: must be fields, NAME: VALUE",
        ),
        (
            "kind: FunctionMesh\nmetadata: {name: a}\nspec: {functions: []}\n---\nname: b\nfunctions: []",
            "5: kind: is missing: each document is an object of Kubernetes, FunctionMesh or ConfigMap",
        ),
    ],
)
def test_objects_that_are_no_mesh(text: str, told: str) -> None:
    assert mistakes(text) == [told] or told in mistakes(text)


@pytest.mark.parametrize(
    ("runtime", "told"),
    [
        ("{language: python}", ["5: function f: python.py: is missing: the file with the function"]),
        (
            "{language: nodejs, functionFile: f.js}",
            [
                "5: function f: genericRuntime: functions in nodejs are not run",
                "5: function f: python.py: is missing: the file with the function",
            ],
        ),
    ],
)
def test_a_generic_runtime_needs_a_file_of_python(runtime: str, told: list[str]) -> None:
    part = f"{{name: f, className: f.F, input: {{topics: [a]}}, genericRuntime: {runtime}}}"
    assert mistakes(f"kind: FunctionMesh\nmetadata: {{name: a}}\nspec:\n  functions:\n  - {part}") == told


def test_empty_fields_of_objects_are_left_out() -> None:
    (part,) = read_mesh(
        "kind: FunctionMesh\nmetadata: {name: a}\nspec:\n  functions:\n  - {name: f, className: f.F, java: ~, "
        "python: {py: f.py}, input: {topics: [a]}, output: ~, pulsar: {pulsarConfig: ~}, golang: ~, genericRuntime: ~, "
        "statefulConfig: ~}",
        "mesh.yaml",
    ).functions
    assert (part.outputs, part.has_state) == ((), False)


@pytest.mark.parametrize(
    "scope", ["statefulConfig: {}, stateScope: partition", "stateScope: partition, statefulConfig: {}"]
)
def test_a_scope_that_is_given_is_that_of_a_stateful_config(scope: str) -> None:
    (part,) = read_mesh(
        "kind: FunctionMesh\nmetadata: {name: a}\nspec:\n  functions:\n  - {name: f, className: f.F, replicas: 2, "
        f"python: {{py: f.py}}, input: {{topics: [a]}}, {scope}}}",
        "mesh.yaml",
    ).functions
    assert (part.spec.state_scope, part.has_state) == ("partition", True)


SHORT = """\
# Metadata
name: PIP_Mesh
namespace: PIP_Namespace
tenant: PIP_Tenant

pyFile: example.py

functionInfos:
  - name: Func1
    classname: example.Exclamation
    replicas: 1
    inputs:
    - source
      output:
      - topic_1
  - name: Func2
    classname: example.Exclamation
    replicas: 1
    inputs:
    - topic_1
      output:
      - result
"""


def test_the_short_form() -> None:
    mesh = read_mesh(SHORT.replace("      output:\n      -", "    output:\n    -"), "mesh.yaml")
    assert mesh.full_name == "PIP_Tenant/PIP_Namespace/PIP_Mesh"
    first, second = mesh.functions
    assert (first.spec.class_name, first.spec.py, first.spec.fqfn) == (
        "example.Exclamation",
        "example.py",
        "PIP_Tenant/PIP_Namespace/Func1",
    )
    assert (first.inputs, first.outputs, second.inputs, second.outputs) == (
        ("source",),
        ("topic_1",),
        ("topic_1",),
        ("result",),
    )


def test_the_short_form_as_it_is_printed_shows_the_mended_lines() -> None:
    text = SHORT.replace("pyFile: example.py", "jarFile: example.jar").replace("replicas: 1\n", "replicas: 0\n", 1)
    assert mistakes(text) == [
        "6: jarFile: functions in Java are not run: pyFile: FILE names the file of Python for all functions",
        "11: function Func1: replicas: Input should be greater than or equal to 1, got '0'",
        "14: is no YAML: mapping values are not allowed here: a field stands below an item of the list before it; so "
        "it would be beside the list:\n"
        "    14 |     output:\n"
        "    15 |     - topic_1\n"
        "    21 |     output:\n"
        "    22 |     - result",
    ]


def test_the_short_form_has_one_output_each() -> None:
    text = "name: m\npyFile: f.py\nfunctionInfos:\n- {name: f, classname: f, inputs: [a], output: [b, c]}"
    assert mistakes(text) == [
        "4: function f: output: a function has one output: let it publish to the others, "
        "context.publish(TOPIC, MESSAGE)"
    ]


def test_the_short_form_has_each_field_under_one_name() -> None:
    part = "{name: f, classname: f, className: g, replicas: 1, parallelism: 2, inputs: [a]}"
    assert mistakes(f"name: m\npyFile: f.py\nfunctionInfos:\n- {part}\nfunctions:\n- {part}") == [
        "4: function f: className: stands beside classname: one of them",
        "4: function f: parallelism: stands beside replicas: one of them",
        "5: functions: stands beside functionInfos: one of them",
    ]
