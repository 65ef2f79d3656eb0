"""Every setting once: Kafka's name where Kafka has it, `kop.` before our own; type, default, limits, meaning.

Owns: the table of settings, and how a value is found: flags win over `KOP_*` variables, those over the TOML file, that
over the default. What is unknown or out of range is a `ConfigError` with one line a problem.
Must not know: who uses a setting; how a value is read (`values.py`).
"""

from __future__ import annotations

import difflib
import os
import re
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, PrivateAttr, ValidationError
from pydantic.fields import FieldInfo

from kop.errors import ConfigError
from kop.memory_limit import usable_bytes
from kop.values import (
    Address,
    AdminUrl,
    Advertised,
    Int,
    Level,
    Long,
    Namespace,
    OptionalAddress,
    OptionalInt,
    OptionalLong,
    Policies,
    Secret,
    SomeAddresses,
    Store,
)

INT_MAX = 2**31 - 1
LONG_MAX = 2**63 - 1

SPECIAL_ENVIRONMENT = {
    "KOP_CONFIG": "the settings file, as --config",
    "KOP_BOOTSTRAP": "the server that topics, groups, produce, consume and check talk to, as --bootstrap",
}
"""`KOP_*` variables that are no settings. Beside them names under `KOP_TEST_` and `KOP_REQUIRE_` are left to tests."""

_SPECIAL_PREFIXES = ("KOP_TEST_", "KOP_REQUIRE_")
# Kubernetes sets these in every pod for a Service whose name begins with "kop".
_SERVICE_LINK = re.compile(
    r"KOP_(\w+_)?(SERVICE_HOST|SERVICE_PORT(_\w+)?|PORT(_\d+_(TCP|UDP|SCTP)(_(PROTO|PORT|ADDR))?)?)"
)


def default_store(environ: Mapping[str, str]) -> str:
    """Where data goes when nobody says: the user's data directory (XDG), never a temporary one."""
    home = environ.get("XDG_DATA_HOME", "")
    if not os.path.isabs(home):  # XDG: relative paths are to be ignored
        home = os.path.join(environ.get("HOME") or os.path.expanduser("~"), ".local", "share")
    return f"sqlite:{os.path.join(home, 'kop', 'kop.db')}"


_CACHE_SHARE = 8
_LEAST_CACHE, _MOST_CACHE = 64 << 20, 2 << 30


