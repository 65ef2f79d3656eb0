"""Effective broker settings: configured ones, under those that were altered at run time and are kept by the engine.

Owns: which broker settings may be altered at run time, at which level, their checks, and where they are kept.
Must not know: the wire, what a setting does.

Two levels may be altered, as in Kafka: the whole cluster (resource name "") and this broker (its id); the broker's
wins. What Kafka takes at run time is taken: the defaults of topics, limits of connections, the cleaner's settings,
thread pools. What takes effect here takes it at once. Only defaults that Pulsar has policies for (retention and
cleanup.policy) hold for topics that are made later, as docs/pulsar.md says. Everything else is refused as Kafka refuses
its static settings.

Each resource has its own value in the storage, where nobody can compare and set: brokers that are altered at the same
moment write over nothing of one another. The cluster's is read again after it was written, and the change is made again
where another broker has written over it.
"""

from __future__ import annotations

import asyncio
import difflib
import json
import logging
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Final

from kop.cluster.topic_configs import TOPIC_CONFIGS, ConfigRow, ConfigSpec, ConfigType, Origin, Source
from kop.errors import BackendError, ConfigError, ErrorCode, InternalError, KopError, PeerError
from kop.storage.base import SmallValues
from kop.values import SettingRow

_UNRELEASED_KEY: Final = "broker.configs"
"""The key under which unreleased versions kept the altered settings of all resources in one value."""
_TRIES: Final = 5
"""The number of times that a change is written if the storage does not show it afterwards."""
_log = logging.getLogger(__name__)

_NOTHING_HERE: Final = "Taken at run time as in Kafka, kept and read back; there is nothing here that it changes."


def _other_settings() -> Iterable[ConfigSpec]:
    """Yield the settings that Kafka lets clients alter at run time, besides the defaults of topics."""
    integer, long, double = ConfigType.INT, ConfigType.LONG, ConfigType.DOUBLE
    for name, kind, default, lowest, acts in (
        ("log.cleaner.backoff.ms", long, "15000", 0, True),
        ("log.cleaner.threads", integer, "1", 0, False),
        ("log.cleaner.dedupe.buffer.size", long, "134217728", None, False),
        ("log.cleaner.io.buffer.size", integer, "524288", 0, False),
        ("log.cleaner.io.buffer.load.factor", double, "0.9", None, False),
        ("log.cleaner.io.max.bytes.per.second", double, str(float(2**63)), None, False),
        ("num.io.threads", integer, "8", 1, False),
        ("num.network.threads", integer, "3", 1, False),
        ("num.replica.fetchers", integer, "1", None, False),
        ("num.recovery.threads.per.data.dir", integer, "2", 1, False),
        ("background.threads", integer, "10", 1, False),
        ("max.connections", integer, "2147483647", 0, True),
        ("max.connections.per.ip", integer, "2147483647", 0, True),
        ("max.connection.creation.rate", integer, "2147483647", 0, False),
    ):
        check = None if lowest is None else partial(_at_least, lowest)
        yield ConfigSpec(name, kind, default, "" if acts else _NOTHING_HERE, name, acts, check)


def _at_least(lowest: float, value: float) -> str | None:
    return None if value >= lowest else f"Value must be at least {lowest}"


DYNAMIC: Final[Mapping[str, ConfigSpec]] = {
    spec.broker: spec
    for spec in (*TOPIC_CONFIGS.values(), *_other_settings())
    if spec.broker is not None and spec.refused is None
}
"""Broker settings that may be altered at run time, with their type and limits. Those of Kafka that change nothing here
(`ConfigSpec.acts` is false) are kept and read back, but not listed before somebody alters them."""


