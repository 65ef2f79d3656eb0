"""The definition of a function: Pulsar's FunctionConfig, read from YAML, JSON or Pulsar's flags, and checked.

Owns: the fields of a FunctionConfig and its flags, which of them act, have no effect or are refused; the places of
mistakes; the defaults.
Must not know: files of users, sockets, how a function runs.
"""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Annotated, Any, Final, Literal, TypeAlias, TypeVar

import yaml
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError
from pydantic.alias_generators import to_camel

from kop.functions.topics import HOME, TopicNameError, TopicNames
from kop.functions.watch import LEAST_RAM

V = TypeVar("V")
Path: TypeAlias = tuple[str | int, ...]
"""Where something stands in a FunctionConfig: names of fields, keys and indexes."""


class Guarantee(Enum):
    """What becomes of a message when an instance dies."""

    ATMOST_ONCE = "ATMOST_ONCE"
    ATLEAST_ONCE = "ATLEAST_ONCE"
    EFFECTIVELY_ONCE = "EFFECTIVELY_ONCE"
    MANUAL = "MANUAL"


class SpecError(Exception):
    """Everything that is wrong with a definition, a line each, with its place."""

    def __init__(self, mistakes: list[str]) -> None:
        super().__init__("\n".join(mistakes))
        self.mistakes = mistakes


@dataclass(frozen=True)
class InputSpec:
    """How the records of an input are read."""

    serde_class_name: str = ""
    schema_type: str = ""
    is_regex: bool = False


@dataclass(frozen=True, kw_only=True)
class WindowSpec:
    """The windows of a function; of count and time one has a value."""

    length_count: int | None = None
    sliding_count: int | None = None
    """How many messages lie between two windows."""
    length_ms: int | None = None
    sliding_ms: int | None = None
    timestamp_extractor: str = ""
    """Empty: the time of a message is the one at which it is read."""
    max_lag_ms: int = 0
    watermark_ms: int = 1000
    """How often the watermark moves."""
    late_data_topic: str = ""


@dataclass(frozen=True, kw_only=True)
class FunctionSpec:
    """A function, checked. Fields without a value are empty, or None if they are numbers."""

    tenant: str = "public"
    namespace: str = "default"
    name: str
    class_name: str
    py: str
    inputs: Mapping[str, InputSpec]
    """Topics and patterns."""
    input_type_class_name: str = ""
    output: str = ""
    output_serde_class_name: str = ""
    output_schema_type: str = ""
    output_type_class_name: str = ""
    compression_type: str = "none"
    """A codec of Kafka, by its name."""
    processing_guarantees: Guarantee = Guarantee.ATLEAST_ONCE
    auto_ack: bool = True
    """False only with the guarantee MANUAL."""
    max_message_retries: int | None = None
    """None is without limit."""
    dead_letter_topic: str = ""
    retain_ordering: bool = False
    retain_key_ordering: bool = False
    sub_name: str = ""
    subscription_position: Literal["Latest", "Earliest"] = "Latest"
    skip_to_latest: bool = False
    cleanup_subscription: bool = True
    parallelism: int = 1
    user_config: Mapping[str, Any] = field(default_factory=dict)
    secrets: Mapping[str, SecretPlace] = field(default_factory=dict)
    log_topic: str = ""
    timeout_ms: int | None = None
    ram: int | None = None
    """Bytes."""
    max_pending_async_requests: int = 1000
    window: WindowSpec | None = None
    state_scope: Literal["function", "partition"] = "function"
    """What state and windows belong to: the function, or each partition of its input."""
    topic_names: TopicNames = HOME
    """What the names mean that the function gives to `publish`; those here are the server's already."""

    @property
    def fqfn(self) -> str:
        """The full name: tenant/namespace/name."""
        return f"{self.tenant}/{self.namespace}/{self.name}"

    @property
    def own_topics(self) -> frozenset[str]:
        """The topics that the function writes by itself: a pattern of its inputs does not mean those."""
        late = "" if self.window is None else self.window.late_data_topic
        return frozenset({self.output, self.log_topic, self.dead_letter_topic, late})

    @property
    def group(self) -> str:
        """The consumer group that keeps the offsets."""
        return self.sub_name or self.fqfn


@dataclass(frozen=True)
class SecretPlace:
    """Where the process of a function has a secret from."""

    env: str = ""
    """A variable."""
    file: str = ""


# -- what people write


def _absent(value: Any) -> Any:
    """Pulsar's tools send an empty text for what nobody gave."""
    return None if value == "" else value


def _upper(value: Any) -> Any:
    return value.upper() if isinstance(value, str) else value


