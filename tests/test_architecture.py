"""Which way imports point: the house's walls, held by walking every import of the package."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterable, Mapping
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "kop"

ANYONE = {
    "_native",
    "address",
    "allocator",
    "background",
    "clock",
    "compiled",
    "event_loop",
    "garbage_collector",
    "log_format",
    "memory_limit",
    "read_budget",
    "repeats",
    "threads",
    "turns",
    "values",
    "varints",
    "metrics",
    "errors",
}
"""Modules that anyone may import and that import no room."""

ALLOWED: dict[str, set[str]] = {
    "config": {
        "address",
        "cluster.settings",
        "errors",
        "groups.settings",
        "handlers.settings",
        "memory_limit",
        "security.settings",
        "server.settings",
        "storage.memory.settings",
        "storage.pulsar.settings",
        "storage.settings",
        "storage.sqlite.settings",
        "transactions.settings",
        "values",
    },
    "memory_limit": set(),
    "address": set(),
    "values": {"address"},
    "metrics": set(),
    "errors": set(),
    "background": {"clock", "errors", "metrics", "repeats"},
    "read_budget": {"turns"},
    "clock": set(),
    "log_format": set(),
    "repeats": set(),
    "threads": {"errors"},
    "turns": set(),
    "_native": set(),
    "compiled": set(),
    "allocator": set(),
    "event_loop": set(),
    "varints": set(),
    "garbage_collector": set(),
    "wire": {"errors"},
    "records": {"errors"},
    "storage": {"records"},
    "pulsar_client": set(),
    "cluster": {"storage.base", "records"},
    "coordination": {"storage.base", "records", "wire"},
    "groups": {"coordination", "storage.base", "records", "cluster", "wire.state"},
    "transactions": {"coordination", "storage.base", "records", "cluster", "wire"},
    "security": {"coordination", "storage.base", "records", "cluster", "wire.state"},
    "handlers": {"groups", "transactions", "coordination", "cluster", "security", "storage.base", "records", "wire"},
    "server": {"handlers", "security", "wire"},
    "cli": {"client", "config"},
    "testing": {
        "app",
        "client",
        "config",
        "functions",
        "groups",
        "handlers",
        "records",
        "security",
        "server",
        "storage.base",
        "storage.memory",
        "wire",
    },
    "client": {"records"},
    "functions": {"client", "records"},
    "mesh": {
        "functions.config_fields",
        "functions.config_reading",
        "functions.definitions",
        "functions.packages",
        "functions.spec",
        "functions.topics",
    },
    "schemas": {"records"},
    "spark": {"client", "records", "schemas"},
    "app": {
        "cluster",
        "config",
        "coordination",
        "groups",
        "transactions",
        "handlers",
        "security",
        "server",
        "storage",
        "wire",
        "records",
    },
}
EXTRA: dict[str, set[str]] = {
    "kop/cli/certs.py": {"security"},
    "kop/cli/serve.py": {"app"},
    "kop/cli/functions.py": {"client", "functions"},
    "kop/cli/mesh_definitions.py": {"client", "functions", "mesh"},
    "kop/cli/mesh_draw.py": {"mesh"},
    "kop/cli/mesh_files.py": {"client", "functions", "mesh"},
    "kop/cli/mesh_reports.py": {"client", "mesh"},
    "kop/cli/mesh_status.py": {"client", "functions", "mesh"},
    "kop/cli/functions_admin.py": {"functions"},
    "kop/cli/offsets.py": {"pulsar_client"},
    "kop/cli/older_entries.py": {"pulsar_client"},
    "kop/cli/sender.py": {"records"},
    "kop/cli/users.py": {"app", "security"},
    "kop/cli/pulsar.py": {"pulsar_client"},
    "kop/cli/pulsar_rights.py": {"pulsar_client"},
    "kop/schemas/pulsar.py": {"pulsar_client"},
    "kop/spark/mesh/": {"functions", "mesh"},
    "kop/spark/message_ids.py": {"pulsar_client"},
    "kop/storage/pulsar/": {"pulsar_client"},
}
"""What parts of a room may import beyond their room: `kop serve`, and `kop users --store`, load the gateway."""


@cache
def modules() -> list[Path]:
    return sorted(PACKAGE.rglob("*.py"))


def places(paths: Iterable[Path], of: Callable[[Path], Iterable[str]]) -> list[str]:
    """What is wrong in any of these files, each with the file's name before it."""
    return [f"{path.relative_to(ROOT)}: {place}" for path in paths for place in of(path)]