class BrokerConfigs:
    """Settings of this broker. Reads are from memory; `load` brings in what was altered before the last stop.

    The engine that keeps them needs topics' policies, which need these settings: so it comes with `load`, later.
    """

    def __init__(self, rows: Iterable[SettingRow]) -> None:
        """Check the defaults of topic configs. `rows` are all settings as they are configured. ConfigError if the
        default of a topic config is not supported here.
        """
        self._engine: SmallValues | None = None
        self._altered: dict[str, dict[str, str]] = {}
        """Altered settings by resource name: "" for the cluster, and the broker's id."""
        self._rows = {row.name: row for row in rows}
        self._listeners: list[Callable[[], None]] = []
        self._lock = asyncio.Lock()
        self._reading: set[asyncio.Task[None]] = set()
        self.version = 0
        """A number that grows with every change of a setting."""
        self.loaded = False
        """True once the settings that were altered in earlier runs are known."""

        refusals = [
            _refusal(spec, row.current)
            for spec in TOPIC_CONFIGS.values()
            for row in self._rows.values()
            if spec.refused is not None and row.name == spec.broker
        ]
        if any(refusals):
            raise ConfigError([refusal for refusal in refusals if refusal])

    async def load(self, engine: SmallValues) -> None:
        """Bring in the altered settings that `engine` keeps, and keep changes there from now on.

        A setting that does not parse is left out and logged. The callbacks of `on_change` are called in any case, since
        policies are known now.
        """
        self._engine = engine
        if (text := await engine.get_state(_UNRELEASED_KEY)) is not None:
            _log.error(
                "altered broker settings that an unreleased kop wrote are removed and do not apply: alter them again "
                "(kafka-configs --alter --entity-type brokers). They were %s",
                text,
            )
            await engine.put_state(_UNRELEASED_KEY, None)
        await self._read()
        self.loaded = True
        self._changed()
        engine.on_state(self._changed_by_another_broker)

    async def _read(self) -> bool:
        """Apply the altered settings that the engine keeps; True if they differ from those before."""
        assert self._engine is not None
        valid: dict[str, dict[str, str]] = {}
        for resource in (self.broker_id, ""):  # the cluster's last: another broker may be writing it
            text = await self._engine.get_state(_key(resource))
            kept = _parsed(text or "{}")
            if kept is None:
                _log.error(
                    "the altered settings of broker %r do not parse (%.200r): this broker keeps those that it read "
                    "before. Altering such a setting by a Kafka client (kafka-configs --alter --entity-type brokers) "
                    "writes all of them again",
                    resource,
                    text,
                )
                valid[resource] = self._altered.get(resource, {})
                continue
            valid[resource] = {}
            for name, value in kept.items():
                try:
                    _check(name, value)
                except KopError as error:
                    _log.warning("an altered broker setting is ignored: %s", error.message)
                else:
                    valid[resource][name] = value
        valid = {resource: configs for resource, configs in valid.items() if configs}
        before, self._altered = self._altered, valid
        return valid != before

    def _changed_by_another_broker(self) -> None:
        """Read in a task the settings that a client of another broker altered: they apply to this broker, too. The
        callbacks are called if they differ; a failure is logged.
        """

        async def read() -> None:
            async with self._lock:
                try:
                    changed = await self._read()
                except KopError as error:
                    level = logging.DEBUG if error.told else logging.WARNING
                    _log.log(level, "settings that a client of another broker altered cannot be read yet: %s", error)
                    return
            if changed:
                self._changed()

        task = asyncio.get_running_loop().create_task(read())
        self._reading.add(task)
        task.add_done_callback(self._reading.discard)

    @property
    def num_partitions(self) -> int:
        """The number of partitions of a topic that is made without saying how many."""
        return int(self._rows["num.partitions"].current)

    @property
    def broker_id(self) -> str:
        """This broker's resource name: its id."""
        return self._rows["node.id"].current

    def on_change(self, callback: Callable[[], None]) -> None:
        """Call `callback` after each change of a setting."""
        self._listeners.append(callback)

    def altered(self, resource: str) -> Mapping[str, str]:
        """Return the settings that were altered on one level: that of the whole cluster if `resource` is "", or that of
        this broker if it is the broker's id.
        """
        return self._altered.get(resource, {})

    def origins(self, name: str) -> tuple[Origin, ...]:
        """Return every place that sets `name`, in the order of precedence, so that the first one is in force: altered
        for this broker, altered for all, configured, the default. Empty for a name that is no setting.
        """
        row = self._rows.get(name)
        if row is None and name not in DYNAMIC:
            return ()
        origins = []
        for resource, source in ((self.broker_id, Source.DYNAMIC_BROKER), ("", Source.DYNAMIC_DEFAULT_BROKER)):
            text = self.altered(resource).get(name)
            if text is not None:
                origins.append(Origin(name, text, source))
        if row is None:
            origins.append(Origin(name, DYNAMIC[name].default, Source.DEFAULT))
            return tuple(origins)
        if row.origin != "default":
            origins.append(Origin(name, self._null(name, row.current), Source.STATIC_BROKER))
        origins.append(Origin(name, self._null(name, row.default), Source.DEFAULT))
        return tuple(origins)

    def text(self, name: str) -> str:
        """Return the effective value of a setting that may be altered, as text; "" if there is none."""
        return self.origins(name)[0].value or ""

    def rows(self) -> Iterable[ConfigRow]:
        """Yield every setting of this broker, and its addresses under the names that Kafka's tools look for."""
        source = Source.STATIC_BROKER
        listeners = self._rows["listen"].current
        advertised = self._rows["advertise"].current or listeners
        for name, addresses in (("listeners", listeners), ("advertised.listeners", advertised)):
            text = ",".join(f"PLAINTEXT://{address}" for address in addresses.split(","))
            doc = "As listen and advertise say; read only under this name."
            yield ConfigRow(name, text, True, source, ConfigType.LIST, doc, (Origin(name, text, source),))
        for row in self._rows.values():
            origins = self.origins(row.name)
            kind = ConfigType[row.type.upper()] if row.type.upper() in ConfigType.__members__ else ConfigType.STRING
            secret = kind is ConfigType.PASSWORD
            synonyms = tuple(origin for origin in origins if secret or origin.value is not None)
            yield ConfigRow(
                row.name, origins[0].value, row.name not in DYNAMIC, origins[0].source, kind, row.doc, synonyms
            )

        for name in sorted({*self.altered(""), *self.altered(self.broker_id)} - set(self._rows)):
            origins, spec = self.origins(name), DYNAMIC[name]
            yield ConfigRow(name, origins[0].value, False, origins[0].source, spec.type, spec.doc, origins)

    def cluster_rows(self) -> Iterable[ConfigRow]:
        """Yield the settings that were altered for the whole cluster."""
        for name, text in sorted(self.altered("").items()):
            origin = Origin(name, text, Source.DYNAMIC_DEFAULT_BROKER)
            doc = self._rows[name].doc if name in self._rows else DYNAMIC[name].doc
            yield ConfigRow(name, text, False, origin.source, DYNAMIC[name].type, doc, (origin,))

    def check_resource(self, resource: str) -> None:
        """Raise INVALID_REQUEST unless `resource` is "" or this broker's id."""
        if resource in {"", self.broker_id}:
            return
        if not resource.lstrip("+-").isdecimal():
            raise PeerError(f"Node id must be an integer, but it is: {resource}")
        raise PeerError(f"Unexpected broker id, expected {self.broker_id}, but received {resource}")

    async def alter(
        self,
        resource: str,
        change: Callable[[Mapping[str, str]], dict[str, str]],
        *,
        validate_only: bool = False,
    ) -> None:
        """Replace the altered settings of a level by the result of `change` on them; durable and in force on return.
        With `validate_only` they are only checked.

        `change` may be called several times: applied to its own result it must give the same. INVALID_REQUEST for
        another broker, a setting that cannot be altered at run time, or a bad value; BackendError if other brokers
        write over the change five times.
        """
        self.check_resource(resource)
        if self._engine is None:
            raise InternalError("broker settings are altered before `load`")
        async with self._lock:
            for _ in range(_TRIES):
                if await self._read():
                    self._changed()
                wanted = change(self.altered(resource))
                refused = sorted(name for name in wanted if name not in DYNAMIC)
                if refused:
                    names = ", ".join(refused)
                    raise PeerError(f"Cannot update these configs dynamically: [{names}]{_nearest(refused)}")
                for name, text in wanted.items():
                    _check(name, text)
                if validate_only or wanted == self.altered(resource):
                    return
                # The next round looks whether it is there.
                await self._engine.put_state(_key(resource), json.dumps(wanted) if wanted else None)
            raise BackendError(
                f"the altered settings of broker {resource!r} were written {_TRIES} times, and others are there: "
                "another broker writes them, too, or the storage loses them"
            )

    def _changed(self) -> None:
        self.version += 1
        for callback in self._listeners:
            callback()

    def _null(self, name: str, text: str) -> str | None:
        """Return None for a setting that is not set, as a number of empty text is, and for a secret; otherwise its
        text.
        """
        row = self._rows[name]
        if row.type == "password":
            return None
        return None if text == "" and row.type in {"int", "long", "double"} else text


