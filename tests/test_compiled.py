"""Which code is used where the compiled module is there, is missing, or is of other sources."""

from __future__ import annotations

import sys
from types import ModuleType

import pytest

from kop import compiled


def built(format_number: int) -> ModuleType:
    module = ModuleType("kop._native")
    module.FORMAT = format_number  # type: ignore[attr-defined]
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


def test_plain_python_does_where_nothing_was_built(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "kop._native", None)
    assert compiled.compiled(compiled) is compiled
    why = compiled.missing()
    assert why is not None
    assert "cargo" in why
