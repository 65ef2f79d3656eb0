"""Settings: which source wins, what is refused and how the refusal reads, and that the table is whole."""

from __future__ import annotations

import pickle
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, Literal

import pytest
from pydantic import ValidationError

import kop
from kop.address import Address, parse_address
from kop.config import Config, default_store
from kop.errors import ConfigError
from kop.groups.settings import GroupSettings
from kop.handlers.settings import HandlerSettings
from kop.server.settings import ListenerSettings, ServerSettings
from kop.storage.memory.settings import MemorySettings
from kop.storage.pulsar.settings import PulsarSettings
from kop.storage.sqlite.settings import SqliteSettings
from kop.transactions.settings import TransactionSettings
from kop.values import SettingRow, Settings, setting

Written = Callable[[str], Path]
"""Writes a file of settings, and gives its path."""


def load(**kwargs: Any) -> Config:
    kwargs.setdefault("environ", {})
    return Config.load(**kwargs)


def problems(**kwargs: Any) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        load(**kwargs)
    assert str(caught.value) == "\n".join(caught.value.problems)
    assert all("\n" not in line and "pydantic" not in line for line in caught.value.problems)
    return caught.value.problems


@pytest.fixture
def toml(tmp_path: Path) -> Written:
    def write(text: str) -> Path:
        path = tmp_path / "kop.toml"
        path.write_text(text)
        return path

    return write


# -- which source wins

FILE, VARIABLE, FLAG = "2", "3", "4"


@pytest.mark.parametrize(
    ("file", "variable", "flag", "value", "origin"),
    [
        (None, None, None, 1, "default"),
        (FILE, None, None, 2, "file"),
        (None, VARIABLE, None, 3, "KOP_NUM_PARTITIONS"),
        (None, None, FLAG, 4, "flag"),
        (FILE, VARIABLE, None, 3, "KOP_NUM_PARTITIONS"),
        (FILE, None, FLAG, 4, "flag"),
        (None, VARIABLE, FLAG, 4, "flag"),
        (FILE, VARIABLE, FLAG, 4, "flag"),
    ],
)
def test_flags_win_over_variables_over_the_file_over_defaults(
    toml: Written, file: str | None, variable: str | None, flag: str | None, value: int | str, origin: str
) -> None:
    path = toml(f"num.partitions = {file}") if file else None
    config = load(
        file=path,
        environ={"KOP_NUM_PARTITIONS": variable} if variable else {},
        overrides={"num.partitions": flag} if flag else None,
    )
    row = next(row for row in config.table() if row.name == "num.partitions")
    assert config.num_partitions == value
    assert row.current == str(value)
    assert row.default == "1"
    assert row.origin == (str(path) if origin == "file" else origin)


def test_sources_mix_setting_by_setting(toml: Written) -> None:
    config = load(
        file=toml("node.id = 7\nnum.partitions = 2"),
        environ={"KOP_NUM_PARTITIONS": "3", "KOP_CACHE_BYTES": "1"},
        overrides={"message.max.bytes": 10},
    )
    assert (config.node_id, config.num_partitions, config.kop_cache_bytes, config.message_max_bytes) == (7, 3, 1, 10)


