"""Settings of a room as a test wants them, those among them that are out of the limits for people."""

from __future__ import annotations

from typing import Any, TypeVar

from kop.values import Settings

SettingsT = TypeVar("SettingsT", bound=Settings)


def settings_of(kind: type[SettingsT], **values: Any) -> SettingsT:
    """The settings of a room by their attributes, unchecked; the others are at their defaults."""
    assert values.keys() <= kind.model_fields.keys(), (
        f"{kind.__name__} has no {values.keys() - kind.model_fields.keys()}"
    )
    return kind.model_construct(**values)