def _title(value: Any) -> Any:
    return value.capitalize() if isinstance(value, str) else value


_Text: TypeAlias = Annotated[str | None, BeforeValidator(_absent)]
_Count: TypeAlias = Annotated[int, Field(ge=1, le=2**31 - 1)]
_Milliseconds: TypeAlias = Annotated[int, Field(ge=1, le=2**53)]
_INPUTS: Final = ("topicsPattern", "inputSpecs", "customSerdeInputs", "customSchemaInputs")
_CODECS: Final = {"NONE": "none", "LZ4": "lz4", "ZLIB": "gzip", "ZSTD": "zstd", "SNAPPY": "snappy"}
"""Pulsar's codecs, and those of Kafka in their place."""


class _Fields(BaseModel):
    model_config = ConfigDict(extra="forbid", alias_generator=to_camel, defer_build=True)


class _ConsumerFields(_Fields):
    schema_type: _Text = None
    serde_class_name: _Text = None
    is_regex_pattern: bool | None = Field(None, alias="isRegexPattern")
    receiver_queue_size: Annotated[int, Field(ge=0)] | None = None
    schema_properties: dict[str, str] | None = None
    consumer_properties: dict[str, str] | None = None
    pool_messages: bool | None = None
    crypto_config: Any = None


class _ProducerFields(_Fields):
    compression_type: Annotated[
        Literal["NONE", "LZ4", "ZLIB", "ZSTD", "SNAPPY"] | None, BeforeValidator(_upper), BeforeValidator(_absent)
    ] = None
    max_pending_messages: int | None = None
    max_pending_messages_across_partitions: int | None = None
    use_thread_local_producers: bool | None = None
    batch_builder: _Text = None
    crypto_config: Any = None


class _ResourcesFields(_Fields):
    cpu: float | None = None
    ram: Annotated[int, Field(ge=1)] | None = None
    disk: int | None = None


class _SecretFields(_Fields):
    env: str | None = None
    file: str | None = None


class _WindowFields(_Fields):
    window_length_count: _Count | None = None
    window_length_duration_ms: _Milliseconds | None = None
    sliding_interval_count: _Count | None = None
    sliding_interval_duration_ms: _Milliseconds | None = None
    late_data_topic: _Text = None
    max_lag_ms: Annotated[int, Field(ge=0, le=2**53)] | None = None
    watermark_emit_interval_ms: _Milliseconds | None = None
    timestamp_extractor_class_name: _Text = None
    actual_window_function_class_name: _Text = None
    processing_guarantees: _Text = None


class FunctionConfig(_Fields):
    """The fields of Pulsar, as people and Pulsar's tools write them, and `stateScope`."""

    tenant: _Text = None
    namespace: _Text = None
    name: _Text = None
    fqfn: _Text = None
    class_name: _Text = None
    inputs: list[str] | None = None
    topics_pattern: _Text = None
    input_specs: dict[str, _ConsumerFields | None] | None = None
    custom_serde_inputs: dict[str, str | None] | None = None
    custom_schema_inputs: dict[str, str | None] | None = None
    custom_schema_outputs: dict[str, str | None] | None = None
    input_type_class_name: _Text = None
    output: _Text = None
    output_schema_type: _Text = None
    output_type_class_name: _Text = None
    output_serde_class_name: _Text = None
    producer_config: _ProducerFields | None = None
    log_topic: _Text = None
    processing_guarantees: Annotated[Guarantee | None, BeforeValidator(_upper), BeforeValidator(_absent)] = None
    retain_ordering: bool | None = None
    retain_key_ordering: bool | None = None
    forward_source_message_property: bool | None = None
    user_config: dict[str, Any] | None = None
    secrets: dict[str, _SecretFields] | None = None
    runtime: Annotated[Literal["PYTHON", "JAVA", "GO"] | None, BeforeValidator(_upper), BeforeValidator(_absent)] = None
    auto_ack: bool | None = None
    max_message_retries: Annotated[int, Field(ge=-1, le=2**31 - 1)] | None = None
    dead_letter_topic: _Text = None
    sub_name: _Text = None
    parallelism: _Count | None = None
    resources: _ResourcesFields | None = None
    window_config: _WindowFields | None = None
    timeout_ms: Annotated[int, Field(ge=1)] | None = None
    py: _Text = None
    cleanup_subscription: bool | None = None
    max_pending_async_requests: _Count | None = None
    skip_to_latest: bool | None = None
    subscription_position: Annotated[
        Literal["Latest", "Earliest"] | None, BeforeValidator(_title), BeforeValidator(_absent)
    ] = None
    state_scope: Annotated[Literal["function", "partition"] | None, BeforeValidator(_absent)] = None
    batch_builder: _Text = None
    runtime_flags: _Text = None
    custom_runtime_options: _Text = None
    jar: _Text = None
    go: _Text = None
    function_type: _Text = None
    expose_pulsar_admin_client_enabled: bool | None = None