@cache
def imported(path: Path) -> frozenset[str]:
    """Dotted names below `kop` that a module imports, also lazily and for types."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            if node.module == "kop":
                names |= {alias.name for alias in node.names}
            elif node.module and node.module.startswith("kop."):
                inside = node.module.removeprefix("kop.")
                names |= {f"{inside}.{alias.name}" for alias in node.names}
        elif isinstance(node, ast.Import):
            names |= {alias.name.removeprefix("kop.") for alias in node.names if alias.name.startswith("kop.")}
    return frozenset(names)


def imported_against_the_walls(path: Path) -> list[str]:
    """What a module imports that its room may not."""
    name = str(path.relative_to(ROOT))
    room = path.relative_to(PACKAGE).parts[0].removesuffix(".py")
    if room == "__init__":
        return sorted(imported(path))
    extra = [more for start, more in EXTRA.items() if name.startswith(start)]
    allowed = ALLOWED[room].union({room}, *extra)
    if path.name == "settings.py" and room != "cli":
        allowed = {"errors", "values", f"{room}.settings"}
    elif room not in ANYONE | {"config"}:
        allowed |= ANYONE
    return [
        f"imports kop.{target}"
        for target in sorted(imported(path) - {"__version__"})
        if not any(target == wall or target.startswith(wall + ".") for wall in allowed)
    ]


def test_imports_point_the_way_the_house_is_drawn() -> None:
    assert places(modules(), imported_against_the_walls) == []


def test_the_page_draws_the_same_arrows() -> None:
    """docs/architecture.md shows who imports whom, for people; ALLOWED and EXTRA are what is held."""
    page = (ROOT / "docs" / "architecture.md").read_text()
    drawn: dict[str, set[str]] = {}
    for line in re.findall(r"^([\w, ./]+?) +-> (.*)$", page, re.MULTILINE):
        targets = set(re.findall(r"[\w.]+", line[1])) - {"nothing"}
        drawn |= dict.fromkeys(line[0].split(", "), targets)
    rooms = {room: targets for room, targets in ALLOWED.items() if room not in ANYONE}
    extra = {start.removesuffix("/"): targets for start, targets in EXTRA.items()}
    anyone = {room: ALLOWED[room] for room in ANYONE}
    assert drawn == rooms | extra | anyone


def test_the_page_names_members_that_are_there() -> None:
    """`Class.member` in docs/architecture.md is a member that some class of that name defines."""
    page = (ROOT / "docs" / "architecture.md").read_text()
    sources = [path.read_text() for path in modules()]
    named = re.findall(r"`([A-Z]\w+)\.(\w+)(?:\(\))?`", page)
    assert named
    for owner, member in named:
        bodies = [part for source in sources for part in re.split(r"^(?=class )", source, flags=re.MULTILINE)]
        own = [body for body in bodies if re.match(rf"class {owner}\b", body)]
        assert any(re.search(rf"\b(def )?{member}\b *[(:=]", body) for body in own), f"{owner}.{member}"


def test_the_composition_root_reaches_through_nobody() -> None:
    """kop/app.py gives each part what that needs, and uses no member of a member of a part."""
    tree = ast.parse((PACKAGE / "app.py").read_text())
    imports = [node for node in ast.walk(tree) if isinstance(node, ast.Import | ast.ImportFrom)]
    modules = {alias.asname or alias.name for node in imports for alias in node.names}
    chains = {
        ast.unparse(node)
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Attribute)
    }
    members = {chain for chain in chains if chain.removeprefix("self.").partition(".")[0] not in modules | {"config"}}
    assert {chain for chain in members if chain.removeprefix("self.").count(".") > 1} == set()


def test_only_the_wire_and_clients_know_kafka_python() -> None:
    for path in modules():
        room = path.relative_to(PACKAGE).parts[0]
        text = path.read_text()
        if re.search(r"^\s*(import|from) kafka\b", text, re.MULTILINE):
            assert room in {"wire", "cli", "client", "spark"}, path


def test_only_storage_knows_sqlite() -> None:
    for path in modules():
        if "import sqlite3" in path.read_text():
            assert path.is_relative_to(PACKAGE / "storage" / "sqlite") or path == PACKAGE / "functions" / "state.py"


def test_only_one_module_of_records_knows_pyarrow_and_loads_it_when_called() -> None:
    """The gateway is installed without pyarrow."""
    for path in modules():
        text = path.read_text()
        if "pyarrow" not in text:
            continue
        tree = ast.parse(text)
        names = {"pyarrow"} & {
            alias.name.partition(".")[0] if isinstance(node, ast.Import) else (node.module or "").partition(".")[0]
            for node in ast.walk(tree)
            if isinstance(node, ast.Import | ast.ImportFrom)
            for alias in node.names
        }
        room = path.relative_to(PACKAGE).parts[0]
        if names and room not in {"spark", "functions", "schemas"}:
            assert path == PACKAGE / "records" / "arrow.py", f"{path} imports pyarrow"
            at_once = [node for node in tree.body if isinstance(node, ast.Import | ast.ImportFrom)]
            assert "pyarrow" not in " ".join(map(ast.unparse, at_once)), f"{path} imports pyarrow when it is imported"


def module_name(path: Path) -> str:
    return ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


def arrows_of_python() -> dict[str, set[str]]:
    """What each module imports."""
    names = {module_name(path): path for path in modules()}
    arrows: dict[str, set[str]] = {}
    for name, path in names.items():
        targets = {f"kop.{target}" for target in imported(path)}
        arrows[name] = {target if target in names else target.rpartition(".")[0] for target in targets} & names.keys()
    return arrows


def arrows_of_rust() -> dict[str, set[str]]:
    """What each module of the compiled code names, as `crate::a::b` or `super::b`; lib.rs is not one that others name.

    What a mod.rs hands on is the modules of its folder.
    """
    sources = PACKAGE / "_native" / "src"
    names = {"::".join(path.relative_to(sources).with_suffix("").parts): path for path in sources.rglob("*.rs")}
    arrows: dict[str, set[str]] = {}
    for name, path in names.items():
        text = re.sub(r"//.*", "", path.read_text())
        parent = name.rpartition("::")[0]
        targets = re.findall(r"\bcrate::(\w+(?:::\w+)?)", text)
        targets += [f"{parent}::{target}".removeprefix("::") for target in re.findall(r"\bsuper::(\w+)", text)]
        targets += [f"{parent}::{target}" for target in re.findall(r"^mod (\w+);", text, re.MULTILINE) if parent]
        named = {target if target in names else target.partition("::")[0] for target in targets}
        named = {f"{target}::mod" if f"{target}::mod" in names else target for target in named}
        if name != "lib":
            assert named <= names.keys(), f"{path.name} names {named - names.keys()} of the crate's root"
        arrows[name] = named & names.keys()
    return arrows


def circles(arrows: Mapping[str, set[str]]) -> list[list[str]]:
    """Modules that name each other, however many lie between: the strongly connected parts of the arrows."""
    reached: dict[str, set[str]] = {}
    for name in arrows:
        seen, left = set[str](), [name]
        while left:
            new = arrows[left.pop()] - seen
            seen |= new
            left += new
        reached[name] = seen
    groups = {tuple(sorted({other for other in reached[name] if name in reached[other]})) for name in arrows}
    return [list(circle) for circle in sorted(groups) if circle]


def test_no_modules_import_each_other_in_a_circle() -> None:
    """Imports for types alone count: they show that a part knows its parent."""
    assert circles(arrows_of_python()) == []


def test_no_modules_of_the_compiled_code_name_each_other_in_a_circle() -> None:
    arrows = arrows_of_rust()
    assert arrows["direct::requests"] >= {"direct::answer", "direct::writer", "produce"}, "the test sees no arrows"
    assert circles(arrows) == []


KNOWS_INTERNALS_OF_KAFKA_PYTHON = {
    "kop/wire/codec.py",
    "kop/wire/rows.py",
    "kop/wire/refusals.py",
    "kop/wire/throttle_time.py",
    "kop/cli/common.py",
    "tests/support/random_messages.py",
    "tests/wire/test_refusals.py",
}
"""kafka-python has no public name for the fields of a message and for the brokers that a client knows."""

NO_MEMBERS_OF = re.compile(r"(\w+\.)?KafkaError")
"""confluent-kafka begins the names of librdkafka's own error codes, which are public, with an underscore."""

