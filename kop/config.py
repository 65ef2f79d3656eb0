"""Every setting once, in one table for people, made of what the rooms declare in their `settings.py`.

Owns: how a value is found: flags win over `KOP_*` variables, those over the TOML file, that over the default; values of
one listener (`listener.name.NAME.`); the settings of the process itself. What is unknown or out of range is a
`ConfigError` with one line a problem.
Must not know: who uses a setting; how a value is read (`values.py`).
"""

from __future__ import annotations

import difflib
import os
import re
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any, TypeAlias, TypeVar, cast

from pydantic import PrivateAttr, ValidationError
from pydantic.fields import FieldInfo

from kop.address import Address, NamedAddress
from kop.cluster.settings import ClusterSettings
from kop.errors import ConfigError
from kop.groups.settings import GroupOptions
from kop.handlers.settings import HandlerSettings
from kop.memory_limit import usable_bytes
from kop.security.settings import PULSAR_AUTHORIZER, STANDARD_AUTHORIZER, SecuritySettings
from kop.server.settings import ListenerSettings, ServerSettings
from kop.storage.memory.settings import MemoryOptions
from kop.storage.pulsar.settings import PulsarOptions
from kop.storage.settings import StorageOptions
from kop.storage.sqlite.settings import SqliteOptions
from kop.transactions.settings import TransactionSettings
from kop.values import MECHANISMS, Int, Level, Long, SettingRow, Settings, Store, setting

SettingsT = TypeVar("SettingsT", bound=Settings)
Given: TypeAlias = dict[str, tuple[str, str]]
"""The type of given settings: texts by the names of settings, each with its origin: "flag", or a variable or file."""

SPECIAL_ENVIRONMENT = {
    "KOP_CONFIG": "the settings file, as --config",
    "KOP_BOOTSTRAP": "the server that topics, groups, produce, consume and check talk to, as --bootstrap",
    "KOP_CLIENT_CONFIG": "the file of Kafka's client properties of the same commands, as --client-config",
    "KOP_FUNCTIONS_URL": "the worker that kop functions asks, as --admin-url",
    "KOP_FUNCTIONS_TOKEN_FILE": "the file of its token, as --token-file",
}
"""`KOP_*` variables that are no settings. Beside them names under `KOP_TEST_` and `KOP_REQUIRE_` are left to tests."""

_SPECIAL_PREFIXES = ("KOP_TEST_", "KOP_REQUIRE_")
_OF_LISTENER = re.compile(rf"listener\.name\.([^.]+)(?:\.((?i:{'|'.join(MECHANISMS)})))?\.(.+)")
# Kubernetes sets these in every pod for a Service whose name begins with "kop".
_SERVICE_LINK = re.compile(
    r"KOP_(\w+_)?(SERVICE_HOST|SERVICE_PORT(_\w+)?|PORT(_\d+_(TCP|UDP|SCTP)(_(PROTO|PORT|ADDR))?)?)"
)


def default_store(environ: Mapping[str, str]) -> str:
    """Return the store that is used if none is set, `sqlite:PATH`: the database lies in the user's data directory
    (XDG), never in a temporary one.
    """
    home = environ.get("XDG_DATA_HOME", "")
    if not os.path.isabs(home):  # XDG: relative paths are to be ignored
        home = os.path.join(environ.get("HOME") or os.path.expanduser("~"), ".local", "share")
    return f"sqlite:{os.path.join(home, 'kop', 'kop.db')}"


_CACHE_SHARE = 8
_LEAST_CACHE, _MOST_CACHE = 64 << 20, 2 << 30


