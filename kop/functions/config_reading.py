"""A definition read from YAML, JSON or Pulsar's flags, with every mistake in one go, each with its line or flag.

Owns: how text and flags become fields, and which of the two counts; the types of fields.
Must not know: which fields go together (`config_checks`), files of users, sockets.
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Mapping
from typing import Any

import yaml
from pydantic import ValidationError

from kop.functions.config_checks import spec_of
from kop.functions.config_fields import (
    FLAGS,
    REFUSED,
    WITHOUT_EFFECT,
    FunctionConfig,
    Path,
    is_field,
    leaves,
    matches,
    names_beside,
)
from kop.functions.config_places import ConfigPlaces
from kop.functions.spec import FunctionSpec, SpecError
from kop.functions.topics import HOME, TopicNames


def read(text: str, name: str, topic_names: TopicNames = HOME) -> tuple[FunctionSpec, list[str]]:
    """Return the function of a text in YAML or JSON, and notes for its author. SpecError with all mistakes, if there
    are any.

    `name` is that of the file, which the mistakes are shown with.
    """
    return from_flags({}, (text, name), topic_names)


def from_flags(
    flags: Mapping[str, Any], file: tuple[str, str] | None = None, topic_names: TopicNames = HOME
) -> tuple[FunctionSpec, list[str]]:
    """Return the function of flags (Pulsar's, by their names without dashes; texts, or values of their type), which
    replace what a file says, and notes for its author. SpecError with all mistakes, if there are any.

    `file` is the text and the name of the file; `topic_names` turns names of topics into those of the server.
    """
    text, name = file or ("", "")
    places = ConfigPlaces(name)
    draft = _Draft(places)
    draft.take_text(text)
    unread = bool(places.mistakes)
    draft.take_flags(flags)
    if unread:
        places.raise_mistakes()
    spec = spec_of(draft.checked(), places, topic_names)
    return spec, [note for _, note in places.notes]


def read_values(
    values: Mapping[str, Any], lines: Mapping[Path, int], topic_names: TopicNames
) -> tuple[FunctionSpec | None, list[tuple[int, str]]]:
    """Return the function of fields that somebody else has read, and notes for its author; None and all mistakes, if
    there are any. Notes and mistakes have their lines, 0 if they have none.

    `lines` has the lines of parts of the fields.
    """
    places = ConfigPlaces("", {})
    places.lines.update(lines)
    draft = _Draft(places)
    draft.values.update(values)
    try:
        return spec_of(draft.checked(), places, topic_names), places.notes
    except SpecError:
        return None, sorted(places.mistakes)


def fields(flags: Mapping[str, Any], file: tuple[str, str] | None = None) -> dict[str, Any]:
    """Return the fields that flags and a file's text give, to make or change a definition. SpecError with all mistakes,
    if there are any.

    The value of each field is checked, but not if the fields together are a whole definition.
    """
    text, name = file or ("", "")
    places = ConfigPlaces(name)
    draft = _Draft(places)
    draft.take_text(text)
    draft.take_flags(flags)
    places.raise_mistakes()
    draft.checked()
    places.raise_mistakes()
    return draft.values


class _Draft:
    """The fields of a definition as far as they are read."""

    def __init__(self, places: ConfigPlaces) -> None:
        self.values: dict[str, Any] = {}
        self._places = places

    # -- from text

    def take_text(self, text: str) -> None:
        """Read the fields from YAML or JSON, with the line of each; mistakes are noted."""
        is_json = text.lstrip().startswith("{")
        try:
            # The parser of YAML takes no tabs between the parts of a JSON text, which stand nowhere else in it.
            node = yaml.compose(text.replace("\t", " ") if is_json else text, Loader=yaml.SafeLoader)
            if node is not None:
                self._walk(node, (), set())
            if not self._places.mistakes:
                values = json.loads(text) if is_json else yaml.safe_load(text)
                if isinstance(values, dict):
                    self.values = values
                elif values is not None:
                    self._places.wrong_line(1, "must be fields of a FunctionConfig, NAME: VALUE")
        except json.JSONDecodeError as error:
            self._places.wrong_line(error.lineno, error.msg)
        except yaml.MarkedYAMLError as error:
            mark = error.problem_mark or error.context_mark
            line = mark.line + 1 if mark else 1
            self._places.wrong_line(line, str(error.problem or error.context))
        except (yaml.YAMLError, ValueError, RecursionError) as error:
            self._places.wrong((), str(error))

    def _walk(self, node: yaml.Node, path: Path, seen: set[int]) -> None:
        """Note the line of every part, and as mistakes the parts that YAML has and JSON has not."""
        self._places.lines[path] = node.start_mark.line + 1
        if id(node) in seen:
            self._places.wrong(path, "an alias (*): write the value again")
            return
        seen.add(id(node))
        if isinstance(node, yaml.MappingNode):
            keys = set[str]()
            for key, value in node.value:
                inner = (*path, key.value if isinstance(key, yaml.ScalarNode) else "?")
                self._places.lines[inner] = key.start_mark.line + 1
                if not isinstance(key, yaml.ScalarNode) or key.tag != "tag:yaml.org,2002:str":
                    self._places.wrong(inner, "a name must be a text: put it in quotes")
                elif key.value in keys:
                    self._places.wrong(inner, "stands here a second time")
                else:
                    keys.add(key.value)
                self._walk(value, inner, seen)
                self._places.lines[inner] = key.start_mark.line + 1
        elif isinstance(node, yaml.SequenceNode):
            for index, value in enumerate(node.value):
                self._walk(value, (*path, index), seen)
        elif node.tag.removeprefix("tag:yaml.org,2002:") not in {"str", "int", "float", "bool", "null"}:
            self._places.wrong(path, f"{node.value!r} is no text, number or truth value: put it in quotes")

    # -- from flags

    def take_flags(self, flags: Mapping[str, Any]) -> None:
        """Put the values of flags over those of the text; one that is no JSON, but has to be, is noted as a mistake."""
        for name, given in flags.items():
            if given is None or given == ():
                continue
            flag = FLAGS[name]
            self._places.flags[flag.path] = name
            value = given
            if flag.kind == "list" and isinstance(given, str):
                value = [part.strip() for part in given.split(",") if part.strip()]
            elif flag.kind == "json" and isinstance(given, str):
                try:
                    value = json.loads(given)
                except json.JSONDecodeError as error:
                    self._places.wrong(flag.path, f"is no JSON: {error}")
                    continue
            place = self.values
            for part in flag.path[:-1]:
                inner = place.get(part)
                place[part] = place = dict(inner) if isinstance(inner, dict) else {}
            place[flag.path[-1]] = value

    # -- checks

    def checked(self) -> FunctionConfig:
        """Return the fields that are right by themselves, and note the others as mistakes, and those without effect as
        notes.
        """
        for path, value in list(leaves(self.values, ())):
            if value is not None and value is not False and value != "" and path[-1] in REFUSED and is_field(path):
                self._places.wrong(path, f"is refused: {REFUSED[str(path[-1])]}")
            for pattern, why in WITHOUT_EFFECT.items():
                if value is not None and value is not False and value != "" and matches(path, pattern):
                    self._places.note(path, f"has no effect: {why}")
        try:
            return FunctionConfig.model_validate(self.values)
        except ValidationError as error:
            problems = error.errors(include_url=False)
        for problem in problems:
            self._take_problem(problem)
        bad = {problem["loc"][0] for problem in problems}
        self._places.bad |= bad
        return FunctionConfig.model_validate({name: self.values[name] for name in self.values if name not in bad})

    def _take_problem(self, problem: Any) -> None:
        path = tuple(part for part in problem["loc"] if not str(part).startswith(("function-", "constrained-")))
        if problem["type"] == "extra_forbidden":
            near = difflib.get_close_matches(str(path[-1]), names_beside(path), 1)
            self._places.wrong(path, "there is no such field" + (f"; is it {near[0]}?" if near else ""))
            return
        given = repr(problem["input"])
        self._places.wrong(path, f"{problem['msg']}, got {given if len(given) <= 60 else given[:60] + '...'}")
