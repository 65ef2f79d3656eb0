"""Pulsar's FunctionConfig as people and Pulsar's tools write it: its fields, and the flags that set them.

Owns: which fields and flags there are, what type each has, which have no effect or are refused, and why.
Must not know: which fields go together, and what becomes of them (`config_checks`).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, Any, Final, Literal, TypeAlias

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field
from pydantic.alias_generators import to_camel

from kop.functions.spec import Guarantee

Path: TypeAlias = tuple[str | int, ...]
"""The place of something in a FunctionConfig: names of fields, keys and indexes."""


def _absent(value: Any) -> Any:
    """Return None for an empty text, which Pulsar's tools send for fields that nobody gave; else the value."""
    return None if value == "" else value


def _upper(value: Any) -> Any:
    return value.upper() if isinstance(value, str) else value


def _title(value: Any) -> Any:
    return value.capitalize() if isinstance(value, str) else value


_Text: TypeAlias = Annotated[str | None, BeforeValidator(_absent)]
_Count: TypeAlias = Annotated[int, Field(ge=1, le=2**31 - 1)]
_Milliseconds: TypeAlias = Annotated[int, Field(ge=1, le=2**53)]


class _Fields(BaseModel):
    model_config = ConfigDict(extra="forbid", alias_generator=to_camel, defer_build=True)


class ConsumerFields(_Fields):
    """The fields of an input."""

    schema_type: _Text = None
    serde_class_name: _Text = None
    is_regex_pattern: bool | None = Field(None, alias="isRegexPattern")
    receiver_queue_size: Annotated[int, Field(ge=0)] | None = None
    schema_properties: dict[str, str] | None = None
    consumer_properties: dict[str, str] | None = None
    pool_messages: bool | None = None
    crypto_config: Any = None


class ProducerFields(_Fields):
    """The fields of `producerConfig`."""

    compression_type: Annotated[
        Literal["NONE", "LZ4", "ZLIB", "ZSTD", "SNAPPY"] | None, BeforeValidator(_upper), BeforeValidator(_absent)
    ] = None
    max_pending_messages: int | None = None
    max_pending_messages_across_partitions: int | None = None
    use_thread_local_producers: bool | None = None
    batch_builder: _Text = None
    crypto_config: Any = None


class ResourcesFields(_Fields):
    """The fields of `resources`."""

    cpu: float | None = None
    ram: Annotated[int, Field(ge=1)] | None = None
    disk: int | None = None


class SecretFields(_Fields):
    """The fields of a secret."""

    env: str | None = None
    file: str | None = None


class WindowFields(_Fields):
    """The fields of `windowConfig`."""

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
    input_specs: dict[str, ConsumerFields | None] | None = None
    custom_serde_inputs: dict[str, str | None] | None = None
    custom_schema_inputs: dict[str, str | None] | None = None
    custom_schema_outputs: dict[str, str | None] | None = None
    input_type_class_name: _Text = None
    output: _Text = None
    output_schema_type: _Text = None
    output_type_class_name: _Text = None
    output_serde_class_name: _Text = None
    producer_config: ProducerFields | None = None
    log_topic: _Text = None
    processing_guarantees: Annotated[Guarantee | None, BeforeValidator(_upper), BeforeValidator(_absent)] = None
    retain_ordering: bool | None = None
    retain_key_ordering: bool | None = None
    forward_source_message_property: bool | None = None
    user_config: dict[str, Any] | None = None
    secrets: dict[str, SecretFields] | None = None
    runtime: Annotated[Literal["PYTHON", "JAVA", "GO"] | None, BeforeValidator(_upper), BeforeValidator(_absent)] = None
    auto_ack: bool | None = None
    max_message_retries: Annotated[int, Field(ge=-1, le=2**31 - 1)] | None = None
    dead_letter_topic: _Text = None
    sub_name: _Text = None
    parallelism: _Count | None = None
    resources: ResourcesFields | None = None
    window_config: WindowFields | None = None
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


@dataclass(frozen=True)
class Flag:
    """A flag of Pulsar's commands: the field that it sets, and how its text is read."""

    path: tuple[str, ...]
    kind: Literal["text", "list", "json", "switch", "number"]


