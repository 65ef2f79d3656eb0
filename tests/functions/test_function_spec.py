"""Definitions of functions: what they may say, and what is told of mistakes."""

from __future__ import annotations

import json
from typing import Any

import pytest

from kop.functions.config_fields import FLAGS, REFUSED, WITHOUT_EFFECT, FunctionConfig
from kop.functions.config_reading import from_flags, read
from kop.functions.spec import FunctionSpec, Guarantee, InputSpec, SecretPlace, SpecError, WindowSpec

LEAST = {"py": "w.py", "className": "w.Words", "inputs": ["in"]}


def spec_of(**fields: Any) -> FunctionSpec:
    spec, _ = read(json.dumps(LEAST | fields), "f.json")
    return spec


def mistakes_of(**fields: Any) -> list[str]:
    with pytest.raises(SpecError) as caught:
        spec_of(**fields)
    return caught.value.mistakes


def test_the_least_definition() -> None:
    spec = spec_of()
    assert spec == FunctionSpec(name="Words", class_name="w.Words", py="w.py", inputs={"in": InputSpec()})
    assert (spec.fqfn, spec.group) == ("public/default/Words", "public/default/Words")
    assert spec.processing_guarantees is Guarantee.ATLEAST_ONCE
    assert (spec.max_message_retries, spec.subscription_position, spec.parallelism) == (None, "Latest", 1)


def test_all_that_acts() -> None:
    spec, notes = read(
        """
        tenant: t
        namespace: n
        name: f
        className: w.Words
        py: w.py
        inputs: [a]
        topicsPattern: logs-.*
        inputSpecs:
          b: {serdeClassName: w.Serde}
          c-.*: {isRegexPattern: true, schemaType: JSON}
        customSerdeInputs: {d: w.Serde}
        customSchemaInputs: {e: string}
        inputTypeClassName: w.In
        output: out
        outputSchemaType: json
        outputTypeClassName: w.Out
        producerConfig: {compressionType: ZLIB}
        processingGuarantees: EFFECTIVELY_ONCE
        retainOrdering: true
        forwardSourceMessageProperty: false
        userConfig: {a: 1, b: [x, 2.5, null]}
        secrets: {p: {env: PASSWORD}, q: {file: /run/q}}
        runtime: PYTHON
        autoAck: true
        maxMessageRetries: 3
        deadLetterTopic: dead
        subName: g
        subscriptionPosition: Earliest
        skipToLatest: true
        parallelism: 4
        maxPendingAsyncRequests: 10
        """,
        "f.yaml",
    )
    assert notes == []
    assert spec == FunctionSpec(
        tenant="t",
        namespace="n",
        name="f",
        class_name="w.Words",
        py="w.py",
        inputs={
            "a": InputSpec(),
            "logs-.*": InputSpec(is_regex=True),
            "b": InputSpec(serde_class_name="w.Serde"),
            "c-.*": InputSpec(schema_type="json", is_regex=True),
            "d": InputSpec(serde_class_name="w.Serde"),
            "e": InputSpec(schema_type="string"),
        },
        input_type_class_name="w.In",
        output="out",
        output_schema_type="json",
        output_type_class_name="w.Out",
        compression_type="gzip",
        processing_guarantees=Guarantee.EFFECTIVELY_ONCE,
        retain_ordering=True,
        user_config={"a": 1, "b": ["x", 2.5, None]},
        secrets={"p": SecretPlace(env="PASSWORD"), "q": SecretPlace(file="/run/q")},
        max_message_retries=3,
        dead_letter_topic="dead",
        sub_name="g",
        subscription_position="Earliest",
        skip_to_latest=True,
        parallelism=4,
        max_pending_async_requests=10,
    )
    assert spec.group == "g"


def test_what_pulsars_tools_send_for_nothing_is_nothing() -> None:
    """Empty texts, nulls, and integers as 1.0."""
    sent = {
        "outputSchemaType": "",
        "outputSerdeClassName": "",
        "forwardSourceMessageProperty": True,
        "subscriptionPosition": "Latest",
        "jar": None,
        "windowConfig": None,
        "exposePulsarAdminClientEnabled": False,
        "logTopic": "",
        "maxMessageRetries": -1.0,
        "parallelism": 1.0,
        "runtime": "PYTHON",
    }
    assert spec_of(**sent) == spec_of()
    assert spec_of(parallelism=2.0, maxMessageRetries=5.0).parallelism == 2
    notes = read(json.dumps(LEAST | sent), "f.json")[1]
    assert [note.split(": ")[1:3] for note in notes] == [["forwardSourceMessageProperty", "has no effect"]]