def default_cache_bytes(workers: int, usable: int) -> int:
    """Return `kop.cache.bytes` of each worker when nobody says: its part of an eighth of the memory that may be used.

    An eighth, because what requests hold, the interpreter, and on one machine also Pulsar or SQLite's page cache need
    memory too.
    """
    return max(_LEAST_CACHE, min(usable // _CACHE_SHARE, _MOST_CACHE)) // max(workers, 1)


def _kafka(name: str, default: Any, doc: str, **limits: Any) -> Any:
    """Declare a setting that Kafka has, under Kafka's name."""
    return Field(default, alias=name, description=doc, json_schema_extra={"kafka": True}, **limits)


def _own(name: str, default: Any, doc: str, **limits: Any) -> Any:
    """Declare a setting of our own. A `default` that is made of the settings before it is a function of these."""
    made = {"default_factory": default} if callable(default) else {"default": default}
    return Field(**made, alias=name, description=doc, json_schema_extra={"kafka": False}, **limits)


HIDDEN = "[hidden]"
"""What is shown of a secret, as Kafka does."""


@dataclass(frozen=True, slots=True)
class SettingRow:
    """A setting as `kop config` and DescribeConfigs show it; `default` and `current` as text, "" for none.

    `current` of a secret that is set is `HIDDEN`.
    """

    name: str
    type: str
    """boolean, int, long, double, string, list, or password: a secret."""
    default: str
    current: str
    origin: str
    """default, flag, or the variable or file that set it."""
    doc: str
    kafka: bool
    """The name is Kafka's, not ours."""
    env: str
    """The environment variable that sets it."""


class Config(BaseModel):
    """Every setting, checked and immutable. Attributes are the names with `_` for `.`; see `load` and `table`."""

    model_config = ConfigDict(frozen=True, extra="forbid", validate_default=True)
    _origins: dict[str, str] = PrivateAttr(default_factory=dict)

    # -- where
    listen: SomeAddresses = _own(
        "listen",
        "127.0.0.1:9092,[::1]:9092",
        "Addresses that Kafka clients connect to: HOST:PORT, comma separated; *:PORT is every address of the machine.",
    )
    advertise: Advertised = _own(
        "advertise",
        "",
        "Address that clients are told to connect to, one for all listeners or one for each; "
        "empty: the address that the client connected to.",
    )
    store: Store = _own(
        "store",
        default_store(os.environ),
        "Where data is kept: sqlite:PATH; memory:, gone with the process; or pulsar://HOST:PORT, Apache Pulsar "
        "(pulsar+ssl: with TLS).",
    )
    kop_pulsar_admin_url: AdminUrl = _own(
        "kop.pulsar.admin.url",
        "http://127.0.0.1:8080",
        "Address of Pulsar's admin REST, with store=pulsar://...; with kop.pulsar.auth and store=pulsar+ssl://... it "
        "has to be https.",
    )
    # 8080 to 8083 are Pulsar's and the Confluent tools', 9090 to 9999 Prometheus's and its exporters' (9308: Kafka's).
    http: OptionalAddress = _own(
        "http", "127.0.0.1:7092", "Address of /metrics, /healthz and /readyz: HOST:PORT; empty: none."
    )
    kop_workers: Int = _own(
        "kop.workers",
        1,
        "Serving processes, each a broker with an id (node.id, +1, ...) and a port (the first listener's +1, +2, ...).",
        ge=1,
        le=256,
    )
    node_id: Int = _kafka("node.id", 1, "Id of this broker, as clients see it.", ge=0)

    # -- topics
    num_partitions: Int = _kafka("num.partitions", 1, "Partitions of a topic that does not say how many.", ge=1)
    default_replication_factor: Int = _kafka(
        "default.replication.factor", 1, "Has no effect: every partition has one replica.", ge=1
    )
    kop_max_partitions: Int = _own(
        "kop.max.partitions", 100_000, "Partitions of all topics together that clients may ask for.", ge=1
    )
    auto_create_topics_enable: bool = _kafka(
        "auto.create.topics.enable", True, "Create a topic when a client asks for its metadata and allows it."
    )
    delete_topic_enable: bool = _kafka("delete.topic.enable", True, "Let clients delete topics.")
    compression_type: Literal["producer", "uncompressed", "gzip", "snappy", "lz4", "zstd"] = _kafka(
        "compression.type", "producer", "Codec of stored batches; producer: as they came."
    )
    message_max_bytes: Int = _kafka(
        "message.max.bytes", 1_048_588, "Largest record batch, in bytes as sent (compressed).", ge=0
    )
    log_message_timestamp_type: Literal["CreateTime", "LogAppendTime"] = _kafka(
        "log.message.timestamp.type", "CreateTime", "Whether records keep the producer's time or get the broker's."
    )
    log_message_timestamp_before_max_ms: Long = _kafka(
        "log.message.timestamp.before.max.ms",
        LONG_MAX,
        "How many milliseconds a record's CreateTime may lie behind the broker's clock.",
        ge=0,
    )
    log_message_timestamp_after_max_ms: Long = _kafka(
        "log.message.timestamp.after.max.ms",
        3_600_000,
        "How many milliseconds a record's CreateTime may lie ahead of the broker's clock.",
        ge=0,
    )

    # -- retention and compaction
    log_cleanup_policy: Policies = _kafka(
        "log.cleanup.policy", "delete", "What happens to old records: delete (by time and size), compact, or both."
    )
    log_retention_ms: OptionalLong = _kafka(
        "log.retention.ms",
        None,
        "How many milliseconds records are kept, -1 for ever; wins over log.retention.minutes, that over .hours.",
    )
    log_retention_minutes: OptionalInt = _kafka("log.retention.minutes", None, "How many minutes records are kept.")
    log_retention_hours: Int = _kafka("log.retention.hours", 168, "How many hours records are kept.")
    log_retention_bytes: Long = _kafka(
        "log.retention.bytes", -1, "How many bytes of a partition are kept; -1: no limit.", ge=-1
    )
    log_retention_check_interval_ms: Long = _kafka(
        "log.retention.check.interval.ms", 300_000, "Milliseconds between two looks for records past retention.", ge=1
    )
    log_cleaner_backoff_ms: Long = _kafka(
        "log.cleaner.backoff.ms", 15_000, "Milliseconds between two looks for partitions to compact.", ge=0
    )
    log_cleaner_min_cleanable_ratio: Annotated[float, "double"] = _kafka(
        "log.cleaner.min.cleanable.ratio",
        0.5,
        "Share of a compacted log, 0 to 1, that must be new before it is compacted again.",
        ge=0,
        le=1,
    )
    log_cleaner_min_compaction_lag_ms: Long = _kafka(
        "log.cleaner.min.compaction.lag.ms", 0, "Milliseconds that a record stays before compaction may take it.", ge=0
    )
    log_cleaner_max_compaction_lag_ms: Long = _kafka(
        "log.cleaner.max.compaction.lag.ms",
        LONG_MAX,
        "Milliseconds after which a record is compacted whatever the ratio of new ones.",
        ge=1,
    )
    log_cleaner_delete_retention_ms: Long = _kafka(
        "log.cleaner.delete.retention.ms", 86_400_000, "Milliseconds that a tombstone outlives its compaction.", ge=0
    )

    # -- connections and requests
    socket_request_max_bytes: Int = _kafka(
        "socket.request.max.bytes", 104_857_600, "Largest request in bytes; a larger one closes its connection.", ge=1
    )
    connections_max_idle_ms: Long = _kafka(
        "connections.max.idle.ms", 600_000, "Milliseconds after which a silent connection is closed; -1: never.", ge=-1
    )
    max_connections: Int = _kafka("max.connections", INT_MAX, "Connections at a time.", ge=0)
    max_connections_per_ip: Int = _kafka(
        "max.connections.per.ip", INT_MAX, "Connections at a time from one address.", ge=0
    )
    fetch_max_bytes: Int = _kafka(
        "fetch.max.bytes",
        57_671_680,
        "Most bytes of records in one Fetch response, a first larger batch aside.",
        ge=1024,
    )
    max_incremental_fetch_session_cache_slots: Int = _kafka(
        "max.incremental.fetch.session.cache.slots", 1000, "Incremental fetch sessions that are remembered.", ge=0
    )
    kop_connection_unread_bytes: Long = _own(
        "kop.connection.unread.bytes",
        16_777_216,
        "Bytes of answers that a client may leave unread before no more of its requests are taken.",
        ge=65_536,
    )
    kop_request_memory_bytes: Long = _own(
        "kop.request.memory.bytes",
        268_435_456,
        "Bytes that requests not yet complete or answered may hold, all connections together, before reading pauses.",
        ge=1_048_576,
    )
    kop_drain_timeout_ms: Int = _own(
        "kop.drain.timeout.ms", 10_000, "Milliseconds that requests in flight get to end at shutdown.", ge=0
    )
    kop_log_level: Level = _own("kop.log.level", "info", "Least level that is logged: debug, info, warning or error.")

    # -- Apache Pulsar as the storage engine
    kop_pulsar_namespace: Namespace = _own(
        "kop.pulsar.namespace", "public/default", "TENANT/NAMESPACE whose topics Kafka clients see."
    )
    kop_pulsar_metadata_namespace: Namespace = _own(
        "kop.pulsar.metadata.namespace",
        "public/kafka",
        "TENANT/NAMESPACE of committed offsets and of the gateway's own topic; made when it is not there.",
    )
    kop_pulsar_offsets: Literal["index", "packed"] = _own(
        "kop.pulsar.offsets",
        "index",
        "What offsets are made of: index, the Pulsar brokers' own index of messages; or packed, from message ids.",
    )
    kop_pulsar_auth: Secret = _own(
        "kop.pulsar.auth",
        "",
        "How the gateway proves who it is: token:TOKEN, token-file:PATH, basic:USER:PASSWORD or oauth2:{JSON}.",
        repr=False,
    )
    kop_pulsar_tls_ca_file: str = _own(
        "kop.pulsar.tls.ca.file", "", "PEM file of the authorities that Pulsar's certificates are checked against."
    )
    kop_pulsar_tls_cert_file: str = _own("kop.pulsar.tls.cert.file", "", "PEM file of the gateway's own certificate.")
    kop_pulsar_tls_key_file: str = _own("kop.pulsar.tls.key.file", "", "PEM file of that certificate's key.")
    kop_pulsar_tls_verify_host: bool = _own(
        "kop.pulsar.tls.verify.host", True, "Whether the name in Pulsar's certificate has to be the host's."
    )

    kop_entry_format: Literal["pulsar", "kafka"] = _own(
        "kop.entry.format",
        "pulsar",
        "How batches are stored in Pulsar: pulsar, as messages, or kafka, as they came, but not on compacted topics.",
    )

    # -- storage engine
    kop_cache_bytes: Long = _own(
        "kop.cache.bytes",
        lambda before: default_cache_bytes(before.get("kop_workers", 1), usable_bytes()),
        "Bytes of batches that a process keeps for consumers; by default of an eighth of the memory (64 MiB to 2 GiB), "
        "divided by kop.workers.",
        ge=0,
    )
    kop_wal_bytes: Long = _own(
        "kop.wal.bytes",
        33_554_432,
        "Bytes of SQLite's write-ahead log at which it is written back into the database file.",
        ge=1_048_576,
    )
    kop_refuse_damaged_log: bool = _own(
        "kop.refuse.damaged.log",
        False,
        "Do not start if SQLite's write-ahead log is damaged; else the broker starts without the commits behind that.",
    )
    kop_memory_bytes: Long = _own(
        "kop.memory.bytes",
        1_073_741_824,
        "With store=memory:, bytes of records from which on more are refused until retention makes room.",
        ge=1_048_576,
    )
    kop_min_free_bytes: Long = _own(
        "kop.min.free.bytes",
        268_435_456,
        "Bytes of the disk that records leave free for deletes, commits of offsets and the write-ahead log; "
        "at most an eighth of the disk.",
        ge=0,
    )

    # -- transactions
    transaction_state_log_num_partitions: Int = _kafka(
        "transaction.state.log.num.partitions", 50, "Partitions of __transaction_state; fixed once it exists.", ge=1
    )
    transaction_max_timeout_ms: Int = _kafka(
        "transaction.max.timeout.ms", 900_000, "The longest transaction.timeout.ms that a producer may ask for.", ge=1
    )
    transactional_id_expiration_ms: Int = _kafka(
        "transactional.id.expiration.ms",
        604_800_000,
        "Milliseconds that a transactional id is kept that nobody uses.",
        ge=1,
    )

    # -- groups and producers
    offsets_topic_num_partitions: Int = _kafka(
        "offsets.topic.num.partitions", 50, "Partitions of __consumer_offsets; fixed once it exists.", ge=1
    )
    offsets_retention_minutes: Int = _kafka(
        "offsets.retention.minutes", 10_080, "Minutes that committed offsets outlive the last member of a group.", ge=1
    )
    offsets_retention_check_interval_ms: Long = _kafka(
        "offsets.retention.check.interval.ms", 600_000, "Milliseconds between two looks for expired offsets.", ge=1
    )
    offset_metadata_max_bytes: Int = _kafka(
        "offset.metadata.max.bytes", 4096, "Largest text in bytes that a client may commit with an offset.", ge=0
    )
    group_initial_rebalance_delay_ms: Int = _kafka(
        "group.initial.rebalance.delay.ms",
        3000,
        "Milliseconds that the first rebalance of a new group waits for more members.",
        ge=0,
    )
    group_min_session_timeout_ms: Int = _kafka(
        "group.min.session.timeout.ms", 6000, "Least session timeout in milliseconds that a member may ask for.", ge=1
    )
    group_max_session_timeout_ms: Int = _kafka(
        "group.max.session.timeout.ms",
        1_800_000,
        "Largest session timeout in milliseconds that a member may ask for.",
        ge=1,
    )
    group_max_size: Int = _kafka("group.max.size", INT_MAX, "Members that a group may have.", ge=1)
    producer_id_expiration_ms: Int = _kafka(
        "producer.id.expiration.ms",
        86_400_000,
        "Milliseconds after which a partition forgets an idempotent producer that is silent.",
        ge=1,
    )

    @property
    def retention_ms(self) -> int:
        """How long records are kept by default, milliseconds, -1 for ever: Kafka's ms over minutes over hours."""
        if self.log_retention_ms is not None:
            kept = self.log_retention_ms
        elif self.log_retention_minutes is not None:
            kept = self.log_retention_minutes * 60_000
        else:
            kept = self.log_retention_hours * 3_600_000
        return max(kept, -1)

    @classmethod
    def load(
        cls,
        file: str | os.PathLike[str] | None = None,
        overrides: Mapping[str, Any] | None = None,
        environ: Mapping[str, str] = os.environ,
    ) -> Config:
        """Put the settings together: `overrides` (flags, by name), then `environ`, then the TOML `file`.

        Raises ConfigError with every problem found.
        """
        problems: list[str] = []
        layers = [
            {name: (_text(value), "flag") for name, value in (overrides or {}).items()},
            _from_environ(environ, problems),
            _from_file(Path(file), problems) if file is not None else {},
        ]
        values: dict[str, tuple[str, str]] = {}
        for layer in reversed(layers):
            values.update(layer)
        known = {name: values[name] for name in values if name in _NAMES}
        problems += [_unknown(name, values[name][1]) for name in values if name not in _NAMES]
        try:
            config = cls.model_validate(
                {"store": default_store(environ)} | {name: text for name, (text, _) in known.items()}
            )
        except ValidationError as error:
            made = "default_factory_not_called"  # what that would have been made of is a problem, and told as one
            problems += [_invalid(entry, known) for entry in error.errors() if entry["type"] != made]
            raise ConfigError(problems) from None
        if config.group_min_session_timeout_ms > config.group_max_session_timeout_ms:
            problems.append("group.min.session.timeout.ms must not be above group.max.session.timeout.ms")
        if config.kop_workers > 1 and not config.store.startswith("pulsar"):
            problems.append(
                "kop.workers (--workers) above 1 needs a store (--store) pulsar://...: others have one process"
            )
        if problems:
            raise ConfigError(problems)
        config._origins.update({name: origin for name, (_, origin) in known.items()})
        return config

    def table(self) -> Iterator[SettingRow]:
        """Each setting with its default, present value and meaning, in the order of this file."""
        for attribute, field in type(self).model_fields.items():
            name = field.alias or attribute
            extra = field.json_schema_extra
            current = _text(getattr(self, attribute))
            yield SettingRow(
                name=name,
                type=_type_name(field),
                default=_text(field.get_default(call_default_factory=True, validated_data=self.__dict__)),
                current=HIDDEN if current and _is_secret(field) else current,
                origin=self._origins.get(name, "default"),
                doc=field.description or "",
                kafka=isinstance(extra, dict) and extra["kafka"] is True,
                env=_variable(name),
            )


_NAMES: dict[str, FieldInfo] = {field.alias or name: field for name, field in Config.model_fields.items()}


def _variable(name: str) -> str:
    return "KOP_" + name.removeprefix("kop.").replace(".", "_").upper()


_VARIABLES = {_variable(name): name for name in _NAMES}


def _type_name(field: FieldInfo) -> str:
    named = next((entry for entry in field.metadata if isinstance(entry, str)), None)
    return named or ("boolean" if field.annotation is bool else "string")


def _is_secret(field: FieldInfo) -> bool:
    return _type_name(field) == "password"


_USER = re.compile(r"//[^/@]*@")


def _text(value: Any) -> str:
    """A value in the one form that files, variables and flags share."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list | tuple) and not isinstance(value, Address):
        return ",".join(_text(item) for item in value)
    return str(value)


def _from_environ(environ: Mapping[str, str], problems: list[str]) -> dict[str, tuple[str, str]]:
    given: dict[str, tuple[str, str]] = {}
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


def _from_file(path: Path, problems: list[str]) -> dict[str, tuple[str, str]]:
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
    given: dict[str, tuple[str, str]] = {}
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


def _unknown(name: str, origin: str) -> str:
    return f"unknown setting {name} ({origin}){suggest(name)}"


def suggest(name: str) -> str:
    """The end of a message about an unknown setting: the nearest known one, or where to look."""
    plain = name.lower().replace("_", ".").replace("-", ".")
    near = difflib.get_close_matches(plain, _NAMES, 1, 0.5)
    return f"; did you mean {near[0]}?" if near else _ASK


def _invalid(entry: Any, known: Mapping[str, tuple[str, str]]) -> str:
    """One line for people from one error of pydantic's."""
    name = str(entry["loc"][0])
    value, origin = known.get(name, ("", "default"))
    value = HIDDEN if _is_secret(_NAMES[name]) else _USER.sub(f"//{HIDDEN}@", value)
    message = str(entry["msg"]).removeprefix("Value error, ")
    message = re.sub(r"^Input should be ", "must be ", message).partition(", unable to")[0]
    return f"{name} = {value!r} ({origin}): {message}"
