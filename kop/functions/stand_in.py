"""A stand-in for the package `pulsar`, for files of functions if pulsar-client is not installed.

Owns: which names of `pulsar` there are without pulsar-client; putting them into this process, and taking them out.
Must not know: what a function does with them.
"""

from __future__ import annotations

import importlib.util
import sys
import types
from abc import ABCMeta, abstractmethod
from enum import Enum
from typing import Any, Final

from kop.functions.context import FunctionContext
from kop.functions.serdes import IdentitySerDe, PickleSerDe, SerDe

_MARK: Final = "__kop_stand_in__"


class Function:
    """The interface of Pulsar's functions."""

    @abstractmethod
    def process(self, input: Any, context: Any) -> Any:
        """Process a message, and return the result, None for no output; functions of users have it."""


class Result(Enum):
    """The result that a callback of `publish` is told."""

    Ok = 0
    UnknownError = 1


class CompressionType(Enum):
    """The codecs that `publish` takes as `compression_type`."""

    NONE = 0
    LZ4 = 1
    ZLib = 2
    ZSTD = 3
    SNAPPY = 4


def _interface(cls: type) -> type:
    """Return an abstract class with the public names of `cls`, all of them methods that do nothing; instances of `cls`
    count as instances of it.
    """
    names = [name for name in vars(cls) if not name.startswith("_")]
    made = ABCMeta("Context", (), dict.fromkeys(names, lambda *_args, **_options: None))
    made.register(cls)
    return made


_context: Final = _interface(FunctionContext)

_MODULES: Final[dict[str, dict[str, Any]]] = {
    "pulsar": {
        "Function": Function,
        "Context": _context,
        "SerDe": SerDe,
        "IdentitySerDe": IdentitySerDe,
        "PickleSerDe": PickleSerDe,
        "Result": Result,
        "CompressionType": CompressionType,
    },
    "pulsar.functions": {},
    "pulsar.functions.function": {"Function": Function},
    "pulsar.functions.context": {"Context": _context},
    "pulsar.functions.serde": {"SerDe": SerDe, "IdentitySerDe": IdentitySerDe, "PickleSerDe": PickleSerDe},
    "pulsar.schema": {},
}

_before: dict[str, types.ModuleType] = {}
"""Modules of pulsar-client that a stand-in has replaced."""


def installed() -> bool:
    """Return if the module `pulsar` comes from pulsar-client here."""
    return importlib.util.find_spec("_pulsar") is not None


def install(*, force: bool = False) -> bool:
    """Put the stand-in for `pulsar` into this process unless pulsar-client is installed; with `force` in any case, in
    place of modules of it that are imported. Returns True if it was put there, False also if it is there already.
    """
    if hasattr(sys.modules.get("pulsar"), _MARK) or (installed() and not force):
        return False
    for name in [name for name in sys.modules if name == "pulsar" or name.startswith("pulsar.")]:
        _before[name] = sys.modules.pop(name)
    for name, values in _MODULES.items():
        module = types.ModuleType(name, "A stand-in of kop for pulsar-client.")
        module.__dict__.update({_MARK: True, "__getattr__": _refusal(name), **values})
        if name != "pulsar.schema":
            module.__dict__.update({"__path__": [], "__all__": list(values)})
        sys.modules[name] = module
        parent, _, own = name.rpartition(".")
        if parent:
            setattr(sys.modules[parent], own, module)
    return True


def uninstall() -> None:
    """Take the stand-in out of this process again, and put back the modules that `install` has replaced; do nothing if
    there is no stand-in.
    """
    if not hasattr(sys.modules.get("pulsar"), _MARK):
        return
    for name in _MODULES:
        sys.modules.pop(name, None)
    sys.modules.update(_before)
    _before.clear()


def _refusal(module: str) -> Any:
    def refuse(name: str) -> Any:
        if name.startswith("__") and name != "__all__":
            raise AttributeError(name)
        wanted = module if name == "__all__" else f"{module}.{name}"
        raise ImportError(f"{wanted} needs pulsar-client, which is not installed: pip install pulsar-client")

    return refuse