def test_surroundings_are_only_read_by_load(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KOP_NODE_ID", "9")
    assert Config().node_id == 1
    assert Config.load().node_id == 9


# -- the file


@pytest.mark.parametrize(
    "text",
    [
        'node.id = 5\nlog.retention.ms = 10\nkop.cache.bytes = 20\nlisten = ["a:1", "[::1]:2"]',
        '"node.id" = 5\n"log.retention.ms" = 10\n"kop.cache.bytes" = 20\nlisten = "a:1,[::1]:2"',
        'listen = "a:1, [::1]:2"\n[node]\nid = 5\n[log.retention]\nms = 10\n[kop]\ncache.bytes = 20',
    ],
    ids=["dotted", "quoted", "tables"],
)
def test_toml_names_may_be_dotted_quoted_or_tables(toml: Written, text: str) -> None:
    config = load(file=toml(text))
    assert config.node_id == 5
    assert config.log_retention_ms == 10
    assert config.kop_cache_bytes == 20
    assert config.listen == (Address("a", 1), Address("::1", 2))


def test_a_name_that_begins_another_goes_in_quotes(toml: Written) -> None:
    config = load(file=toml('"max.connections" = 10\nmax.connections.per.ip = 5'))
    assert (config.max_connections, config.max_connections_per_ip) == (10, 5)
    (line,) = problems(file=toml("max.connections = 10\nmax.connections.per.ip = 5"))
    assert "write it in quotes" in line


def test_a_setting_twice_in_the_file_is_an_error(toml: Written) -> None:
    path = toml('"node.id" = 5\nnode.id = 6')
    assert problems(file=path) == [f"node.id is set twice in {path}"]


def test_file_that_cannot_be_read_or_parsed(toml: Written, tmp_path: Path) -> None:
    assert problems(file=tmp_path / "none.toml") == [f"cannot read {tmp_path}/none.toml: No such file or directory"]
    (line,) = problems(file=toml("node.id = \n"))
    assert "is not TOML" in line
    assert "Invalid value (at line 1" in line


def test_toml_types_are_not_guessed(toml: Written) -> None:
    path = toml("node.id = true\nnum.partitions = 1.5\nauto.create.topics.enable = false")
    assert problems(file=path) == [
        f"node.id = 'true' ({path}): must be a valid integer",
        f"num.partitions = '1.5' ({path}): must be a valid integer",
    ]


# -- what is unknown


@pytest.mark.parametrize(
    ("name", "nearest"),
    [
        ("nod.id", "node.id"),
        ("num.partition", "num.partitions"),
        ("num_partitions", "num.partitions"),
        ("Node-ID", "node.id"),
        ("log.retention.milliseconds", "log.retention.minutes"),
        ("cache.bytes", "kop.cache.bytes"),
        ("listener", "listeners"),
    ],
)
def test_unknown_setting_names_the_nearest(toml: Written, name: str, nearest: str) -> None:
    path = toml(f'"{name}" = 1')
    assert problems(file=path) == [f"unknown setting {name} ({path}); did you mean {nearest}?"]
    assert problems(overrides={name: "1"}) == [f"unknown setting {name} (flag); did you mean {nearest}?"]


def test_unknown_setting_without_a_near_one_says_where_to_look() -> None:
    assert problems(overrides={"zzz": "1"}) == ["unknown setting zzz (flag); `kop config` lists them all"]


def test_unknown_variable_names_the_nearest() -> None:
    assert problems(environ={"KOP_NODEID": "1"}) == ["unknown variable KOP_NODEID; did you mean KOP_NODE_ID?"]
    assert problems(environ={"KOP_QQQQQQ": "1"}) == ["unknown variable KOP_QQQQQQ; `kop config` lists them all"]


@pytest.mark.parametrize(
    "variable",
    [
        "KOP_BOOTSTRAP",
        "KOP_CLIENT_CONFIG",
        "KOP_FUNCTIONS_TOKEN_FILE",
        "KOP_FUNCTIONS_URL",
        "KOP_CONFIG",
        "KOP_TEST_ANYTHING",
        "KOP_REQUIRE_CLIENTS",
        "KOP_SERVICE_HOST",
        "KOP_SERVICE_PORT",
        "KOP_SERVICE_PORT_KAFKA",
        "KOP_PORT",
        "KOP_PORT_9092_TCP",
        "KOP_PORT_9092_TCP_ADDR",
        "KOP_HEADLESS_SERVICE_HOST",
        "KOPX",
        "kop_node_id",
    ],
)
def test_variables_that_are_no_settings_are_left_alone(variable: str) -> None:
    assert load(environ={variable: "tcp://10.0.0.1:9092"}) == load()


def test_every_problem_is_told_at_once(toml: Written) -> None:
    lines = problems(
        file=toml("nod.id = 1\nnum.partitions = 0"),
        environ={"KOP_HTTP": "here", "KOP_NODEID": "1"},
        overrides={"log.cleanup.policy": "shred"},
    )
    assert [line.split(" (")[0] for line in lines] == [
        "unknown variable KOP_NODEID; did you mean KOP_NODE_ID?",
        "unknown setting nod.id",
        "http = 'here'",
        "num.partitions = '0'",
        "log.cleanup.policy = 'shred'",
    ]


# -- values of one listener


class Made(Settings):
    """The settings of a room that lets listeners differ in one of them."""

    made_up: str = setting("made.up", "all", "A setting that a listener may have of its own.", by_listener=True)
    made_secret: Annotated[str, "password"] = setting("made.secret", "", "As that, a secret.", by_listener=True)
    made_number: int = setting("made.number", 1, "A number that is the same for all.", ge=1)


class WithListeners(Made, Config):
    """All settings, and those."""


NAMED = {
    "listeners": "INSIDE://:1,OUTSIDE://:2,A://:3",
    "listener.security.protocol.map": "INSIDE:PLAINTEXT,OUTSIDE:PLAINTEXT,A:PLAINTEXT",
}


def with_listeners(**kwargs: Any) -> WithListeners:
    overrides = NAMED | kwargs.pop("overrides", {})
    made = WithListeners.load(overrides=overrides, **{"environ": {}} | kwargs)
    assert isinstance(made, WithListeners)
    return made


def test_a_listener_may_have_values_of_its_own(toml: Written) -> None:
    path = toml('made.up = "general"\nlistener.name.inside.made.up = "in"\n"listener.name.outside.made.up" = "out"')
    config = with_listeners(file=path, overrides={"listener.name.OUTSIDE.made.up": "out of flags", "made.number": "3"})
    assert config.made_up == config.of(Made).made_up == "general"
    assert config.of(Made, listener="inside") == Made(made_up="in", made_number=3)
    assert config.of(Made, listener="outside").made_up == "out of flags"
    assert config.of(Made, listener="another") == config.of(Made)
    assert pickle.loads(pickle.dumps(config)).of(Made, listener="inside").made_up == "in"  # workers get it
    rows = {row.name: row for row in config.table()}
    inside = rows["listener.name.inside.made.up"]
    assert (inside.current, inside.default, inside.origin, inside.env) == ("in", "general", str(path), "")
    assert rows["made.up"].current == "general"


def test_a_secret_of_a_listener_is_not_shown() -> None:
    config = with_listeners(overrides={"listener.name.inside.made.secret": "very-secret"})
    assert config.of(Made, listener="inside").made_secret == "very-secret"
    assert "very-secret" not in f"{config!r} {list(config.table())}"


def test_a_mechanism_of_a_listener_may_have_values_of_its_own() -> None:
    name = "connections.max.reauth.ms"
    given = {name: "1", f"listener.name.a.{name}": "2", f"listener.name.A.Scram-Sha-256.{name}": "3"}
    config = load(overrides=NAMED | given)

    def value(listener: str, mechanism: str) -> int:
        return config.of_mechanism(ListenerSettings, listener, mechanism).connections_max_reauth_ms

    assert config.of(ListenerSettings, listener="a").connections_max_reauth_ms == 2
    assert [value("b", "PLAIN"), value("a", "SCRAM-SHA-512"), value("a", "SCRAM-SHA-256")] == [1, 2, 3]
    rows = {row.name: row.current for row in config.table()}
    assert rows[f"listener.name.a.scram-sha-256.{name}"] == "3"


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        ("listener.name.inside.plain.made.up", "connections.max.reauth.ms may be given by mechanism"),
        ("listener.name.inside.made.number", "made.up, made.secret may be given by listener"),
        ("listener.name.inside.made", "made.up, made.secret may be given by listener"),
        ("listener.name.inside.node.id", "made.up, made.secret may be given by listener"),
    ],
)
def test_what_a_listener_may_not_have_names_what_it_may(name: str, problem: str) -> None:
    with pytest.raises(ConfigError) as caught:
        with_listeners(overrides={name: "1"})
    (line,) = caught.value.problems
    assert line.startswith(f"{name} (flag): only ")
    assert line.endswith(problem)


