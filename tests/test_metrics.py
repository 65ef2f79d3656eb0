"""Metrics are an interface: their names are snake_case, and docs/operations.md says what each of them means.

The code is walked: every collector, every kind of work in the background. What is counted under a name that cannot be
read off the code fails here: give it as a literal. Faults and refusals are the members of two enumerations.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache, cached_property
from pathlib import Path

import pytest

from kop.background import label_of
from kop.metrics import Metrics
from kop.storage.pulsar.faults import Fault, Refused, refusal_name

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "kop"
PAGE = ROOT / "docs" / "operations.md"

SNAKE_CASE = re.compile(r"[a-z][a-z0-9]*(_[a-z0-9]+)*")
COLLECTORS = {
    "Counter",
    "Gauge",
    "Histogram",
    "CountFamily",
    "LatencyFamily",
    "gauge_family",
    "gauge_value",
    "counter_family",
    "counter_value",
    "summary_family",
}
COUNTERS = {"Counter", "CountFamily", "counter_family", "counter_value"}
Function = ast.FunctionDef | ast.AsyncFunctionDef


class Module:
    """The syntax tree of one module, and the function that each node stands in, once somebody asks for them."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.text = path.read_text()

    @cached_property
    def inside(self) -> dict[ast.AST, Function | None]:
        inside: dict[ast.AST, Function | None] = {}

        def walk(node: ast.AST, function: Function | None) -> None:
            for child in ast.iter_child_nodes(node):
                inside[child] = function
                walk(child, child if isinstance(child, Function) else function)

        walk(ast.parse(self.text), None)
        return inside

    def calls(self) -> Iterator[ast.Call]:
        return (node for node in self.inside if isinstance(node, ast.Call))

    def where(self, node: ast.expr) -> str:
        return f"{self.path.relative_to(ROOT)}:{node.lineno}: {ast.unparse(node)}"

    def texts(self, argument: ast.expr) -> set[str]:
        """Every string that `argument` can be: a literal, or a name of which the module has every literal."""
        if isinstance(argument, ast.Constant) and isinstance(argument.value, str):
            return {argument.value}
        function = self.inside[argument]
        if isinstance(argument, ast.Name) and function is not None:
            names = [item.arg for item in function.args.posonlyargs + function.args.args if item.arg != "self"]
            if argument.id in names:
                return self._passed(function.name, names.index(argument.id), argument.id)
            values = [
                node.value
                for node, owner in self.inside.items()
                if owner is function
                and isinstance(node, ast.Assign)
                and any(isinstance(target, ast.Name) and target.id == argument.id for target in node.targets)
            ]
            if values:
                return set().union(*(self._results(value) for value in values))
        pytest.fail(f"{self.where(argument)}: a name that is counted has to be a literal")

    def _passed(self, function: str, index: int, name: str) -> set[str]:
        """The literals that calls in the module give to a parameter of one of its functions."""
        passed: set[str] = set()
        for call in self.calls():
            if called(call) == function:
                named = [keyword.value for keyword in call.keywords if keyword.arg == name]
                passed |= self.texts(named[0] if named else call.args[index])
        return passed

    def _results(self, value: ast.expr) -> set[str]:
        """The literals that a function of the module returns, where `value` is a call of it."""
        if not isinstance(value, ast.Call):
            return self.texts(value)
        returned = [
            node.value
            for node, owner in self.inside.items()
            if isinstance(node, ast.Return) and owner is not None and owner.name == called(value) and node.value
        ]
        assert returned, f"{self.where(value)}: a name that is counted has to be a literal"
        return set().union(*(self.texts(result) for result in returned))


@cache
def modules(room: str = "") -> list[Module]:
    return [Module(path) for path in sorted((PACKAGE / room).rglob("*.py")) if not path.name.endswith("_pb2.py")]


def called(call: ast.Call) -> str:
    """The last part of the name of what is called."""
    return call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")


def receiver(call: ast.Call) -> str:
    """The last part of the name of the object whose method is called; nothing for a function."""
    owner = call.func.value if isinstance(call.func, ast.Attribute) else None
    return owner.attr if isinstance(owner, ast.Attribute) else getattr(owner, "id", "")


