"""A broker inside the test's process: for pytest by the fixtures of `kop.testing.plugin`, for others by `Broker`.

Nothing of the broker is imported before `Broker` is asked for: pytest imports this package in every run on a machine
where kop is installed, also in those that never use it.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kop.testing.broker import Broker
    from kop.testing.cluster import Cluster
    from kop.testing.records import KafkaRecord

__all__ = ["Broker", "Cluster", "KafkaRecord"]

_MODULES = {"Broker": "broker", "Cluster": "cluster", "KafkaRecord": "records"}


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return getattr(importlib.import_module(f"kop.testing.{_MODULES[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
