"""What tests of functions share: files of users, whose imports are undone."""

from __future__ import annotations

import sys
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from kop.functions import stand_in
from kop.functions.function import FunctionCode, load

UserFile = Callable[..., FunctionCode]


@pytest.fixture(autouse=True)
def imports_are_undone() -> Iterator[None]:
    """Take what a test imported, and the stand-in, out of the process again."""
    path = list(sys.path)
    yield
    stand_in.uninstall()
    folders = tuple(set(sys.path) - set(path))
    sys.path[:] = path
    for name, module in list(sys.modules.items()):
        if folders and (getattr(module, "__file__", None) or "").startswith(folders):
            del sys.modules[name]


@pytest.fixture
def user_file(tmp_path: Path) -> UserFile:
    """Write a user's file and load a function of it."""

    def loaded(text: str, class_name: str = "code.process", file: str = "code_of_user.py") -> FunctionCode:
        path = tmp_path / file
        path.write_text(textwrap.dedent(text))
        return load(path, class_name.replace("code", path.stem, 1))

    return loaded
