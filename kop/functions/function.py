"""The code of a function: found in a file or folders, and the class, function or module in it that is named.

Owns: what a class name means; the import of a user's file, under the name that Pulsar gives it, so that its pickles and
its imports of files beside it work; what is told of code that cannot be loaded.
Must not know: serdes, records, who calls the function.
"""

from __future__ import annotations

import difflib
import importlib
import importlib.util
import inspect
import pkgutil
import sys
import traceback
import types
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.machinery import SourceFileLoader
from pathlib import Path
from typing import Any, Final, get_type_hints

from kop.functions.exception_text import text_of

_LOADED: Final = "__kop_function__"
"""A name in modules that were loaded here: the next function may have a file of the same name."""


class FunctionLoadError(Exception):
    """A function that cannot be loaded, with what its author has to know."""


@dataclass(frozen=True)
class CodePlace:
    """The file and the folders in which the code of a function lies."""

    py: str = ""
    """The path of the function's file; empty if the code is in folders alone."""
    folders: tuple[str, ...] = ()
    """The folders whose modules the code may import, in the order in which they are searched."""


@dataclass(frozen=True)
class FunctionCode:
    """A function that can be called."""

    class_name: str
    call: Callable[[Any, Any], Any]
    """The function: called with an input and a context, it returns the result, or a coroutine of it if `is_async`."""
    is_async: bool
    """True if the function is a coroutine function."""
    input_annotation: Any
    """The annotation of the input; Any if the function has none."""
    output_annotation: Any
    """The annotation of the result; Any if the function has none, or has None."""
    is_batch: bool = False
    """True if the function is called with record batches of Arrow, not with single messages."""
    plain: Callable[[Any], Any] | None = None
    """The function itself if it takes no context; None if it takes one."""

    def find(self, name: str) -> Any:
        """Import the module of a name, `module.Class`, from the function's files, and return the object that has this
        name. FunctionLoadError if there is none, or if the import fails.
        """
        return _find(name)


def load(py: str | Path, class_name: str) -> FunctionCode:
    """Import a file and return the function of it that is named: `module.Class`, `module.function` or `module`.
    FunctionLoadError if that fails.
    """
    return load_place(CodePlace(str(py)), class_name)


def load_place(place: CodePlace, class_name: str) -> FunctionCode:
    """Import the code of a function and return the function of it that is named, as `load` takes names. The folders of
    the code stay in `sys.path`. FunctionLoadError if that fails.
    """
    if not class_name:
        stem = Path(place.py).stem if place.py else "MODULE"
        raise FunctionLoadError(f"no class is named: {stem}.CLASS, {stem}.FUNCTION or {stem}")
    module = class_name.partition(".")[0]
    if place.py:
        path = Path(place.py).absolute()
        if path.suffix != ".py":
            raise FunctionLoadError(f"{path.name} is no file of Python: its name must end with .py")
        if not path.is_file():
            raise FunctionLoadError(f"there is no file {path}")
        _make_importable([str(path.parent)])
        if module == path.stem:
            _execute(path)
    else:
        _make_importable(place.folders)
        if module in sys.stdlib_module_names or module in {"kop", "pulsar"}:
            raise FunctionLoadError(f"the module {module} has the name of a module of others: give it another name")
    return of_object(_find(class_name), class_name)


def _make_importable(folders: Sequence[str]) -> None:
    for folder in reversed(folders):
        if folder not in sys.path:
            sys.path.insert(0, folder)
        sys.path_importer_cache.pop(folder, None)  # its files may be new; other finders may take long to look again


class _SourceAlone(SourceFileLoader):
    """A loader that looks at the source alone: compiled code is known by its second and its size, and a file may change
    twice in one second.
    """

    def get_code(self, fullname: str) -> types.CodeType:
        """Compile the module from its source; cached bytecode is not used."""
        return self.source_to_code(self.get_data(self.path), self.path)


def _execute(path: Path) -> None:
    """Run a user's file as the module of its name, also if one of that name was run before. FunctionLoadError if the
    file raises, or has the name of a module that is not of a function.
    """
    before = sys.modules.get(path.stem)
    known = before is not None and (hasattr(before, _LOADED) or getattr(before, "__file__", None) == str(path))
    if path.stem in sys.stdlib_module_names or path.stem in {"kop", "pulsar"} or (before is not None and not known):
        raise FunctionLoadError(f"{path.name} has the name of a module of others: give the file another name")
    spec = importlib.util.spec_from_file_location(path.stem, path, loader=_SourceAlone(path.stem, str(path)))
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    setattr(module, _LOADED, True)
    sys.modules[path.stem] = module
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        del sys.modules[path.stem]
        raise FunctionLoadError(_told(error)) from error


