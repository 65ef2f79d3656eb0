"""Kafka's client properties, as Java's clients read them from a file, and what they are to kafka-python.

Owns: the properties of a connection, their values, and which of those of Java's cannot be kept.
Must not know: sockets, who connects, properties of producers and consumers.
"""

from __future__ import annotations

import difflib
import re
import socket
import ssl
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeVar
from urllib.parse import unquote, urlsplit

from kop.client.errors import ClientError

T = TypeVar("T")

DEFAULT_SERVER: Final = "127.0.0.1:9092"
DEFAULT_PATIENCE_MS: Final = 60_000
SECRETS: Final = {"sasl.jaas.config", "ssl.key.password", "ssl.keystore.password"}
"""Properties whose values no error may have: it goes to logs."""
REFUSED: Final = {
    "ssl.truststore.password": "use a truststore of type PEM, which has none",
    "ssl.truststore.certificates": "write them to a file, and name it in ssl.truststore.location",
    "ssl.keystore.certificate.chain": "write it to a file, and name that in ssl.keystore.location",
    "sasl.client.callback.handler.class": "leave it out: no Java class runs here",
}
"""Properties that Java's clients have and that cannot be kept, with what to do."""


class PropertyError(ClientError):
    """A property that cannot be kept; the text says what to do."""


@dataclass(frozen=True, slots=True)
class ConnectionProperties:
    """The addresses of the servers and the settings for talking to them."""

    settings: Mapping[str, Any]
    """kafka-python's."""
    patience_ms: int
    """The milliseconds for which a request that fails for a time is tried again."""
    unused: tuple[str, ...]
    """Names of properties that a connection has nothing to do with."""


# -- files


_NAME_AND_VALUE: Final = re.compile(r"((?:\\.|[^\\=:\s])*)(?:\s*[=:]\s*|\s+|$)(.*)", re.DOTALL)
_ESCAPES: Final = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}


def parse_properties(text: str) -> dict[str, str]:
    """Return the properties of a file as Java reads it: of several values of one name, the last one. PropertyError if a
    line is malformed, with its number.
    """
    properties: dict[str, str] = {}
    for number, line in _logical_lines(text):
        match = _NAME_AND_VALUE.fullmatch(line)
        try:
            if match is None:
                raise ValueError
            properties[_unescaped(match[1])] = _unescaped(match[2])
        except ValueError:
            raise PropertyError(f"write line {number} of the properties as NAME=VALUE, and \\\\ for \\") from None
    return properties


def read_properties(path: str | Path) -> dict[str, str]:
    """Return the properties of a file. OSError if it cannot be read, PropertyError if it is not UTF-8, or a line is
    malformed.
    """
    try:
        return parse_properties(Path(path).read_text(encoding="utf-8"))
    except UnicodeDecodeError as error:
        raise PropertyError(f"the properties are no text in UTF-8: {error.reason} at byte {error.start}") from None