@cache
def collectors() -> dict[str, tuple[str, ...]]:
    """The metrics that the code makes, as a scrape shows them, and their labels."""
    collectors: dict[str, tuple[str, ...]] = {}
    for module in modules():
        if not any(f"{name}(" in module.text for name in COLLECTORS):
            continue
        for call in module.calls():
            if called(call) not in COLLECTORS or not call.args:
                continue
            name = call.args[0]
            if not isinstance(name, ast.Constant) or not isinstance(name.value, str):
                assert module.path == PACKAGE / "metrics.py" or called(call) == "Counter", module.where(call)
                continue
            shown = name.value + ("_total" if called(call) in COUNTERS else "")
            has_labels = len(call.args) > 2 and called(call) not in {"counter_value", "gauge_value"}
            collectors[shown] = tuple(label_names(module, call, call.args[2])) if has_labels else ()
    return collectors


def label_names(module: Module, call: ast.Call, labels: ast.expr) -> Iterator[str]:
    """The names of labels that a call is given: a list, a name that is assigned in the same function, or both mixed."""
    if isinstance(labels, ast.Name):
        for node, owner in module.inside.items():
            if not isinstance(node, ast.Assign) or owner is not module.inside[call]:
                continue
            if ast.unparse(node.targets[0]) == labels.id:
                yield from label_names(module, call, node.value)
    elif isinstance(labels, ast.Starred):
        yield from label_names(module, call, labels.value)
    elif isinstance(labels, ast.List | ast.Tuple):
        for label in labels.elts:
            yield from label_names(module, call, label)
    else:
        yield ast.literal_eval(labels)


def faults() -> set[str]:
    return {fault.value for fault in Fault}


def refused() -> set[str]:
    """What a refusal by Pulsar is counted as, up to Pulsar's error code."""
    return {refusal_name(kind, "") for kind in Refused}


def used(name: str) -> set[str]:
    """The members of an enumeration that the Pulsar engine names, beside the module that has it."""
    return {
        node.attr
        for module in modules("storage/pulsar")
        if f"{name}." in module.text
        for node in module.inside
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == name
    }


@cache
def works() -> set[str]:
    """Every kind of work in the background whose failures are counted."""
    works: set[str] = set()
    for module in modules():
        if module.path == PACKAGE / "background.py" or "background" not in module.text:
            continue
        for call in module.calls():
            at = {"tell": 0, "repeat": 0, "every": 2}.get(called(call))
            if at is None or receiver(call) not in {"", "background"} or len(call.args) <= at:
                continue
            keywords = {keyword.arg: keyword.value for keyword in call.keywords}
            if called(call) == "repeat" and "failed" in keywords:
                continue  # `failed` counts it
            works |= {label_of(text) for text in module.texts(keywords.get("kind", call.args[at]))}
    return works


def rows(heading: str) -> dict[str, list[str]]:
    """The table below a heading of the page: the name in the first column, and the other columns."""
    section = PAGE.read_text().partition(f"\n### {heading}\n")[2]
    assert section, f"docs/operations.md has no section {heading!r}"
    rows: dict[str, list[str]] = {}
    for line in re.split(r"\n##+ ", section)[0].splitlines():
        if row := re.fullmatch(r"\| `([^`]+)` \|(.*)\|", line):
            assert row[1] not in rows, f"docs/operations.md has two rows of {row[1]}"
            rows[row[1]] = [column.strip() for column in row[2].split(" | ")]
    return rows


def faults_page() -> list[str]:
    """The part of the page that tells of faults, line by line."""
    return [line for line in PAGE.read_text().partition("\n## Faults")[2].splitlines() if line]


def assert_same(code: set[str], page: set[str]) -> None:
    assert code - page == set(), "counted, and not explained in docs/operations.md"
    assert page - code == set(), "explained in docs/operations.md, and not counted"


def test_the_page_has_every_metric_with_its_labels() -> None:
    code, page = collectors(), rows("Every metric")
    assert_same(set(code), set(page))
    for name, (labels, meaning) in page.items():
        assert tuple(re.findall(r"`(\w+)`", labels)) == code[name], name
        assert meaning, name


