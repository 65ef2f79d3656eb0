"""Requests to the servers of a Kafka cluster through kafka-python, tried again after errors that are temporary.

Owns: the connections, the servers' addresses, the coordinators, DescribeConfigs, and which failures are tried again
until when.
Must not know: what the requests of reads and writes say (`read_client`, `write_client`).

Every call blocks until it is done. One object serves one thread.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any, Final, TypeVar

from kafka import errors
from kafka.net.manager import KafkaConnectionManager
from kafka.net.selector import NetworkSelector
from kafka.protocol.admin import DescribeConfigsRequest
from kafka.protocol.metadata import FindCoordinatorRequest, MetadataRequest

from kop import clock
from kop.client.first_connection import connect, refused, will_not_pass
from kop.client.sockets import WIDE_READS

log = logging.getLogger(__name__)

GROUP: Final = 0
"""The number of the coordinators of groups in FindCoordinator."""
TRANSACTION: Final = 1
"""The number of the coordinators of transactions in FindCoordinator."""
BROKER: Final = 4
TOPIC: Final = 2
"""The kinds of resources, as DescribeConfigs numbers them."""
RETRY_SECONDS: Final = 0.1
END_SECONDS: Final = 0.02
"""The seconds between two requests that wait for the end of a transaction, as in Java."""
IN_FLIGHT: Final = 4
"""The number of requests that a server is sent before it has answered. kafka-python takes five, and may need one of
them itself."""
SETTLE_SECONDS: Final = 3.0
"""The seconds for which the word of a server may be out of date: the server hears a moment later of a topic that
another one made, and may not know the end of a partition yet that it takes over."""
ATTEMPT_SECONDS: Final = 5.0
"""The most seconds of an attempt that is made to learn the reason of a failure."""
TEMPORARY: Final = (errors.RetriableError, errors.UnknownBrokerIdError)
"""Failures that pass by themselves."""

T = TypeVar("T")
Coordinated = tuple[int, str]
"""The kind of a coordinator, and the group or the transactional id that it coordinates."""


class ClusterClient:
    """A client of one cluster. `settings` are kafka-python's; `patience` is in seconds."""

    def __init__(self, settings: Mapping[str, Any], patience: float) -> None:
        self._connection = ClusterConnection(settings, patience)
        self._topics: dict[str, Any] = {}
        """What is known of topics, by their names."""

    def hurry(self, seconds: float) -> None:
        """Let requests be tried again for at most so many seconds from now, whatever the patience. For any thread."""
        self._connection.hurry(seconds)

    def close(self) -> None:
        """Close every connection."""
        self._connection.close()

    def topic_configs(self, topic: str, names: Collection[str]) -> dict[str, str]:
        """Return those configs of these names that a topic has; an empty dict if this user may not ask."""
        return self._configs(TOPIC, topic, names)

    def _configs(self, kind: int, name: str | None, names: Collection[str]) -> dict[str, str]:
        def ask() -> dict[str, str]:
            self._connection.metadata([])
            server = self._connection.controller
            resource = DescribeConfigsRequest.DescribeConfigsResource(
                resource_type=kind, resource_name=name or str(server), configuration_keys=list(names)
            )
            answer = self._connection.send(DescribeConfigsRequest(resources=[resource], max_version=4), server)
            (described,) = answer.results
            error = errors.for_code(described.error_code)
            if error in {errors.ClusterAuthorizationFailedError, errors.TopicAuthorizationFailedError}:
                return {}
            if error is not errors.NoError:
                raise error(f"DescribeConfigs of {name or f'server {server}'}: {described.error_message}")
            return {row.name: row.value for row in described.configs if row.value is not None}

        return self._connection.patiently(ask)

    def _forget(self, topics: Iterable[str]) -> None:
        for topic in topics:
            self._topics.pop(topic, None)