def properties_of_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the properties of the connection that commands have without options: those of the file that
    KOP_CLIENT_CONFIG names, if it is set. If the file has no bootstrap.servers, that is KOP_BOOTSTRAP, or else
    127.0.0.1:9092. OSError if the file cannot be read, PropertyError if it is not UTF-8, or a line of it is malformed.
    """
    path = environment.get("KOP_CLIENT_CONFIG", "")
    properties = read_properties(path) if path else {}
    return {"bootstrap.servers": environment.get("KOP_BOOTSTRAP") or DEFAULT_SERVER} | properties


def _logical_lines(text: str) -> Iterator[tuple[int, str]]:
    """Yield number and text of each line that has a property, joined with its continuation lines."""
    begun, number = "", 0
    for at, physical in enumerate(re.split(r"\r\n|\r|\n", text), 1):
        line = physical.lstrip(" \t\f")
        if not begun:
            number = at
            if not line or line[0] in "#!":
                continue
        begun += line
        if (len(begun) - len(begun.rstrip("\\"))) % 2:
            begun = begun[:-1]
            continue
        yield number, begun
        begun = ""
    if begun:
        yield number, begun


def _unescaped(text: str) -> str:
    def meant(match: re.Match[str]) -> str:
        if match[1]:
            return chr(int(match[1], 16))
        if match[2] == "u" or not match[2]:
            raise ValueError
        return _ESCAPES.get(match[2], match[2])

    return re.sub(r"\\(?:u([0-9a-fA-F]{4})|(.?))", meant, text, flags=re.DOTALL)


# -- values


def text(value: str) -> str:
    """Return a text without the spaces around it. ValueError if nothing is left."""
    if not value.strip():
        raise ValueError("is empty")
    return value.strip()


def whole(least: int, most: int = 2**63 - 1) -> Callable[[str], int]:
    """Return the parser of a whole number from `least` to `most`; it raises ValueError, with the reason, for any other
    text.
    """

    def parse(value: str) -> int:
        try:
            number = int(value)
        except ValueError:
            raise ValueError("is no whole number") from None
        if number < least:
            raise ValueError(f"is below {least}")
        if number > most:
            raise ValueError(f"is above {most}")
        return number

    return parse


def one_of(*values: str) -> Callable[[str], str]:
    """Return the parser of one of these words, in upper or lower case; it returns the word in lower case, and raises
    ValueError for any other.
    """

    def parse(value: str) -> str:
        if value.strip().lower() not in values:
            raise ValueError(f"is none of {', '.join(values)}")
        return value.strip().lower()

    return parse


def _servers(value: str) -> list[str]:
    return [text(server) for server in value.split(",")]


def _pem(value: str) -> str:
    if value.strip().upper() != "PEM":
        raise ValueError("is not PEM: Java's stores cannot be read here; export them as PEM files")
    return "PEM"


def _jaas(value: str) -> tuple[str, dict[str, str]]:
    match = re.match(r"\s*([\w.$]+)\s+(required|requisite|sufficient|optional)\b(.*?);?\s*$", value, re.DOTALL)
    if match is None:
        raise ValueError('is not of the form: <login module> required username="..." password="...";')
    pairs = re.findall(r'(\w+)\s*=\s*(?:"((?:[^"\\]|\\.)*)"|(\S+?))(?=\s|;|$)', match[3])
    return match[1].rpartition(".")[2], {k: re.sub(r"\\(.)", r"\1", quoted) or bare for k, quoted, bare in pairs}


# -- connection


SIMPLE: Final[Mapping[str, tuple[str, Callable[[str], Any]]]] = {
    "client.id": ("client_id", text),
    "request.timeout.ms": ("request_timeout_ms", whole(1)),
    "connections.max.idle.ms": ("connections_max_idle_ms", whole(1)),
    "reconnect.backoff.ms": ("reconnect_backoff_ms", whole(0)),
    "reconnect.backoff.max.ms": ("reconnect_backoff_max_ms", whole(0)),
    "socket.connection.setup.timeout.ms": ("socket_connection_setup_timeout_ms", whole(1)),
    "socket.connection.setup.timeout.max.ms": ("socket_connection_setup_timeout_max_ms", whole(1)),
    "metadata.max.age.ms": ("metadata_max_age_ms", whole(1)),
    "client.dns.lookup": ("client_dns_lookup", one_of("use_all_dns_ips", "resolve_canonical_bootstrap_servers_only")),
    "sasl.kerberos.service.name": ("sasl_kerberos_service_name", text),
}
"""Properties that are one setting of kafka-python each."""

PROPERTIES: Final = (
    "bootstrap.servers",
    *SIMPLE,
    "default.api.timeout.ms",
    "security.protocol",
    "receive.buffer.bytes",
    "send.buffer.bytes",
    "sasl.mechanism",
    "sasl.jaas.config",
    "sasl.login.callback.handler.class",
    "sasl.oauthbearer.token.endpoint.url",
    "ssl.truststore.type",
    "ssl.truststore.location",
    "ssl.keystore.type",
    "ssl.keystore.location",
    "ssl.key.password",
    "ssl.keystore.password",
    "ssl.endpoint.identification.algorithm",
    "proxy.url",
)
"""Those of a connection."""


class _Properties:
    """Properties as they were given."""

    def __init__(self, given: Mapping[str, str]) -> None:
        self._given = given

    def __contains__(self, name: str) -> bool:
        return name in self._given

    def read(self, name: str, parse: Callable[[str], T], default: T) -> T:
        """Return the value of a property, or the default. PropertyError if `parse` raises ValueError."""
        if name not in self._given:
            return default
        try:
            return parse(self._given[name])
        except ValueError as error:
            value = "this one" if name in SECRETS else repr(self._given[name])
            raise PropertyError(f"set {name} to another value: {value} {error}") from None


def connection(properties: Mapping[str, str], client_id: str) -> ConnectionProperties:
    """Return the connection that properties describe. PropertyError if one is wrong, with its name.

    Properties that are not known are left out, and named in the result. But unknown ones of `ssl.`, `sasl.` and
    `security.` are errors: no connection is less secure than it was asked to be. `client_id` is the name by which
    servers know the client, unless `client.id` is another.
    """
    unused = tuple(name for name in properties if name not in PROPERTIES)
    for name in unused:
        if name.startswith(("ssl.", "sasl.", "security.")):
            raise PropertyError(f"{name}: {REFUSED.get(name) or _meant(name)}")
    given = _Properties(properties)
    if "bootstrap.servers" not in given:
        raise PropertyError("set bootstrap.servers to HOST:PORT of a server, with commas between several")
    settings: dict[str, Any] = {
        "bootstrap_servers": given.read("bootstrap.servers", _servers, list[str]()),
        "client_id": client_id,
        "receive_message_max_bytes": 2**31 - 1,
        "reconnect_backoff_max_ms": 1000,
    }
    for name, (setting, parse) in SIMPLE.items():
        if name in given:
            settings[setting] = given.read(name, parse, None)
    buffers = [(socket.SO_RCVBUF, "receive.buffer.bytes"), (socket.SO_SNDBUF, "send.buffer.bytes")]
    sizes = [(kind, given.read(name, whole(-1), -1)) for kind, name in buffers]
    settings["socket_options"] = [
        (socket.IPPROTO_TCP, socket.TCP_NODELAY, 1),
        (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
        *((socket.SOL_SOCKET, kind, count) for kind, count in sizes if count > 0),
    ]
    protocols = ("plaintext", "ssl", "sasl_plaintext", "sasl_ssl")
    protocol = given.read("security.protocol", one_of(*protocols), "plaintext").upper()
    settings["security_protocol"] = protocol
    if "proxy.url" in given:
        settings["proxy_url"] = given.read("proxy.url", text, "")
    settings |= _tls(given) | _sasl(given, protocol)
    return ConnectionProperties(settings, given.read("default.api.timeout.ms", whole(1), DEFAULT_PATIENCE_MS), unused)


def _meant(name: str) -> str:
    near = difflib.get_close_matches(name.lower().replace("_", ".").replace("-", "."), PROPERTIES, 1, 0.85)
    return (
        f"there is no such property; did you mean {near[0]}?" if near else "leave it out: there is no such thing here"
    )


def known_settings(settings: Mapping[str, Any], client: Any) -> dict[str, Any]:
    """Return those of kafka-python's settings that a class of its clients knows."""
    return {name: value for name, value in settings.items() if name in client.DEFAULT_CONFIG}


