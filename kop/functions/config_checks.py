"""The fields of a definition checked against each other, and made the function that they describe.

Owns: which fields go together, the defaults of those that are not given, which input each field means.
Must not know: what the fields were read from, files of users, sockets, how a function runs.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Final, TypeVar

from pydantic.alias_generators import to_camel

from kop.functions.config_fields import FunctionConfig, Path, SecretFields, WindowFields
from kop.functions.config_places import ConfigPlaces
from kop.functions.spec import FunctionSpec, Guarantee, InputSpec, SecretPlace, WindowSpec, name_mistake
from kop.functions.topics import TopicNameError, TopicNames
from kop.functions.watch import LEAST_RAM

V = TypeVar("V")

_INPUTS: Final = ("topicsPattern", "inputSpecs", "customSerdeInputs", "customSchemaInputs")
_CODECS: Final = {"NONE": "none", "LZ4": "lz4", "ZLIB": "gzip", "ZSTD": "zstd", "SNAPPY": "snappy"}
"""Pulsar's codecs, and those of Kafka in their place."""
_WITHOUT_EFFECT_ON_WINDOWS: Final = {
    "max_lag_ms": "there is no timestampExtractorClassName",
    "watermark_emit_interval_ms": "there is no timestampExtractorClassName",
    "actual_window_function_class_name": "className names the function",
    "processing_guarantees": "processingGuarantees of the function counts",
}


def spec_of(config: FunctionConfig, places: ConfigPlaces, topic_names: TopicNames) -> FunctionSpec:
    """Return the function of fields that are right by themselves. SpecError with all mistakes, if there are any,
    including those that `places` has already.

    `places` gets notes on fields that have no effect; `topic_names` turns names of topics into those of the server.
    """
    return _Checks(places, topic_names).spec_of(config)


