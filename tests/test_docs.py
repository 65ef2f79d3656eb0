"""What the pages name is there: files that they link to, targets of make, tests that prove a statement, commands."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from kop.cli.main import COMMANDS

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")), *sorted((ROOT / "conformance").glob("*.md"))]
TESTS = {path.name: path for path in sorted((ROOT / "tests").rglob("test_*.py"))}
SOURCES = "\n".join(path.read_text() for path in TESTS.values())


@pytest.fixture(params=PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def page(request: pytest.FixtureRequest) -> Path:
    return Path(request.param)


def test_links_of_a_page_lead_to_files(page: Path) -> None:
    links = re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", page.read_text())
    missing = [link for link in links if not (page.parent / link).exists()]
    assert not missing


def anchors(page: Path) -> set[str]:
    """The names by which links reach the headings of a page: small letters and hyphens, without punctuation."""
    headings = re.findall(r"^#+ (.*)$", re.sub(r"^```.*?^```", "", page.read_text(), flags=re.M | re.S), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_links_of_a_page_lead_to_headings(page: Path) -> None:
    links = re.findall(r"\]\(([^)#:]*)#([^)]+)\)", page.read_text())
    assert [link for link in links if link[1] not in anchors(page.parent / link[0] if link[0] else page)] == []


def test_a_page_names_targets_that_make_has(page: Path) -> None:
    targets = set(re.findall(r"^([a-z-]+):.*##", (ROOT / "Makefile").read_text(), re.MULTILINE))
    named = set(re.findall(r"`make\s([a-z-]+)", page.read_text())) | set(
        re.findall(r"^make ([a-z-]+)", page.read_text(), re.MULTILINE)
    )
    assert named <= targets


def test_a_page_names_tests_that_are_there(page: Path) -> None:
    text = page.read_text()
    files = re.findall(r"\btests/[\w/]+\.py\b", text) + re.findall(r"`docs/[\w/]+\.md\b", text)
    assert [name for name in files if not (ROOT / name.strip("`")).exists()] == []
    modules = re.findall(r"(?<![\w/])(test_\w+\.py)\b", text)
    assert [name for name in modules if name not in TESTS] == []
    functions = re.findall(r"(?<![\w/])(test_\w+)\b(?!\.py|/)", text)
    if page.name in {"operations.md", "kop-weaknesses.md"}:
        assert [name for name in functions if f"def {name}(" not in SOURCES and f"{name}.py" not in TESTS] == []


def test_a_page_names_commands_that_kop_has(page: Path) -> None:
    named = set(re.findall(r"(?:^|`)kop ([a-z]+)\b", page.read_text(), re.MULTILINE))
    assert named <= COMMANDS.keys()


def test_no_cell_of_a_table_of_operations_is_longer_than_a_line() -> None:
    rows = [line for line in (ROOT / "docs" / "operations.md").read_text().splitlines() if line.startswith("|")]
    cells = [cell.strip() for row in rows for cell in re.split(r"(?<!\\)\|", row)]
    assert [cell for cell in cells if len(cell) > 100] == []


def quirks() -> dict[str, str]:
    """What docs/quirks.md says of each quirk of Pulsar, by its heading."""
    text = (ROOT / "docs" / "quirks.md").read_text()
    return {entry.partition("\n")[0]: entry for entry in re.split(r"\n#+ ", text) if "- *" in entry}


def test_a_quirk_of_pulsar_names_its_version_who_works_around_it_and_the_test_that_shows_it() -> None:
    for title, entry in quirks().items():
        fields = re.findall(r"^- \*([^*]+):\*", entry, re.MULTILINE)
        assert fields == ["Seen with", "Worked around in", "Shown by", "May go"], title
        modules = re.findall(r"`((?:kop|conformance|tests)/[\w/]+\.py)`", entry)
        assert modules, title
        assert [name for name in modules if not (ROOT / name).exists()] == [], title
        tests = re.findall(r"`(tests/[\w/]+\.py)::(test_\w+)`", entry)
        assert tests, title
        assert [test for file, test in tests if f"def {test}(" not in (ROOT / file).read_text()] == [], title


def test_what_a_version_of_pulsar_does_stands_in_the_page_of_quirks_alone() -> None:
    """A module names the entry: `docs/quirks.md, "The end of an emptied log is hidden"`."""
    for path in sorted((ROOT / "kop").rglob("*.py")):
        text = " ".join(line.strip().lstrip("# ") for line in path.read_text().splitlines())
        assert not re.search(r"Pulsar[^.]{0,80} \d\.\d\.\d|\b4\.0\.\d", text), path
        named = re.findall(r'docs/quirks\.md, "([^"]+)"', text)
        assert text.count("quirks.md") == len(named), path
        assert [title for title in named if title not in quirks()] == [], path


def test_alarms_name_metrics_that_are_explained() -> None:
    text = (ROOT / "docs" / "operations.md").read_text()
    alarms = text.partition("### What to alert on")[2].partition("\n### ")[0]
    named = {re.sub("_bucket$", "", name) for name in re.findall(r"\bkop_[a-z_]+", alarms)}
    assert named
    assert [name for name in named if f"| `{name}` |" not in text] == []