def _tls(given: _Properties) -> dict[str, Any]:
    settings: dict[str, Any] = {}
    for store, files in (("truststore", ["ssl_cafile"]), ("keystore", ["ssl_certfile", "ssl_keyfile"])):
        kind, location = f"ssl.{store}.type", f"ssl.{store}.location"
        if location in given and kind not in given:
            raise PropertyError(f"set {kind} to PEM: {location} is read as a PEM file, Java's stores are not")
        given.read(kind, _pem, "PEM")
        path = given.read(location, text, "")
        if path:
            settings |= dict.fromkeys(files, _file(location, path))
    password = given.read("ssl.key.password", text, "") or given.read("ssl.keystore.password", text, "")
    if password:
        settings["ssl_password"] = password
    _check_pem(settings)
    algorithm = given.read("ssl.endpoint.identification.algorithm", one_of("https", ""), "https")
    settings["ssl_check_hostname"] = algorithm == "https"
    return settings


def _file(name: str, path: str) -> str:
    """Return the path of a file that the property `name` has. PropertyError if there is none that can be read."""
    try:
        with open(path, "rb"):
            return path
    except OSError as error:
        why = "there is no such file" if isinstance(error, FileNotFoundError) else error.strerror
        raise PropertyError(f"{name} {path}: {why}") from None


