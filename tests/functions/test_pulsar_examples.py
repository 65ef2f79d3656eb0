"""The functions that Pulsar's distribution has as examples run unchanged, without pulsar-client."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from functions.function_kit import context_with, spec_with

from kop.functions import stand_in
from kop.functions.context import Effect, Publish
from kop.functions.function import FunctionLoadError, load
from kop.functions.serdes import input_serde, output_serde
from kop.functions.spec import InputSpec
from kop.functions.state import LocalState, StateChanges, StateError

THE_ONE_THAT_CANNOT_RUN = "thumb" + "nailer"
"""Its calls of PIL have never been right."""


@pytest.fixture
def effects() -> list[Effect]:
    return []


def run(
    home: Path, name: str, value: bytes, effects: list[Effect], *, state: Any = None, serde: str = "", **fields: Any
) -> bytes | None:
    """Give a message to an example, and return its result."""
    stand_in.install(force=True)
    module = name.partition(".")[0]
    code = load(home / "examples" / "python-examples" / f"{module}.py", name)
    spec = spec_with(inputs={"in": InputSpec(serde_class_name=serde)}, output_serde_class_name=serde, **fields)
    context = context_with(effects, code, spec=spec, state=state)
    context.begin(("in", 0), (3, 1234, b"k", value, [("h", b"1")]))
    result = code.call(input_serde(spec, "in", code).deserialize(value), context)
    return None if result is None else output_serde(spec, code).serialize(result)


@pytest.mark.parametrize(
    ("name", "value", "result"),
    [
        ("exclamation_function.ExclamationFunction", b"a", b"a!"),
        ("native_exclamation_function", b"a", b"a!"),
        ("native_exclamation_function.process", b"a", b"a!"),
        ("logging_function.LoggingFunction", b"a", b"a!"),
        ("config_based_append_function.ConfigBasedAppendFunction", b"a", b"a!"),
        ("void_function.VoidFunction", b"a", None),
    ],
)
def test_an_example_gives_its_result(
    pulsar_home: Path, effects: list[Effect], name: str, value: bytes, result: bytes | None
) -> None:
    assert run(pulsar_home, name, value, effects) == result
    assert effects == []


def test_the_one_with_a_config(pulsar_home: Path, effects: list[Effect]) -> None:
    name = "config_based_append_function.ConfigBasedAppendFunction"
    assert run(pulsar_home, name, b"a", effects, user_config={"config-key": 12}) == b"a12"


def test_the_one_that_logs(pulsar_home: Path, effects: list[Effect], caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    run(pulsar_home, "logging_function.LoggingFunction", b"a", effects)
    assert caplog.messages == ["a-log"]


def test_the_one_with_a_serde(pulsar_home: Path, effects: list[Effect]) -> None:
    serde = "custom_object_function.CustomSerDe"
    assert run(pulsar_home, "custom_object_function.CustomObjectFunction", b"1,2", effects, serde=serde) == b"12,26"


def test_the_one_that_publishes(pulsar_home: Path, effects: list[Effect]) -> None:
    name = "publish_function.PublishFunction"
    assert run(pulsar_home, name, b"a", effects) is None
    assert run(pulsar_home, name, b"a", effects, user_config={"publish-topic": "there"}) is None
    assert effects == [
        Publish("publishtopic", None, b"a!", [], None, None),
        Publish("there", None, b"a!", [], None, None),
    ]


def test_the_one_that_publishes_with_all_that_there_is(pulsar_home: Path, effects: list[Effect]) -> None:
    assert run(pulsar_home, "typed_message_builder_publish.TypedMessageBuilderPublish", b"a", effects) is None
    (effect,) = effects
    assert isinstance(effect, Publish)
    assert (effect.topic, effect.key, effect.value) == ("publishtopic", b"k", b"a!")
    assert effect.headers == [("input_topic", b"in"), ("h", b"1")]
    assert isinstance(effect.timestamp, int)


def test_the_one_that_raises(pulsar_home: Path, effects: list[Effect]) -> None:
    with pytest.raises(Exception, match="this will not work"):
        run(pulsar_home, "user_exception.UserException", b"a", effects)


def test_the_one_that_counts(pulsar_home: Path, effects: list[Effect]) -> None:
    name = "wordcount_function.WordCountFunction"
    changes = StateChanges(LocalState().partition(0))
    result = run(pulsar_home, name, b"to be or not to be", effects, state=lambda partition: changes)
    assert result == b"to be or not to be!"
    assert {word: changes.get_amount(word) for word in ("to", "be", "or", "not")} == {
        "to": 2,
        "be": 2,
        "or": 1,
        "not": 1,
    }
    with pytest.raises(StateError, match="state is not there"):
        run(pulsar_home, name, b"to be", effects)


def test_the_one_with_avro_needs_pulsar_client(pulsar_home: Path, effects: list[Effect]) -> None:
    with pytest.raises(FunctionLoadError, match=r"pulsar\.schema needs pulsar-client"):
        run(pulsar_home, "avro_schema_test_function.AvroSchemaTestFunction", b"a", effects)
    stand_in.uninstall()
    file = pulsar_home / "examples" / "python-examples" / "avro_schema_test_function.py"
    assert callable(load(file, "avro_schema_test_function.AvroSchemaTestFunction").call)


def test_no_example_is_left_out(pulsar_home: Path) -> None:
    files = {path.stem for path in (pulsar_home / "examples" / "python-examples").glob("*.py")}
    here = Path(__file__).read_text()
    assert {name for name in files if f'"{name}' not in here} == {THE_ONE_THAT_CANNOT_RUN}
