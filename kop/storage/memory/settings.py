"""The settings of the memory engine. Owns: their names, defaults and limits."""

from __future__ import annotations

from kop.storage.settings import LocalSettings
from kop.values import Long, Settings, setting


class MemoryOptions(Settings):
    """The settings of the memory engine that people can set."""

    kop_memory_bytes: Long = setting(
        "kop.memory.bytes",
        1_073_741_824,
        "With store=memory:, bytes of records from which on more are refused until retention makes room.",
        ge=1_048_576,
    )


class MemorySettings(MemoryOptions, LocalSettings):
    """The settings that the memory engine gets: those for people, and those that code and tests set."""
