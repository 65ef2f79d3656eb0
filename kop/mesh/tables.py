"""The topics that a SQL text names: what stands behind FROM and JOIN and is not a name that the text itself gives.

Owns: as much of SQL as this takes.
Must not know: Spark, topics.
"""

from __future__ import annotations

import re
from typing import Final

_TOKEN: Final = re.compile(
    r"""(?P<comment>--[^\n]*|/\*.*?\*/)
      | (?P<text>'(?:[^'\\]|\\.|'')*'|"(?:[^"\\]|\\.|"")*")
      | (?P<quoted>`(?:[^`]|``)*`)
      | (?P<word>[^\W\d]\w*|\d+\w*)
      | (?P<other>\S)""",
    re.VERBOSE | re.DOTALL,
)
_ENDS: Final = {"where", "group", "order", "having", "limit", "union", "intersect", "except", "window", "by", "select"}
"""Words that end a list of tables."""
_WITH_FROM: Final = {"extract", "trim", "substring", "substr", "overlay"}
"""Functions that have a FROM between their parentheses."""
_BEFORE_A_NAME: Final = {"lateral", "table"}


def tables_of(sql: str) -> tuple[str, ...]:
    """Return the tables that a SQL text reads, each once, in the order of the text, without quotes. Names that the text
    gives by WITH, and functions that return tables, are left out.
    """
    tokens = [
        (match.lastgroup, match[0]) for match in _TOKEN.finditer(sql) if match.lastgroup not in {"comment", "text"}
    ]
    given = _given(tokens)
    tables: dict[str, None] = {}
    depth = 0
    lists: list[int] = []
    """Depths at which a list of tables is open."""
    expects = False
    index = 0
    while index < len(tokens):
        kind, token = tokens[index]
        before = tokens[index - 1][1].lower() if index else ""
        word = token.lower() if kind == "word" and before != "." else ""
        if token == "(":
            depth += 1
            if expects:
                lists.append(depth)
        elif token == ")":
            depth -= 1
            while lists and lists[-1] > depth:
                lists.pop()
            expects = False
        elif word in {"from", "join"} and not _is_function(tokens, index, depth):
            if not lists or lists[-1] < depth:
                lists.append(depth)
            expects = True
        elif token == "," and lists and lists[-1] == depth:
            expects = True
        elif expects and word == "values":
            index = _end_of_rows(tokens, index)
            expects = False
        elif word in _ENDS or (expects and word == "with") or (word == "view" and before == "lateral"):
            while lists and lists[-1] >= depth:
                lists.pop()
            expects = False
        elif expects and (word or kind == "quoted"):
            name, index = _name(tokens, index)
            follows = tokens[index + 1][1] if index + 1 < len(tokens) else ""
            if name.lower() not in given and follows != "(" and name.lower() not in _BEFORE_A_NAME:
                tables[name] = None
            expects = False
        index += 1
    return tuple(tables)


def _name(tokens: list[tuple[str | None, str]], index: int) -> tuple[str, int]:
    """Return the name that begins at a token, with its dots, and the index of its last token."""
    name = _unquoted(tokens[index][1])
    while index + 2 < len(tokens) and tokens[index + 1][1] == "." and tokens[index + 2][0] in {"word", "quoted"}:
        name += f".{_unquoted(tokens[index + 2][1])}"
        index += 2
    return name, index


def _end_of_rows(tokens: list[tuple[str | None, str]], index: int) -> int:
    """Return the index of the last token of the rows in parentheses behind the VALUES at `index`."""
    depth = 0
    while index + 1 < len(tokens) and (depth or tokens[index + 1][1] in {"(", ","}):
        index += 1
        depth += {"(": 1, ")": -1}.get(tokens[index][1], 0)
    return index


def _unquoted(token: str) -> str:
    return token[1:-1].replace("``", "`") if token.startswith("`") else token


def _given(tokens: list[tuple[str | None, str]]) -> set[str]:
    """Return the names that WITH gives, in lower case: NAME AS (, or NAME (COLUMNS) AS (."""
    names: set[str] = set()
    if not any(kind == "word" and token.lower() == "with" for kind, token in tokens):
        return names
    for index, (kind, token) in enumerate(tokens[:-1]):
        if kind == "word" and token.lower() == "as" and tokens[index + 1][1] == "(" and index:
            at = index - 1
            if tokens[at][1] == ")":
                while at > 0 and tokens[at][1] != "(":
                    at -= 1
                at -= 1
            if at >= 0 and tokens[at][0] in {"word", "quoted"}:
                names.add(_unquoted(tokens[at][1]).lower())
    return names


def _is_function(tokens: list[tuple[str | None, str]], index: int, depth: int) -> bool:
    """Return if the FROM at `index` belongs to a function, as in EXTRACT(YEAR FROM x), TRIM(x FROM y), or to IS
    DISTINCT FROM, so that no table follows. `depth` is the number of parentheses that are open.
    """
    if tokens[index - 1][1].lower() == "distinct" and index > 1 and tokens[index - 2][1].lower() in {"is", "not"}:
        return True
    at, inner = index - 1, 0
    while at >= 0 and depth:
        token = tokens[at][1]
        if token == ")":
            inner += 1
        elif token == "(":
            if inner == 0:
                before = tokens[at - 1] if at else (None, "")
                return before[0] == "word" and before[1].lower() in _WITH_FROM
            inner -= 1
        at -= 1
    return False
