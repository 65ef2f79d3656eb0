"""The place of each part of a definition, and the mistakes there.

Owns: lines of the file and flags by field; mistakes and notes, with their places; which mistakes are one.
Must not know: how text and flags are read, what is right.
"""

from __future__ import annotations

from collections.abc import Collection

from kop.functions.config_fields import FLAGS, Path
from kop.functions.spec import SpecError


class ConfigPlaces:
    """The places of one definition; `name` is that of its file, empty if there is none."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.notes: list[str] = []
        self._mistakes: list[tuple[int, str]] = []
        self._bad: set[str | int] = set()
        self._lines: dict[Path, int] = {}
        self._flags: dict[Path, str] = {}

    def put_line(self, path: Path, line: int) -> None:
        """Note that a part stands on a line of the file."""
        self._lines[path] = line

    def put_flag(self, path: Path, flag: str) -> None:
        """Note that a part comes from a flag, whose name is without dashes."""
        self._flags[path] = flag

    def leave_out(self, fields: Collection[str | int]) -> None:
        """Note fields that have a mistake already: later mistakes that follow from theirs are not noted."""
        self._bad |= set(fields)

    @property
    def has_mistakes(self) -> bool:
        """True if anything is wrong."""
        return bool(self._mistakes)

    def raise_mistakes(self) -> None:
        """Raise SpecError with all mistakes in the order of their lines. Do nothing if there are none."""
        if self._mistakes:
            raise SpecError([text for _, text in sorted(self._mistakes)])

    def wrong(self, path: Path, text: str, *fields: str) -> None:
        """Note a mistake at a place of the definition, unless the place or one of `fields` has a mistake already."""
        if self._bad.intersection((path[0], *fields) if path else fields):
            return
        line, place = self._place(path)
        self._mistakes.append((line, f"{place}{text}"))

    def wrong_line(self, line: int, text: str) -> None:
        """Note a mistake on a line of the file, if what stands there cannot be read."""
        self._mistakes.append((line, f"{self.name}, line {line}: {text}"))

    def note(self, path: Path, text: str) -> None:
        """Note a remark for the author on a part of the definition that is no mistake."""
        self.notes.append(f"{self._place(path)[1]}{text}")

    def _place(self, path: Path) -> tuple[int, str]:
        named = ".".join(map(str, path))
        for flagged, flag in self._flags.items():
            if flagged[: len(path)] == path:
                return 0, f"--{flag}: "
        for end in range(len(path), 0, -1):
            if path[:end] in self._flags:
                return 0, f"--{self._flags[path[:end]]}: {'.'.join(map(str, path[end:]))}: "
            if path[:end] in self._lines:
                line = self._lines[path[:end]]
                return line, f"{self.name}, line {line}: {named}: "
        flag = next((f" (--{flag})" for flag, given in FLAGS.items() if given.path == path), "")
        return 0, f"{named}{flag}: " if named else f"{self.name}: " if self.name else ""