OF_SYSTEM = {"os._exit"}
"""Python documents it: the end of a process without what would be done before."""

OF_EVERY_NAMED_TUPLE = {"_replace", "_make", "_asdict", "_fields"}


def private_members_reached(path: Path) -> list[str]:
    """Where a module uses `x._name` of an object that is neither `self`, nor `cls`, nor of the class it stands in."""
    reached: list[str] = []
    text = path.read_text()
    is_excepted = str(path.relative_to(ROOT)) in KNOWS_INTERNALS_OF_KAFKA_PYTHON
    if is_excepted or not re.search(r"(?<!\bself)(?<!\bcls)\._(?!_)\w", text):
        return reached

    def made_here(function: ast.AST, name: str) -> bool:
        """Whether a function makes what it calls `name` by its own class, as other constructors do."""
        makers = re.compile(r"(cls(\.\w+)?|type\(self\))\(")
        return any(
            isinstance(node, ast.Assign)
            and ast.unparse(node.targets[0]) == name
            and makers.match(ast.unparse(node.value)) is not None
            for node in ast.walk(function)
        )

    def walk(node: ast.AST, classes: tuple[str, ...], function: ast.AST | None) -> None:
        if isinstance(node, ast.ClassDef):
            classes = (*classes, node.name)
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            function = node
        elif (
            isinstance(node, ast.Attribute) and re.match("_(?!_)", node.attr) and node.attr not in OF_EVERY_NAMED_TUPLE
        ):
            owner = ast.unparse(node.value)
            mine = owner in {"self", "cls", *classes} or (classes and function and made_here(function, owner))
            if not mine and not NO_MEMBERS_OF.fullmatch(owner) and ast.unparse(node) not in OF_SYSTEM:
                reached.append(f"{node.lineno}: {ast.unparse(node)}")
        for child in ast.iter_child_nodes(node):
            walk(child, classes, function)

    walk(ast.parse(text), (), None)
    return reached