@pytest.mark.parametrize("guarantee", [guarantee.value for guarantee in Guarantee])
def test_the_name_is_that_of_the_class_whatever_the_guarantee(guarantee: str) -> None:
    assert spec_of(processingGuarantees=guarantee).fqfn == "public/default/Words"


def test_a_full_name_is_taken_apart() -> None:
    assert spec_of(fqfn="t/n/f").fqfn == "t/n/f"
    assert mistakes_of(fqfn="t/n") == ["f.json, line 1: fqfn: must be TENANT/NAMESPACE/NAME"]
    assert "one of them" in mistakes_of(fqfn="t/n/f", name="g")[0]
    assert mistakes_of(tenant="a/b") == ["f.json, line 1: tenant: 'a/b' may have letters, digits and -=:_. only"]


def test_manual_is_without_acknowledgements_of_its_own() -> None:
    assert spec_of(processingGuarantees="MANUAL").auto_ack is False
    assert spec_of(processingGuarantees="MANUAL", autoAck=False).auto_ack is False
    assert spec_of(autoAck=True).auto_ack is True


@pytest.mark.parametrize("field", sorted(REFUSED))
def test_what_would_be_another_function_is_refused_by_name(field: str) -> None:
    value = {"exposePulsarAdminClientEnabled": True, "cryptoConfig": {"a": 1}}
    given = {field: value.get(field, "x")}
    if field == "cryptoConfig":
        assert mistakes_of(producerConfig=given) == [
            f"f.json, line 1: producerConfig.cryptoConfig: is refused: {REFUSED[field]}"
        ]
        given = {"inputSpecs": {"a": given}}
        assert mistakes_of(**given) == [f"f.json, line 1: inputSpecs.a.cryptoConfig: is refused: {REFUSED[field]}"]
    else:
        assert mistakes_of(**given) == [f"f.json, line 1: {field}: is refused: {REFUSED[field]}"]


@pytest.mark.parametrize("path", sorted(WITHOUT_EFFECT), ids=".".join)
def test_what_has_no_effect_is_noted(path: tuple[str, ...]) -> None:
    number = path[-1] in {
        *("maxPendingMessages", "maxPendingMessagesAcrossPartitions", "receiverQueueSize", "cpu", "disk"),
    }
    truth = path[-1] in {"useThreadLocalProducers", "poolMessages", "forwardSourceMessageProperty"}
    names = path[-1] in {"consumerProperties", "schemaProperties"}
    value: Any = 1 if number else truth or ({"a": "b"} if names else "x")
    for part in reversed(path):
        value = {"a" if part == "*" else part: value}
    _, notes = read(json.dumps(LEAST | value), "f.json")
    named = ".".join(path).replace("*", "a")
    assert notes == [f"f.json, line 1: {named}: has no effect: {WITHOUT_EFFECT[path]}"]