REFUSED: Final = {
    "jar": "functions in Java are not run",
    "go": "functions in Go are not run",
    "functionType": "there are no built-in functions",
    "cryptoConfig": "there is no encryption by producers and consumers",
    "exposePulsarAdminClientEnabled": "there is no admin client of Pulsar in a function",
}
"""Fields that would make another function of it, at any depth, and why."""

WITHOUT_EFFECT: Final[dict[Path, str]] = {
    ("batchBuilder",): "the server keeps batches as they are written",
    ("forwardSourceMessageProperty",): "Pulsar's runtime of Python forwards no properties; context.publish can",
    ("runtimeFlags",): "the function runs in Python's own process",
    ("customRuntimeOptions",): "no runtime reads it",
    ("producerConfig", "maxPendingMessages"): "the instance bounds what is under way",
    ("producerConfig", "maxPendingMessagesAcrossPartitions"): "the instance bounds what is under way",
    ("producerConfig", "useThreadLocalProducers"): "an instance has one producer",
    ("producerConfig", "batchBuilder"): "the server keeps batches as they are written",
    ("inputSpecs", "*", "poolMessages"): "messages are objects of Python",
    ("inputSpecs", "*", "receiverQueueSize"): "what is read ahead is bounded in bytes",
    (
        "inputSpecs",
        "*",
        "consumerProperties",
    ): "all inputs are read by one client, with the properties of the worker",
    ("inputSpecs", "*", "schemaProperties"): "schemas here have none",
    ("resources", "cpu"): "a process takes what the machine gives",
    ("resources", "disk"): "a process takes what the machine gives",
}
"""Fields that are taken and change nothing, and why."""


_WITHOUT_EFFECT_ON_WINDOWS: Final = {
    "max_lag_ms": "there is no timestampExtractorClassName",
    "watermark_emit_interval_ms": "there is no timestampExtractorClassName",
    "actual_window_function_class_name": "className names the function",
    "processing_guarantees": "processingGuarantees of the function counts",
}


@dataclass(frozen=True)
class Flag:
    """A flag of Pulsar's commands: the field that it sets, and how its text is read."""

    path: tuple[str, ...]
    kind: Literal["text", "list", "json", "switch", "number"]
    help: str