WRITTEN = [path for path in modules() if not path.name.endswith("_pb2.py")]
"""The modules that somebody wrote, and no compiler."""
TESTS = sorted((ROOT / "tests").rglob("*.py"))


@pytest.mark.parametrize("paths", [WRITTEN, TESTS], ids=["kop", "tests"])
def test_nobody_uses_a_private_member_of_another_object(paths: list[Path]) -> None:
    assert places(paths, private_members_reached) == []


def test_no_test_sets_a_private_name() -> None:
    """What a test sets is a part of a module's interface, and has a public name."""
    private = re.compile(r"setattr\(\s*(?:[\w.()]+,\s*)?\"(?:[\w.]+\.)?_(?!_)\w+\"")
    assert places(TESTS, lambda path: private.findall(path.read_text())) == []


def test_modules_that_are_excepted_exist() -> None:
    names = {str(path.relative_to(ROOT)) for path in [*modules(), *TESTS]}
    assert names >= KNOWS_INTERNALS_OF_KAFKA_PYTHON


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
        match = asks.search(path.read_text())
        assert match is None, f"{path}: {match.group()}"


def test_every_module_says_what_it_owns() -> None:
    for path in modules():
        text = re.match(r'(?:#.*\n)*"""(.*?)"""', path.read_text(), re.DOTALL)
        doc = text[1].strip() if text else ""
        assert doc, f"{path} has no docstring"
        if path.name not in {"__init__.py"} and path.parent.name not in {"cli", "handlers"}:
            assert "Owns" in doc or "Must not know" in doc or path.name in {"errors.py"}, (
                f"{path}: says not what it owns"
            )


def test_no_two_classes_share_a_name() -> None:
    """A name in a log line, a traceback or a search then leads to one class alone."""
    classes: dict[str, list[str]] = {}
    for path in WRITTEN:
        for name in re.findall(r"^\s*class (\w+)", path.read_text(), re.MULTILINE):
            classes.setdefault(name, []).append(str(path.relative_to(ROOT)))
    assert len(classes) > len(WRITTEN)
    assert {name: where for name, where in classes.items() if len(where) > 1} == {}


SAY_NOTHING = {"found", "one", "stuff", "thing"}
"""Names that fit everything, and so tell nothing of a value."""
MAY_BIND = re.compile(rf"\b({'|'.join(SAY_NOTHING)})\b\s*([=,:()\[\]]|in\b|[-+*/|&^%@<>]+=)")
"""What follows any name that is bound: of texts that have none of these the syntax tree tells nothing."""

PYTHON = [
    path
    for folder in ("kop", "tests", "conformance", "deploy")
    for path in sorted((ROOT / folder).rglob("*.py"))
    if not any(part.startswith(".") for part in path.relative_to(ROOT).parts)  # what conformance/ downloads
]


def names_that_say_nothing(path: Path) -> set[str]:
    text = path.read_text()
    if not MAY_BIND.search(text):
        return set()
    bound = {
        node.id if isinstance(node, ast.Name) else node.arg if isinstance(node, ast.arg) else node.name
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.arg | ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)
        or (isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store))
    }
    return bound & SAY_NOTHING


def test_names_say_what_a_value_is() -> None:
    assert len(PYTHON) > len(WRITTEN) + len(TESTS)
    assert places(PYTHON, names_that_say_nothing) == []


def test_test_modules_have_names_of_their_own() -> None:
    """Pytest cannot import two files of one name, and leaves the second one out of the run."""
    names = [path.name for path in (ROOT / "tests").rglob("*.py") if path.name not in {"conftest.py", "__init__.py"}]
    assert sorted(set(names)) == sorted(names)