def test_a_wrong_value_of_a_listener_is_told_under_its_whole_name() -> None:
    class Narrow(Made):
        narrow: Literal["a", "b"] = setting("narrow", "a", "One of two values for each.", by_listener=True)

    class Whole(Narrow, Config):
        pass

    with pytest.raises(ConfigError) as caught:
        Whole.load(
            overrides=NAMED | {"listener.name.INSIDE.narrow": "c", "listener.name.outside.narrow": "b"}, environ={}
        )
    assert caught.value.problems == ["listener.name.inside.narrow = 'c' (flag): must be 'a' or 'b'"]


def test_few_settings_may_be_given_by_listener(toml: Written) -> None:
    path = toml("listener.name.inside.node.id = 2")
    (line,) = problems(file=path)
    assert line.startswith(f"listener.name.inside.node.id ({path}): only sasl.server.max.receive.size, ssl.keystore")
    (line,) = problems(environ={"KOP_LISTENER_NAME_INSIDE_NODE_ID": "2"})
    assert line.startswith("unknown variable KOP_LISTENER_NAME_INSIDE_NODE_ID")


# -- what rooms get


def test_a_room_gets_its_own_settings_and_what_its_code_adds() -> None:
    config = load(overrides={"kop.wal.bytes": "2000000", "kop.cache.bytes": "7", "log.retention.check.interval.ms": 5})
    settings = config.of(SqliteSettings, cleaner_interval_ms=lambda: 9)
    assert (settings.kop_wal_bytes, settings.kop_cache_bytes, settings.log_retention_check_interval_ms) == (
        2000000,
        7,
        5,
    )
    assert settings.cleaner_interval_ms() == 9
    assert settings.reader_threads == SqliteSettings().reader_threads
    assert not hasattr(settings, "node_id")
    assert config.model_copy(update={"kop_cache_bytes": 8}).of(SqliteSettings).kop_cache_bytes == 8


