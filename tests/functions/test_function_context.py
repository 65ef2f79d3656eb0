"""What a function is told of its message, and what it asks for."""

from __future__ import annotations

import base64
import inspect
import logging
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from functions.function_kit import context_with, spec_with

from kop.client.batches import StoredRecords, build
from kop.client.read_client import Fetched
from kop.client.write_client import Identity
from kop.functions import stand_in
from kop.functions.context import (
    MOST_MS,
    Acked,
    Effect,
    FunctionContext,
    MissingError,
    Nacked,
    Publish,
    RecordId,
)
from kop.functions.function import FunctionCode
from kop.functions.output_sizes import OutputError
from kop.functions.spec import InputSpec
from kop.functions.state import StateError
from kop.functions.topics import TopicNameError

UserFile = Callable[..., FunctionCode]

PULSARS = """
get_message_id() get_message_key() get_message_eventtime() get_message_properties() get_current_message_topic_name()
get_message_sequence_id() get_message_partition_index() get_partition_key() get_ordering_key() get_function_tenant()
get_function_namespace() get_function_name() get_function_id() get_instance_id() get_function_version() get_logger()
get_user_config_value(key) get_user_config_map() get_secret(secret_name) record_metric(metric_name,metric_value)
publish(topic_name,message,serde_class_name='serde.IdentitySerDe',properties=None,compression_type=None,callback=None,message_conf=None)
get_input_topics() get_output_topic() get_output_serde_class_name() ack(msgid,topic) incr_counter(key,amount)
get_counter(key) del_counter(key) put_state(key,value) get_state(key) get_pulsar_client()
"""
OWN = {"begin", "end", "input_headers", "nack"}


def test_it_has_pulsars_methods_with_their_signatures() -> None:
    ours = {name for name in vars(FunctionContext) if not name.startswith("_")}
    signatures = set()
    for name in ours - OWN:
        parameters = list(inspect.signature(getattr(FunctionContext, name)).parameters.values())[1:]
        texts = [str(parameter.replace(annotation=parameter.empty)) for parameter in parameters]
        signatures.add(f"{name}({','.join(texts)})")
    assert signatures == set(PULSARS.split())
    assert ours >= OWN


def test_the_interface_of_pulsar_client_has_nothing_else() -> None:
    import pulsar

    assert {name for name in vars(pulsar.Context) if not name.startswith("_")} <= vars(FunctionContext).keys()


@pytest.fixture
def effects() -> list[Effect]:
    return []


def test_it_tells_of_the_message(effects: list[Effect]) -> None:
    context = context_with(effects)
    context.begin(("in", 3), (2**28 + 5, 1234, b"k", b"v", [("a", b"1"), ("b", None), ("a", b"2"), ("c", b"\xff")]))
    assert context.get_message_id() == RecordId("in", 3, 2**28 + 5)
    assert str(context.get_message_id()) == "in-3@268435461"
    assert context.get_message_key() == context.get_partition_key() == "k"
    assert context.get_message_eventtime() == 1234
    assert context.get_message_properties() == {"a": "2", "b": "", "c": "\ufffd"}
    assert context.get_current_message_topic_name() == "in"
    assert context.get_message_sequence_id() == 2**28 + 5
    assert context.get_message_partition_index() == 3
    assert context.get_ordering_key() is None
    context.begin(("in", 3), (6, -1, None, None, ()))
    assert (context.get_message_key(), context.get_message_eventtime()) == ("", 0)
    context.begin(("in", 3), (7, -1, b"\xff\xfe", None, ()))
    assert context.get_message_key() == base64.b64encode(b"\xff\xfe").decode()


def test_it_tells_of_the_function(effects: list[Effect]) -> None:
    observed = []
    context = context_with(
        effects,
        spec=spec_with(
            tenant="t",
            namespace="n",
            inputs={"in": InputSpec(), "more.*": InputSpec(is_regex=True)},
            user_config={"a": 1},
            output_serde_class_name="m.S",
        ),
        secrets={"password": "p"},
        record_metric=lambda name, value: observed.append((name, value)),
        version="7",
    )
    assert context.get_function_tenant() == "t"
    assert context.get_function_namespace() == "n"
    assert context.get_function_name() == "f"
    assert context.get_function_id() == "t/n/f"
    assert context.get_instance_id() == "0"
    assert context.get_function_version() == "7"
    assert context.get_logger() is logging.getLogger("kop.functions.test")
    assert (context.get_user_config_value("a"), context.get_user_config_value("b")) == (1, None)
    assert context.get_user_config_map() == {"a": 1}
    assert (context.get_secret("password"), context.get_secret("other")) == ("p", None)
    assert context.get_input_topics() == ["in", "more.*"]
    assert (context.get_output_topic(), context.get_output_serde_class_name()) == ("out", "m.S")
    context.record_metric("m", 2.5)
    assert observed == [("m", 2.5)]
    with pytest.raises(MissingError, match="there is no client of Pulsar"):
        context.get_pulsar_client()