FLAGS: Final[dict[str, Flag]] = {
    "tenant": Flag(("tenant",), "text", "Tenant of the function."),
    "namespace": Flag(("namespace",), "text", "Namespace of the function."),
    "name": Flag(("name",), "text", "Name of the function; without it the name of the class."),
    "fqfn": Flag(("fqfn",), "text", "Tenant, namespace and name in one: TENANT/NAMESPACE/NAME."),
    "classname": Flag(("className",), "text", "MODULE.CLASS, MODULE.FUNCTION or MODULE."),
    "py": Flag(("py",), "text", "File with the function: .py, .whl or .zip."),
    "jar": Flag(("jar",), "text", "Refused: functions in Java are not run."),
    "go": Flag(("go",), "text", "Refused: functions in Go are not run."),
    "inputs": Flag(("inputs",), "list", "Topics to read, with commas between."),
    "topics-pattern": Flag(("topicsPattern",), "text", "Pattern of topics to read."),
    "input-specs": Flag(("inputSpecs",), "json", "JSON: topic to schemaType, serdeClassName, isRegexPattern."),
    "custom-serde-inputs": Flag(("customSerdeInputs",), "json", "JSON: topic to the class of its serde."),
    "custom-schema-inputs": Flag(("customSchemaInputs",), "json", "JSON: topic to its schema type."),
    "custom-schema-outputs": Flag(("customSchemaOutputs",), "json", "JSON: topic to its schema type."),
    "input-type-class-name": Flag(("inputTypeClassName",), "text", "Class of inputs with a schema."),
    "output": Flag(("output",), "text", "Topic for results."),
    "output-serde-classname": Flag(("outputSerdeClassName",), "text", "Class of the serde of results."),
    "schema-type": Flag(("outputSchemaType",), "text", "Schema type of results: string, json, bytes or avro."),
    "output-type-class-name": Flag(("outputTypeClassName",), "text", "Class of results with a schema."),
    "producer-config": Flag(("producerConfig",), "json", "JSON: compressionType."),
    "log-topic": Flag(("logTopic",), "text", "Topic for the log of the function."),
    "processing-guarantees": Flag(
        ("processingGuarantees",), "text", "ATLEAST_ONCE (default), EFFECTIVELY_ONCE, ATMOST_ONCE or MANUAL."
    ),
    "user-config": Flag(("userConfig",), "json", "JSON that the function reads by its context."),
    "secrets": Flag(("secrets",), "json", 'JSON: name to {"env": VARIABLE} or {"file": PATH}.'),
    "retain-ordering": Flag(("retainOrdering",), "switch", "A failed message holds up its partition."),
    "retain-key-ordering": Flag(("retainKeyOrdering",), "switch", "A failed message holds up its key."),
    "forward-source-message-property": Flag(
        ("forwardSourceMessageProperty",), "switch", "Without effect, as with Pulsar's runtime of Python."
    ),
    "batch-builder": Flag(("batchBuilder",), "text", "Without effect."),
    "subs-name": Flag(("subName",), "text", "Consumer group that keeps the offsets."),
    "subs-position": Flag(("subscriptionPosition",), "text", "Where a new group begins: Latest (default) or Earliest."),
    "skip-to-latest": Flag(("skipToLatest",), "switch", "Begin each start at the end."),
    "cleanup-subscription": Flag(("cleanupSubscription",), "switch", "Delete the offsets with the function."),
    "parallelism": Flag(("parallelism",), "number", "Number of instances."),
    "cpu": Flag(("resources", "cpu"), "number", "Without effect."),
    "ram": Flag(("resources", "ram"), "number", "Bytes of memory of an instance."),
    "disk": Flag(("resources", "disk"), "number", "Without effect."),
    "window-length-count": Flag(("windowConfig", "windowLengthCount"), "number", "Messages of a window."),
    "window-length-duration-ms": Flag(("windowConfig", "windowLengthDurationMs"), "number", "Time of a window."),
    "sliding-interval-count": Flag(("windowConfig", "slidingIntervalCount"), "number", "Messages between windows."),
    "sliding-interval-duration-ms": Flag(
        ("windowConfig", "slidingIntervalDurationMs"), "number", "Time between windows."
    ),
    "auto-ack": Flag(("autoAck",), "switch", "Taken for Pulsar's sake: use the guarantee MANUAL."),
    "timeout-ms": Flag(("timeoutMs",), "number", "How long a call may take."),
    "max-message-retries": Flag(("maxMessageRetries",), "number", "How often a failed message is tried again."),
    "dead-letter-topic": Flag(("deadLetterTopic",), "text", "Topic for messages that fail more often."),
    "custom-runtime-options": Flag(("customRuntimeOptions",), "text", "Without effect."),
    "runtime-flags": Flag(("runtimeFlags",), "text", "Without effect."),
    "function-type": Flag(("functionType",), "text", "Refused: there are no built-in functions."),
}
"""Pulsar's flags, without their dashes. That of the file with all of them, and those of commands, are not here."""


# -- reading


def read(text: str, name: str, topic_names: TopicNames = HOME) -> tuple[FunctionSpec, list[str]]:
    """Return the function of a text in YAML or JSON, and notes for its author; SpecError has all mistakes.

    `name` is that of the file, for the places of mistakes.
    """
    return from_flags({}, (text, name), topic_names)


def from_flags(
    flags: Mapping[str, Any], file: tuple[str, str] | None = None, topic_names: TopicNames = HOME
) -> tuple[FunctionSpec, list[str]]:
    """Return the function of flags (names of FLAGS; texts, or values of their type), which go before a file's text.

    `file` is the text and the name of the file; `topic_names` says what names of topics are to the server.
    """
    text, name = file or ("", "")
    draft = _Draft(name, topic_names)
    draft.take_text(text)
    unread = bool(draft.mistakes)
    draft.take_flags(flags)
    config = None if unread else draft.checked()
    spec = draft.spec_of(config) if config else None
    if draft.mistakes or spec is None:
        raise SpecError([text for _, text in sorted(draft.mistakes)])
    return spec, draft.notes


def fields(flags: Mapping[str, Any], file: tuple[str, str] | None = None) -> dict[str, Any]:
    """Return the fields that flags and a file's text give, to make or change a definition; SpecError.

    Each is right by itself; if they make a whole function is not asked.
    """
    text, name = file or ("", "")
    draft = _Draft(name, HOME)
    draft.take_text(text)
    draft.take_flags(flags)
    if not draft.mistakes:
        draft.checked()
    if draft.mistakes:
        raise SpecError([text for _, text in sorted(draft.mistakes)])
    return draft.values