def test_rooms_and_people_have_the_same_defaults() -> None:
    for room in (GroupSettings, TransactionSettings, ServerSettings, HandlerSettings, MemorySettings, PulsarSettings):
        given = room().model_dump(exclude={"kop_cache_bytes"})
        assert Config().of(room).model_dump(exclude={"kop_cache_bytes"}) == given


def test_the_settings_load_no_room() -> None:
    """`kop.config` is loaded by each command, and `settings.py` of a room by whoever wants to know what can be set."""
    code = "import sys, kop.config\nprint(*(name for name in sys.modules if name.partition('.')[0] == 'kop'))"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    packages = {name for name in loaded if any(other.startswith(f"{name}.") for other in loaded)}
    modules = {name for name in loaded if not name.endswith(".settings")} - packages
    assert modules == {"kop.address", "kop.config", "kop.errors", "kop.memory_limit", "kop.values"}
    assert len(loaded) - len(packages) - len(modules) == 10
    root = Path(kop.__file__).parent.parent
    for package in packages:  # runs with the settings in it
        text = (root / package.replace(".", "/") / "__init__.py").read_text()
        assert package == "kop" or "import" not in re.sub(r'""".*?"""', "", text, flags=re.DOTALL), package


# -- values


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("node.id", "x", "must be a valid integer"),
        ("node.id", "-1", "must be greater than or equal to 0"),
        ("node.id", str(2**31), "must fit into 32 bits"),
        ("node.id", "", "must be a valid integer"),
        ("log.retention.ms", str(2**63), "must fit into 64 bits"),
        ("fetch.max.bytes", "1023", "must be greater than or equal to 1024"),
        ("log.cleaner.min.cleanable.ratio", "1.1", "must be less than or equal to 1"),
        ("log.cleaner.min.cleanable.ratio", "nan", "must be less than or equal to 1"),
        ("auto.create.topics.enable", "maybe", "must be a valid boolean"),
        ("compression.type", "brotli", "must be 'producer', 'uncompressed', 'gzip', 'snappy', 'lz4' or 'zstd'"),
        ("log.cleanup.policy", "", "must not be empty"),
        ("kop.log.level", "loud", "must be 'debug', 'info', 'warning' or 'error'"),
        ("store", "postgres:x", "must be sqlite:PATH, memory:, pulsar://HOST:PORT or pulsar+ssl://HOST:PORT"),
        ("store", "sqlite:", "must be sqlite:PATH, memory:, pulsar://HOST:PORT or pulsar+ssl://HOST:PORT"),
        ("listen", "", "must not be empty"),
        ("listen", "localhost", "must be HOST:PORT with a port of 0 to 65535, got 'localhost'"),
        ("listen", "a:1,b:65536", "must be HOST:PORT with a port of 0 to 65535, got 'b:65536'"),
        ("listen", "::1:9092", "must have its IPv6 address in brackets: [::1]:9092"),
        ("listen", "PLAINTEXT://a:9092", "must be HOST:PORT without a scheme: a:9092"),
        ("advertise", "0.0.0.0:9092", "must be an address that clients can connect to, not a wildcard"),
        ("advertise", "a:1,b:2,c:3", "must name one address, or one for each of the 2 in listen"),
    ],
)
def test_value_out_of_range_is_one_line_for_people(name: str, value: int | str, message: str) -> None:
    assert problems(overrides={name: value}) == [f"{name} = {value!r} (flag): {message}"]