def sleeps_without_a_reason(path: Path) -> list[str]:
    text = path.read_text()
    if ".sleep" not in text:
        return []
    lines = text.splitlines()
    sleeps = []
    for node in ast.walk(ast.parse(text)):
        if not isinstance(node, ast.Call) or ast.unparse(node.func) not in {"asyncio.sleep", "time.sleep"}:
            continue
        assert node.end_lineno is not None
        if ast.unparse(node.args[0]) != "0" and "  # " not in lines[node.end_lineno - 1]:
            sleeps.append(f"{node.lineno} sleeps, and does not say why")
    return sleeps


def test_a_test_that_sleeps_says_why() -> None:
    """Tests wait for what is promised (tests/support/waiting.py). Where nothing can be waited for, the line says so."""
    assert places(TESTS, sleeps_without_a_reason) == []


HANDLERS = sorted(
    path for path in (ROOT / "kop/handlers").glob("*.py") if re.search(r"^APIS\b", path.read_text(), re.M)
)


def test_handlers_ask_the_context_for_what_names_stand_for() -> None:
    """Names are resolved, and rights decided, by `kop.handlers.access` alone."""
    looks_up = re.compile(r"\bgw\.topics\.(?:get|by_id|missing|canonical_name)\(")
    assert len(HANDLERS) > 20
    assert places(HANDLERS, lambda path: looks_up.findall(path.read_text())) == [], "ask ctx.topic, ctx.canonical_name"


def test_handlers_leave_the_version_of_rows_to_their_maker() -> None:
    wrong = [path.name for path in HANDLERS if "version=ctx.version" in path.read_text()]
    assert wrong == [], "make the response by ctx.response, its rows as dicts"


ASKS_FOR_TIME_OR_CHANCE = re.compile(
    r"\b(time\.(time|monotonic|perf_counter|process_time|thread_time)(_ns)?|datetime\.(now|today|utcnow))\b"
    r"|^from (time|random|secrets) import|^import secrets|(?<!\.)\brandom\.(?!Random\b)|\buuid[14]\b(?<!clock\.uuid4)"
    r"|\bos\.urandom\b",
    re.M,
)


def asks_for_time_or_chance(path: Path) -> list[str]:
    text = path.read_text()
    if not ASKS_FOR_TIME_OR_CHANCE.search(text):
        return []
    tree = ast.parse(text)
    for node in ast.walk(tree):  # texts may name what they are about
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            node.value.value = ""
    return [match.group() for match in ASKS_FOR_TIME_OR_CHANCE.finditer(ast.unparse(tree))]


def test_one_module_asks_the_system_for_time_and_for_randomness() -> None:
    """`kop.clock`; so a simulation has one place for both. The time of the event loop is the loop's own."""
    assert asks_for_time_or_chance(PACKAGE / "clock.py"), "the test sees nothing"
    others = [path for path in WRITTEN if path != PACKAGE / "clock.py"]
    assert places(others, asks_for_time_or_chance) == [], "ask kop.clock instead"


NO_VERBS = frozenset(
    [
        "The",
        "A",
        "An",
        "All",
        "Every",
        "Another",
        "One",
        "Nothing",
        "None",
        "Those",
        "Which",
        "What",
        "How",
        "Why",
        "Whether",
        "Where",
        "When",
        "Who",
        "Whoever",
        "Each",
        "Its",
        "This",
        "That",
        "These",
        "Some",
        "Both",
        "Bytes",
        "Such",
        "No",
        "True",
        "False",
        "Is",
        "May",
        "There",
        "It",
    ]
)
"""Words with which no sentence begins that says what a function does."""


def functions_without_a_verb(path: Path) -> list[str]:
    """The functions of a module whose docstrings do not begin with a verb. A property is described as a field is."""
    begins = []
    for node in ast.walk(ast.parse(path.read_text())):
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) or re.fullmatch("__.*__", node.name):
            continue
        text = ast.get_docstring(node)
        if text is None or any("property" in ast.unparse(decorator) for decorator in node.decorator_list):
            continue
        if text.split()[0].strip("`,.:") in NO_VERBS:
            begins.append(f"{node.name}: {text.splitlines()[0]}")
    return begins


def test_the_docstring_of_a_function_begins_with_a_verb() -> None:
    assert places(WRITTEN, functions_without_a_verb) == []


def test_the_docstring_of_a_flag_begins_with_true_if() -> None:
    """Or, of a function, with "Return true if"."""
    assert places(WRITTEN, lambda path: re.findall(r'"""Whether .*', path.read_text())) == []