class _Draft:
    """A definition as far as it is read, with what is wrong with it."""

    def __init__(self, name: str, topic_names: TopicNames) -> None:
        self.values: dict[str, Any] = {}
        self.mistakes: list[tuple[int, str]] = []
        self.notes: list[str] = []
        self._name = name
        self._topic_names = topic_names
        self._bad: set[str | int] = set()
        """Fields with a mistake of their own: they are left out."""
        self._lines: dict[Path, int] = {}
        self._flags: dict[Path, str] = {}

    def wrong(self, path: Path, text: str, *fields: str) -> None:
        """Note a mistake at a place of the definition, unless it is one because a field has a mistake already."""
        if self._bad.intersection((path[0], *fields) if path else fields):
            return
        line, place = self._place(path)
        self.mistakes.append((line, f"{place}{text}"))

    def _place(self, path: Path) -> tuple[int, str]:
        named = ".".join(map(str, path))
        for flagged, flag in self._flags.items():
            if flagged[: len(path)] == path:
                return 0, f"--{flag}: "
        for end in range(len(path), 0, -1):
            if path[:end] in self._flags:
                return 0, f"--{self._flags[path[:end]]}: {'.'.join(map(str, path[end:]))}: "
            if path[:end] in self._lines:
                line = self._lines[path[:end]]
                return line, f"{self._name}, line {line}: {named}: "
        flag = next((f" (--{flag})" for flag, given in FLAGS.items() if given.path == path), "")
        return 0, f"{named}{flag}: " if named else f"{self._name}: " if self._name else ""

    # -- from text

    def take_text(self, text: str) -> None:
        """Read YAML or JSON."""
        is_json = text.lstrip().startswith("{")
        try:
            # The parser of YAML takes no tabs between the parts of a JSON text, which stand nowhere else in it.
            node = yaml.compose(text.replace("\t", " ") if is_json else text, Loader=yaml.SafeLoader)
            if node is not None:
                self._walk(node, (), set())
            if not self.mistakes:
                values = json.loads(text) if is_json else yaml.safe_load(text)
                self._take_values(values)
        except json.JSONDecodeError as error:
            self.mistakes.append((error.lineno, f"{self._name}, line {error.lineno}: {error.msg}"))
        except yaml.MarkedYAMLError as error:
            mark = error.problem_mark or error.context_mark
            line = mark.line + 1 if mark else 1
            self.mistakes.append((line, f"{self._name}, line {line}: {error.problem or error.context}"))
        except (yaml.YAMLError, ValueError, RecursionError) as error:
            self.mistakes.append((1, f"{self._name}: {error}"))

    def _take_values(self, values: Any) -> None:
        if values is None:
            return
        if not isinstance(values, dict):
            self.mistakes.append((1, f"{self._name}, line 1: must be fields of a FunctionConfig, NAME: VALUE"))
            return
        self.values = values

    def _walk(self, node: yaml.Node, path: Path, seen: set[int]) -> None:
        """Note the line of every part, and what YAML takes and JSON does not."""
        self._lines[path] = node.start_mark.line + 1
        if id(node) in seen:
            self.wrong(path, "an alias (*): write the value again")
            return
        seen.add(id(node))
        if isinstance(node, yaml.MappingNode):
            keys = set[str]()
            for key, value in node.value:
                inner = (*path, key.value if isinstance(key, yaml.ScalarNode) else "?")
                self._lines[inner] = key.start_mark.line + 1
                if not isinstance(key, yaml.ScalarNode) or key.tag != "tag:yaml.org,2002:str":
                    self.wrong(inner, "a name must be a text: put it in quotes")
                elif key.value in keys:
                    self.wrong(inner, "stands here a second time")
                else:
                    keys.add(key.value)
                self._walk(value, inner, seen)
                self._lines[inner] = key.start_mark.line + 1
        elif isinstance(node, yaml.SequenceNode):
            for index, value in enumerate(node.value):
                self._walk(value, (*path, index), seen)
        elif node.tag.removeprefix("tag:yaml.org,2002:") not in {"str", "int", "float", "bool", "null"}:
            self.wrong(path, f"{node.value!r} is no text, number or truth value: put it in quotes")

    # -- from flags

    def take_flags(self, flags: Mapping[str, Any]) -> None:
        """Put the values of flags over those of the text."""
        for name, given in flags.items():
            if given is None or given == ():
                continue
            flag = FLAGS[name]
            self._flags[flag.path] = name
            value = given
            if flag.kind == "list" and isinstance(given, str):
                value = [part.strip() for part in given.split(",") if part.strip()]
            elif flag.kind == "json" and isinstance(given, str):
                try:
                    value = json.loads(given)
                except json.JSONDecodeError as error:
                    self.wrong(flag.path, f"is no JSON: {error}")
                    continue
            place = self.values
            for part in flag.path[:-1]:
                inner = place.get(part)
                place[part] = place = dict(inner) if isinstance(inner, dict) else {}
            place[flag.path[-1]] = value

    # -- checks

    def checked(self) -> FunctionConfig:
        """Return the fields that are right by themselves."""
        for path, value in list(_leaves(self.values, ())):
            if value is not None and value is not False and value != "" and path[-1] in REFUSED and _is_field(path):
                self.wrong(path, f"is refused: {REFUSED[str(path[-1])]}")
            for pattern, why in WITHOUT_EFFECT.items():
                if value is not None and value is not False and value != "" and _matches(path, pattern):
                    self.notes.append(f"{self._place(path)[1]}has no effect: {why}")
        try:
            return FunctionConfig.model_validate(self.values)
        except ValidationError as error:
            problems = error.errors(include_url=False)
        for problem in problems:
            self._take_problem(problem)
        self._bad = {problem["loc"][0] for problem in problems}
        return FunctionConfig.model_validate({name: self.values[name] for name in self.values if name not in self._bad})

    def _take_problem(self, problem: Any) -> None:
        path = tuple(part for part in problem["loc"] if not str(part).startswith(("function-", "constrained-")))
        if problem["type"] == "extra_forbidden":
            near = difflib.get_close_matches(str(path[-1]), _names_beside(path), 1)
            self.wrong(path, "there is no such field" + (f"; is it {near[0]}?" if near else ""))
            return
        given = repr(problem["input"])
        self.wrong(path, f"{problem['msg']}, got {given if len(given) <= 60 else given[:60] + '...'}")

    def spec_of(self, config: FunctionConfig) -> FunctionSpec | None:
        """Return the function if its fields fit together."""
        if config.runtime in {"JAVA", "GO"}:
            self.wrong(("runtime",), "must be PYTHON: functions in Java and Go are not run")
        if not config.class_name:
            self.wrong(("className",), "is missing: MODULE.CLASS, MODULE.FUNCTION or MODULE")
        if not config.py and not (config.jar or config.go or config.function_type):
            self.wrong(("py",), "is missing: the file with the function")
        inputs = self._inputs(config)
        if not inputs:
            self.wrong(("inputs",), "is missing: the topics to read", *_INPUTS)
        output = self._topic(("output",), config.output)
        log_topic = self._topic(("logTopic",), config.log_topic)
        for path, topic in (("output", output), ("logTopic", log_topic)):
            if topic and topic in inputs:
                self.wrong((path,), f"{topic} is an input too, so the function would read what it writes")
        tenant, namespace, name = self._named(config)
        guarantee = config.processing_guarantees or Guarantee.ATLEAST_ONCE
        if config.auto_ack is False and guarantee is not Guarantee.MANUAL:
            self.wrong(("autoAck",), "may be false only with processingGuarantees MANUAL", "processingGuarantees")
        if config.retain_ordering and config.retain_key_ordering:
            self.wrong(("retainKeyOrdering",), "retainOrdering is given too: one of them")
        retries = None if config.max_message_retries in {None, -1} else config.max_message_retries
        if guarantee is Guarantee.ATMOST_ONCE:
            for field_name, is_given in (
                ("maxMessageRetries", retries is not None),
                ("deadLetterTopic", bool(config.dead_letter_topic)),
            ):
                if is_given:
                    self.wrong(
                        (field_name,), "is not for ATMOST_ONCE, which calls a message once", "processingGuarantees"
                    )
        elif config.dead_letter_topic and retries is None:
            self.wrong(
                ("deadLetterTopic",),
                "needs maxMessageRetries: without it a message is tried for ever",
                "maxMessageRetries",
            )
        ram = config.resources.ram if config.resources else None
        if ram is not None and ram < LEAST_RAM:
            self.wrong(("resources", "ram"), f"must be {LEAST_RAM} bytes or more: an instance has that much by itself")
        dead_letter_topic = self._topic(("deadLetterTopic",), config.dead_letter_topic)
        output_schema = self._schema(("outputSchemaType",), config.output_schema_type)
        for topic, schema in _given(config.custom_schema_outputs):
            is_output = self._topic(("customSchemaOutputs", topic), topic) == output
            if is_output and not output_schema:
                output_schema = self._schema(("customSchemaOutputs", topic), schema)
            elif not is_output:
                given = config.output or "none"
                self.wrong(("customSchemaOutputs", topic), f"is not the output, which is {given}", "output")
        if output_schema and config.output_serde_class_name:
            self.wrong(("outputSerdeClassName",), "a schema type is given too: one of them")
        window = self._window(config.window_config) if config.window_config else None
        if window and guarantee is Guarantee.MANUAL:
            self.wrong(
                ("windowConfig",), "is not for MANUAL: windows acknowledge their messages", "processingGuarantees"
            )
        scope = config.state_scope or "function"
        if scope == "partition" and (len(inputs) > 1 or any(given.is_regex for given in inputs.values())):
            self.wrong(("stateScope",), "partition needs one topic as input, and no pattern", *_INPUTS, "inputs")
        if window and scope == "function" and (config.parallelism or 1) > 1:
            self.wrong(
                ("windowConfig",),
                f"needs stateScope partition, or parallelism 1: {config.parallelism} instances have no window together",
                "parallelism",
                "stateScope",
            )
        secrets = {key: self._secret(key, place) for key, place in (config.secrets or {}).items()}
        if self.mistakes:
            return None
        return FunctionSpec(
            tenant=tenant,
            namespace=namespace,
            name=name,
            class_name=config.class_name or "",
            py=config.py or "",
            inputs=inputs,
            input_type_class_name=config.input_type_class_name or "",
            output=output,
            output_serde_class_name=config.output_serde_class_name or "",
            output_schema_type=output_schema,
            output_type_class_name=config.output_type_class_name or "",
            compression_type=_CODECS[(config.producer_config and config.producer_config.compression_type) or "NONE"],
            processing_guarantees=guarantee,
            auto_ack=guarantee is not Guarantee.MANUAL,
            max_message_retries=retries,
            dead_letter_topic=dead_letter_topic,
            retain_ordering=bool(config.retain_ordering),
            retain_key_ordering=bool(config.retain_key_ordering),
            sub_name=config.sub_name or "",
            subscription_position=config.subscription_position or "Latest",
            skip_to_latest=bool(config.skip_to_latest),
            cleanup_subscription=config.cleanup_subscription is not False,
            parallelism=config.parallelism or 1,
            user_config=config.user_config or {},
            secrets=secrets,
            log_topic=log_topic,
            timeout_ms=config.timeout_ms,
            ram=ram,
            max_pending_async_requests=config.max_pending_async_requests or 1000,
            window=window,
            state_scope=scope,
            topic_names=self._topic_names,
        )

    def _window(self, given: _WindowFields) -> WindowSpec:
        """Return windows; Pulsar's rules say what goes together."""
        count, duration = given.window_length_count, given.window_length_duration_ms
        if (count is None) is (duration is None):
            self.wrong(("windowConfig",), "must have one of windowLengthCount and windowLengthDurationMs")
        if count is None and given.sliding_interval_count is not None:
            self.wrong(("windowConfig", "slidingIntervalCount"), "goes with windowLengthCount alone")
        if duration is None and given.sliding_interval_duration_ms is not None:
            self.wrong(("windowConfig", "slidingIntervalDurationMs"), "goes with windowLengthDurationMs alone")
        if given.late_data_topic and not given.timestamp_extractor_class_name:
            place = "windowConfig", "lateDataTopic"
            self.wrong(place, "needs timestampExtractorClassName: without it no message is late")
        of_time = () if given.timestamp_extractor_class_name else ("max_lag_ms", "watermark_emit_interval_ms")
        for name in (*of_time, "actual_window_function_class_name", "processing_guarantees"):
            if getattr(given, name) is not None:
                _, named = self._place(("windowConfig", to_camel(name)))
                self.notes.append(f"{named}has no effect: {_WITHOUT_EFFECT_ON_WINDOWS[name]}")
        return WindowSpec(
            length_count=count,
            sliding_count=given.sliding_interval_count or count,
            length_ms=duration,
            sliding_ms=given.sliding_interval_duration_ms or duration,
            timestamp_extractor=given.timestamp_extractor_class_name or "",
            max_lag_ms=given.max_lag_ms or 0,
            watermark_ms=given.watermark_emit_interval_ms or 1000,
            late_data_topic=self._topic(("windowConfig", "lateDataTopic"), given.late_data_topic),
        )

    def _named(self, config: FunctionConfig) -> tuple[str, str, str]:
        """Return tenant, namespace and name. Without a name it is that of the class, as Pulsar's commands make it."""
        given = (config.tenant or "public", config.namespace or "default", config.name or "")
        if config.fqfn:
            parts = config.fqfn.split("/")
            if len(parts) != 3 or not all(parts):
                self.wrong(("fqfn",), "must be TENANT/NAMESPACE/NAME")
                return given
            if any((config.tenant, config.namespace, config.name)):
                self.wrong(("fqfn",), "is given beside tenant, namespace or name: one of them")
            given = (parts[0], parts[1], parts[2])
        tenant, namespace, name = given
        name = name or (config.class_name or "").rpartition(".")[2]
        for path, part in (("tenant", tenant), ("namespace", namespace), ("name", name)):
            if part and not re.fullmatch(r"[\w.=:-]+", part, re.ASCII):
                self.wrong((path,), f"{part!r} may have letters, digits and -=:_. only")
        return tenant, namespace, name

    def _inputs(self, config: FunctionConfig) -> dict[str, InputSpec]:
        """Return the inputs of all fields that name some; those that say more of an input go before the others."""
        inputs: dict[str, InputSpec] = {}
        for index, topic in enumerate(config.inputs or []):
            inputs[self._topic(("inputs", index), topic)] = InputSpec()
        if config.topics_pattern:
            inputs[self._pattern(("topicsPattern",), config.topics_pattern)] = InputSpec(is_regex=True)
        for topic, serde in _given(config.custom_serde_inputs):
            inputs[self._topic(("customSerdeInputs", topic), topic)] = InputSpec(serde_class_name=serde)
        for topic, schema in _given(config.custom_schema_inputs):
            path: Path = ("customSchemaInputs", topic)
            inputs[self._topic(path, topic)] = InputSpec(schema_type=self._schema(path, schema))
        for topic, given in _given(config.input_specs):
            place: Path = ("inputSpecs", topic)
            schema = self._schema((*place, "schemaType"), given.schema_type)
            if schema and given.serde_class_name:
                self.wrong((*place, "serdeClassName"), "a schema type is given too: one of them")
            name = (self._pattern if given.is_regex_pattern else self._topic)(place, topic)
            inputs[name] = InputSpec(given.serde_class_name or "", schema, bool(given.is_regex_pattern))
        if "" in inputs:
            self.wrong(("inputs",), "a topic has an empty name")
        return inputs

    def _topic(self, path: Path, name: str | None) -> str:
        """Return the server's name of a topic; empty if there is none."""
        try:
            return self._topic_names.kafka_name(name or "")
        except TopicNameError as error:
            self.wrong(path, str(error))
            return name or ""

    def _schema(self, path: Path, given: str | None) -> str:
        schema = (given or "").lower()
        if schema not in {"", "string", "json", "bytes", "avro"}:
            self.wrong(path, f"schema type {given} is refused: string, json, bytes or avro, or a serde")
        return schema

    def _pattern(self, path: Path, pattern: str) -> str:
        """Return a pattern of the server's names of topics."""
        try:
            pattern = self._topic_names.kafka_pattern(pattern)
            re.compile(pattern)
        except TopicNameError as error:
            self.wrong(path, str(error))
        except re.error as error:
            self.wrong(path, f"is no regular expression: {error}")
        return pattern

    def _secret(self, name: str, given: _SecretFields) -> SecretPlace:
        if bool(given.env) is bool(given.file):
            self.wrong(("secrets", name), 'must be {"env": VARIABLE} or {"file": PATH}')
        return SecretPlace(given.env or "", given.file or "")