def test_session_timeouts_may_not_cross() -> None:
    assert problems(overrides={"group.min.session.timeout.ms": "10", "group.max.session.timeout.ms": "9"}) == [
        "group.min.session.timeout.ms must not be above group.max.session.timeout.ms"
    ]


def test_lists_and_levels_are_read_as_people_write_them() -> None:
    config = load(
        overrides={
            "log.cleanup.policy": "compact, delete",
            "kop.log.level": "WARNING",
            "listen": [":9092", "*:9093", "localhost:0"],
            "advertise": "kafka.example:1",
            "http": "",
        }
    )
    assert config.log_cleanup_policy == ("compact", "delete")
    assert config.kop_log_level == "warning"
    assert config.listen == (Address("", 9092), Address("", 9093), Address("localhost", 0))
    assert config.advertise == (Address("kafka.example", 1),)
    assert config.http is None


@pytest.mark.parametrize("text", ["127.0.0.1:9092", "[::1]:9092", "*:0", "kafka.example:65535"])
def test_address_reads_back_as_it_prints(text: str) -> None:
    assert str(parse_address(text)) == text


def test_config_is_immutable() -> None:
    config = load()
    with pytest.raises(ValidationError, match="frozen"):
        config.node_id = 2


def test_data_goes_to_a_durable_directory() -> None:
    assert load(environ={"XDG_DATA_HOME": "/data", "HOME": "/home/a"}).store == "sqlite:/data/kop/kop.db"
    assert load(environ={"HOME": "/home/a"}).store == "sqlite:/home/a/.local/share/kop/kop.db"
    assert default_store({"XDG_DATA_HOME": "relative", "HOME": "/home/a"}) == "sqlite:/home/a/.local/share/kop/kop.db"
    assert load(overrides={"store": "sqlite:~/x.db"}).store == f"sqlite:{Path.home()}/x.db"


# -- the table

ROWS = list(Config().table())


def test_table_has_each_setting_once() -> None:
    for field in ("name", "env"):
        values = [getattr(row, field) for row in ROWS]
        assert len(values) == len(set(values)) == len(Config.model_fields)


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_row_is_whole(row: SettingRow) -> None:
    assert row.name.replace(".", "_") in Config.model_fields
    assert re.fullmatch(r"[A-Z].{15,140}\.", row.doc), "one sentence with a capital and a full stop"
    assert row.type in {"boolean", "int", "long", "double", "string", "list", "password"}
    assert row.kafka == (row.name not in {"listen", "advertise", "store", "http"} and not row.name.startswith("kop."))
    assert row.env == "KOP_" + row.name.removeprefix("kop.").replace(".", "_").upper()
    assert row.current == row.default
    assert row.origin == "default"
    # The text form of a default is a value that every source takes.
    assert next(r for r in load(environ={row.env: row.default}).table() if r.name == row.name).current == row.default


SECRET = "token:eyJhbGciOiJIUzI1NiJ9.very.secret"


@pytest.mark.parametrize("source", ["flag", "variable", "file"])
def test_a_secret_is_used_and_not_shown(source: str, tmp_path: Path) -> None:
    path = tmp_path / "kop.toml"
    path.write_text(f'"kop.pulsar.auth" = "{SECRET}"\n')
    sources: dict[str, dict[str, Any]] = {
        "flag": {"overrides": {"kop.pulsar.auth": SECRET}},
        "variable": {"environ": {"KOP_PULSAR_AUTH": SECRET}},
        "file": {"file": path},
    }
    config = load(**sources[source])
    assert config.kop_pulsar_auth == SECRET
    row = next(row for row in config.table() if row.name == "kop.pulsar.auth")
    assert (row.current, row.type, row.default) == ("[hidden]", "password", "")
    assert "very.secret" not in f"{config!r} {config} {list(config.table())}"
    assert pickle.loads(pickle.dumps(config)).kop_pulsar_auth == SECRET  # workers get it


