"""The principal of a client with a certificate: `ssl.principal.mapping.rules`, by Kafka's syntax.

Owns: the rules, what Java's patterns and replacements mean, and which of them Python cannot keep to.
Must not know: TLS, what a principal may do.

A repetition of what can be read in many ways, such as `(a+)*`, may take for ever on an ordinary subject: it is refused.
Others take their time on subjects that are made for it alone, and whoever chooses its subject chooses its name.

Rules are tried in their order, the first whose pattern is the whole subject counts:
`RULE:PATTERN/REPLACEMENT/` with `L` or `U` behind it for lower or upper case, or `DEFAULT`, the subject itself.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Final, TypeAlias

_SHOWN: Final = 200
"""Characters of a subject that a log line shows."""
LONGEST_SUBJECT: Final = 1024
"""Characters of the longest subject that patterns are tried on: they may take time."""
_ENDS_OF_LINES: Final = re.compile("[\n\r\x85\u2028\u2029]")
"""Python's `.` and `$` differ from Java's in these."""
_QUANTIFIER: Final = re.compile(r"[*+?]|\{\d+(,\d*)?\}")
_FIXED: Final = re.compile(r"\{(\d+)(,\1)?\}")
_AT_MOST_ONCE: Final = re.compile(r"\?|\{[01](,[01])?\}")
_NESTED: Final = (
    "a repetition in a repetition, which can take for ever: let there be one way to read what is repeated, by (?>...)"
)
_GROUP: Final = re.compile(r"\((?!\?)|\(\?(:|=|!|>|<=|<!)")
_FLAGS: Final = re.compile(r"\(\?[is]+\)")
_ESCAPES: Final = frozenset("dDwWsStnrf")
_HEX: Final = re.compile(r"x[0-9a-fA-F]{2}|u[0-9a-fA-F]{4}")

Mapping: TypeAlias = Callable[[str], str | None]
"""Returns the name for a subject; None if the rule does not apply."""


class MappingRules:
    """The rules of one setting. ValueError if the text is none, with the part that is wrong."""

    def __init__(self, text: str, *, once: bool = False, check: Callable[[str], object] | None = None) -> None:
        """`once`: a rule replaces one match of the whole subject. In Java `.*` matches a second time, at the empty end.

        `check` raises ValueError for a name that is not possible; it is called with names that a rule gives to all
        subjects.
        """
        self._rules = list(_parse(text, once, check))
        if not self._rules:
            raise ValueError("has no rule, so nobody could log in: DEFAULT is the subject itself")

    def name(self, subject: str) -> str | None:
        """Return the name of a client whose certificate has this subject; None if no rule applies."""
        for rule in self._rules:
            if (name := rule(subject)) is not None:
                return name
        return None


def can_be_tried(subject: str) -> bool:
    """Return true if rules can be tried on the subject: it has 1,024 characters at most, in one line. To any other
    subject no rule applies.
    """
    return len(subject) <= LONGEST_SUBJECT and not _ENDS_OF_LINES.search(subject)


def name_of(rules: MappingRules, subject: str) -> str:
    """Return the principal of a client whose certificate has this subject. ValueError if it has none, with the
    reason.
    """
    name = rules.name(subject)
    if not name:
        what = "have no rule for" if name is None else "make nothing of"
        raise ValueError(f"ssl.principal.mapping.rules {what} its certificate's subject {subject[:_SHOWN]!r}")
    return f"User:{name}"


def _default(subject: str) -> str | None:
    return subject


def _parse(text: str, once: bool, check: Callable[[str], object] | None) -> list[Mapping]:
    rules: list[Mapping] = []
    at, text = 0, text.strip()
    while at < len(text):
        rest = text[at:]
        if rest[0] in ", \t\n\r":
            at += 1
            continue
        rule: Mapping
        if rest.startswith("DEFAULT"):
            rule, taken = _default, len("DEFAULT")
        elif rest.startswith("RULE:"):
            pattern, at_replacement = _until_slash(rest, len("RULE:"))
            replacement, taken = _until_slash(rest, at_replacement)
            letter = rest[taken : taken + 1]
            letter = letter if letter in {"L", "U"} else ""
            taken += len(letter)
            rule = _rule(pattern, replacement, letter, once, check)
        else:
            raise ValueError(f"has {rest!r}, which begins neither with RULE: nor with DEFAULT")
        behind = rest[taken:].lstrip()
        if behind and not behind.startswith(","):
            raise ValueError(f"has {behind!r} behind a rule, where a comma or the end has to be")
        rules.append(rule)
        at += taken
    return rules


def _until_slash(text: str, begin: int) -> tuple[str, int]:
    """Return the part from `begin` up to the next slash that is not escaped, and the position behind the slash.
    ValueError if there is none.
    """
    at = begin
    while at < len(text) and text[at] != "/":
        at += 2 if text[at] == "\\" else 1
    if at >= len(text):
        raise ValueError(f"has {text!r}, which is not RULE:PATTERN/REPLACEMENT/")
    return text[begin:at], at + 1


def _rule(pattern: str, replacement: str, letter: str, once: bool, check: Callable[[str], object] | None) -> Mapping:
    try:
        compiled = re.compile(_python_pattern(pattern), re.ASCII)
    except re.error as error:
        raise ValueError(f"has the pattern {pattern!r}, which cannot be read: {error}") from None
    parts = _replacement(replacement, compiled.groups)
    texts = [part for part in parts if isinstance(part, str)]
    if check is not None and texts == parts:
        check("".join(texts))

    def replaced(match: re.Match[str]) -> str:
        return "".join([part if isinstance(part, str) else match[part] or "" for part in parts])

    def apply(subject: str) -> str | None:
        if not can_be_tried(subject) or not (whole := compiled.fullmatch(subject)):
            return None
        name = replaced(whole) if once else compiled.sub(replaced, subject)
        return name.lower() if letter == "L" else name.upper() if letter == "U" else name

    return apply


# -- patterns


def _refuse(pattern: str, what: str, instead: str = "") -> ValueError:
    return ValueError(f"has the pattern {pattern!r} with {what}, which is not there{instead}")


def _python_pattern(pattern: str) -> str:
    """Return Python's pattern with the meaning of one of Java's. ValueError if Python has no such pattern, or gives it
    another meaning.
    """
    made = []
    at = 0
    atomic: list[bool] = []
    many = [False]
    """For each group that has begun: what it has so far can be read in more than one way."""
    last, quantified = False, True
    """If the last part can be read so; if it is a quantifier."""
    if flags := _FLAGS.match(pattern):
        made.append(flags[0])
        at = flags.end()
    while at < len(pattern):
        sign = pattern[at]
        was_last, was_quantified, last, quantified = last, quantified, False, False
        if sign == "\\":
            piece, at = _escape(pattern, at, in_class=False)
        elif sign == "[":
            piece, at = _class(pattern, at)
        elif sign == "(":
            group = _GROUP.match(pattern, at)
            if group is None:
                instead = ": groups are $1, $2 in their order" if pattern[at : at + 3] == "(?<" else ""
                raise _refuse(pattern, pattern[at : at + 4], instead)
            piece, at = group[0], group.end()
            atomic.append(piece == "(?>")
            many.append(False)
            quantified = True
        elif sign in "{*+?":
            quantifier = _QUANTIFIER.match(pattern, at)
            if quantifier is None:
                raise _refuse(pattern, "{ that is no quantifier", ": write \\{")
            piece, at = quantifier[0], quantifier.end()
            quantified = True
            if not was_quantified:  # else it says how the one before is meant
                if was_last and not _AT_MOST_ONCE.fullmatch(piece):
                    raise ValueError(f"has the pattern {pattern!r} with {_NESTED}")
                many[-1] |= not _FIXED.fullmatch(piece) and pattern[at : at + 1] != "+"
        else:
            piece, at = sign, at + 1
            if sign == "|":
                many[-1], quantified = True, True
            elif sign == ")" and len(many) > 1:
                inner, is_atomic = many.pop(), atomic.pop()
                last = inner and not is_atomic
                many[-1] |= last
        made.append(piece)
    return "".join(made)


def _escape(pattern: str, at: int, *, in_class: bool) -> tuple[str, int]:
    sign = pattern[at + 1 : at + 2]
    if code := _HEX.match(pattern, at + 1):
        return f"\\{code[0]}", code.end()
    if not sign:
        raise _refuse(pattern, "a \\ at the end")
    if not (sign.isascii() and sign.isalnum()) or sign in _ESCAPES:
        return f"\\{sign}" if sign.isascii() else sign, at + 2
    if not in_class:
        if sign in "bBA":
            return f"\\{sign}", at + 2
        if sign == "z":
            return "\\Z", at + 2
        if sign in "123456789" and not pattern[at + 2 : at + 3].isdecimal():
            return f"\\{sign}", at + 2
    raise _refuse(pattern, f"\\{sign}")


def _class(pattern: str, at: int) -> tuple[str, int]:
    """Return the class of characters that begins at `at` in a pattern, for Python, and the position behind it.
    ValueError if Python cannot keep to its meaning.
    """
    begin = at
    made = ["[^" if pattern.startswith("[^", at) else "["]
    at += len(made[0])
    while (sign := pattern[at : at + 1]) != "]" or len(made) == 1:
        if sign in {"", "]"}:
            raise _refuse(pattern, f"{pattern[begin:]!r}, a class without members or end")
        if sign == "[":
            raise _refuse(pattern, "[ within a class", ": write \\[")
        if pattern[at : at + 2] in {"&&", "--", "||", "~~"}:
            raise _refuse(pattern, f"{pattern[at : at + 2]} within a class")
        if sign == "\\":
            piece, at = _escape(pattern, at, in_class=True)
        else:
            piece, at = sign, at + 1
        made.append(piece)
    made.append("]")
    return "".join(made), at + 1


# -- replacements


def _replacement(text: str, groups: int) -> list[str | int]:
    """Return a replacement as texts and numbers of groups, of which the pattern has `groups`. A number without a group
    stands for itself, as in Kafka. ValueError if a $ has no number behind it.
    """
    parts: list[str | int] = []
    at = 0
    while at < len(text):
        sign = text[at]
        if sign == "\\":
            parts.append(text[at + 1])
            at += 2
        elif sign != "$":
            parts.append(sign)
            at += 1
        else:
            digits = re.match(r"[0-9]*", text[at + 1 :])
            assert digits is not None
            if not digits[0] or (int(digits[0][0]) > groups == 0):
                raise ValueError(f"has the replacement {text!r}: behind a $ stands the number of a group, or write \\$")
            number, length = int(digits[0][0]), 1
            while length < len(digits[0]) and number * 10 + int(digits[0][length]) <= groups:
                number = number * 10 + int(digits[0][length])
                length += 1
            parts.append(number if number <= groups else "$" + digits[0][:length])
            at += 1 + length
    return parts
