"""Several brokers of one cluster in the process of the tests, so that leaders and coordinators can move.

Owns: the thread and the memory that the brokers share, their ids.
Must not know: pytest, what a broker does.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, Self

from kop.storage.memory.shared import SharedMemory
from kop.testing.broker import Broker, ClusterPlace
from kop.testing.loop_thread import LoopThread, Startable

DEFAULTS: Final = {
    "offsets_topic_num_partitions": "10",
    "transaction_state_log_num_partitions": "10",
}
"""The settings of a test's cluster that differ from those of a lone broker: each broker coordinates some groups and
transactional ids.
"""


class Cluster(Startable):
    """A Kafka cluster for tests: `with Cluster(brokers=3) as cluster`. Settings as of `Broker`, for all brokers.

    The brokers have ids from 1 on. Each of them is a `Broker`: it can be stopped and started again, made to fail, and
    so on. While one is left, the records stay.
    """

    def __init__(self, brokers: int = 3, **settings: Any) -> None:
        if brokers < 1:
            raise ValueError("a cluster has at least one broker")
        if {"users", "tls"} & settings.keys():
            raise ValueError("users and tls are those of a lone broker: Broker(users=..., tls=True)")
        self._count = brokers
        self._settings: Mapping[str, Any] = DEFAULTS | settings
        self._thread: LoopThread | None = None
        self.brokers: Sequence[Broker] = ()
        """The brokers by their ids, those that are stopped among them."""

    @property
    def bootstrap(self) -> str:
        """The addresses of the brokers that run, as `HOST:PORT,HOST:PORT,...`."""
        return ",".join(broker.bootstrap for broker in self.brokers if broker.is_running)

    def leader(self, topic: str, partition: int = 0) -> Broker:
        """Return the broker that leads a partition. KopError UNKNOWN_TOPIC_OR_PARTITION if there is no such
        partition.
        """
        __tracebackhide__ = True
        return self.brokers[self._any().leader_of(topic, partition) - 1]

    def coordinator(self, group_id: str) -> Broker:
        """Return the broker that coordinates a group, also a group that does not exist yet."""
        __tracebackhide__ = True
        return self.brokers[self._any().coordinator_of(group_id) - 1]

    def start(self) -> Self:
        """Start all brokers; returns this cluster once clients can connect to each of them. RuntimeError if it runs
        already. If one does not start, all are stopped again, and its error is raised.
        """
        if self._thread is not None:
            raise RuntimeError("the cluster runs already")
        self._thread = LoopThread()
        place = ClusterPlace(self._thread, SharedMemory().open_engine)
        self.brokers = [Broker(_place=place, node_id=1 + at, **self._settings) for at in range(self._count)]
        try:
            for broker in self.brokers:
                broker.start()
        except BaseException:
            self.stop()
            raise
        return self

    def stop(self) -> None:
        """Stop all brokers. What was produced is gone."""
        thread, self._thread = self._thread, None
        if thread is None:
            return
        try:
            for broker in self.brokers:
                broker.stop()
        finally:
            thread.stop()

    def __repr__(self) -> str:
        return f"<Cluster of {list(self.brokers)}>"

    def _any(self) -> Broker:
        for broker in self.brokers:
            if broker.is_running:
                return broker
        raise RuntimeError("no broker of the cluster runs: use the cluster in a `with` block, or call start()")