def _given(values: Mapping[str, V | None] | None) -> Iterator[tuple[str, V]]:
    """Yield the items that have a value; those without one are taken away by an update."""
    for name, value in (values or {}).items():
        if value is not None:
            yield name, value


def _leaves(values: Any, path: Path) -> Iterator[tuple[Path, Any]]:
    """Yield each field and the fields within it."""
    if path:
        yield path, values
    if isinstance(values, dict):
        for name, value in values.items():
            yield from _leaves(value, (*path, name))


def _is_field(path: Path) -> bool:
    """Return if a place has a name of a field there, and not of a topic, or of something that the user chose."""
    return (
        len(path) == 1
        or (path[0] == "producerConfig" and len(path) == 2)
        or (path[0] == "inputSpecs" and len(path) == 3)
    )


def _matches(path: Path, pattern: Path) -> bool:
    return len(path) == len(pattern) and all(want in {"*", part} for part, want in zip(path, pattern, strict=True))


def _names_beside(path: Path) -> list[str]:
    """Return the fields that there are where an unknown one stands."""
    inner: dict[str | int, type[_Fields]] = {
        "inputSpecs": _ConsumerFields,
        "producerConfig": _ProducerFields,
        "resources": _ResourcesFields,
        "secrets": _SecretFields,
        "windowConfig": _WindowFields,
    }
    model = inner.get(path[0], FunctionConfig) if len(path) > 1 else FunctionConfig
    return [str(info.alias) for info in model.model_fields.values()]