def _check_pem(settings: Mapping[str, Any]) -> None:
    """Check that the files of TLS have what they are for. PropertyError if one has not, with its property."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    trusted, own = settings.get("ssl_cafile"), settings.get("ssl_certfile")
    try:
        if trusted:
            context.load_verify_locations(trusted)
    except ssl.SSLError:
        raise PropertyError(f"ssl.truststore.location {trusted}: has no certificate in PEM") from None
    try:
        if own:
            context.load_cert_chain(own, password=settings.get("ssl_password", ""))
    except ssl.SSLError as error:
        why = "has no certificate with its key in PEM, or ssl.key.password is not the key's"
        raise PropertyError(f"ssl.keystore.location {own}: {why} ({error.reason})") from None


_UNKEPT_IN_JAAS: Final = {
    "keytab": "run kinit -kt KEYTAB PRINCIPAL wherever the client runs, whose ticket cache is used",
    "principal": "the ticket cache says who logs in",
    "tokenauth": "delegation tokens are not there, use a user's own name and password",
}
"""The options of a line of JAAS that cannot be kept, each with advice for the user."""


_TOKEN_URL: Final = "sasl.oauthbearer.token.endpoint.url"
_CALLBACKS: Final = "sasl.login.callback.handler.class"


def _reads_tokens(value: str) -> str:
    """Return the value if it is the class that Java's clients name for reading tokens from a file, which is done here
    without it. ValueError if it is another.
    """
    if not value.endswith(".OAuthBearerLoginCallbackHandler"):
        raise ValueError("is not OAuthBearerLoginCallbackHandler, and no Java class runs here: leave it out")
    return value


def _file_url(value: str) -> str:
    parts = urlsplit(value.strip())
    if parts.scheme != "file" or parts.netloc not in {"", "localhost"} or not parts.path:
        raise ValueError("is not file:///PATH: tokens are read from a file alone")
    return unquote(parts.path)


class TokenFile:
    """The token in a file, which is read for each login, as kafka-python asks for it."""

    def __init__(self, path: str) -> None:
        from kafka.net.sasl.oauth import AbstractTokenProvider  # noqa: PLC0415 - few want it

        AbstractTokenProvider.register(TokenFile)
        self._path = path

    def __reduce__(self) -> tuple[type[TokenFile], tuple[str]]:
        """Return how pickle makes the object again in another process."""
        return TokenFile, (self._path,)

    def token(self) -> str:
        """Return the token in the file, read now. PropertyError if the file cannot be read or is empty."""
        try:
            token = Path(self._path).read_text(encoding="ascii").strip()
        except (OSError, ValueError) as error:
            raise PropertyError(f"{_TOKEN_URL}: {self._path}: {getattr(error, 'strerror', 'no ASCII')}") from None
        if not token:
            raise PropertyError(f"{_TOKEN_URL}: {self._path} is empty")
        return token

    def extensions(self) -> dict[str, str]:
        """Return the SASL extensions that are sent with the token: none."""
        return {}


def _sasl(given: _Properties, protocol: str) -> dict[str, Any]:
    given.read(_CALLBACKS, _reads_tokens, "")
    mechanism = given.read("sasl.mechanism", text, "").upper()
    module, pairs = given.read("sasl.jaas.config", _jaas, ("", dict[str, str]()))
    if not protocol.startswith("SASL"):
        if mechanism or module:
            raise PropertyError(f"set security.protocol to SASL_SSL or SASL_PLAINTEXT: {protocol} logs nobody in")
        return {}
    mechanism = mechanism or "GSSAPI"
    for name in sorted({name.lower() for name in pairs} & _UNKEPT_IN_JAAS.keys()):
        raise PropertyError(f"leave {name} out of sasl.jaas.config: {_UNKEPT_IN_JAAS[name]}")
    settings: dict[str, Any] = {"sasl_mechanism": mechanism}
    if mechanism == "PLAIN" or mechanism.startswith("SCRAM-SHA-"):
        wanted = "PlainLoginModule" if mechanism == "PLAIN" else "ScramLoginModule"
        if module != wanted or not {"username", "password"} <= pairs.keys():
            raise PropertyError(f"set sasl.jaas.config for {mechanism}: a line of {wanted} with username and password")
        settings |= {"sasl_plain_username": pairs["username"], "sasl_plain_password": pairs["password"]}
    elif mechanism == "OAUTHBEARER":
        path = given.read(_TOKEN_URL, _file_url, "")
        if module != "OAuthBearerLoginModule" or not path:
            raise PropertyError(
                f"set sasl.jaas.config for OAUTHBEARER to OAuthBearerLoginModule required; and {_TOKEN_URL} to "
                "file:///PATH, a file with the token"
            )
        settings["sasl_oauth_token_provider"] = TokenFile(_file(_TOKEN_URL, path))
    elif mechanism != "GSSAPI":
        mechanisms = "PLAIN, SCRAM-SHA-256, SCRAM-SHA-512, OAUTHBEARER or GSSAPI"
        raise PropertyError(f"set sasl.mechanism to {mechanisms}, not {mechanism}")
    return settings
