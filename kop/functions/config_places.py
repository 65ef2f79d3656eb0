"""The place of each part of a definition, and the mistakes there.

Owns: lines of the file and flags by field; mistakes and notes, with their places; which mistakes are one.
Must not know: how text and flags are read, what is right.
"""

from __future__ import annotations

from collections.abc import Mapping

from kop.functions.config_fields import FLAGS, Flag, Path
from kop.functions.spec import SpecError


class ConfigPlaces:
    """The places of one definition; `name` is that of its file, empty if there is none, or if its author is told of it
    by the caller. `known_flags` are those that its author may give.
    """

    def __init__(self, name: str, known_flags: Mapping[str, Flag] = FLAGS) -> None:
        self.name = name
        self.known_flags = known_flags
        self.notes: list[tuple[int, str]] = []
        """Each with its line of the file, 0 for none; so are mistakes."""
        self.mistakes: list[tuple[int, str]] = []
        self.lines: dict[Path, int] = {}
        """The line of the file on which a part stands."""
        self.flags: dict[Path, str] = {}
        """The flag, without dashes, that a part comes from."""
        self.bad: set[str | int] = set()
        """Fields that have a mistake already: later mistakes that follow from theirs are not noted."""

    def raise_mistakes(self) -> None:
        """Raise SpecError with all mistakes in the order of their lines. Do nothing if there are none."""
        if self.mistakes:
            raise SpecError([text for _, text in sorted(self.mistakes)])

    def wrong(self, path: Path, text: str, *fields: str) -> None:
        """Note a mistake at a place of the definition, unless the place or one of `fields` has a mistake already."""
        if self.bad.intersection((path[0], *fields) if path else fields):
            return
        line, place = self._place(path)
        self.mistakes.append((line, f"{place}{text}"))

    def wrong_line(self, line: int, text: str) -> None:
        """Note a mistake on a line of the file, if what stands there cannot be read."""
        self.mistakes.append((line, f"{self.name}, line {line}: {text}"))

    def note(self, path: Path, text: str) -> None:
        """Note a remark for the author on a part of the definition that is no mistake."""
        line, place = self._place(path)
        self.notes.append((line, f"{place}{text}"))

    def _place(self, path: Path) -> tuple[int, str]:
        named = ".".join(map(str, path))
        for flagged, flag in self.flags.items():
            if flagged[: len(path)] == path:
                return 0, f"--{flag}: "
        for end in range(len(path), 0, -1):
            if path[:end] in self.flags:
                return 0, f"--{self.flags[path[:end]]}: {'.'.join(map(str, path[end:]))}: "
            if path[:end] in self.lines:
                line = self.lines[path[:end]]
                return line, f"{self.name}, line {line}: {named}: " if self.name else f"{named}: "
        flag = next((f" (--{flag})" for flag, given in self.known_flags.items() if given.path == path), "")
        return 0, f"{named}{flag}: " if named else f"{self.name}: " if self.name else ""
