"""What values become on their way into a function and out of it."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Optional

import pydantic
import pytest
from functions.function_kit import spec_with
from hypothesis import given
from hypothesis import strategies as st
from typing_extensions import TypedDict  # pydantic takes that of typing from Python 3.12 on

from kop.functions import stand_in
from kop.functions.function import FunctionCode
from kop.functions.serdes import (
    IdentitySerDe,
    SerdeError,
    input_serde,
    of_annotation,
    of_class_name,
    of_schema_type,
    output_serde,
)
from kop.functions.spec import InputSpec

UserFile = Callable[..., FunctionCode]


@dataclass
class Item:
    price: float
    name: str = "none"


class Order(pydantic.BaseModel):
    items: list[Item]


class Named(TypedDict):
    name: str


# -- Pulsar's


@pytest.mark.parametrize(
    ("data", "value"),
    [
        (b"12", 12),
        (b" -12\n", -12),
        (b"1_000", 1000),
        (b"1.5", 1.5),
        (b"1e3", 1000.0),
        (b"inf", math.inf),
        (b"-Infinity", -math.inf),
        (b"9" * 5000, math.inf),
        (b"2j", 2j),
        (b"(1+2j)", 1 + 2j),
        ("\u0661\u0662".encode(), 12),
        (b"", ""),
        (b"hello", "hello"),
        (b"in time", "in time"),
        (b"0x10", "0x10"),
        (b"True", "True"),
        ("\u00e9t\u00e9".encode(), "\u00e9t\u00e9"),
        (b"\xff12", b"\xff12"),
        (None, ""),
    ],
)
def test_identity_reads_numbers_then_text_then_bytes(data: bytes | None, value: Any) -> None:
    read = IdentitySerDe().deserialize(data)
    assert (type(read), read) == (type(value), value)


@given(st.one_of(st.binary(), st.text(), st.text("0123456789+-._eEjJ() \tnaifty\u0661\u2003")))
def test_identity_reads_as_pulsar_does(value: bytes | str) -> None:
    """Pulsar tries the types one after the other."""
    data = value if isinstance(value, bytes) else value.encode(errors="surrogatepass")

    def pulsars() -> Any:
        for kind in (int, float, complex, str):
            try:
                return kind(data.decode())
            except ValueError:
                pass
        return data

    read, wanted = IdentitySerDe().deserialize(data), pulsars()
    assert type(read) is type(wanted)
    assert repr(read) == repr(wanted)


@pytest.mark.parametrize(
    ("value", "data"),
    [(12, b"12"), (1.5, b"1.5"), (1 + 2j, b"(1+2j)"), ("\u00e9", "\u00e9".encode()), (b"\xff", b"\xff")],
)
def test_identity_writes_what_it_reads(value: Any, data: bytes) -> None:
    assert IdentitySerDe().serialize(value) == data


@pytest.mark.parametrize("value", [True, None, [1], {"a": 1}, bytearray(b"a"), type("Text", (str,), {})("a")])
def test_identity_refuses_other_types(value: Any) -> None:
    with pytest.raises(TypeError, match=f"IdentitySerDe does not write a {type(value).__name__}"):
        IdentitySerDe().serialize(value)


@pytest.mark.parametrize(
    "name", ["serde.IdentitySerDe", "pulsar.functions.serde.IdentitySerDe", "pulsar.IdentitySerDe"]
)
def test_identity_has_pulsars_names(user_file: UserFile, name: str) -> None:
    assert type(of_class_name(name, user_file("def process(input): pass"))) is IdentitySerDe


@pytest.mark.parametrize("name", ["serde.PickleSerDe", "pulsar.functions.serde.PickleSerDe"])
def test_pickle_reads_what_it_writes(user_file: UserFile, name: str) -> None:
    serde = of_class_name(name, user_file("def process(input): pass"))
    assert serde.deserialize(serde.serialize({"a": Item(1.5)})) == {"a": Item(1.5)}
    with pytest.raises(SerdeError, match="does not read b'abc': "):
        serde.deserialize(b"abc")
    with pytest.raises(SerdeError, match="does not write a function"):
        serde.serialize(lambda: None)


OWN = """
from pulsar import SerDe

class Pair(SerDe):
    def serialize(self, input):
        return b"%d,%d" % input
    def deserialize(self, input_bytes):
        a, b = input_bytes.split(b",")
        return int(a), int(b)

class Text:
    def serialize(self, input):
        return "text"
    def deserialize(self, input_bytes):
        return input_bytes

class ReadsOnly:
    def deserialize(self, input_bytes):
        return input_bytes

class Wants(Pair):
    def __init__(self, argument):
        pass

