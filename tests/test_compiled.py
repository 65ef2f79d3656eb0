"""Which code is used where the compiled module is there, is missing, or is of other sources."""

from __future__ import annotations

import ast
import hashlib
import inspect
import re
import sys
import tomllib
from collections.abc import Callable, Iterable
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any, cast

import pytest

from kop import compiled
from kop.functions import watch
from kop.handlers import produce
from kop.handlers.api import Answer
from kop.pulsar_client import _pure as frames_in_python
from kop.pulsar_client.proto import pulsar_pb2 as pb
from kop.records import _pure, _pure_arrow, batch
from kop.wire.frame import FLEXIBLE_FROM
from kop.wire.primitives import MOST_ELEMENTS

(PRODUCE,) = produce.APIS

SOURCE = Path(compiled.__file__).parent / "_native/src/lib.rs"
CLASSES = SOURCE.with_name("direct")
OF_FORMAT = (22, "1e033a01d098ff24")
"""A number, and the digest of the functions that it stands for."""


def built(format_number: int) -> ModuleType:
    module = ModuleType("kop._native")
    vars(module)["FORMAT"] = format_number
    module.__file__ = "/somewhere/_native.so"
    return module


def test_a_build_of_these_sources_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    native = built(compiled.FORMAT)
    monkeypatch.setitem(sys.modules, "kop._native", native)
    assert compiled.compiled(compiled) is native
    assert compiled.missing() is None


def test_a_build_of_other_sources_is_not_used_and_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "kop._native", built(compiled.FORMAT - 1))
    assert compiled.compiled(compiled) is compiled
    why = compiled.missing()
    assert why is not None
    assert why.startswith("/somewhere/_native.so was built from other sources")


@pytest.mark.parametrize(
    ("cargo", "says"),
    [(None, "for want of cargo: install Rust, then install kop again"), ("/usr/bin/cargo", "though cargo is there")],
)
@pytest.mark.parametrize("only_the_folder", [False, True])
def test_plain_python_does_where_nothing_was_built(
    monkeypatch: pytest.MonkeyPatch, only_the_folder: bool, cargo: str | None, says: str
) -> None:
    """A clone has a folder `kop/_native` of sources, which Python takes for a package without a file."""
    folder = ModuleType("kop._native")
    folder.__file__ = None
    monkeypatch.setitem(sys.modules, "kop._native", folder if only_the_folder else None)
    monkeypatch.setattr("shutil.which", lambda name: cargo)
    assert compiled.compiled(compiled) is compiled
    why = compiled.missing()
    assert why is not None
    assert says in why
    assert "None" not in why


def test_another_function_or_argument_has_another_number() -> None:
    """A build from before it would be taken for one of these sources otherwise, and fail where the function is called.

    Where this fails: raise FORMAT in kop/compiled.py and in lib.rs, and put the new pair into OF_FORMAT.
    """
    text = SOURCE.read_text()
    functions = re.findall(r"#\[pyfunction\]\s*(?:#\[[^\n]*\]\s*)*fn \w+.*?\{\n", text, re.DOTALL)
    assert len(functions) == text.count("#[pyfunction]")
    classes = "".join(path.read_text() for path in sorted(CLASSES.glob("*.rs")))
    for methods in re.findall(r"#\[pymethods\]\n(impl .*?\n)\}\n", classes, re.DOTALL):
        functions += re.findall(r"impl \w+|^    fn \w+.*?\{\n", methods, re.DOTALL | re.MULTILINE)
    signatures = "\n".join(" ".join(function.split()) for function in functions)
    assert (compiled.FORMAT, hashlib.sha256(signatures.encode()).hexdigest()[:16]) == OF_FORMAT
    assert f"const FORMAT: u32 = {compiled.FORMAT};" in text


# --- the stub, and numbers that stand in both languages

STUB = SOURCE.parents[2] / "_native.pyi"
NATIVE: Any = compiled.compiled_only()
NEEDS_COMPILED = pytest.mark.skipif(NATIVE is None, reason="kop._native was not built: nothing to compare")


def public(names: Iterable[str]) -> set[str]:
    return {name for name in names if not name.startswith("_")}


def arguments(function: object) -> list[str]:
    """The names of a function's arguments, as far as callers see them."""
    return [name.lstrip("_") for name in inspect.signature(cast(Callable[..., object], function)).parameters]


def named_by_twins() -> dict[str, tuple[str, str]]:
    """The names that the stub has from a readable twin, each with the twin's module and its name there."""
    return {
        alias.asname: (node.module, alias.name)
        for node in ast.parse(STUB.read_text()).body
        if isinstance(node, ast.ImportFrom) and node.module
        for alias in node.names
        if alias.asname
    }


def declared() -> dict[str, ast.ClassDef | ast.AnnAssign]:
    """The other names of the stub."""
    body = ast.parse(STUB.read_text()).body
    numbers = {node.target.id: node for node in body if isinstance(node, ast.AnnAssign) and node.simple == 1
               and isinstance(node.target, ast.Name) and node.value is None}  # fmt: skip
    return numbers | {node.name: node for node in body if isinstance(node, ast.ClassDef)}


@NEEDS_COMPILED
def test_the_stub_names_what_the_module_has() -> None:
    assert public(named_by_twins() | declared()) == public(vars(NATIVE))


@NEEDS_COMPILED
@pytest.mark.parametrize("name", named_by_twins())
def test_a_compiled_function_takes_what_its_readable_twin_takes(name: str) -> None:
    module, of_twin = named_by_twins()[name]
    twin, native = getattr(import_module(module), of_twin), getattr(NATIVE, name)
    assert arguments(native) == arguments(twin)
    if isinstance(twin, type):
        methods = {method for method in public(vars(twin)) if callable(getattr(twin, method))}
        assert methods == {method for method in public(vars(native)) if callable(getattr(native, method))}
        for method in methods:
            assert arguments(getattr(native, method)) == arguments(getattr(twin, method)), method