def test_problems_show_no_secret() -> None:
    wrong = {
        "kop.pulsar.admin.url": "http://me:very-secret@pulsar:8080",
        "kop.workers": "0",
        "store": "oracle://me:very-secret@x",
    }
    with pytest.raises(ConfigError) as caught:
        load(overrides=wrong)
    assert len(caught.value.problems) == 3
    assert "very-secret" not in str(caught.value)
    assert "kop.pulsar.auth" in str(caught.value)


@pytest.mark.parametrize("url", ["http://a:8080", "https://a.b-c.example:8443/", "http://[::1]:8080,http://b:1"])
def test_admin_urls(url: str) -> None:
    assert load(overrides={"kop.pulsar.admin.url": url}).kop_pulsar_admin_url == url


KAFKA_DEFAULTS = {
    "advertised.listeners": "",
    "allow.everyone.if.no.acl.found": "false",
    "authorizer.class.name": "",
    "auto.create.topics.enable": "true",
    "compression.type": "producer",
    "connection.failed.authentication.delay.ms": "100",
    "connections.max.idle.ms": "600000",
    "connections.max.reauth.ms": "0",
    "default.replication.factor": "1",
    "delegation.token.expiry.check.interval.ms": "3600000",
    "delegation.token.expiry.time.ms": "86400000",
    "delegation.token.max.lifetime.ms": "604800000",
    "delegation.token.secret.key": "",
    "delete.topic.enable": "true",
    "fetch.max.bytes": "57671680",
    "group.initial.rebalance.delay.ms": "3000",
    "group.max.session.timeout.ms": "1800000",
    "group.max.size": "2147483647",
    "group.min.session.timeout.ms": "6000",
    "inter.broker.listener.name": "",
    "listener.security.protocol.map": ("SASL_SSL:SASL_SSL,PLAINTEXT:PLAINTEXT,SSL:SSL,SASL_PLAINTEXT:SASL_PLAINTEXT"),
    "log.cleaner.backoff.ms": "15000",
    "log.cleaner.delete.retention.ms": "86400000",
    "log.cleaner.max.compaction.lag.ms": "9223372036854775807",
    "log.cleaner.min.cleanable.ratio": "0.5",
    "log.cleaner.min.compaction.lag.ms": "0",
    "log.cleanup.policy": "delete",
    "log.message.timestamp.after.max.ms": "3600000",
    "log.message.timestamp.before.max.ms": "9223372036854775807",
    "log.message.timestamp.type": "CreateTime",
    "log.retention.bytes": "-1",
    "log.retention.check.interval.ms": "300000",
    "log.retention.hours": "168",
    "log.retention.minutes": "",
    "log.retention.ms": "",
    "max.connections": "2147483647",
    "max.connections.per.ip": "2147483647",
    "max.incremental.fetch.session.cache.slots": "1000",
    "message.max.bytes": "1048588",
    "node.id": "1",
    "num.partitions": "1",
    "offset.metadata.max.bytes": "4096",
    "offsets.retention.check.interval.ms": "600000",
    "offsets.retention.minutes": "10080",
    "offsets.topic.num.partitions": "50",
    "producer.id.expiration.ms": "86400000",
    "sasl.jaas.config": "",
    "sasl.oauthbearer.clock.skew.seconds": "30",
    "sasl.oauthbearer.expected.audience": "",
    "sasl.oauthbearer.expected.issuer": "",
    "sasl.oauthbearer.jwks.endpoint.refresh.ms": "3600000",
    "sasl.oauthbearer.jwks.endpoint.url": "",
    "sasl.oauthbearer.scope.claim.name": "scope",
    "sasl.oauthbearer.sub.claim.name": "sub",
    "sasl.server.max.receive.size": "524288",
    "socket.request.max.bytes": "104857600",
    "ssl.cipher.suites": "",
    "ssl.enabled.protocols": "TLSv1.2,TLSv1.3",
    "ssl.endpoint.identification.algorithm": "https",
    "ssl.client.auth": "none",
    "ssl.key.password": "",
    "ssl.keystore.certificate.chain": "",
    "ssl.keystore.key": "",
    "ssl.keystore.location": "",
    "ssl.keystore.password": "",
    "ssl.principal.mapping.rules": "DEFAULT",
    "ssl.truststore.certificates": "",
    "ssl.truststore.location": "",
    "ssl.truststore.password": "",
    "super.users": "",
    "transaction.max.timeout.ms": "900000",
    "transaction.state.log.num.partitions": "50",
    "transactional.id.expiration.ms": "604800000",
}
"""Read from `kafka.server.KafkaConfig.configDef()` of Apache Kafka 4.3.1; node.id has no default there."""