class ClusterConnection:
    """The servers of one cluster. `settings` are kafka-python's; `patience` is in seconds."""

    def __init__(self, settings: Mapping[str, Any], patience: float) -> None:
        self.controller: int | None = None
        """The server that makes topics, as of the last `metadata`."""
        self._patience = patience
        self._latest = math.inf
        """The time until which anything is tried again, in seconds of the monotonic clock."""
        self._coordinators: dict[Coordinated, int] = {}
        self._net = NetworkSelector(slow_task_threshold_secs=0)
        self._manager = KafkaConnectionManager(self._net, **{"proxy_url": WIDE_READS, **settings})
        try:
            self._bootstrap(settings)
        except BaseException:
            self.close()
            raise

    def _bootstrap(self, settings: Mapping[str, Any]) -> None:
        """Connect to any of the servers, within the patience. UnreachableError if none can be reached or lets this
        client in, with the properties to look at; at once if another try would fail, too.
        """
        failure = self._attempt()
        if not will_not_pass(failure):
            if failure is not None:
                log.info("no connection yet, and another try for %g s: %s", self._patience, failure)
            try:
                self._manager.bootstrap(int(self._patience * 1000))
                return
            except errors.KafkaTimeoutError:
                failure = self._attempt() or failure
        raise refused(failure, settings, self._patience)

    def _attempt(self) -> Exception | None:
        """Connect to a server, within five seconds; return the reason if that failed, which kafka-python does not tell
        by itself, or None.
        """
        limit_ms = int(min(ATTEMPT_SECONDS, self._patience) * 1000)
        failure: Exception | None = self._manager.run(connect, self._manager, limit_ms)
        return failure

    def hurry(self, seconds: float) -> None:
        """Let requests be tried again for at most so many seconds from now, whatever the patience. For any thread."""
        self._latest = min(self._latest, clock.monotonic() + seconds)

    def close(self) -> None:
        """Close every connection."""
        self._manager.close()
        self._net.close()

    def send(self, request: Any, node: int | None = None) -> Any:
        """Return the answer of a server: of `node`, or of any if it is None. Raises kafka-python's errors."""
        (answer,) = self.send_all([(node, request)])
        if isinstance(answer, Exception):
            raise answer
        return answer

    def send_all(self, requests: Iterable[tuple[int | None, Any]]) -> list[Any]:
        """Send requests to servers (None is any), all at once; return the answer, or kafka-python's error, of each, in
        order. The caller gives at most four (IN_FLIGHT) to a server.
        """

        async def exchange() -> list[Any]:
            sent = [self._manager.send(request, node_id=node) for node, request in requests]
            answers: list[Any] = []
            for future in sent:
                try:
                    answers.append(await future)
                except errors.KafkaError as error:
                    answers.append(error)
            return answers

        answers: list[Any] = self._manager.run(exchange)
        return answers

    def metadata(self, names: Collection[str] | None, *, make: bool = False) -> list[Any]:
        """Return the topics of these names, or all if None, as Metadata describes them, and note servers and
        `controller`; `make` lets the cluster make missing topics. Raises kafka-python's errors; that of a topic is in
        its description.
        """
        wanted = None if names is None else [MetadataRequest.MetadataRequestTopic(name=name) for name in names]
        answer = self.send(
            MetadataRequest(
                topics=wanted,
                allow_auto_topic_creation=make,
                include_cluster_authorized_operations=False,
                include_topic_authorized_operations=False,
            )
        )
        self._manager.cluster.update_metadata(answer)
        self.controller = answer.controller_id
        return list(answer.topics)

    def coordinator(self, of: Coordinated) -> int:
        """Return the number of the server that coordinates a group or a transactional id; it is asked for once, and
        kept until `patiently` drops it. Raises kafka-python's errors.
        """
        known = self._coordinators.get(of)
        if known is not None:
            return known
        kind, key = of
        answer = self.send(
            FindCoordinatorRequest(key=key, key_type=kind, coordinator_keys=[key], min_version=1, max_version=4)
        )
        server = answer.coordinators[0] if answer.API_VERSION >= 4 else answer
        if server.error_code:
            raise errors.for_code(server.error_code)(f"FindCoordinator of {key}")
        node: int = server.node_id
        if self._manager.cluster.broker_metadata(node) is None:
            self.metadata([])
        self._coordinators[of] = node
        return node

    def patiently(
        self,
        ask: Callable[[], T],
        *,
        forget: Callable[[], object] | None = None,
        coordinator: Coordinated | None = None,
        doubtful: tuple[type[Exception], ...] = (),
    ) -> T:
        """Return the result of `ask`; call it again after one of kafka-python's errors that may pass, until the
        patience, or the time of `hurry`, is over. Then, and at once for any other error, that error is raised.

        A `doubtful` error is raised if no other result has come for SETTLE_SECONDS (3 s). Before each further try
        `forget` drops what the caller knows of the servers, and `coordinator`, if given, is looked for again; but not
        while the end of the producer's last transaction is written, which takes milliseconds.
        """
        end = clock.monotonic() + self._patience
        settled: float | None = None
        while True:
            try:
                return ask()
            except errors.ConcurrentTransactionsError:
                if clock.monotonic() > min(end, self._latest):
                    raise
                time.sleep(END_SECONDS)
                continue
            except TEMPORARY as error:
                now = clock.monotonic()
                if not isinstance(error, doubtful):
                    settled = None
                elif settled is None:
                    settled = now + SETTLE_SECONDS
                if now > min(end, self._latest, end if settled is None else settled):
                    raise
            time.sleep(RETRY_SECONDS)
            if coordinator is not None:
                self._coordinators.pop(coordinator, None)
            if forget is not None:
                forget()
