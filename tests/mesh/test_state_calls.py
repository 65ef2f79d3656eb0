"""If the code of a function uses state, as far as its text says."""

from __future__ import annotations

import pytest

from kop.mesh.state_calls import state_call

TEXT = """
def add(context, word):
    context.incr_counter(word, 1)

def process(text, context):
    return text

class Count:
    def process(self, text, context):
        for word in text.split():
            add(context, word)

class Keep:
    def process(self, text, context):
        return context.get_state("x")

def plain(text):
    return text
"""


@pytest.mark.parametrize(
    ("class_name", "call"),
    [
        ("words.Count", ("incr_counter", 3)),
        ("words.Keep", ("get_state", 15)),
        ("words.plain", None),
        ("words", None),
        ("words.elsewhere", ("incr_counter", 3)),
    ],
)
def test_state_calls(class_name: str, call: tuple[str, int] | None) -> None:
    assert state_call(TEXT, class_name) == call


@pytest.mark.parametrize("text", ["", "def", "x = 1\0", "(" * 500])
def test_text_that_is_no_python(text: str) -> None:
    assert state_call(text, "m") is None