def _find(name: str) -> Any:
    parts = name.split(".")
    if not all(part.isidentifier() for part in parts):
        raise FunctionLoadError(f"{name!r} is no name of a class, a function or a module")
    module, rest = _module(parts)
    place: Any = module
    for part in rest:
        if not hasattr(place, part):
            near = difflib.get_close_matches(part, [other for other in vars(place) if not other.startswith("_")], 1)
            hint = f"; is it {near[0]}?" if near else ""
            raise FunctionLoadError(f"{getattr(place, '__name__', place)} has no class or function {part}{hint}")
        place = getattr(place, part)
    return place


def _module(parts: list[str]) -> tuple[types.ModuleType, list[str]]:
    """Import the longest beginning of a name that is a module, and return that module with the parts of the name behind
    it. FunctionLoadError if there is no such module, or if it raises.
    """
    for count in range(len(parts), 0, -1):
        name = ".".join(parts[:count])
        try:
            return importlib.import_module(name), parts[count:]
        except ModuleNotFoundError as error:
            if error.name is None or not f"{name}.".startswith(f"{error.name}."):
                raise FunctionLoadError(_told(error)) from error
        except (Exception, SystemExit) as error:
            raise FunctionLoadError(_told(error)) from error
    there = sorted(_modules_beside())
    near = difflib.get_close_matches(parts[0], there, 1)
    hint = f"; is it {near[0]}?" if near else f"; there is {', '.join(there[:5])}" if there else ""
    raise FunctionLoadError(f"there is no module {parts[0]} in the files of the function{hint}")


def _modules_beside() -> set[str]:
    """Return the names of the public modules in the first folder of `sys.path`, which is one of the function's."""
    return {module.name for module in pkgutil.iter_modules(sys.path[:1]) if not module.name.startswith("_")}


def _told(error: BaseException) -> str:
    """Return the text of an error with the line of the user's file at which it happened."""
    if isinstance(error, SyntaxError):
        return f"{error.filename}, line {error.lineno}: {type(error).__name__}: {error.msg}"
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if not frame.filename.startswith("<")][1:]
    place = f"{frames[-1].filename}, line {frames[-1].lineno}: " if frames else ""
    return f"{place}{text_of(error)}"


def of_object(target: Any, name: str) -> FunctionCode:
    """Return the function that a class (which is made here, without arguments), a function, a module, or an object with
    `process` or `process_batch` is. FunctionLoadError if it is none that can be called; `name` is the one to tell.
    """
    is_class = inspect.isclass(target)
    if is_class:
        try:
            target = target()
        except (Exception, SystemExit) as error:
            raise FunctionLoadError(f"{name} cannot be made without arguments: {_told(error)}") from error
    process = target if inspect.isroutine(target) else getattr(target, "process", None)
    if process is None:
        process = getattr(target, "process_batch", None)
    is_batch = getattr(process, "__name__", "") == "process_batch"
    if not callable(process) or getattr(process, "__isabstractmethod__", False):
        raise FunctionLoadError(f"{name} has no process(input, context)")
    try:
        signature = inspect.signature(process)
    except ValueError:
        raise FunctionLoadError(f"{name} does not say which arguments it takes: it must be written in Python") from None
    takes_context = _takes_context(signature, name, is_class)
    if is_batch and inspect.iscoroutinefunction(process):
        raise FunctionLoadError(f"{name}: batches are called one after the other: write process_batch without async")
    return FunctionCode(
        name,
        process if takes_context else lambda value, _context: process(value),
        inspect.iscoroutinefunction(process),
        _annotation(process, next(iter(signature.parameters.values())).annotation, name),
        _annotation(process, signature.return_annotation, name),
        is_batch,
        None if takes_context else process,
    )


def _takes_context(signature: inspect.Signature, name: str, is_class: bool) -> bool:
    """Return True if a function is called with its context, False if with the input alone. As in Pulsar, a method of a
    class gets the context if it takes two arguments; another function if its second argument has no default, or is
    called `context`. FunctionLoadError if it can be called neither way.
    """
    second = next(iter(list(signature.parameters.values())[1:]), None)
    named = second is not None and (second.name == "context" or second.default is second.empty)
    for count in (2, 1) if is_class or named else (1,):
        try:
            signature.bind(*[None] * count)
        except TypeError:
            continue
        return count == 2
    raise FunctionLoadError(f"{name} is called as process(input, context), and takes {signature}")


def _annotation(process: Callable[..., Any], annotation: Any, name: str) -> Any:
    if annotation is inspect.Parameter.empty or annotation is None or annotation == "None":
        return Any
    holder = types.SimpleNamespace(__annotations__={"value": annotation})
    try:
        return get_type_hints(holder, globalns=getattr(inspect.unwrap(process), "__globals__", {}))["value"]
    except Exception as error:
        raise FunctionLoadError(
            f"the annotation {annotation!r} of {name} means nothing when the function runs: {text_of(error)}"
        ) from None
