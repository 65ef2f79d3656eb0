"""Files of users: what a class name stands for, and what is told of a file that cannot be loaded."""

from __future__ import annotations

import asyncio
import os
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kop.functions.function import FunctionCode, FunctionLoadError, load, of_object

UserFile = Callable[..., FunctionCode]

SHOUT = """
class Shout:
    def process(self, input, context):
        return f"{input}!{context}"

def process(input):
    return input + "?"

def with_context(input, context):
    return input + context

def with_default(input, separator=","):
    return input + separator

def with_default_context(input, context=None):
    return input + context

def with_any(*args):
    return len(args)

async def later(input: str, context) -> int:
    return len(input)
"""


@pytest.mark.parametrize(
    ("name", "answer"),
    [
        ("code.Shout", "a!b"),
        ("code", "a?"),
        ("code.process", "a?"),
        ("code.with_context", "ab"),
        ("code.with_default", "a,"),
        ("code.with_default_context", "ab"),
        ("code.with_any", 1),
    ],
)
def test_a_name_is_a_class_a_function_or_a_module(user_file: UserFile, name: str, answer: Any) -> None:
    code = user_file(SHOUT, name)
    assert code.call("a", "b") == answer
    assert not code.is_async
    assert (code.input_annotation, code.output_annotation) == (Any, Any)


def test_an_asynchronous_function_says_so(user_file: UserFile) -> None:
    code = user_file(SHOUT, "code.later")
    assert code.is_async
    assert (code.input_annotation, code.output_annotation) == (str, int)
    assert asyncio.run(code.call("abc", None)) == 3


def test_annotations_may_be_texts(user_file: UserFile) -> None:
    text = """
    from __future__ import annotations
    from dataclasses import dataclass
    from typing import TYPE_CHECKING
    if TYPE_CHECKING:
        from pulsar import Context

    @dataclass
    class Order:
        price: float

    class Prices:
        def process(self, input: Order, context: Context) -> dict[str, Order] | None:
            return {}
    """
    code = user_file(text, "code.Prices")
    order = code.find("code_of_user.Order")
    assert code.input_annotation is order
    assert code.output_annotation == dict.__class_getitem__((str, order)) | None


def test_a_result_that_is_annotated_as_none_has_no_annotation(user_file: UserFile) -> None:
    assert user_file("def process(input) -> None: pass").output_annotation is Any
    assert user_file("def process(input) -> 'None': pass").output_annotation is Any


def test_a_file_imports_those_beside_it_and_may_be_pickled(user_file: UserFile, tmp_path: Path) -> None:
    (tmp_path / "beside_it.py").write_text("class Item:\n    pass\n\ndef process(input):\n    return 7\n")
    code = user_file("import beside_it\ndef process(input): return beside_it.Item()")
    assert type(pickle.loads(pickle.dumps(code.call(1, None)))) is code.find("beside_it.Item")
    assert load(tmp_path / "code_of_user.py", "beside_it").call(1, None) == 7


def test_a_file_is_read_again_each_time_and_another_may_have_its_name(user_file: UserFile, tmp_path: Path) -> None:
    first = user_file("def process(input): return 1")
    second = user_file("def process(input):  return 2 * 1")
    other = tmp_path / "other"
    other.mkdir()
    (other / "code_of_user.py").write_text("def process(input): return 3")
    third = load(other / "code_of_user.py", "code_of_user")
    assert [code.call(0, None) for code in (first, second, third)] == [1, 2, 3]


@pytest.mark.parametrize(
    ("text", "name", "told"),
    [
        ("def process(input:", "code", r"code_of_user\.py, line 1: SyntaxError: "),
        ("\n\nraise ValueError('no')", "code", r"code_of_user\.py, line 3: ValueError: no"),
        ("import sys\nsys.exit(3)", "code", r"code_of_user\.py, line 2: SystemExit: 3"),
        (
            "import nothing_of_it",
            "code",
            r"code_of_user\.py, line 1: ModuleNotFoundError: No module named 'nothing_of_it'",
        ),
        ("class Shout: pass", "code.Shuot", "code_of_user has no class or function Shuot; is it Shout?"),
        ("class Shout: pass", "code.Shout", r"Shout has no process\(input, context\)"),
        ("import abc", "code", r"code_of_user has no process\(input, context\)"),
        ("process = 3", "code", r"code_of_user has no process\(input, context\)"),
        ("def process(): pass", "code", r"is called as process\(input, context\), and takes \(\)"),
        ("def process(a, b, c): pass", "code", r"and takes \(a, b, c\)"),
        ("class A:\n  def process(self): pass", "code.A", r"and takes \(\)"),
        (
            "class A:\n  def __init__(self): self.x = 1 / 0\n  def process(self, i, c): pass",
            "code.A",
            r"A cannot be made without arguments: .*code_of_user\.py, line 2: ZeroDivisionError",
        ),
        (
            "class A:\n  def __init__(self, x): pass\n  def process(self, i, c): pass",
            "code.A",
            "without arguments: .*x",
        ),
        ("def process(input: 'Order'): pass", "code", "the annotation 'Order' of code_of_user means nothing"),
        (
            "def process(input): pass",
            "other_module.process",
            "there is no module other_module in the files of the function",
        ),
        ("def process(input): pass", "code..process", "is no name of a class"),
    ],
)
def test_it_says_what_is_wrong_with_a_file(user_file: UserFile, text: str, name: str, told: str) -> None:
    with pytest.raises(FunctionLoadError, match=told):
        user_file(text, name)


def test_a_file_that_failed_can_be_mended(user_file: UserFile) -> None:
    with pytest.raises(FunctionLoadError):
        user_file("raise ValueError")
    assert user_file("def process(input): return 1").call(0, None) == 1


@pytest.mark.parametrize("name", ["json.py", "pulsar.py", "kop.py", "pytest.py"])
def test_a_file_may_not_have_the_name_of_a_module_of_others(user_file: UserFile, name: str) -> None:
    with pytest.raises(FunctionLoadError, match=f"{name} has the name of a module of others"):
        user_file("def process(input): pass", "code", name)


def test_it_says_which_file_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(FunctionLoadError, match=r"there is no file .*nowhere\.py"):
        load(tmp_path / "nowhere.py", "nowhere")
    with pytest.raises(FunctionLoadError, match=r"its name must end with \.py"):
        load(tmp_path / "code.jar", "code")
    (tmp_path / "a.py").write_text("")
    with pytest.raises(FunctionLoadError, match=r"no class is named: a\.CLASS"):
        load(tmp_path / "a.py", "")


def test_a_function_may_be_an_object() -> None:
    class Twice:
        def process(self, input: int, context: Any) -> int:
            return 2 * input

    for target in (Twice, Twice()):
        code = of_object(target, "Twice")
        assert code.call(2, None) == 4
        assert (code.input_annotation, code.output_annotation) == (int, int)
    assert of_object(lambda value: value + 1, "plus").call(1, None) == 2


def test_a_file_that_changes_twice_in_a_second_is_read_each_time(tmp_path: Path) -> None:
    path = tmp_path / "changes.py"
    for result in ("1", "2", "3"):
        path.write_text(f"def process(text: str) -> str:\n    return '{result}'\n")
        os.utime(path, (1_700_000_000, 1_700_000_000))
        assert load(path, "changes").call("", None) == result
