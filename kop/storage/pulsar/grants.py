"""Pulsar's grants: what it lets roles do, read over REST once a second with the gateway's own role.

Owns: which namespaces are read, how often, when what was read no longer counts, and the metrics of that.
Must not know: what is decided by grants, Kafka's words.

The home namespace and those of all topics that are known here are read each second, each by itself, so that a slow
answer holds no other one back. Any other namespace is read when a request names it. What could not be read again for
`KNOWN_SECONDS` is not known any more: nobody may do anything by it then.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterable, Mapping
from functools import partial
from itertools import islice
from typing import Any, Final, TypeAlias

from prometheus_client.core import Metric

from kop import background
from kop.metrics import gauge_value
from kop.pulsar_client import PulsarError
from kop.pulsar_client.errors import Ignoring
from kop.repeats import Repeats
from kop.storage.base import NamespaceGrants, TopicInfo, Topics
from kop.storage.pulsar.context import PulsarContext
from kop.storage.pulsar.faults import Refused, kafka_error
from kop.storage.pulsar.layout import PERSISTENT
from kop.turns import Turns

EVERY_SECONDS: Final = 1.0
KNOWN_SECONDS: Final = 30.0
"""The seconds for which grants count that cannot be read again."""
MOST_ASKED: Final = 1000
"""Namespaces and tenants that are kept although no topic of them is known: clients may name any."""
_AT_ONCE: Final = 8
"""The number of these that are read side by side, so that they do not use up the connections of REST."""
ASKED_SECONDS: Final = 2.0
"""The seconds for which a request waits for the grants of a namespace that it names."""
_NOT_THERE: Final = frozenset({"NotFound", "BadRequest", "PreconditionFailed"})
"""The codes of Pulsar's answers about a namespace or tenant that does not exist, or whose name cannot be one."""
_PREFIX_MODE: Final = "Prefix"

_log = logging.getLogger(__name__)


_Value: TypeAlias = NamespaceGrants | frozenset[str]


class _Followed:
    """The grants of one namespace, or the admins of one tenant, as far as they are known, and since when."""

    def __init__(self) -> None:
        self.value: _Value | None = None
        """The answer that was read last; None if there is none, or if it is too old."""
        self.read_at = -math.inf
        """The loop's time at which the request for `value` was sent."""
        self.tried_at = -math.inf
        self.failed = False
        """True if the last request had no answer that says anything."""
        self.expiry: asyncio.TimerHandle | None = None
        self.following: asyncio.Task[None] | None = None
        """The task that reads it each second; None if only requests that name it do."""
        self.turn = asyncio.Lock()