def test_names_of_users_are_no_fields() -> None:
    """A topic, a key of userConfig or a secret may have the name of a field that is refused."""
    spec = spec_of(
        userConfig={"jar": 1, "windowConfig": {"go": 2}}, inputSpecs={"jar": {}}, customSerdeInputs={"go": "a.B"}
    )
    assert spec.user_config == {"jar": 1, "windowConfig": {"go": 2}}
    assert set(spec.inputs) == {"in", "jar", "go"}


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        ({"runtime": "java"}, "runtime: must be PYTHON"),
        ({"className": None}, "className: is missing"),
        ({"py": ""}, "py: is missing"),
        ({"inputs": []}, "inputs: is missing: the topics to read"),
        ({"inputs": [""]}, "inputs: a topic has an empty name"),
        ({"inputs": "in"}, "inputs: Input should be a valid list, got 'in'"),
        ({"inputs": ["in", 3]}, "inputs.1: Input should be a valid string, got 3"),
        ({"output": "in"}, "output: in is an input too"),
        ({"autoAck": False}, "autoAck: may be false only with processingGuarantees MANUAL"),
        ({"retainOrdering": True, "retainKeyOrdering": True}, "retainKeyOrdering: retainOrdering is given too"),
        ({"deadLetterTopic": "d"}, "deadLetterTopic: needs maxMessageRetries"),
        ({"maxMessageRetries": -2}, "maxMessageRetries: Input should be greater than or equal to -1, got -2"),
        ({"maxMessageRetries": 1.5}, "maxMessageRetries: Input should be a valid integer"),
        ({"parallelism": 0}, "parallelism: Input should be greater than or equal to 1"),
        (
            {"processingGuarantees": "ATMOST_ONCE", "maxMessageRetries": 3},
            "line 1: maxMessageRetries: is not for ATMOST_ONCE",
        ),
        (
            {"processingGuarantees": "ATMOST_ONCE", "deadLetterTopic": "d"},
            "line 1: deadLetterTopic: is not for ATMOST_ONCE",
        ),
        ({"processingGuarantees": "ONCE"}, "processingGuarantees: Input should be 'ATMOST_ONCE', "),
        ({"subscriptionPosition": "Middle"}, "subscriptionPosition: Input should be 'Latest' or 'Earliest'"),
        ({"outputSchemaType": "protobuf"}, "outputSchemaType: schema type protobuf is refused: string, json"),
        ({"customSchemaInputs": {"a": "x.Schema"}}, "customSchemaInputs.a: schema type x.Schema is refused"),
        ({"customSchemaOutputs": {"o": "json"}}, "customSchemaOutputs.o: is not the output, which is none"),
        (
            {"inputSpecs": {"a": {"schemaType": "json", "serdeClassName": "a.B"}}},
            "serdeClassName: a schema type is given",
        ),
        ({"output": "o", "outputSchemaType": "json", "outputSerdeClassName": "a.B"}, "a schema type is given too"),
        ({"resources": {"ram": 1}}, "resources.ram: must be 67108864 bytes or more"),
        ({"topicsPattern": "("}, "topicsPattern: is no regular expression: "),
        ({"inputSpecs": {"(": {"isRegexPattern": True}}}, "inputSpecs.(: is no regular expression: "),
        ({"secrets": {"p": {}}}, 'secrets.p: must be {"env": VARIABLE} or {"file": PATH}'),
        ({"secrets": {"p": {"env": "A", "file": "b"}}}, "secrets.p: must be"),
        ({"secrets": {"p": "text"}}, "secrets.p: "),
        ({"producerConfig": {"compressionType": "RAR"}}, "producerConfig.compressionType: Input should be 'NONE', "),
        ({"clasName": "a"}, "clasName: there is no such field; is it className?"),
        ({"resources": {"cpus": 1}}, "resources.cpus: there is no such field; is it cpu?"),
        ({"inputSpecs": {"a": {"serde": "x"}}}, "inputSpecs.a.serde: there is no such field"),
    ],
)
def test_it_says_what_is_wrong(fields: dict[str, Any], told: str) -> None:
    mistakes = mistakes_of(**fields)
    assert len(mistakes) == 1
    assert told in mistakes[0]
    assert mistakes[0].startswith(("f.json, line 1: ", "className", "py", "inputs"))