def process(input): return input
"""


def test_a_serde_of_a_user_is_called(user_file: UserFile) -> None:
    stand_in.install(force=True)
    serde = of_class_name("code_of_user.Pair", user_file(OWN))
    assert serde.deserialize(b"1,2") == (1, 2)
    assert serde.serialize((1, 2)) == b"1,2"
    with pytest.raises(SerdeError, match=r"code_of_user\.Pair does not read b'': ValueError: "):
        serde.deserialize(None)
    with pytest.raises(SerdeError, match=r"code_of_user\.Pair does not write a int: TypeError: "):
        serde.serialize(3)


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("code_of_user.Par", "cannot be had: code_of_user has no class or function Par; is it Pair?"),
        ("nowhere.Pair", "cannot be had: there is no module nowhere"),
        ("code_of_user.ReadsOnly", "has no method serialize"),
        ("code_of_user.Wants", "cannot be made: TypeError: .*argument"),
    ],
)
def test_it_says_why_there_is_no_serde(user_file: UserFile, name: str, told: str) -> None:
    stand_in.install(force=True)
    code = user_file(OWN)
    with pytest.raises(SerdeError, match=f"the serde {name} {told}"):
        of_class_name(name, code)


def test_a_serde_of_a_user_must_write_bytes(user_file: UserFile) -> None:
    stand_in.install(force=True)
    with pytest.raises(TypeError, match="wrote a str, which must be bytes"):
        of_class_name("code_of_user.Text", user_file(OWN)).serialize(1)


# -- annotations

ROUND_TRIPS = [
    (Any, "text", b"text"),
    (object, 12, b"12"),
    (bytes, b"\xff", b"\xff"),
    (str, "12", b"12"),
    (int, 12, b"12"),
    (float, 1.5, b"1.5"),
    (bool, True, b"true"),
    (dict, {"a": [1, None]}, b'{"a":[1,null]}'),
    (list, [1, "a"], b'[1,"a"]'),
    (dict[str, int], {"a": 1}, b'{"a":1}'),
    (list[Item], [Item(1.5)], b'[{"price":1.5,"name":"none"}]'),
    (Item, Item(2.0, "a"), b'{"price":2.0,"name":"a"}'),
    (Order, Order(items=[Item(1.5)]), b'{"items":[{"price":1.5,"name":"none"}]}'),
    (Named, {"name": "a"}, b'{"name":"a"}'),
    (str | None, "a", b"a"),
    (Optional[int], 5, b"5"),  # noqa: UP045 - both ways to write it
    (int | str, 5, b"5"),
    (Item | None, Item(2.0), b'{"price":2.0,"name":"none"}'),
]


@pytest.mark.parametrize(("annotation", "value", "data"), ROUND_TRIPS)
def test_annotations_choose_the_serde(annotation: Any, value: Any, data: bytes) -> None:
    serde = of_annotation(annotation)
    assert serde.serialize(value) == data
    read = serde.deserialize(data)
    assert (type(read), read) == (type(value), value)


@pytest.mark.parametrize(
    ("annotation", "value"), [(str | None, None), (Item | None, None), (Any, ""), (str, ""), (bytes, b"")]
)
def test_a_null_value_is_none_where_it_may_be(annotation: Any, value: Any) -> None:
    assert of_annotation(annotation).deserialize(None) == value


@pytest.mark.parametrize(
    ("annotation", "data", "told"),
    [
        (str, b"\xff", "the value is no UTF-8"),
        (int, b"a" * 100, "the value is no int: b'aaa.*\\.\\.\\.$"),
        (int, b"1.5", "the value is no int: b'1.5'"),
        (float, b"", "the value is no float: b''"),
        (int, None, "the value is null, and no int"),
        (dict, b"{", "Invalid JSON"),
        (dict, b"[1]", r"^Input should be an object, got \[1\]$"),
        (Item, None, "got None"),
        (Item, b'{"price": "much"}', "^price: Input should be a valid number.*, got 'much'$"),
        (Item, b'{"name": "a"}', "^price: Field required$"),
        (
            Order,
            b'{"items": [{"price": 1}, {"price": []}]}',
            r"^items\.1\.price: Input should be a valid number, got \[\]$",
        ),
        (Order, b'{"items": [{"name": 1}]}', r"^items\.0\.price: Field required; items\.0\.name: .*string, got 1$"),
        (dict[str, int], b'{"a": "b"}', "^a: Input should be a valid integer"),
    ],
)
def test_it_says_what_is_wrong_with_a_value(annotation: Any, data: bytes | None, told: str) -> None:
    with pytest.raises(SerdeError, match=told):
        of_annotation(annotation).deserialize(data)


@pytest.mark.parametrize(
    ("annotation", "value", "told"),
    [
        (str, 1, "the result is a int, which must be a str"),
        (str, "\ud800", "the result is no UTF-8"),
        (bytes, "a", "the result is a str, which must be bytes"),
        (int, 1.5, "the result is a float, which must be a int"),
        (int, True, "the result is a bool, which must be a int"),
        (float, "1", "the result is a str, which must be a float"),
        (Item, {"price": 1}, "the result is no JSON"),
        (Item, Item("a"), "the result is no JSON"),  # type: ignore[arg-type]
        (dict, {"a": object()}, "the result is no JSON"),
        (dict[str, int], {"a": "b"}, "the result is no JSON"),
        (dict, {"a": [math.nan]}, "the result is no JSON, which has no NaN"),
        (list[float], [-math.inf], "the result is no JSON, which has no -Infinity"),
        (Item, Item(math.inf), "the result is no JSON, which has no Infinity"),
        (Order, Order(items=[Item(math.nan)]), "the result is no JSON, which has no NaN"),
    ],
)
def test_it_says_what_is_wrong_with_a_result(annotation: Any, value: Any, told: str) -> None:
    with pytest.raises(SerdeError, match=told):
        of_annotation(annotation).serialize(value)


def test_a_float_takes_an_int() -> None:
    assert of_annotation(float).serialize(1) == b"1.0"


def test_json_may_have_texts_that_look_like_numbers_that_it_has_not() -> None:
    assert of_annotation(dict).serialize({"a": "NaN", "Infinity": 1}) == b'{"a":"NaN","Infinity":1}'


def test_there_is_no_serde_of_any_class() -> None:
    with pytest.raises(SerdeError, match="there is no serde for Plain: name one of your own"):
        of_annotation(type("Plain", (), {}))


# -- of a definition


def test_a_definition_chooses_before_annotations(user_file: UserFile) -> None:
    stand_in.install(force=True)
    code = user_file(OWN + "\ndef process(input: int, context) -> str: pass")
    inputs = {
        "own": InputSpec(serde_class_name="code_of_user.Pair"),
        "text": InputSpec(schema_type="string"),
        "annotated": InputSpec(),
    }
    spec = spec_with(inputs=inputs)
    assert [input_serde(spec, topic, code).deserialize(b"1,2" if topic == "own" else b"1") for topic in inputs] == [
        (1, 2),
        "1",
        1,
    ]
    assert output_serde(spec, code).serialize("a") == b"a"
    assert output_serde(spec_with(output_schema_type="bytes"), code).serialize(b"a") == b"a"
    assert output_serde(spec_with(output_serde_class_name="code_of_user.Pair"), code).serialize((1, 2)) == b"1,2"


def test_json_is_of_the_named_class_else_of_the_annotation_else_anything(user_file: UserFile) -> None:
    text = """
    from dataclasses import dataclass
    @dataclass
    class Item:
        price: float
    def process(input): pass
    """
    code = user_file(text)
    item = code.find("code_of_user.Item")
    assert of_schema_type("json", "code_of_user.Item", Any, code).deserialize(b'{"price": 1}') == item(1.0)
    assert of_schema_type("json", "", item, code).deserialize(b'{"price": 1}') == item(1.0)
    assert of_schema_type("json", "", Any, code).deserialize(b'{"price": 1}') == {"price": 1}
    assert of_schema_type("json", "", Any, code).serialize([1]) == b"[1]"
    with pytest.raises(SerdeError, match=r"the class code_of_user\.Itm cannot be had: .* is it Item\?"):
        of_schema_type("json", "code_of_user.Itm", Any, code)


RECORD = """
from pulsar.schema import Integer, Record
class Price(Record):
    price = Integer()
def process(input): pass
"""


def test_json_of_a_record_of_pulsar_client_is_its_own(user_file: UserFile) -> None:
    code = user_file(RECORD)
    serde = of_schema_type("json", "code_of_user.Price", Any, code)
    assert serde.deserialize(b'{"price": 3}').price == 3
    assert serde.deserialize(serde.serialize(code.find("code_of_user.Price")(price=4))).price == 4
    with pytest.raises(SerdeError, match="JsonSchema does not read the value"):
        serde.deserialize(b"{")
    with pytest.raises(SerdeError, match="JsonSchema does not write the result"):
        serde.serialize(5)


def test_avro_needs_pulsar_client_and_a_class(user_file: UserFile) -> None:
    code = user_file("def process(input): pass")
    with pytest.raises(SerdeError, match="schemaType avro needs the class of the record"):
        of_schema_type("avro", "", Any, code)
    stand_in.install(force=True)
    with pytest.raises(SerdeError, match="schemaType avro needs pulsar-client"):
        of_schema_type("avro", "", Any, code)