class PulsarGrants:
    """The grants of a Pulsar cluster: a `kop.storage.base.Grants`."""

    def __init__(self, context: PulsarContext, topics: Topics, waiting: Callable[[str], None] | None) -> None:
        """Prepare, without reading anything. `waiting` is called with one line for each failure for which `open` tries
        again.
        """
        self._context = context
        self._topics = topics
        self._waiting = waiting
        self._loop = context.loop
        self._sources: OrderedDict[str, _Followed] = OrderedDict()
        """What is read by a request of its own: namespaces `tenant/namespace`, and tenants."""
        self._turns = Turns(_AT_ONCE)
        self._version = 0
        self._spaces: set[str] = set()
        """The namespaces that are followed although no topic of them may be known."""
        self._lines = Repeats()

    @property
    def version(self) -> int:
        """A number that grows with each change of what is known of the namespaces and tenants that are read each
        second, and when one of them is not read so any more.
        """
        return self._version

    @property
    def home(self) -> str:
        """The namespace of topics without one in their names."""
        return self._context.naming.namespace

    async def open(self) -> None:
        """Read the grants of the home namespace; then go on to read, each second until `close`, those of each namespace
        that has a known topic.

        Waits for as long as Pulsar does not answer. KopError if the gateway's role may not read them.
        """

        def passes(error: BaseException) -> bool:
            return isinstance(error, PulsarError) and error.retriable

        for key in _keys_of(self.home):
            read = partial(self._read, key, self._source(key))
            what = f"read Pulsar's grants of {key}"
            try:
                await background.retried(what, read, passes=passes, seconds=math.inf, waiting=self._waiting)
            except PulsarError as error:
                raise kafka_error(error, f"cannot {what}, by which authorizer.class.name=pulsar decides") from error
        self._topics.on_change(self._topic_changed)
        for namespace in {self.home, *(_namespace_of(topic) for topic in self._topics.all())} - {""}:
            self._follow(namespace)

    async def close(self) -> None:
        """Stop reading grants, and forget those that were read."""
        await background.cancel(*(source.following for source in self._sources.values()))
        for source in self._sources.values():
            if source.expiry is not None:
                source.expiry.cancel()
        self._sources.clear()

    # --- look-ups

    def of(self, namespace: str) -> NamespaceGrants | None:
        """Return the grants of a namespace as they were last read; None if they are not known, or could not be read
        again for 30 seconds.
        """
        value = self._value(namespace)
        return value if isinstance(value, NamespaceGrants) else None

    def admins(self, tenant: str) -> Collection[str] | None:
        """Return the roles that administer a tenant, as they were last read; None if they are not known, or could not
        be read again for 30 seconds.
        """
        value = self._value(tenant)
        return None if isinstance(value, NamespaceGrants) else value

    def _value(self, key: str) -> _Value | None:
        source = self._sources.get(key)
        return None if source is None else source.value

    # --- reading

    def unread(self, namespaces: Collection[str]) -> Collection[str]:
        """Return those of the namespaces for which `read` has to be called first: they are not read each second by
        themselves, and no request for their grants, or for their tenant's admins, began within the last second.
        """
        return {name for name in namespaces if any(map(self._has_to_be_read, _keys_of(name)))}

    def _has_to_be_read(self, key: str) -> bool:
        source = self._sources.get(key)
        if source is None:
            return True
        if source.following is not None:  # it is tried again by itself: no request waits for a Pulsar that is away
            return source.tried_at == -math.inf
        return source.tried_at <= self._loop.time() - EVERY_SECONDS

    async def read(self, namespaces: Collection[str]) -> None:
        """Read the grants of these namespaces and the admins of their tenants; not those that are read each second
        anyway, or were asked for within a second.

        Waits 2 seconds for each at most, all side by side, and raises nothing for a failure: one that cannot be read
        keeps its last answer for 30 seconds, and is not known then. Of more than 500 namespaces the others are left
        out.
        """
        keys = {key for namespace in islice(namespaces, MOST_ASKED // 2) for key in _keys_of(namespace)}
        try:
            await asyncio.gather(*(self._read_on_request(key) for key in keys))
        finally:
            self._make_room()

    async def _read_on_request(self, key: str) -> None:
        source = self._source(key)
        try:
            async with asyncio.timeout(ASKED_SECONDS), source.turn:
                if self._has_to_be_read(key):
                    async with self._turns.turn():
                        await self._round(key, source)
        except TimeoutError:
            _log.debug("Pulsar's grants of %s are not there in time", key)

    def _source(self, key: str) -> _Followed:
        source = self._sources.get(key)
        if source is None:
            source = self._sources[key] = _Followed()
        else:
            self._sources.move_to_end(key)
        return source

    def _make_room(self) -> None:
        asked = [key for key, source in self._sources.items() if source.following is None]
        for key in asked[: max(len(asked) - MOST_ASKED, 0)]:
            dropped = self._sources.pop(key)
            if dropped.expiry is not None:
                dropped.expiry.cancel()

    async def _round(self, key: str, source: _Followed) -> None:
        try:
            await self._read(key, source)
        except PulsarError as error:
            self._context.faults.refused(error, Refused.REQUESTS, f"cannot read Pulsar's grants of {key}")

    async def _read(self, key: str, source: _Followed) -> None:
        began = source.tried_at = self._loop.time()
        try:
            value: _Value
            if "/" in key:
                value = await self._namespace(key)
            else:
                value = await self._tenant(key)
        except PulsarError:
            source.failed = True
            raise
        if began <= source.read_at:
            return  # a request that was sent later has been answered
        if value != source.value and (source.value is not None or source.failed or source.following):
            self._version += 1
        source.value, source.read_at, source.failed = value, began, False
        if source.expiry is not None:
            source.expiry.cancel()
        source.expiry = self._loop.call_at(began + KNOWN_SECONDS, self._expire, key, source)

    async def _namespace(self, namespace: str) -> NamespaceGrants:
        try:
            policies = await self._context.admin.namespace_policies(namespace)
        except PulsarError as error:
            if error.code in _NOT_THERE:
                if namespace in self._spaces and self._lines.say(namespace, self._loop.time()) is not None:
                    _log.error("Pulsar has no namespace %s, to which clients belong: nobody may do anything", namespace)
                return NamespaceGrants(is_there=False)
            raise
        try:
            return grants_in(namespace, policies)
        except (KeyError, TypeError, AttributeError) as error:
            text = f"the policies of {namespace} have no grants in a form that is known: {error!r}"
            raise PulsarError("BadAnswer", text) from error

    async def _tenant(self, tenant: str) -> frozenset[str]:
        with Ignoring(*_NOT_THERE):
            return frozenset(await self._context.admin.tenant_admins(tenant))
        return frozenset()

    def _expire(self, key: str, source: _Followed) -> None:
        source.value, source.expiry = None, None
        self._version += 1
        if source.following is None:
            if self._sources.get(key) is source:
                del self._sources[key]
            return
        _log.warning(
            "Pulsar's grants of %s could not be read for %d s: what they decide is refused with errors that clients "
            "try again, until they can be read",
            key,
            KNOWN_SECONDS,
        )

    # --- what is in use

    def follow(self, namespace: str) -> None:
        """Read the grants of a namespace each second from now on until `close`, in the background."""
        if namespace not in self._spaces:
            self._spaces.add(namespace)
            self._follow(namespace)

    def follows(self, namespace: str) -> bool:
        """Return true if the grants of a namespace are read each second."""
        sources = map(self._sources.get, _keys_of(namespace))
        return all(source is not None and source.following is not None for source in sources)

    def _follow(self, namespace: str) -> None:
        for key in _keys_of(namespace):
            source = self._source(key)
            if source.following is None:
                source.following = self._loop.create_task(self._read_again_and_again(key, source))

    async def _read_again_and_again(self, key: str, source: _Followed) -> None:
        def pause() -> float:
            return 0.0 if source.tried_at == -math.inf else EVERY_SECONDS

        await background.repeat("the reading of grants", partial(self._round, key, source), every=pause)

    def _topic_changed(self, old: TopicInfo | None, new: TopicInfo | None) -> None:
        """Begin to read the grants of a topic's namespace each second when a topic is new (`old` is None), and end that
        when the last known topic of the namespace is gone (`new` is None), unless `follow` or `open` wants it.
        """
        if new is not None:
            if old is None and (namespace := _namespace_of(new)):
                self._follow(namespace)
        elif old is not None and (gone := _namespace_of(old)):
            kept = {_namespace_of(topic) for topic in self._topics.all()} | self._spaces | {self.home}
            used = {key for namespace in kept if namespace for key in _keys_of(namespace)}
            for key in {*_keys_of(gone)} - used:
                source = self._sources.get(key)
                if source is not None and source.following is not None:
                    source.following.cancel()
                    source.following = None
                    self._version += 1  # from now on it may change without

    def collect(self) -> Iterable[Metric]:
        """Return metrics: the number of namespaces and tenants that are read each second, and the age of the oldest
        answer in seconds. The result is empty if nothing is read so.
        """
        followed = [source for source in self._sources.values() if source.following is not None]
        if not followed:
            return ()
        now = self._loop.time()
        ages = [now - source.read_at for source in followed if not math.isinf(source.read_at)]
        return (
            gauge_value("kop_pulsar_grants_followed", "Namespaces and tenants that are followed.", len(followed)),
            gauge_value(
                "kop_pulsar_grants_age_seconds", "Seconds since Pulsar's grants were last read.", max(ages, default=0.0)
            ),
        )


def grants_in(namespace: str, policies: Mapping[str, Any]) -> NamespaceGrants:
    """Return the grants in a namespace's policies, as Pulsar's REST gives them. KeyError, TypeError or AttributeError
    if the policies have another form.
    """
    given = policies["auth_policies"]
    prefix = f"{PERSISTENT}{namespace}/"
    return NamespaceGrants(
        _actions(given["namespace_auth"]),
        {
            name.removeprefix(prefix): _actions(roles)
            for name, roles in given["destination_auth"].items()
            if name.startswith(prefix)
        },
        {name: frozenset(roles) for name, roles in (given.get("subscription_auth_roles") or {}).items() if roles},
        policies.get("subscription_auth_mode") == _PREFIX_MODE,
    )


def _actions(roles: Mapping[str, Iterable[str]]) -> dict[str, frozenset[str]]:
    return {role: frozenset(actions) for role, actions in roles.items()}


def _keys_of(namespace: str) -> tuple[str, str]:
    """Return the keys of what has to be read for the grants of a namespace: the namespace and its tenant."""
    return namespace, namespace.partition("/")[0]


def _namespace_of(topic: TopicInfo) -> str:
    """Return the namespace in the name of a topic; empty if there is none."""
    return topic.name.rpartition("/")[0]