OTHER_DEFAULTS = {
    "listeners": "",  # the short form, listen, has the default
    "sasl.enabled.mechanisms": "SCRAM-SHA-256,SCRAM-SHA-512",  # Kafka's is GSSAPI, which is not there
    "sasl.mechanism.inter.broker.protocol": "SCRAM-SHA-256",  # the same
    "ssl.keystore.type": "PEM",  # Kafka's is JKS, a form of Java
    "ssl.truststore.type": "PEM",
}


def test_settings_with_kafkas_names_have_kafkas_defaults() -> None:
    assert {row.name: row.default for row in ROWS if row.kafka} == KAFKA_DEFAULTS | OTHER_DEFAULTS


def test_every_setting_acts() -> None:
    """A setting that nothing reads is a promise not kept: its attribute or its name stands in the code."""
    root = Path(kop.__file__).parent
    declared = {root / "config.py", *root.rglob("settings.py")} - {root / "cli" / "settings.py"}
    code = "\n".join(path.read_text() for path in root.rglob("*.py") if path not in declared)
    unread = [
        row.name
        for row in ROWS
        if not re.search(rf"\.{row.name.replace('.', '_')}\b", code) and f'"{row.name}"' not in code
    ]
    assert unread == ["default.replication.factor"], "it says itself that it changes nothing"


# -- the size of the cache

MIB = 2**20


@pytest.mark.parametrize(
    ("usable", "workers", "expected"),
    [
        (0, 1, 64 * MIB),
        (256 * MIB, 1, 64 * MIB),
        (256 * MIB, 4, 16 * MIB),
        (2048 * MIB, 1, 256 * MIB),
        (2048 * MIB, 2, 128 * MIB),
        (1 << 50, 1, 2048 * MIB),
        (1 << 50, 8, 256 * MIB),
    ],
)
def test_the_cache_is_a_share_of_the_memory_that_workers_divide(
    monkeypatch: pytest.MonkeyPatch, usable: int, workers: int, expected: int
) -> None:
    monkeypatch.setattr("kop.config.usable_bytes", lambda: usable)
    many = {"kop.workers": str(workers), "store": "pulsar://a:1"}
    config = load(overrides=many)
    row = next(row for row in config.table() if row.name == "kop.cache.bytes")
    assert (config.kop_cache_bytes, row.current, row.default) == (expected, str(expected), str(expected))
    assert row.origin == "default"
    given = load(overrides=many | {"kop.cache.bytes": "5"})
    row = next(row for row in given.table() if row.name == "kop.cache.bytes")
    assert (given.kop_cache_bytes, row.current, row.default, row.origin) == (5, "5", str(expected), "flag")


def test_grants_of_pulsar_need_a_pulsar() -> None:
    grants = {"authorizer.class.name": "pulsar"}
    with pytest.raises(ConfigError, match=r"authorizer\.class\.name=pulsar goes by the grants of a Pulsar"):
        load(overrides=grants)
    assert load(overrides=grants | {"store": "pulsar://127.0.0.1:6650"}).authorizer_class_name == "pulsar"
    with pytest.raises(ConfigError, match="must be org"):
        load(overrides={"authorizer.class.name": "kafka"})


def test_a_wrong_number_of_workers_is_the_only_problem() -> None:
    assert len(problems(overrides={"kop.workers": "0"})) == 1