@NEEDS_COMPILED
@pytest.mark.parametrize("name", [name for name, node in declared().items() if isinstance(node, ast.ClassDef)])
def test_the_stub_has_the_members_of_a_compiled_class(name: str) -> None:
    node, native = declared()[name], getattr(NATIVE, name)
    assert isinstance(node, ast.ClassDef)
    functions = {member.name: member for member in node.body if isinstance(member, ast.FunctionDef)}
    fields = {ast.unparse(member.target) for member in node.body if isinstance(member, ast.AnnAssign)}
    if node.bases:
        fields |= {*Answer.__slots__, "alone"}
    assert public(functions | dict.fromkeys(fields)) == public(vars(native))
    for method, function in functions.items():
        if not function.decorator_list:
            made = native if method == "__init__" else getattr(native, method)
            taken = [argument.arg for argument in function.args.args]
            assert taken[method == "__init__" :] == arguments(made), method


def test_the_stub_is_installed() -> None:
    """The folder of Rust sources has the stub's name, and has to stay no package: the stub would not be read."""
    project = tomllib.loads((STUB.parents[1] / "pyproject.toml").read_text())
    assert STUB.name in project["tool"]["setuptools"]["package-data"]["kop"]
    assert not [*STUB.with_suffix("").glob("__init__.py*")]


IN_BOTH: dict[str, object] = {
    "FORMAT": compiled.FORMAT,
    # requests
    "PRODUCE": PRODUCE.key, "OLDEST": PRODUCE.min_version, "NEWEST": PRODUCE.max_version,
    "FLEXIBLE": FLEXIBLE_FROM[PRODUCE.key], "MOST_ELEMENTS": MOST_ELEMENTS,
    # batches of records
    "HEADER_SIZE": batch.HEADER_SIZE, "LOG_OVERHEAD": batch.LOG_OVERHEAD, "CRC_FROM": batch.CRC_FROM,
    "MAX_TIMESTAMP_AT": batch.MAX_TIMESTAMP_AT, "MIN_RECORD_SIZE": batch.MIN_RECORD_SIZE,
    "MAX_SEQUENCE": batch.MAX_SEQUENCE, "CODEC_MASK": batch.CODEC_MASK, "ZSTD": batch.Codec.ZSTD,
    "LOG_APPEND_TIME_BIT": batch.LOG_APPEND_TIME_BIT, "TRANSACTIONAL_BIT": batch.TRANSACTIONAL_BIT,
    "CONTROL_BIT": batch.CONTROL_BIT, "DELETE_HORIZON_BIT": batch.DELETE_HORIZON_BIT, "KEPT_BITS": batch.KEPT_BITS,
    # entries of Pulsar
    "MOST_REJECTED": _pure.MOST_REJECTED, "MAX_SHOWN": _pure.MAX_SHOWN, "MAX_PROPERTIES": _pure.MAX_PROPERTIES,
    "RESERVED": _pure.RESERVED, "HEADERS_PROPERTY": _pure.HEADERS_PROPERTY,
    "TIMESTAMP_PROPERTY": _pure.TIMESTAMP_PROPERTY, "EMPTY_PROPERTY": _pure.EMPTY_PROPERTY,
    "EMPTY_PAYLOAD": _pure.EMPTY_PAYLOAD, "RAW_PROPERTY": _pure.RAW_PROPERTY, "RAW_VALUE": _pure.RAW_VALUE,
    "SEND": pb.BaseCommand.SEND, "SEND_RECEIPT": pb.BaseCommand.SEND_RECEIPT, "MESSAGE": pb.BaseCommand.MESSAGE,
    "CHECKSUM_MAGIC": frames_in_python.CHECKSUM_MAGIC, "BROKER_MAGIC": frames_in_python.BROKER_MAGIC,
    # rows of Arrow
    "SECTION_WEIGHT": _pure_arrow.SECTION_WEIGHT,
    # calls of functions
    "OFFSET": watch.OFFSET,
}  # fmt: skip
"""The constants of Rust that Python code has, too."""
ONLY_IN_RUST = {
    "ALONE", "ALPHABET", "DEEPEST_GROUP", "FACTOR", "FRAMING", "GATHERED", "REQUEST_MAY_INFLATE", "SMALL", "UNREADABLE",
}  # fmt: skip


def constants() -> list[tuple[str, str]]:
    """The constants of the Rust sources, each with its value as Python code."""
    return [
        (name, value.replace("&[", "["))
        for path in sorted(SOURCE.parent.rglob("*.rs"))
        for name, value in re.findall(r"^ *(?:pub )?const (\w+): [^=]+ = (.*?);", path.read_text(), re.MULTILINE)
    ]


def test_numbers_that_stand_in_both_languages_are_the_same() -> None:
    """A constant that is new in Rust is one of Python's, or one that Python does not have."""
    names = [name for name, _ in constants()]
    assert {*names} == IN_BOTH.keys() | ONLY_IN_RUST
    scope: dict[str, Any] = {}
    for name, value in constants():
        if name not in IN_BOTH:
            continue
        of_rust = eval(value, scope)
        if isinstance(of_rust, list):
            of_rust = bytes(of_rust)
        of_python: object = IN_BOTH[name]
        if isinstance(of_rust, bytes) and isinstance(of_python, int):
            of_rust = int.from_bytes(of_rust, "big")
        assert of_rust == of_python, name
        scope[name] = of_rust