def default_cache_bytes(workers: int, usable: int) -> int:
    """Return `kop.cache.bytes` of each worker when nobody says: its part of an eighth of the `usable` bytes of memory,
    of 64 MiB at least and 2 GiB at most for all workers together.

    An eighth, because what requests hold, the interpreter, and on one machine also Pulsar or SQLite's page cache need
    memory too.
    """
    return max(_LEAST_CACHE, min(usable // _CACHE_SHARE, _MOST_CACHE)) // max(workers, 1)


HIDDEN = "[hidden]"
"""The text that is shown in the place of a secret, as in Kafka."""


class ProcessSettings(Settings):
    """The settings of the process as a whole, such as its store and its workers, which belong to no room."""

    store: Store = setting(
        "store",
        default_store(os.environ),
        "Where data is kept: sqlite:PATH; memory:, gone with the process; or pulsar://HOST:PORT, Apache Pulsar "
        "(pulsar+ssl: with TLS).",
    )
    kop_workers: Int = setting(
        "kop.workers",
        1,
        "Serving processes, each a broker with an id (node.id, +1, ...) and a port (the first listener's +1, +2, ...).",
        ge=1,
        le=256,
    )
    kop_cache_bytes: Long = setting(
        "kop.cache.bytes",
        lambda before: default_cache_bytes(before.get("kop_workers", 1), usable_bytes()),
        "Bytes of batches that a process keeps for consumers; by default of an eighth of the memory (64 MiB to 2 GiB), "
        "divided by kop.workers.",
        ge=0,
    )
    kop_log_level: Level = setting(
        "kop.log.level", "info", "Least level that is logged: debug, info, warning or error."
    )

    def problems(self) -> Iterable[str]:
        """Yield a line of error if kop.workers is above 1 and the store takes only one process."""
        yield from super().problems()
        if self.kop_workers > 1 and not self.store.startswith("pulsar"):
            yield "kop.workers (--workers) above 1 needs a store (--store) pulsar://...: others have one process"


class Config(
    GroupOptions,
    TransactionSettings,
    MemoryOptions,
    SqliteOptions,
    PulsarOptions,
    StorageOptions,
    SecuritySettings,
    HandlerSettings,
    ClusterSettings,
    ListenerSettings,
    ServerSettings,
    ProcessSettings,
):  # the table begins with the last of them
    """The settings of every room (package of kop) together. See `load`, `of` and `table`."""

    _origins: dict[str, str] = PrivateAttr(default_factory=dict)
    _by_listener: dict[str, dict[str, Any]] = PrivateAttr(default_factory=dict)
    """The settings that single listeners have of their own, by the listener's name, or its name and that of a mechanism
    (`NAME.MECHANISM`); then by attribute.
    """

    def of(self, kind: type[SettingsT], *, listener: str | None = None, **more: Any) -> SettingsT:
        """Return the settings of one room (a package of kop); `more` gives fields of its class that people cannot set.

        With a `listener`, its own values go before those of all listeners.
        """
        present = self.__dict__ | self._by_listener.get(listener or "", {}) | more
        return kind.model_construct(**{name: present[name] for name in kind.model_fields if name in present})

    def of_mechanism(self, kind: type[SettingsT], listener: str, mechanism: str) -> SettingsT:
        """Return the settings of one room for logins by a mechanism at a listener: values of the two together go before
        those of the listener, and these before those of all listeners.
        """
        special = self._by_listener.get(f"{listener}.{mechanism.lower()}", {})
        return self.of(
            kind, listener=listener, **{name: special[name] for name in special if name in kind.model_fields}
        )

    def problems(self) -> Iterable[str]:
        """Yield a line for each contradiction between the settings of several rooms, and those of each room."""
        yield from super().problems()
        if self.authorizer_class_name == PULSAR_AUTHORIZER and not self.store.startswith("pulsar"):
            yield (
                f"authorizer.class.name={PULSAR_AUTHORIZER} goes by the grants of a Pulsar, and store is not "
                f"pulsar://...: use {STANDARD_AUTHORIZER}"
            )
        if self.kop_workers > 1:
            ports = sorted({address.port for _, address in self.listeners if address.port})
            for port, other in pairwise(ports):
                if other - port <= self.kop_workers:
                    yield (
                        f"listeners: the ports {port} and {other} are too near: each of {self.kop_workers} workers has "
                        "one of its own behind that of each listener"
                    )

    @classmethod
    def load(
        cls,
        file: str | os.PathLike[str] | None = None,
        overrides: Mapping[str, Any] | None = None,
        environ: Mapping[str, str] = os.environ,
    ) -> Config:
        """Merge the settings: `overrides` (flags, by name) go before `environ`, and that before the TOML `file`.

        ConfigError if there are problems, with every one of them.
        """
        problems: list[str] = []
        layers = [
            {name: (_text(value), "flag") for name, value in (overrides or {}).items()},
            _from_environ(environ, problems),
            _from_file(Path(file), problems) if file is not None else {},
        ]
        values: Given = {}
        for layer in reversed(layers):
            values.update(layer)
        fields = cls.fields()
        by_listener, by_mechanism = (
            [name for name, field in fields.items() if cast(dict[str, bool], field.json_schema_extra)[kind]]
            for kind in ("by_listener", "by_mechanism")
        )
        general: Given = {}
        of_listeners: dict[str, Given] = {}
        for name, value in values.items():
            if name in fields:
                general[name] = value
            elif (match := _OF_LISTENER.fullmatch(name)) is None:
                problems.append(f"unknown setting {name} ({value[1]}){suggest(name)}")
            elif match[3] in (by_listener if match[2] is None else by_mechanism):
                special = of_listeners.setdefault(".".join(filter(None, match.groups()[:2])).lower(), {})
                if special.get(match[3], ("", ""))[1] == value[1]:  # of two places the later one counts
                    problems.append(f"{name.lower()} is given twice ({value[1]}): names of listeners have no case")
                special[match[3]] = value
            else:
                may = by_listener if match[2] is None else by_mechanism
                kind = "listener" if match[2] is None else "mechanism"
                only = f"only {', '.join(may)}" if may else "no setting"
                problems.append(f"{name} ({value[1]}): {only} may be given by {kind}")

        store = {"store": default_store(environ)}
        try:
            config = cls.model_validate(store | _texts(general))
        except ValidationError as error:
            raise ConfigError(problems + _told(error, fields, general)) from None
        problems += config.problems()
        names = {listener.name.lower() for listener in config.listeners}
        for listener, special in of_listeners.items():
            prefix = f"listener.name.{listener}."
            owner = listener.partition(".")[0]
            if not names:
                problems.append(f"{prefix}: listeners is not given, and listen has no names")
            elif owner not in names:
                problems.append(f"{prefix}: listeners has no {owner.upper()}; there are {', '.join(sorted(names))}")
            try:
                whole = cls.model_validate(store | _texts(general | special))
            except ValidationError as error:
                problems += _told(error, fields, special, prefix)
            else:
                config._by_listener[listener] = {name: getattr(whole, name) for name in map(_attribute, special)}
            config._origins.update({prefix + name: origin for name, (_, origin) in special.items()})
        if problems:
            raise ConfigError(problems)
        config._origins.update({name: origin for name, (_, origin) in general.items()})
        return config

    @classmethod
    def fields(cls) -> dict[str, FieldInfo]:
        """Return the settings by their names."""
        return {field.alias or attribute: field for attribute, field in cls.model_fields.items()}

    def table(self) -> Iterator[SettingRow]:
        """Yield each setting with its default, present value, origin and meaning, package by package; then those of
        single listeners. Values of secrets are hidden.
        """
        fields = self.fields()
        for name, field in fields.items():
            default = field.get_default(call_default_factory=True, validated_data=self.__dict__)
            yield self._row(name, field, default, getattr(self, _attribute(name)), _variable(name))
        for listener, special in self._by_listener.items():
            for name, field in fields.items():
                if (attribute := _attribute(name)) in special:
                    full = f"listener.name.{listener}.{name}"
                    yield self._row(full, field, getattr(self, attribute), special[attribute], "")

    def _row(self, name: str, field: FieldInfo, default: Any, value: Any, env: str) -> SettingRow:
        default, current = (HIDDEN if text and _is_secret(field) else text for text in (_text(default), _text(value)))
        origin = self._origins.get(name, "default")
        kafka = name == "listeners" or ("." in name and not name.startswith("kop."))
        return SettingRow(name, _type_name(field), default, current, origin, field.description or "", kafka, env)


def _attribute(name: str) -> str:
    return name.replace(".", "_")


def _variable(name: str) -> str:
    return "KOP_" + name.removeprefix("kop.").replace(".", "_").upper()


_NAMES = list(Config.fields())
_VARIABLES = {_variable(name): name for name in _NAMES}


def _type_name(field: FieldInfo) -> str:
    named = next((entry for entry in field.metadata if isinstance(entry, str)), None)
    return named or ("boolean" if field.annotation is bool else "string")


def _is_secret(field: FieldInfo) -> bool:
    return _type_name(field) == "password"


_USER = re.compile(r"//[^/@]*@")


def _text(value: Any) -> str:
    """Return a setting's value in the one form of text that files, variables and flags share."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list | tuple) and not isinstance(value, Address | NamedAddress):
        return ",".join(_text(item) for item in value)
    if isinstance(value, dict):
        return ",".join(f"{name}:{item}" for name, item in value.items())
    return str(value)


def _from_environ(environ: Mapping[str, str], problems: list[str]) -> Given:
    given: Given = {}
    for variable in sorted(environ):
        if not variable.startswith("KOP_"):
            continue
        if variable in _VARIABLES:
            given[_VARIABLES[variable]] = (environ[variable], variable)
        elif (
            variable not in SPECIAL_ENVIRONMENT
            and not variable.startswith(_SPECIAL_PREFIXES)
            and not _SERVICE_LINK.fullmatch(variable)
        ):
            near = difflib.get_close_matches(variable, [*_VARIABLES, *SPECIAL_ENVIRONMENT], 1, 0.5)
            problems.append(f"unknown variable {variable}" + (f"; did you mean {near[0]}?" if near else _ASK))
    return given


def _from_file(path: Path, problems: list[str]) -> Given:
    try:
        with path.open("rb") as stream:
            tree = tomllib.load(stream)
    except OSError as error:
        problems.append(f"cannot read {path}: {error.strerror or error}")
        return {}
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        hint = "; where one name begins with another, as max.connections, write it in quotes"
        again = "overwrite" in str(error) or "mutate" in str(error) or "twice" in str(error)
        problems.append(f"{path} is not TOML: {error}{hint if again else ''}")
        return {}
    given: Given = {}
    for name, value in _flatten(tree):
        if name in given:
            problems.append(f"{name} is set twice in {path}")
        given[name] = (_text(value), str(path))
    return given


def _flatten(tree: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in tree.items():
        if isinstance(value, dict):
            yield from _flatten(value, f"{prefix}{key}.")
        else:
            yield prefix + key, value


_ASK = "; `kop config` lists them all"


def suggest(name: str) -> str:
    """Return the end of an error message about an unknown setting: the nearest known one, or the command that lists
    all.
    """
    plain = name.lower().replace("_", ".").replace("-", ".")
    near = difflib.get_close_matches(plain, _NAMES, 1, 0.5)
    return f"; did you mean {near[0]}?" if near else _ASK


def _texts(given: Given) -> dict[str, str]:
    return {name: text for name, (text, _) in given.items()}


def _told(error: ValidationError, fields: Mapping[str, FieldInfo], given: Given, prefix: str = "") -> list[str]:
    """Return a line for people for each error of pydantic's, with the setting's value and origin; secrets, and users in
    addresses, are hidden. `prefix` goes before the name.
    """
    lines = []
    for entry in error.errors():
        if entry["type"] == "default_factory_not_called":
            continue  # what the default would have been made of is a problem, and told as one
        name = str(entry["loc"][0])
        value, origin = given.get(name, ("", "default"))
        value = HIDDEN if _is_secret(fields[name]) else _USER.sub(f"//{HIDDEN}@", value)
        message = str(entry["msg"]).removeprefix("Value error, ")
        message = re.sub(r"^Input should be ", "must be ", message).partition(", unable to")[0]
        lines.append(f"{prefix}{name} = {value!r} ({origin}): {message}")
    return lines
