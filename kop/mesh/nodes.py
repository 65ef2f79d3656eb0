"""A text of YAML as nodes with their lines, so that a mistake has its place and a name stays the text that it is.

Owns: what YAML may be used; fields out of nodes, with the nearest name of one that there is not.
Must not know: which fields a mesh has.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Final, TypeAlias, TypeVar

import yaml

C = TypeVar("C", bound=str)

_DEPTH: Final = 60
"""The most levels to which nodes of YAML may lie within each other."""
_HALF: Final = re.compile(r"[\ud800-\udfff]")
"""Half of a pair that stands for one character in JSON, which no text in UTF-8 has."""
_NULL: Final = "tag:yaml.org,2002:null"
_MERGE: Final = "tag:yaml.org,2002:merge"
_TEXT_TAGS: Final = frozenset(
    f"tag:yaml.org,2002:{name}" for name in ("str", "int", "float", "bool", "null", "timestamp")
)
_TRUTH: Final = {"true": True, "false": False, "yes": True, "no": False, "on": True, "off": False}

Fields: TypeAlias = dict[str, tuple[int, yaml.Node]]
"""Name of a field to its line and its value."""


@dataclass(frozen=True, order=True)
class Mistake:
    """Something that is wrong with a file, at a line of it."""

    line: int
    text: str


class MeshError(Exception):
    """Everything that is wrong with the file of a mesh, a line each."""

    def __init__(self, path: str, mistakes: Collection[Mistake]) -> None:
        self.path = path
        self.mistakes = sorted(set(mistakes))
        super().__init__("\n".join(f"{path}, line {mistake.line}: {mistake.text}" for mistake in self.mistakes))


class Mistakes(list[Mistake]):
    """The mistakes of a file, as far as they are known."""

    def add(self, line: int, text: str) -> None:
        """Note a mistake."""
        self.append(Mistake(line, text))


def documents(text: str, mistakes: Mistakes) -> list[yaml.Node]:
    """Return the documents of a text that are not empty; none if it is no YAML, nested deeper than 60 levels, or has
    what UTF-8 has not. Everything wrong is noted in `mistakes`, also what YAML allows and a mesh's file does not, such
    as aliases.
    """
    try:
        refusal = _refusal(text)
        if refusal is not None:
            mistakes.append(refusal)
            return []
        nodes = [node for node in yaml.compose_all(text, Loader=yaml.SafeLoader) if node is not None]
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = mark.line + 1 if mark else 1
        mistakes.add(line, f"is no YAML: {error.problem or error.context}")
        return []
    except yaml.reader.ReaderError as error:
        line = text.count("\n", 0, error.position) + 1
        mistakes.add(line, f"is no YAML: the character U+{ord(text[error.position]):04X} may not stand in it")
        return []
    except (yaml.YAMLError, ValueError) as error:
        mistakes.add(1, f"is no YAML: {error}")
        return []
    seen: set[int] = set()
    for node in nodes:
        _check(node, "", seen, mistakes)
    return [node for node in nodes if not is_null(node)]


def _refusal(text: str) -> Mistake | None:
    """Return the mistake for which a text in YAML is not read any further: nodes nested deeper than 60 levels, because
    they are read by recursion, or a character that can neither be kept nor shown; None if there is none. An error of
    YAML is raised.
    """
    depth = 0
    for event in yaml.parse(text, Loader=yaml.SafeLoader):
        if isinstance(event, yaml.CollectionStartEvent):
            depth += 1
        elif isinstance(event, yaml.CollectionEndEvent):
            depth -= 1
        elif isinstance(event, yaml.ScalarEvent) and (half := _HALF.search(event.value)):
            told = f"\\u{ord(half[0]):04x} is no character: write the character itself, or \\U and its 8 digits"
            return Mistake(event.start_mark.line + 1 if event.start_mark else 1, told)
        if depth > _DEPTH:
            return Mistake(1, f"is nested deeper than {_DEPTH} levels")
    return None


def _check(node: yaml.Node, place: str, seen: set[int], mistakes: Mistakes) -> None:
    """Note the mistakes that YAML allows and a mesh's file does not, in a node and those within it: equal keys,
    aliases, merges, tags. `place` is the path of fields to the node; `seen` gets the ids of nodes, to know aliases.
    """
    line = line_of(node)
    named = f"{place}: " if place else ""
    if id(node) in seen:
        mistakes.add(line, f"{named}an alias (*): write the value again")
        return
    seen.add(id(node))
    if isinstance(node, yaml.MappingNode):
        first: dict[str, int] = {}
        for key, value in node.value:
            if not isinstance(key, yaml.ScalarNode) or key.tag not in _TEXT_TAGS:
                what = "a merge (<<): write its fields here" if key.tag == _MERGE else "a name must be a text"
                mistakes.add(line_of(key), f"{named}{what}")
                continue
            inner = f"{place}.{key.value}" if place else key.value
            if key.value in first:
                mistakes.add(line_of(key), f"{inner}: stands here a second time, after line {first[key.value]}")
            first.setdefault(key.value, line_of(key))
            _check(value, inner, seen, mistakes)
    elif isinstance(node, yaml.SequenceNode):
        for index, value in enumerate(node.value):
            _check(value, f"{place}[{index}]", seen, mistakes)
    elif node.tag not in _TEXT_TAGS:
        mistakes.add(line, f"{named}the tag {node.tag} is not taken: leave it away")


def line_of(node: yaml.Node) -> int:
    """Return the line where a node begins, from 1."""
    return int(node.start_mark.line) + 1


def is_null(node: yaml.Node | None) -> bool:
    """Return if a value is none: left out, empty, `null` or `~`."""
    return node is None or (isinstance(node, yaml.ScalarNode) and node.tag == _NULL)


def items_of(node: yaml.Node) -> Iterator[tuple[str, int, yaml.Node]]:
    """Yield name, line and value of each field of a node; of fields with one name only the first. Nothing if the node
    has no fields.
    """
    if isinstance(node, yaml.MappingNode):
        seen: set[str] = set()
        for key, value in node.value:
            if isinstance(key, yaml.ScalarNode) and key.value not in seen:
                seen.add(key.value)
                yield key.value, line_of(key), value


def near(name: str, names: Collection[str]) -> str:
    """Return `; is it NAME?` with the name that is nearest to `name`, regardless of case, to be put behind a mistake;
    empty if none is near.
    """
    by_lower = {other.lower(): other for other in names}
    nearest = difflib.get_close_matches(name.lower(), list(by_lower), 1)
    return f"; is it {by_lower[nearest[0]]}?" if nearest else ""


def is_slip(name: str, other: str) -> bool:
    """Return if `name` may be `other`, written with a slip: one letter, regardless of case, is missing, too many or
    another one, or two have changed places. Digits tell names apart: `in-1` is not `in-2`.
    """
    first, second = name.lower(), other.lower()
    start = _same_letters(first, second)
    first, second = first[start:], second[start:]
    end = _same_letters(first[::-1], second[::-1])
    first, second = first[: len(first) - end], second[: len(second) - end]
    if any(map(str.isdecimal, first + second)):
        return False
    return max(len(first), len(second)) <= 1 or (len(first) == 2 and first == second[::-1])


def _same_letters(first: str, second: str) -> int:
    """Return the number of letters with which both texts begin."""
    pairs = enumerate(zip(first, second, strict=False))
    return next((at for at, (letter, other) in pairs if letter != other), min(len(first), len(second)))


class Section:
    """The fields of a part, taken out one by one. `place` names it for people; `written` has other names of fields."""

    def __init__(
        self,
        node: yaml.Node,
        place: str,
        mistakes: Mistakes,
        names: Collection[str],
        written: Mapping[str, str] | None = None,
    ) -> None:
        self.line = line_of(node)
        self.place = place
        self._mistakes = mistakes
        self._written = written or {}
        self.fields: Fields = {}
        if not isinstance(node, yaml.MappingNode):
            self.wrong(self.line, "must be fields, NAME: VALUE")
            return
        for name, line, value in items_of(node):
            if name in names:
                if not is_null(value):
                    self.fields[name] = (line, value)
            else:
                self.wrong(line, f"{name}: there is no such field{near(name, names)}")

    def wrong(self, line: int, text: str) -> None:
        """Note a mistake of the part; see `told`."""
        self._mistakes.add(line, self.told(text))

    def told(self, text: str) -> str:
        """Return what is told of the part, with its place. If the text begins with the name of a field, that is
        replaced by the name by which the author of the file knows it.
        """
        field = re.match(r"\w+", text)
        if field and field[0] in self._written:
            text = self._written[field[0]] + text[field.end() :]
        return f"{self.place}: {text}" if self.place else text

    def line_at(self, name: str) -> int:
        """Return the line of a field; the line of the part if the field is not there."""
        return self.fields[name][0] if name in self.fields else self.line

    def text(self, name: str, *, is_needed: str = "") -> str:
        """Return the text of a field as it is written; empty if it is not there, or no text, which is noted as a
        mistake. With `is_needed`, which says what the field is for, one that is missing or empty is a mistake, too.
        """
        if name not in self.fields:
            if is_needed:
                self.wrong(self.line, f"{name}: is missing: {is_needed}")
            return ""
        line, node = self.fields[name]
        if not isinstance(node, yaml.ScalarNode):
            self.wrong(line, f"{name}: must be a text")
            return ""
        if is_needed and not node.value.strip():
            self.wrong(line, f"{name}: is empty: {is_needed}")
        return str(node.value)

    def truth(self, name: str, default: bool = False) -> bool:
        """Return the value of a field that is true or false (or yes, no, on, off); `default` if it is not there, or is
        something else, which is noted as a mistake.
        """
        if name not in self.fields:
            return default
        line, node = self.fields[name]
        if isinstance(node, yaml.ScalarNode) and node.value.lower() in _TRUTH:
            return _TRUTH[node.value.lower()]
        self.wrong(line, f"{name}: must be true or false")
        return default

    def number(self, name: str, default: float) -> float:
        """Return the value of a field that is a number above 0 and below 1,000,000,000; `default` if it is not there,
        or is something else, which is noted as a mistake.
        """
        if name not in self.fields:
            return default
        line, node = self.fields[name]
        if isinstance(node, yaml.ScalarNode) and re.fullmatch(r"\d+(\.\d+)?|\.\d+", node.value, re.ASCII):
            number = float(node.value)
            if 0 < number < 1e9:
                return number
        self.wrong(line, f"{name}: must be a number above 0")
        return default

    def choice(self, name: str, choices: Collection[C], default: C) -> C:
        """Return the text of a field that has to be among `choices`; `default` if it is empty or not there, or is
        something else, which is noted as a mistake.
        """
        given = self.text(name)
        if not given:
            return default
        for known in choices:
            if given == known:
                return known
        self.wrong(self.line_at(name), f"{name}: must be {' or '.join(choices)}, got {given}{near(given, choices)}")
        return default

    def texts(self, name: str) -> tuple[tuple[int, str], ...]:
        """Return the texts of a field that is a list, each with its line; one text is a list of one. Empty if the field
        is not there, or is something else. All that is no text, or an empty one, is noted as a mistake.
        """
        if name not in self.fields:
            return ()
        line, node = self.fields[name]
        if isinstance(node, yaml.ScalarNode):
            return ((line, node.value),)
        if not isinstance(node, yaml.SequenceNode):
            self.wrong(line, f"{name}: must be a list of texts")
            return ()
        texts: list[tuple[int, str]] = []
        for item in node.value:
            if isinstance(item, yaml.ScalarNode) and not is_null(item) and item.value:
                texts.append((line_of(item), item.value))
            else:
                self.wrong(line_of(item), f"{name}: must be a list of texts")
        return tuple(texts)

    def options(self, name: str) -> dict[str, str]:
        """Return the fields of a field as names and texts, null as an empty text; empty if the field is not there.
        Values that are no texts are left out, and noted as mistakes.
        """
        return self.options_of(name, *self.fields[name]) if name in self.fields else {}

    def options_of(self, name: str, line: int, node: yaml.Node) -> dict[str, str]:
        """Return the fields of a value as `options` does; `name` is the path to it. Null has no fields."""
        if not isinstance(node, yaml.MappingNode):
            if not is_null(node):
                self.wrong(line, f"{name}: must be fields, NAME: VALUE")
            return {}
        options: dict[str, str] = {}
        for key, at, value in items_of(node):
            if isinstance(value, yaml.ScalarNode):
                options[key] = "" if is_null(value) else value.value
            else:
                self.wrong(at, f"{name}.{key}: must be a text")
        return options
