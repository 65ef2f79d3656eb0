"""Which code is used where the compiled module is there, is missing, or is of other sources."""

from __future__ import annotations

import hashlib
import re
import sys
from pathlib import Path
from types import ModuleType

import pytest

from kop import compiled

SOURCE = Path(compiled.__file__).parent / "_native/src/lib.rs"
CLASSES = SOURCE.with_name("direct")
OF_FORMAT = (19, "a4c9ff51696b239e")
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
