"""The report of a driver that has no Spark yet, so that `kop mesh status` tells that one starts.

Owns: when such a report is written, and what it has of the last one.
Must not know: Spark, who of several drivers has the mesh, how a mesh runs.
"""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Mapping
from contextlib import closing, suppress
from typing import Any, Final

from kop import clock
from kop.client.keyed_topic import KeyedTopic
from kop.mesh import records

AGAIN_SECONDS: Final = 3.0
"""The seconds between two reports: a driver that has said nothing for 10 s is taken for gone."""
PATIENCE_SECONDS: Final = 2.0
"""Nothing waits for these reports."""
CLOSE_SECONDS: Final = 3.0


class StartNotice:
    """Writes that this process starts a driver of a mesh, on a thread, until it is closed. It is silent while another
    driver of the mesh says something. `settings` are kafka-python's; `trigger` is that of the mesh.
    """

    def __init__(self, settings: Mapping[str, Any], name: str, trigger: str) -> None:
        """`name` is the full name of the mesh."""
        self._settings = dict(settings)
        self._key = records.key(records.REPORT, name)
        self._own = {
            "mesh": name,
            "state": records.STARTING,
            "reason": "",
            "host": socket.gethostname(),
            "pid": os.getpid(),
            "started_ms": clock.wall_ms(),
            "trigger": trigger,
            "drives": False,
            "ended": False,
        }
        self._over = threading.Event()
        self._failure = ""
        self._thread = threading.Thread(target=self._run, name="kop-mesh-start-notice", daemon=True)
        self._thread.start()

    def close(self, failure: str = "") -> None:
        """End it. Returns once nothing is written any more, or after 3 s. The last report says that the driver has
        ended, and why, if `failure` is the reason why there will be none.
        """
        self._failure = failure
        self._over.set()
        self._thread.join(CLOSE_SECONDS)

    def _run(self) -> None:
        with closing(KeyedTopic(self._settings, records.TOPIC, PATIENCE_SECONDS)) as topic:
            while not self._over.is_set():
                with suppress(Exception):  # the driver itself tells what is wrong with the topic
                    topic.make()
                    self._tell(topic, self._own)
                self._over.wait(AGAIN_SECONDS)
            if self._failure:
                end = {"state": records.FAILED, "reason": self._failure, "ended": True}
                with suppress(Exception):
                    self._tell(topic, self._own | end)

    def _tell(self, topic: KeyedTopic, values: Mapping[str, Any]) -> None:
        """Write the last report anew with these values, unless it is that of another driver which lives."""
        last = records.decode(topic.read().get(self._key, b""))
        is_own = all(last.get(name) == self._own[name] for name in ("host", "pid", "started_ms"))
        if is_own or not records.is_driven(last, clock.wall_ms()):
            components = [{**each, "state": values["state"], "reason": ""} for each in last.get("components", ())]
            made = {**last, **values, "components": components, "at_ms": clock.wall_ms()}
            topic.put({self._key: records.encode(made)})
