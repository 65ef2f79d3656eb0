"""Lines of a file that are indented so that it is no YAML, and how they have to be.

Owns: the one mistake that is mended: a field that is indented below an item of a list, where it belongs to the part
that has the list.
Must not know: fields of a mesh.
"""

from __future__ import annotations

import re
from typing import Final

import yaml

_FIELD: Final = re.compile(r"(?P<indent> *)(?:- +)?[\w.-]+:(?: |$)")
_ITEM: Final = re.compile(r"(?P<indent> *)- +[^\s#:{\[][^#:{\[]*$")
_PROBLEM: Final = "mapping values are not allowed here"
_MOST: Final = 100
"""The number of places of one file that are mended."""


def is_mendable(problem: str) -> bool:
    """Return if an error of YAML may come from a wrong indentation."""
    return _PROBLEM in problem


def mended(text: str) -> tuple[str, dict[int, str]]:
    """Return a text with its indentation mended, and the changed lines by number, from 1. The text is unchanged,
    without changed lines, if it is YAML already, or cannot be made YAML by mending fewer than 100 places.
    """
    lines = text.split("\n")
    changed: dict[int, str] = {}
    for _ in range(_MOST):
        line = _error_line("\n".join(lines))
        if line is None:
            return "\n".join(lines), changed
        moved = _moved(lines, line)
        if not moved:
            break
        changed |= moved
        for number, content in moved.items():
            lines[number - 1] = content
    return text, {}


def _error_line(text: str) -> int | None:
    """Return the line, from 1, at which YAML's parser meets a mistake of the kind that is mended; 0 if it meets another
    mistake, None if the text is YAML.
    """
    try:
        for _ in yaml.parse(text, Loader=yaml.SafeLoader):
            pass
    except yaml.MarkedYAMLError as error:
        if error.problem == _PROBLEM and error.problem_mark:
            return int(error.problem_mark.line) + 1
        return 0
    except (yaml.YAMLError, ValueError):
        return 0
    return None


def _moved(lines: list[str], number: int) -> dict[int, str]:
    """Return the lines of the field that begins at the line `number` and is indented too far, by number and moved to
    the left; empty if that is not the mistake there.
    """
    if not 2 <= number <= len(lines) or not (field := _FIELD.match(lines[number - 1])):
        return {}
    above = number - 2
    while above > 0 and not lines[above].strip():
        above -= 1
    item = _ITEM.match(lines[above])
    if item is None or len(item["indent"]) >= len(field["indent"]):
        return {}
    while above >= 0 and (not lines[above].strip() or _ITEM.match(lines[above])):
        above -= 1
    owner = _FIELD.match(lines[above]) if above >= 0 else None
    if owner is None or not lines[above].rstrip().endswith(":"):
        return {}
    dash = re.match(r" *(- +)?", lines[above])
    assert dash is not None
    by = len(field["indent"]) - dash.end()
    if by <= 0:
        return {}
    moved: dict[int, str] = {}
    for at in range(number - 1, len(lines)):
        line = lines[at]
        if line.strip() and len(line) - len(line.lstrip(" ")) < len(field["indent"]):
            break
        moved[at + 1] = line[by:] if line.strip() else line
    return {at: line for at, line in moved.items() if line.strip()}