@pytest.mark.parametrize("offset", [0, 5, 2**28, 2**53 + 7])
def test_pulsar_client_reads_the_id_of_a_record(offset: int) -> None:
    import pulsar

    read = pulsar.MessageId.deserialize(RecordId("in", 300, offset).serialize())
    ours = RecordId("in", 300, offset)
    assert (read.ledger_id(), read.entry_id(), read.partition(), read.batch_index()) == (
        ours.ledger_id(),
        ours.entry_id(),
        ours.partition(),
        ours.batch_index(),
    )
    assert read.ledger_id() << 28 | read.entry_id() == offset


def test_outputs_name_their_input(effects: list[Effect]) -> None:
    context = context_with(effects)
    context.begin(("in", 3), (250, 0, None, b"v", ()))
    headers = dict(context.input_headers())
    assert headers["__pfn_input_topic__"] == b"in"
    assert base64.urlsafe_b64decode(headers["__pfn_input_msg_id__"]) == RecordId("in", 3, 250).serialize()


# -- publish


def test_a_publish_is_an_effect(effects: list[Effect]) -> None:
    context = context_with(effects)
    context.publish("there", "text")
    conf = {"properties": {"a": "1", "n": 2}, "partition_key": "k", "event_timestamp": 99}
    context.publish("there", 12, message_conf=conf)
    context.publish("there", b"b", properties={"a": "1"})
    assert effects == [
        Publish("there", None, b"text", [], None, None),
        Publish("there", b"k", b"12", [("a", b"1"), ("n", b"2")], 99, None),
        Publish("there", None, b"b", [("a", b"1")], None, None),
    ]
    with pytest.raises(TypeError, match="does not write a list"):
        context.publish("there", [1])
    with pytest.raises(TypeError, match="message_conf has no key"):
        context.publish("there", "text", message_conf={"key": "k"})
    assert len(effects) == 3


def test_a_publish_may_name_its_serde(user_file: UserFile, effects: list[Effect]) -> None:
    code = user_file(
        """
        made = []
        class Twice:
            def __init__(self): made.append(self)
            def serialize(self, input): return input * 2
            def deserialize(self, input_bytes): return input_bytes
        def process(input): pass
        """
    )
    context = context_with(effects, code)
    context.publish("there", b"a", "code_of_user.Twice")
    context.publish("there", b"b", serde_class_name="code_of_user.Twice")
    assert [effect.value for effect in effects if isinstance(effect, Publish)] == [b"aa", b"bb"]
    assert len(code.find("code_of_user.made")) == 1


def test_an_ordering_key_is_the_key_where_there_is_no_other(effects: list[Effect]) -> None:
    context = context_with(effects)
    context.publish("there", "a", message_conf={"ordering_key": "o"})
    context.publish("there", "a", message_conf={"ordering_key": "o", "partition_key": "p"})
    assert [effect.key for effect in effects if isinstance(effect, Publish)] == [b"o", b"p"]


def test_what_has_no_effect_is_said_once(effects: list[Effect], caplog: pytest.LogCaptureFixture) -> None:
    context = context_with(effects)
    for _ in range(2):
        context.publish("there", "a", compression_type=1, message_conf={"sequence_id": 1, "disable_replication": None})
    assert [record.getMessage() for record in caplog.records] == [
        "publish: sequence_id has no effect on Kafka's protocol",
        "publish: compression_type has no effect on Kafka's protocol",
    ]


@pytest.mark.parametrize("stands_in", [True, False])
def test_a_callback_gets_pulsars_result(effects: list[Effect], stands_in: bool) -> None:
    if stands_in:
        stand_in.install(force=True)
    import pulsar

    told: list[tuple[Any, Any]] = []
    context = context_with(effects)
    context.publish("there", "a", callback=lambda result, msg_id: told.append((result, msg_id)))
    context.publish("there", "a")
    for effect in effects:
        assert isinstance(effect, Publish)
        effect.tell(True, RecordId("there", 0, 1))
        effect.tell(False, None)
    assert told == [(pulsar.Result.Ok, RecordId("there", 0, 1)), (pulsar.Result.UnknownError, None)]


# -- acknowledgements and state