def test_the_walk_of_the_code_misses_no_collector_that_a_gateway_registers() -> None:
    kinds = {"counter": "_total"}
    registered = {family.name + kinds.get(family.type, "") for family in Metrics().registry.collect()}
    assert registered <= set(collectors())


def test_the_page_has_every_fault_between_gateway_and_pulsar() -> None:
    """In a row each: what somebody sees, the fault, why it is so, what is to be done."""
    explained = {
        name: (seen, why, advice)
        for _, seen, told, why, advice, _ in (re.split(r" ?\| ?", line) for line in faults_page() if line[0] == "|")
        for name in re.findall(r"`([a-z_]+(?:/[a-z_.]+)?)`", told)
    }
    codes = {name for name in explained if name.partition("/")[0] in set(Refused)} - faults()
    assert_same(faults() | {f"{kind}..." for kind in refused()} | codes, set(explained) - set(collectors()))
    assert [name for name, texts in explained.items() if not all(texts)] == []


def test_the_faults_are_told_in_few_words() -> None:
    assert sum(len(line.split()) for line in faults_page()) < 4000


def test_every_fault_and_refusal_is_counted_somewhere() -> None:
    assert used("Fault") == set(Fault.__members__)
    assert used("Refused") == set(Refused.__members__)


def test_the_page_has_every_kind_of_work_in_the_background() -> None:
    assert_same(works(), set(rows("Every value of `work`")))


def test_names_of_metrics_labels_and_label_values_are_snake_case() -> None:
    names = set(collectors()) | {label for labels in collectors().values() for label in labels}
    labels = {part for name in faults() | {f"{kind.value}/code" for kind in Refused} for part in name.split("/")}
    for name in names | labels | works():
        assert SNAKE_CASE.fullmatch(name), name


def test_faults_are_few_and_each_of_their_details_is_a_member() -> None:
    """Somebody who is called acts on a fault; its detail says which of its reasons it is."""
    assert len({name.partition("/")[0] for name in faults() | set(Refused)}) <= 22
    assert [fault for fault in Fault if fault.name != fault.value.replace("/", "_").upper()] == []
    assert [kind for kind in Refused if f"{kind.name}_REFUSED" != kind.value.upper()] == []


def test_the_names_that_the_page_uses_are_counted() -> None:
    """A name with a `kop_` before it, or a fault with its detail, that stands anywhere on the page."""
    text = PAGE.read_text()
    histograms = {"_bucket", "_sum", "_count"}
    for name in re.findall(r"\bkop_[a-z_]+", text):
        assert name in collectors() or any(name.removesuffix(end) in collectors() for end in histograms), name
    counted = {name.partition("/")[0] for name in faults()}
    for path in PAGE.parent.glob("*.md"):
        for name in re.findall(r"`(?!docs/|tests/)([a-z_]+/[a-z_.]+)`", path.read_text()):
            fault = name.partition("/")[0]
            assert name in faults() or fault in set(Refused) or (path != PAGE and fault not in counted), name


def test_what_is_counted_in_plain_numbers_is_there_at_a_scrape() -> None:
    metrics = Metrics()
    metrics.requests.of("Produce", "9").value += 3
    metrics.requests.of("Fetch", "12").value += 1
    metrics.requests.of("Produce", "9").value += 1
    metrics.produced_bytes.value += 1000
    for seconds in (0.0, 0.0005, 0.0006, 1.0, 31.0):
        metrics.latency.of("Produce").observe(seconds)
    sample = metrics.registry.get_sample_value
    assert sample("kop_requests_total", {"api": "Produce", "version": "9"}) == 4
    assert sample("kop_requests_total", {"api": "Fetch", "version": "12"}) == 1
    assert sample("kop_produced_bytes_total") == 1000
    buckets = {
        bound: sample("kop_request_latency_seconds_bucket", {"api": "Produce", "le": bound})
        for bound in ("0.0005", "0.001", "0.5", "1.0", "30.0", "+Inf")
    }
    assert buckets == {"0.0005": 2, "0.001": 3, "0.5": 3, "1.0": 4, "30.0": 4, "+Inf": 5}
    assert sample("kop_request_latency_seconds_count", {"api": "Produce"}) == 5
    assert sample("kop_request_latency_seconds_sum", {"api": "Produce"}) == pytest.approx(32.0011)
