"""Functions and contexts for tests, with what is the same in most of them."""

from __future__ import annotations

import logging
from typing import Any

from kop.functions.context import Effect, FunctionContext
from kop.functions.function import FunctionCode
from kop.functions.serdes import of_class_name
from kop.functions.spec import FunctionSpec, InputSpec


def spec_with(**fields: Any) -> FunctionSpec:
    """Return a function from `in` to `out`."""
    given: dict[str, Any] = {"name": "f", "class_name": "f.F", "py": "f.py", "inputs": {"in": InputSpec()}}
    return FunctionSpec(**{**given, "output": "out", **fields})


def context_with(effects: list[Effect], code: FunctionCode | None = None, **options: Any) -> FunctionContext:
    """Return a context of a call that notes what is asked for in `effects`."""
    spec = options.pop("spec", None) or spec_with()
    given: dict[str, Any] = {
        "logger": logging.getLogger("kop.functions.test"),
        "serde": lambda name: of_class_name(name, code),  # type: ignore[arg-type]
        "secrets": {},
        "record_metric": lambda name, value: None,
    }
    context = FunctionContext(spec, 0, effects, **{**given, **options})
    context.begin(("in", 0), (0, 0, None, None, ()))
    return context