def test_ack_and_nack_name_a_message(effects: list[Effect]) -> None:
    context = context_with(effects)
    context.begin(("in", 3), (5, 0, None, None, ()))
    first = context.get_message_id()
    context.begin(("in", 3), (6, 0, None, None, ()))
    context.ack(first, "in")
    context.nack(context.get_message_id(), "in-partition-3")
    assert effects == [Acked(("in", 3), 5), Nacked(("in", 3), 6)]
    with pytest.raises(ValueError, match="Invalid topicname other: the message is of in"):
        context.ack(first, "other")
    with pytest.raises(TypeError, match="take what get_message_id"):
        context.ack(5, "in")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("method", "arguments"),
    [
        ("incr_counter", ("k", 1)),
        ("get_counter", ("k",)),
        ("del_counter", ("k",)),
        ("put_state", ("k", "v")),
        ("get_state", ("k",)),
    ],
)
def test_state_that_is_not_there_raises(effects: list[Effect], method: str, arguments: tuple[Any, ...]) -> None:
    with pytest.raises(StateError, match="state is not there: "):
        getattr(context_with(effects), method)(*arguments)


# -- what cannot be asked for


@pytest.mark.parametrize(
    ("options", "error", "text"),
    [
        ({"message_conf": {"event_timestamp": 1.5}}, TypeError, "int of milliseconds, as int.seconds . 1000., not"),
        ({"message_conf": {"event_timestamp": "99"}}, TypeError, "not a str"),
        ({"message_conf": {"event_timestamp": 1 << 70}}, ValueError, "milliseconds since 1970"),
        ({"message_conf": {"event_timestamp": -1}}, ValueError, "milliseconds since 1970"),
        ({"properties": {"\ud800": "x"}}, ValueError, "is no UTF-8"),
        ({"properties": {"h": "y" * 950_000}}, OutputError, "a publish to there has 950016 bytes, and 890000 are"),
        ({"properties": {"h": "y"}, "message": "z" * 900_000}, OutputError, "a publish to there has"),
    ],
)
def test_a_publish_that_cannot_be_written_raises(
    effects: list[Effect], options: dict[str, Any], error: type[Exception], text: str
) -> None:
    with pytest.raises(error, match=text):
        context_with(effects).publish("there", **{"message": "value", **options})
    assert not effects


@pytest.mark.parametrize("topic", ["", ".", "..", "a b", "\ud800", "a\n", "a" * 250, "public/default/a b"])
def test_a_publish_to_what_can_be_no_topic_raises(effects: list[Effect], topic: str) -> None:
    with pytest.raises((ValueError, TopicNameError)):
        context_with(effects).publish(topic, "value")
    assert not effects


@pytest.mark.parametrize("time", [0, 99, MOST_MS])
def test_a_publish_with_any_time_that_is_taken_can_be_written(effects: list[Effect], time: int) -> None:
    context_with(effects).publish("there", "v", message_conf={"event_timestamp": time})
    (publish,) = effects
    assert isinstance(publish, Publish)
    record = publish.key, publish.value, publish.headers, publish.timestamp
    ((batch, _),) = build([record], Identity(-1, -1), -1, now=0)
    (rows,) = StoredRecords(Fetched(bytes(batch), 1, 1, 0, ()), ("there", 0), 0)
    assert [row[1] for row in rows] == [time]


@pytest.mark.parametrize(
    ("name", "value", "error"),
    [
        (5, 1, TypeError),
        ("\ud800", 1, ValueError),
        ("m" * 1001, 1, ValueError),
        ("m", 1j, TypeError),
        ("m", "1", TypeError),
        ("m", float("nan"), ValueError),
        ("m", 10**400, OverflowError),
    ],
)
def test_a_metric_that_cannot_be_told_raises(
    effects: list[Effect], name: Any, value: Any, error: type[Exception]
) -> None:
    observed: list[Any] = []
    context = context_with(effects, record_metric=lambda *given: observed.append(given))
    with pytest.raises(error, match="record_metric: the "):
        context.record_metric(name, value)
    assert not observed


def test_nothing_can_be_asked_for_outside_of_the_call(effects: list[Effect]) -> None:
    context = context_with(effects, state=lambda partition: None)
    here = context.get_message_id()
    asked: list[Callable[[], Any]] = [
        lambda: context.publish("there", "text"),
        lambda: context.ack(here, "in"),
        lambda: context.nack(here, "in"),
        lambda: context.incr_counter("k", 1),
        lambda: context.get_state("k"),
    ]
    with ThreadPoolExecutor(1) as pool:
        for ask in asked:
            with pytest.raises(RuntimeError, match="belongs to a call"):
                pool.submit(ask).result()
    context.end()
    for ask in asked:
        with pytest.raises(RuntimeError, match="ask for it before process returns"):
            ask()
    assert not effects