def test_mistakes_are_told_in_one_go_with_their_lines() -> None:
    text = """\
className: w.Words
inputs:
  - a
  - [b]
paralelism: 2
parallelism: many
inputSpecs:
  x:
    schemaType: json
    poolMessages: perhaps
jar: f.jar
timeoutMs: -1
outputSchemaType: xml
"""
    with pytest.raises(SpecError) as caught:
        read(text, "f.yaml")
    assert caught.value.mistakes == [
        "f.yaml, line 4: inputs.1: Input should be a valid string, got ['b']",
        "f.yaml, line 5: paralelism: there is no such field; is it parallelism?",
        "f.yaml, line 6: parallelism: Input should be a valid integer, unable to parse string as an integer, "
        "got 'many'",
        "f.yaml, line 10: inputSpecs.x.poolMessages: Input should be a valid boolean, unable to interpret input, "
        "got 'perhaps'",
        "f.yaml, line 11: jar: is refused: functions in Java are not run",
        "f.yaml, line 12: timeoutMs: Input should be greater than or equal to 1, got -1",
        "f.yaml, line 13: outputSchemaType: schema type xml is refused: string, json, bytes or avro, or a serde",
    ]
    assert str(caught.value) == "\n".join(caught.value.mistakes)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("name: [", "f.yaml, line 1: "),
        ("a: 1\n b: 2", "f.yaml, line 2: "),
        ('{\n "a": 1,\n}', "f.yaml, line 3: "),
        ('{"a": 1} x', "f.yaml, line 1: "),
        ("- a", "f.yaml, line 1: must be fields of a FunctionConfig"),
        ("text", "f.yaml, line 1: must be fields of a FunctionConfig"),
        ("name: a\nname: b", "f.yaml, line 2: name: stands here a second time"),
        ('{"name": "a",\n "name": "b"}', "f.yaml, line 2: name: stands here a second time"),
        (
            "userConfig:\n  since: 2024-01-01",
            "f.yaml, line 2: userConfig.since: '2024-01-01' is no text, number or truth",
        ),
        ("userConfig:\n  1: a", "f.yaml, line 2: userConfig.1: a name must be a text: put it in quotes"),
        ("userConfig:\n  ? [a]\n  : b", "f.yaml, line 2: userConfig.?: a name must be a text"),
        ("userConfig: &a {b: 1}\nsecrets: *a", "f.yaml, line 1: secrets: an alias (*): write the value again"),
        ("userConfig: &a [*a]", "userConfig.0: an alias"),
        ("userConfig: !!python/object:os.system {}", "f.yaml, line 1: "),
        ("a: 1\x01", "f.yaml: "),
        ("a: " + "[" * 5000, "f.yaml: "),
    ],
)
def test_what_is_no_definition(text: str, told: str) -> None:
    with pytest.raises(SpecError) as caught:
        read(text, "f.yaml")
    assert told in caught.value.mistakes[0]


def test_json_may_have_tabs_and_escapes() -> None:
    text = (
        '{\t"py":\t"w.py",\n\t"className": "w.W", "inputs": ["in"], "userConfig": {"smile": "\\ud83d\\ude00\\/"}\t}\n'
    )
    assert read(text, "f.json")[0].user_config == {"smile": "\U0001f600/"}


def test_an_empty_text_says_what_is_needed() -> None:
    with pytest.raises(SpecError) as caught:
        read("", "f.yaml")
    assert caught.value.mistakes == [
        "className (--classname): is missing: MODULE.CLASS, MODULE.FUNCTION or MODULE",
        "inputs (--inputs): is missing: the topics to read",
        "py (--py): is missing: the file with the function",
    ]


# -- flags


def test_flags_alone() -> None:
    spec, notes = from_flags(
        {
            "py": "w.py",
            "classname": "w.Words",
            "inputs": "a, b",
            "user-config": '{"a": 1}',
            "processing-guarantees": "effectively_once",
            "retain-ordering": True,
            "parallelism": 2,
            "max-message-retries": "3",
            "output": None,
        }
    )
    assert (list(spec.inputs), spec.user_config, spec.parallelism) == (["a", "b"], {"a": 1}, 2)
    assert (spec.processing_guarantees, spec.max_message_retries) == (Guarantee.EFFECTIVELY_ONCE, 3)
    assert notes == []


def test_flags_go_before_the_file() -> None:
    text = json.dumps(LEAST | {"output": "o", "resources": {"ram": 10**8, "cpu": 2}})
    spec, notes = from_flags({"inputs": "b", "ram": 10**9}, (text, "f.json"))
    assert (list(spec.inputs), spec.output, spec.ram) == (["b"], "o", 10**9)
    assert notes == [
        f"f.json, line 1: resources.cpu: has no effect: {WITHOUT_EFFECT['resources', 'cpu']}",
    ]


def test_a_mistake_makes_no_others() -> None:
    assert len(mistakes_of(processingGuarantees="ONCE", autoAck=False)) == 1
    assert len(mistakes_of(maxMessageRetries="no", deadLetterTopic="d")) == 1
    assert len(mistakes_of(inputs=[], inputSpecs={"a": {"schemaType": 3}})) == 1
    assert len(mistakes_of(output=3, customSchemaOutputs={"o": "json"})) == 1


