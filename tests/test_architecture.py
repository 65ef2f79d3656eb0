"""Which way imports point: the house's walls, held by walking every import of the package."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "kop"

ANYONE = {"background", "config", "repeats", "turns", "values", "metrics", "errors"}
"""Rooms that anyone may import and that import nothing of ours (the version aside)."""

ALLOWED: dict[str, set[str]] = {
    "config": {"errors", "values"},
    "values": set(),
    "metrics": set(),
    "errors": set(),
    "background": {"errors", "repeats"},
    "repeats": set(),
    "turns": set(),
    "wire": {"errors"},
    "records": {"errors"},
    "storage": {"records"},
    "pulsar_client": set(),
    "cluster": {"storage.base", "records"},
    "coordination": {"storage.base", "records", "wire.state"},
    "groups": {"coordination", "storage.base", "records", "cluster", "wire.state"},
    "handlers": {"groups", "cluster", "storage.base", "records", "wire"},
    "server": {"handlers", "wire"},
    "cli": set(),
    "testing": {"app"},
    "app": {"cluster", "groups", "handlers", "server", "storage", "wire", "records"},
}
EXTRA: dict[str, set[str]] = {
    "kop/cli/serve.py": {"app"},
    "kop/cli/offsets.py": {"pulsar_client"},
    "kop/cli/pulsar.py": {"pulsar_client"},
    "kop/storage/pulsar/": {"pulsar_client"},
}
"""`kop serve` is the one command that loads the gateway; one engine and two modules of commands know Pulsar."""


def modules() -> list[Path]:
    return sorted(PACKAGE.rglob("*.py"))


def imported(path: Path) -> set[str]:
    """Dotted names below `kop` that a module imports, also lazily and for types."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            if node.module == "kop":
                found |= {alias.name for alias in node.names}
            elif node.module and node.module.startswith("kop."):
                inside = node.module.removeprefix("kop.")
                found |= {f"{inside}.{alias.name}" for alias in node.names}
        elif isinstance(node, ast.Import):
            found |= {alias.name.removeprefix("kop.") for alias in node.names if alias.name.startswith("kop.")}
    return found


@pytest.mark.parametrize("path", modules(), ids=lambda path: str(path.relative_to(ROOT)))
def test_imports_point_the_way_the_house_is_drawn(path: Path) -> None:
    name = str(path.relative_to(ROOT))
    room = path.relative_to(PACKAGE).parts[0].removesuffix(".py")
    if room == "__init__":
        assert imported(path) == set()
        return
    extra = [more for start, more in EXTRA.items() if name.startswith(start)]
    allowed = ALLOWED[room].union({room}, *extra)
    if room not in ANYONE:
        allowed |= ANYONE
    for target in imported(path):
        if target == "__version__":
            continue
        assert any(target == wall or target.startswith(wall + ".") for wall in allowed), f"{name} imports kop.{target}"


def test_only_the_wire_and_the_command_line_know_kafka_python() -> None:
    for path in modules():
        room = path.relative_to(PACKAGE).parts[0]
        text = path.read_text()
        if re.search(r"^\s*(import|from) kafka\b", text, re.MULTILINE):
            assert room in {"wire", "cli"}, path


def test_only_storage_knows_sqlite() -> None:
    for path in modules():
        if "import sqlite3" in path.read_text():
            assert path.is_relative_to(PACKAGE / "storage" / "sqlite"), path


ENGINES = sorted(path.name for path in (PACKAGE / "storage").iterdir() if (path / "engine.py").exists())


def test_engines_know_nothing_of_each_other_and_what_they_share_knows_none() -> None:
    assert ENGINES == ["memory", "pulsar", "sqlite"]
    for path in (PACKAGE / "storage").rglob("*.py"):
        own = path.relative_to(PACKAGE / "storage").parts[0]
        for target in imported(path):
            room, _, inner = target.partition(".")
            engine = inner.partition(".")[0]
            assert room != "storage" or engine not in ENGINES or engine == own, f"{path} imports kop.{target}"


@pytest.mark.parametrize("folder", ["kop", "tests"])
def test_nobody_asks_which_engine_it_has(folder: str) -> None:
    """What engines do differently stands in `kop.storage.base.Promises`, or behind a method that all of them have."""
    asks = re.compile(r"\b(isinstance|getattr|hasattr)\((\w+\.)*_?engine\b|\bisinstance\([^()]*\b\w+(Engine|Log)\)")
    for path in (ROOT / folder).rglob("*.py"):
        found = asks.search(path.read_text())
        assert found is None, f"{path}: {found.group()}"


def test_every_module_says_what_it_owns() -> None:
    for path in modules():
        tree = ast.parse(path.read_text())
        doc = ast.get_docstring(tree) or ""
        assert doc, f"{path} has no docstring"
        if path.name not in {"__init__.py"} and path.parent.name not in {"cli", "handlers"}:
            assert "Owns" in doc or "Must not know" in doc or path.name in {"errors.py"}, (
                f"{path}: says not what it owns"
            )


def test_test_modules_have_names_of_their_own() -> None:
    """Pytest cannot import two files of one name, and leaves the second one out of the run."""
    names = [path.name for path in (ROOT / "tests").rglob("*.py") if path.name not in {"conftest.py", "__init__.py"}]
    assert sorted(set(names)) == sorted(names)