FLAGS: Final[dict[str, Flag]] = {
    "tenant": Flag(("tenant",), "text"),
    "namespace": Flag(("namespace",), "text"),
    "name": Flag(("name",), "text"),
    "fqfn": Flag(("fqfn",), "text"),
    "classname": Flag(("className",), "text"),
    "py": Flag(("py",), "text"),
    "jar": Flag(("jar",), "text"),
    "go": Flag(("go",), "text"),
    "inputs": Flag(("inputs",), "list"),
    "topics-pattern": Flag(("topicsPattern",), "text"),
    "input-specs": Flag(("inputSpecs",), "json"),
    "custom-serde-inputs": Flag(("customSerdeInputs",), "json"),
    "custom-schema-inputs": Flag(("customSchemaInputs",), "json"),
    "custom-schema-outputs": Flag(("customSchemaOutputs",), "json"),
    "input-type-class-name": Flag(("inputTypeClassName",), "text"),
    "output": Flag(("output",), "text"),
    "output-serde-classname": Flag(("outputSerdeClassName",), "text"),
    "schema-type": Flag(("outputSchemaType",), "text"),
    "output-type-class-name": Flag(("outputTypeClassName",), "text"),
    "producer-config": Flag(("producerConfig",), "json"),
    "log-topic": Flag(("logTopic",), "text"),
    "processing-guarantees": Flag(("processingGuarantees",), "text"),
    "user-config": Flag(("userConfig",), "json"),
    "secrets": Flag(("secrets",), "json"),
    "retain-ordering": Flag(("retainOrdering",), "switch"),
    "retain-key-ordering": Flag(("retainKeyOrdering",), "switch"),
    "forward-source-message-property": Flag(("forwardSourceMessageProperty",), "switch"),
    "batch-builder": Flag(("batchBuilder",), "text"),
    "subs-name": Flag(("subName",), "text"),
    "subs-position": Flag(("subscriptionPosition",), "text"),
    "skip-to-latest": Flag(("skipToLatest",), "switch"),
    "cleanup-subscription": Flag(("cleanupSubscription",), "switch"),
    "parallelism": Flag(("parallelism",), "number"),
    "cpu": Flag(("resources", "cpu"), "number"),
    "ram": Flag(("resources", "ram"), "number"),
    "disk": Flag(("resources", "disk"), "number"),
    "window-length-count": Flag(("windowConfig", "windowLengthCount"), "number"),
    "window-length-duration-ms": Flag(("windowConfig", "windowLengthDurationMs"), "number"),
    "sliding-interval-count": Flag(("windowConfig", "slidingIntervalCount"), "number"),
    "sliding-interval-duration-ms": Flag(("windowConfig", "slidingIntervalDurationMs"), "number"),
    "auto-ack": Flag(("autoAck",), "switch"),
    "timeout-ms": Flag(("timeoutMs",), "number"),
    "max-message-retries": Flag(("maxMessageRetries",), "number"),
    "dead-letter-topic": Flag(("deadLetterTopic",), "text"),
    "custom-runtime-options": Flag(("customRuntimeOptions",), "text"),
    "runtime-flags": Flag(("runtimeFlags",), "text"),
    "function-type": Flag(("functionType",), "text"),
}
"""Pulsar's flags, without their dashes. That of the file with all of them, and those of commands, are not here."""


def leaves(values: Any, path: Path) -> Iterator[tuple[Path, Any]]:
    """Yield each field with its path and value, and then, if its value is a mapping, the fields within it. `path` is
    that of `values`.
    """
    if path:
        yield path, values
    if isinstance(values, dict):
        for name, value in values.items():
            yield from leaves(value, (*path, name))


def is_field(path: Path) -> bool:
    """Return if the last part of a path is the name of a field, and not a topic or another key that the user chose."""
    return (
        len(path) == 1
        or (path[0] == "producerConfig" and len(path) == 2)
        or (path[0] == "inputSpecs" and len(path) == 3)
    )


def matches(path: Path, pattern: Path) -> bool:
    """Return if a path has the shape of a pattern; `*` in the pattern is any name."""
    return len(path) == len(pattern) and all(want in {"*", part} for part, want in zip(path, pattern, strict=True))


def names_beside(path: Path) -> list[str]:
    """Return the names of the fields that are possible where an unknown one stands, whose path this is."""
    inner: dict[str | int, type[_Fields]] = {
        "inputSpecs": ConsumerFields,
        "producerConfig": ProducerFields,
        "resources": ResourcesFields,
        "secrets": SecretFields,
        "windowConfig": WindowFields,
    }
    model = inner.get(path[0], FunctionConfig) if len(path) > 1 else FunctionConfig
    return [str(info.alias) for info in model.model_fields.values()]