def test_a_mistake_in_a_flag_names_the_flag() -> None:
    with pytest.raises(SpecError) as caught:
        from_flags(
            {
                "py": "w.py",
                "classname": "w.W",
                "jar": "w.jar",
                "inputs": "a",
                "user-config": "{",
                "input-specs": '{"x": {"schemaType": 1}}',
                "parallelism": "many",
                "window-length-count": 0,
            }
        )
    assert sorted(mistake.split(": ")[0] for mistake in caught.value.mistakes) == [
        "--input-specs",
        "--jar",
        "--parallelism",
        "--user-config",
        "--window-length-count",
    ]
    assert any(mistake.startswith("--input-specs: x.schemaType: ") for mistake in caught.value.mistakes)


def test_each_flag_sets_a_field_that_there_is() -> None:
    fields = {info.alias for info in FunctionConfig.model_fields.values()}
    assert {flag.path[0] for flag in FLAGS.values()} <= fields
    assert {path[0] for path in WITHOUT_EFFECT} <= fields
    without_flag = {"exposePulsarAdminClientEnabled", "maxPendingAsyncRequests", "runtime", "stateScope"}
    assert fields - {flag.path[0] for flag in FLAGS.values()} == without_flag


@pytest.mark.parametrize(
    ("given", "window"),
    [
        ({"windowLengthCount": 3}, WindowSpec(length_count=3, sliding_count=3)),
        ({"windowLengthCount": 3, "slidingIntervalCount": 1}, WindowSpec(length_count=3, sliding_count=1)),
        ({"windowLengthDurationMs": 10}, WindowSpec(length_ms=10, sliding_ms=10)),
        (
            {
                "windowLengthDurationMs": 10.0,
                "slidingIntervalDurationMs": 5,
                "timestampExtractorClassName": "w.Time",
                "maxLagMs": 7,
                "watermarkEmitIntervalMs": 100,
                "lateDataTopic": "late",
            },
            WindowSpec(
                length_ms=10,
                sliding_ms=5,
                timestamp_extractor="w.Time",
                max_lag_ms=7,
                watermark_ms=100,
                late_data_topic="late",
            ),
        ),
    ],
)
def test_windows(given: dict[str, Any], window: WindowSpec) -> None:
    assert spec_of(windowConfig=given).window == window


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({}, "windowConfig: must have one of windowLengthCount and windowLengthDurationMs"),
        ({"windowLengthCount": 1, "windowLengthDurationMs": 1}, "windowConfig: must have one of"),
        ({"windowLengthCount": 0}, "windowConfig.windowLengthCount: Input should be greater than or equal to 1, got 0"),
        ({"windowLengthCount": 3, "slidingIntervalDurationMs": 1}, "goes with windowLengthDurationMs alone"),
        ({"windowLengthDurationMs": 3, "slidingIntervalCount": 1}, "goes with windowLengthCount alone"),
        ({"windowLengthCount": 3, "lateDataTopic": "l"}, "lateDataTopic: needs timestampExtractorClassName"),
        ({"windowLengthCount": 3, "windowLenghtCount": 3}, "there is no such field; is it windowLengthCount?"),
    ],
)
def test_windows_that_are_none(given: dict[str, Any], told: str) -> None:
    (mistake,) = mistakes_of(windowConfig=given)
    assert mistake.startswith("f.json, line 1: windowConfig")
    assert told in mistake


def test_windows_and_what_they_do_not_go_with() -> None:
    window = {"windowLengthCount": 3}
    assert "is not for MANUAL" in mistakes_of(windowConfig=window, processingGuarantees="MANUAL")[0]
    assert "needs stateScope partition" in mistakes_of(windowConfig=window, parallelism=2)[0]
    assert spec_of(windowConfig=window, parallelism=2, stateScope="partition").state_scope == "partition"
    _, notes = read(json.dumps(LEAST | {"windowConfig": window | {"maxLagMs": 1}}), "f.json")
    assert notes == [
        "f.json, line 1: windowConfig.maxLagMs: has no effect: there is no timestampExtractorClassName",
    ]


def test_state_of_partitions_needs_one_topic() -> None:
    assert spec_of().state_scope == "function"
    assert "needs one topic as input" in mistakes_of(stateScope="partition", inputs=["a", "b"])[0]
    assert "needs one topic as input" in mistakes_of(stateScope="partition", inputs=None, topicsPattern="a.*")[0]
    assert "stateScope" in mistakes_of(stateScope="key")[0]