def _key(resource: str) -> str:
    return f"broker.configs.{resource or 'default'}"


def _parsed(text: str) -> dict[str, str] | None:
    """Return the altered settings of a resource out of the JSON in which they are kept; None if that does not parse."""
    try:
        configs = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return configs if isinstance(configs, dict) and all(isinstance(text, str) for text in configs.values()) else None


def _check(name: str, text: str) -> None:
    spec = DYNAMIC.get(name)
    if spec is None:
        raise PeerError(f"Cannot update these configs dynamically: [{name}]")
    try:
        spec.parse(text)
    except PeerError as error:
        raise PeerError(error.message.replace(spec.name, name), ErrorCode.INVALID_REQUEST) from None


def _refusal(spec: ConfigSpec, text: str) -> str | None:
    try:
        spec.parse_wanted(text)
    except PeerError as error:
        return error.message
    return None


def _nearest(names: Iterable[str]) -> str:
    """Return a hint for an error message: the setting that can be altered whose name is nearest to one of `names`, such
    as a topic config's; an empty text if none is near.
    """
    near = {
        (TOPIC_CONFIGS[name].broker if name in TOPIC_CONFIGS else None)
        or next(iter(difflib.get_close_matches(name, DYNAMIC, 1, 0.85)), "")
        for name in names
    } & set(DYNAMIC)
    return f"; did you mean {', '.join(sorted(near))}?" if near else ""