class _Checks:
    """The checks of one definition."""

    def __init__(self, places: ConfigPlaces, topic_names: TopicNames) -> None:
        self._places = places
        self._topic_names = topic_names

    def spec_of(self, config: FunctionConfig) -> FunctionSpec:
        """Return the function if its fields fit together. SpecError with all mistakes if they do not."""
        if config.runtime in {"JAVA", "GO"}:
            self._places.wrong(("runtime",), "must be PYTHON: functions in Java and Go are not run")
        if not config.class_name:
            self._places.wrong(("className",), "is missing: MODULE.CLASS, MODULE.FUNCTION or MODULE")
        if not config.py and not (config.jar or config.go or config.function_type):
            self._places.wrong(("py",), "is missing: the file with the function")
        inputs = self._inputs(config)
        if not inputs:
            self._places.wrong(("inputs",), "is missing: the topics to read", *_INPUTS)
        output = self._topic(("output",), config.output)
        log_topic = self._topic(("logTopic",), config.log_topic)
        for path, topic in (("output", output), ("logTopic", log_topic)):
            if topic and topic in inputs:
                self._places.wrong((path,), f"{topic} is an input too, so the function would read what it writes")
        tenant, namespace, name = self._named(config)
        guarantee = config.processing_guarantees or Guarantee.ATLEAST_ONCE
        if config.auto_ack is False and guarantee is not Guarantee.MANUAL:
            self._places.wrong(
                ("autoAck",), "may be false only with processingGuarantees MANUAL", "processingGuarantees"
            )
        if config.retain_ordering and config.retain_key_ordering:
            self._places.wrong(("retainKeyOrdering",), "retainOrdering is given too: one of them")
        retries = None if config.max_message_retries in {None, -1} else config.max_message_retries
        if guarantee is Guarantee.ATMOST_ONCE:
            for field_name, is_given in (
                ("maxMessageRetries", retries is not None),
                ("deadLetterTopic", bool(config.dead_letter_topic)),
            ):
                if is_given:
                    self._places.wrong(
                        (field_name,), "is not for ATMOST_ONCE, which calls a message once", "processingGuarantees"
                    )
        elif config.dead_letter_topic and retries is None:
            self._places.wrong(
                ("deadLetterTopic",),
                "needs maxMessageRetries: without it a message is tried for ever",
                "maxMessageRetries",
            )
        ram = config.resources.ram if config.resources else None
        if ram is not None and ram < LEAST_RAM:
            self._places.wrong(
                ("resources", "ram"), f"must be {LEAST_RAM} bytes or more: an instance has that much by itself"
            )
        dead_letter_topic = self._topic(("deadLetterTopic",), config.dead_letter_topic)
        output_schema = self._schema(("outputSchemaType",), config.output_schema_type)
        for topic, schema in _given(config.custom_schema_outputs):
            is_output = self._topic(("customSchemaOutputs", topic), topic) == output
            if is_output and not output_schema:
                output_schema = self._schema(("customSchemaOutputs", topic), schema)
            elif not is_output:
                given = config.output or "none"
                self._places.wrong(("customSchemaOutputs", topic), f"is not the output, which is {given}", "output")
        if output_schema and config.output_serde_class_name:
            self._places.wrong(("outputSerdeClassName",), "a schema type is given too: one of them")
        window = self._window(config.window_config) if config.window_config else None
        if window and guarantee is Guarantee.MANUAL:
            self._places.wrong(
                ("windowConfig",), "is not for MANUAL: windows acknowledge their messages", "processingGuarantees"
            )
        scope = config.state_scope or "function"
        if scope == "partition" and (len(inputs) > 1 or any(given.is_regex for given in inputs.values())):
            self._places.wrong(
                ("stateScope",), "partition needs one topic as input, and no pattern", *_INPUTS, "inputs"
            )
        if window and scope == "function" and (config.parallelism or 1) > 1:
            self._places.wrong(
                ("windowConfig",),
                f"needs stateScope partition, or parallelism 1: {config.parallelism} instances have no window together",
                "parallelism",
                "stateScope",
            )
        secrets = {key: self._secret(key, place) for key, place in (config.secrets or {}).items()}
        self._places.raise_mistakes()
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

    def _window(self, given: WindowFields) -> WindowSpec:
        """Return the windows that the fields describe; mistakes by Pulsar's rules are noted."""
        count, duration = given.window_length_count, given.window_length_duration_ms
        if (count is None) is (duration is None):
            self._places.wrong(("windowConfig",), "must have one of windowLengthCount and windowLengthDurationMs")
        if count is None and given.sliding_interval_count is not None:
            self._places.wrong(("windowConfig", "slidingIntervalCount"), "goes with windowLengthCount alone")
        if duration is None and given.sliding_interval_duration_ms is not None:
            self._places.wrong(("windowConfig", "slidingIntervalDurationMs"), "goes with windowLengthDurationMs alone")
        if given.late_data_topic and not given.timestamp_extractor_class_name:
            place = "windowConfig", "lateDataTopic"
            self._places.wrong(place, "needs timestampExtractorClassName: without it no message is late")
        of_time = () if given.timestamp_extractor_class_name else ("max_lag_ms", "watermark_emit_interval_ms")
        for name in (*of_time, "actual_window_function_class_name", "processing_guarantees"):
            if getattr(given, name) is not None:
                why = _WITHOUT_EFFECT_ON_WINDOWS[name]
                self._places.note(("windowConfig", to_camel(name)), f"has no effect: {why}")
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
        """Return tenant, namespace and name, from `fqfn` if it is given; mistakes are noted. A missing name is that of
        the class, as in Pulsar's commands.
        """
        given = (config.tenant or "public", config.namespace or "default", config.name or "")
        if config.fqfn:
            parts = config.fqfn.split("/")
            if len(parts) != 3 or not all(parts):
                self._places.wrong(("fqfn",), "must be TENANT/NAMESPACE/NAME")
                return given
            if any((config.tenant, config.namespace, config.name)):
                self._places.wrong(("fqfn",), "is given beside tenant, namespace or name: one of them")
            given = (parts[0], parts[1], parts[2])
        tenant, namespace, name = given
        name = name or (config.class_name or "").rpartition(".")[2]
        for path, part in (("tenant", tenant), ("namespace", namespace), ("name", name)):
            if part and (mistake := name_mistake(part)):
                self._places.wrong((path,), mistake)
        return tenant, namespace, name

    def _inputs(self, config: FunctionConfig) -> dict[str, InputSpec]:
        """Return the inputs that all fields name, by topic or pattern; mistakes are noted. If several fields name one,
        the one that says more of it counts: `inputSpecs` most, `inputs` least.
        """
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
                self._places.wrong((*place, "serdeClassName"), "a schema type is given too: one of them")
            name = (self._pattern if given.is_regex_pattern else self._topic)(place, topic)
            inputs[name] = InputSpec(given.serde_class_name or "", schema, bool(given.is_regex_pattern))
        if "" in inputs:
            self._places.wrong(("inputs",), "a topic has an empty name")
        return inputs

    def _topic(self, path: Path, name: str | None) -> str:
        """Return the server's name of a topic; empty if there is none. A name that cannot be one is noted as a mistake,
        and returned as it is.
        """
        try:
            return self._topic_names.kafka_name(name or "")
        except TopicNameError as error:
            self._places.wrong(path, str(error))
            return name or ""

    def _schema(self, path: Path, given: str | None) -> str:
        schema = (given or "").lower()
        if schema not in {"", "string", "json", "bytes", "avro"}:
            self._places.wrong(path, f"schema type {given} is refused: string, json, bytes or avro, or a serde")
        return schema

    def _pattern(self, path: Path, pattern: str) -> str:
        """Return a pattern with the server's names of topics in place of those that the author wrote; mistakes are
        noted.
        """
        try:
            pattern = self._topic_names.kafka_pattern(pattern)
            re.compile(pattern)
        except TopicNameError as error:
            self._places.wrong(path, str(error))
        except re.error as error:
            self._places.wrong(path, f"is no regular expression: {error}")
        return pattern

    def _secret(self, name: str, given: SecretFields) -> SecretPlace:
        if bool(given.env) is bool(given.file):
            self._places.wrong(("secrets", name), 'must be {"env": VARIABLE} or {"file": PATH}')
        return SecretPlace(given.env or "", given.file or "")


def _given(values: Mapping[str, V | None] | None) -> Iterator[tuple[str, V]]:
    """Yield the names and values of items that have a value; in an update, None takes an item away."""
    for name, value in (values or {}).items():
        if value is not None:
            yield name, value
