"""The compiled loop of calls against the plain one: the same results, the same errors, the same place to go on from."""

from __future__ import annotations

import gc
import weakref
from array import array
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.examples import examples

from kop.compiled import compiled_only
from kop.functions import _pure_calls
from kop.functions.output_sizes import RECORD_BYTES, OutputError
from kop.functions.serdes import SerdeError, of_annotation
from kop.functions.watch import NOT_CALLING, OFFSET

TWINS = [twin for twin in (_pure_calls, compiled_only()) if twin is not None]
TEXT, NUMBER = of_annotation(str), of_annotation(int)


class Text(str):
    """Text of a class of its own."""


class Refused(Exception):
    """An error of a function."""


def a_call(value: Any) -> Any:
    """Raise a value that is an error, and return any other one."""
    if isinstance(value, Exception):
        raise value
    return value


class Run:
    """The calls with some values, until all are done: each error is noted, and the calls go on behind it."""

    def __init__(self, twin: ModuleType, values: list[Any], encode: Any, is_text: bool, calling: Any) -> None:
        self.values: list[bytes] = []
        self.silent: list[int] = []
        self.errors: list[tuple[type, str, int]] = []
        offsets = iter(range(10, 10 + len(values)))
        results = map(a_call, values)
        for _ in range(len(values) + 1):
            try:
                twin.call_each(offsets, results, encode, is_text, calling, self.values, self.silent)
                break
            except Exception as error:
                self.errors.append((type(error), str(error), calling[OFFSET]))

    def outcome(self) -> Any:
        """Return all that has come of it."""
        return self.values, self.silent, self.errors


VALUES = st.one_of(
    st.text(max_size=20),
    st.sampled_from(["", "ü", "\ud800", "x\udfff", Text("own"), None, b"bytes", bytearray(b"b"), 7, -1, 2**70, True]),
    st.builds(Refused, st.text(max_size=5)),
    st.builds(StopIteration, st.integers()),
)
ENCODERS: list[tuple[Callable[[Any], bytes] | None, bool]] = [
    (TEXT.serialize, True),
    (TEXT.serialize, False),
    (NUMBER.serialize, False),
    (None, True),
    (None, False),
]


@given(st.lists(VALUES, max_size=12), st.sampled_from(ENCODERS), st.booleans())
@settings(max_examples=examples(300))
def test_both_have_the_same_outcome(values: list[Any], encoder: Any, is_shared: bool) -> None:
    outcomes = []
    for twin in TWINS:
        calling: Any = memoryview(array("q", [0, NOT_CALLING, -1])) if is_shared else [0, NOT_CALLING, -1]
        encode, is_text = encoder
        outcomes.append((Run(twin, values, encode, is_text, calling).outcome(), list(calling)))
    assert all(outcome == outcomes[0] for outcome in outcomes)
    (values_made, silent, errors), _ = outcomes[0]
    assert len(values_made) + len(silent) + len(errors) == len(values), "each message has one outcome"


@pytest.mark.parametrize("twin", TWINS)
def test_the_offset_is_noted_before_the_call(twin: ModuleType) -> None:
    calling = memoryview(array("q", [0, 0, -1]))
    results = (str(calling[OFFSET]) for _ in "abc")
    values: list[bytes] = []
    twin.call_each(iter([5, 7, 8]), results, TEXT.serialize, True, calling, values, [])
    assert values == [b"5", b"7", b"8"]


@pytest.mark.parametrize("twin", TWINS)
@pytest.mark.parametrize(("result", "says"), [(7, "the result is a int, which must be a str"), ("\ud800", "no UTF-8")])
def test_the_error_of_a_refused_result_is_for_people(twin: ModuleType, result: Any, says: str) -> None:
    with pytest.raises(SerdeError, match=says):
        twin.call_each(iter([1]), iter([result]), TEXT.serialize, True, [0, 0, 0], [], [])


@pytest.mark.parametrize("twin", TWINS)
def test_a_result_may_have_as_many_bytes_as_a_record(twin: ModuleType) -> None:
    values: list[bytes] = []
    offsets = iter([1, 2])
    results = iter(["x" * RECORD_BYTES, "x" * (RECORD_BYTES + 1)])
    with pytest.raises(OutputError, match=f"the result has {RECORD_BYTES + 1} bytes"):
        twin.call_each(offsets, results, TEXT.serialize, True, [0, 0, 0], values, [])
    assert list(map(len, values)) == [RECORD_BYTES]


@pytest.mark.parametrize("twin", TWINS)
def test_an_encoder_may_give_any_bytes(twin: ModuleType) -> None:
    values: list[Any] = []
    twin.call_each(iter([1]), iter([3]), lambda _: bytearray(b"ab"), False, [0, 0, 0], values, [])
    assert values == [b"ab"]


def raise_it(error: BaseException) -> Any:
    """Raise an error."""
    raise error


@pytest.mark.parametrize("twin", TWINS)
@pytest.mark.parametrize("kind", [StopIteration, KeyboardInterrupt, SystemExit])
def test_an_error_comes_as_it_is_with_the_line_that_has_raised_it(twin: ModuleType, kind: type[BaseException]) -> None:
    results = map(raise_it, [kind("its reason")])
    with pytest.raises(kind, match="its reason") as caught:
        twin.call_each(iter([1]), results, TEXT.serialize, True, [0, 0, 0], [], [])
    assert [entry.name for entry in caught.traceback][-1] == "raise_it"


@pytest.mark.parametrize("twin", TWINS)
def test_an_error_keeps_no_other_message(twin: ModuleType) -> None:
    inputs: list[Any] = [Text("a"), Text("b"), Refused()]
    kept = weakref.ref(inputs[0])
    results, values = map(a_call, iter(inputs)), list[bytes]()
    inputs_left: list[Any] = inputs
    gc.disable()
    try:
        with pytest.raises(Refused):
            twin.call_each(iter(range(3)), results, TEXT.serialize, True, [0, 0, 0], values, [])
        inputs_left.clear()
        assert kept() is None
        assert values == [b"a", b"b"]
    finally:
        gc.enable()


@pytest.mark.parametrize("twin", TWINS)
def test_nothing_of_the_messages_is_kept(twin: ModuleType) -> None:
    inputs: list[Any] = [Text("a"), Text("b"), Text("c")]
    kept = [weakref.ref(text) for text in inputs]

    def results() -> Iterator[str]:
        while inputs:
            yield inputs.pop()

    gc.disable()
    try:
        twin.call_each(iter(range(3)), results(), TEXT.serialize, True, [0, 0, 0], [], [])
        assert [ref() for ref in kept] == [None] * 3
    finally:
        gc.enable()
