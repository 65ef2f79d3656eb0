"""What `kop check` says of a Pulsar before there is a gateway, on terminals of each width and in a pipe."""

from __future__ import annotations

import json
import re
import threading
import uuid
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import click
import pytest
from cli.cli_support import Invoke, Kop, environment
from support.waiting import SECONDS

from kop.cli import check, common

INDEX = "org.apache.pulsar.common.intercept.AppendIndexMetadataInterceptor"
TIMES = "org.apache.pulsar.common.intercept.AppendBrokerTimestampMetadataInterceptor"
AS_IT_SHOULD_BE = {
    "brokerEntryMetadataInterceptors": f"[{INDEX}, {TIMES}]",
    "exposingBrokerEntryMetadataToClientEnabled": "true",
    "brokerDeduplicationMaxNumberOfProducers": "10000",
    "brokerDeduplicationProducerInactivityTimeoutMinutes": "360",
    "brokerDeduplicationEntriesInterval": "1000",
    "brokerDeduplicationSnapshotIntervalSeconds": "120",
    "maxMessageSize": "5242880",
}
OLD = "persistent://public/default/old"
NEW = "persistent://public/default/new-partition-0"
REMEDY = [
    "exposingBrokerEntryMetadataToClientEnabled=true",
    f"brokerEntryMetadataInterceptors={INDEX},\\",
    TIMES,
]


class Rest:
    """As much of Pulsar's admin REST as the command asks: two topics, one of them older than the index."""

    def __init__(self) -> None:
        self.settings = dict(AS_IT_SHOULD_BE)
        self.denied = ""
        """Beginnings of paths that the role may not read, with commas between them."""
        self.last = "9:1"
        rest = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                path = self.path.partition("?")[0].removeprefix("/admin/v2/")
                denied = rest.denied and path.startswith(tuple(rest.denied.split(",")))
                _, at_entry, entry = path.partition("/entry/")
                body = rest.answer(path).encode()
                self.send_response(403 if denied else 200)
                self.send_header("Content-Length", str(len(body)))
                if at_entry and "/old/ledger/3/" not in path:
                    self.send_header("X-Pulsar-Broker-Entry-METADATA-index", entry)
                self.end_headers()
                self.wfile.write(body)

            def do_HEAD(self) -> None:
                self.send_response(200)
                if "/old/ledger/3/" not in self.path:
                    self.send_header("X-Pulsar-Broker-Entry-METADATA-index", "0")
                self.end_headers()

            def log_message(self, format: str, *args: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
        self.url = f"http://127.0.0.1:{self._server.server_port}"

    def answer(self, path: str) -> str:
        if path == "brokers/version":
            return "4.0.8"
        if path == "brokers/configuration/runtime":
            return json.dumps(self.settings)
        if path == "persistent/public/default":
            return json.dumps([OLD, NEW])
        if path.startswith("tenants/"):
            return json.dumps({"adminRoles": []})
        if path.endswith("/partitions"):
            return json.dumps({"partitions": 0})
        return json.dumps(
            {
                "ledgers": [{"ledgerId": 3, "entries": 7}, {"ledgerId": 9, "entries": 0}],
                "lastConfirmedEntry": self.last,
            }
        )

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


@pytest.fixture
def rest() -> Iterator[Rest]:
    made = Rest()
    yield made
    made.close()


@pytest.fixture(autouse=True)
def no_gateway(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody listens at the address that is tried without `--bootstrap`."""
    monkeypatch.setattr(check, "unreachable", lambda address: "connection refused")


@pytest.fixture(params=[60, 80, 200])
def columns(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    monkeypatch.setattr(common, "is_terminal", lambda: True)
    monkeypatch.setenv("COLUMNS", str(request.param))
    width: int = request.param
    return width


def test_check_looks_at_pulsar_alone_before_there_is_a_gateway(rest: Rest, invoke: Invoke) -> None:
    result = invoke("check", "--admin-url", rest.url)
    assert result.exit_code == 0, result.output
    lines = result.stdout.splitlines()
    assert lines[0].startswith("ok    Pulsar ")
    assert not re.search(r"connect|FAIL", result.stdout)
    assert lines[-1].startswith("Pulsar is ready for a gateway: ")
    assert "None answers at 127.0.0.1:9092 yet" in lines[-1]


def test_a_gateway_that_was_named_has_to_be_there_and_comes_behind_pulsar(
    rest: Rest, invoke: Invoke, tmp_path: Path
) -> None:
    properties = tmp_path / "client.properties"
    properties.write_text("bootstrap.servers=127.0.0.1:1\n")
    for named in (
        invoke("check", "--admin-url", rest.url, "--bootstrap", "127.0.0.1:1"),
        invoke("check", "--admin-url", rest.url, env={"KOP_BOOTSTRAP": "127.0.0.1:1"}),
        invoke("check", "--admin-url", rest.url, "--client-config", str(properties)),
    ):
        assert named.exit_code == 1
        assert named.stdout.index("ok    Pulsar") < named.stdout.index("FAIL  connect")


def test_the_remedy_is_whole_and_to_paste(rest: Rest, invoke: Invoke, columns: int) -> None:
    rest.settings |= {"brokerEntryMetadataInterceptors": "[]", "exposingBrokerEntryMetadataToClientEnabled": "false"}
    result = invoke("check", "--admin-url", rest.url)
    assert result.exit_code == 1
    lines = result.stdout.splitlines()
    begin = lines.index(REMEDY[0])
    assert lines[begin : begin + 3] == REMEDY
    assert "..." not in result.stdout


def test_interceptors_of_others_stay(rest: Rest, invoke: Invoke) -> None:
    rest.settings["brokerEntryMetadataInterceptors"] = "[org.example.Mine]"
    result = invoke("check", "--admin-url", rest.url)
    assert f"{TIMES},\\\norg.example.Mine\n" in result.stdout


def test_long_texts_wrap_at_words_under_their_column(rest: Rest, invoke: Invoke, columns: int) -> None:
    lines = click.unstyle(invoke("check", "--admin-url", rest.url).stdout).splitlines()
    assert max(map(len, lines)) <= columns
    column = lines[0].index("4.0.8")
    end = next(number for number, line in enumerate(lines) if line.startswith("Pulsar is ready"))
    assert all(re.match(r"(ok  |note)  \w| +$", line[:column]) for line in lines[:end])
    assert all(line[column - 1] == " " and line[column] != " " for line in lines[:end])
    assert "a batch that it sends again then cannot be told from a new one" in " ".join(" ".join(lines).split())


def test_a_line_for_each_step_in_a_pipe(rest: Rest, invoke: Invoke) -> None:
    lines = invoke("check", "--admin-url", rest.url).stdout.splitlines()
    assert all(re.match(r"(ok  |note)  \w", line) for line in lines[:-1])


def test_rights_that_the_role_lacks_are_named_with_what_gives_them(rest: Rest, invoke: Invoke) -> None:
    rest.denied = "persistent/pulsar/system/"
    result = invoke("check", "--admin-url", rest.url)
    assert "grant-permission pulsar/system" in " ".join(result.stdout.split())
    assert result.exit_code == 0
    rest.denied = "brokers/configuration"
    result = invoke("check", "--admin-url", rest.url)
    assert "to superusers alone" in " ".join(result.stdout.split())
    assert result.exit_code == 0
    rest.denied = "brokers/configuration,tenants/public,namespaces/public"
    result = invoke("check", "--admin-url", rest.url)
    assert "pulsar-admin tenants update public --admin-roles" in " ".join(result.stdout.split())
    assert result.exit_code == 1


def test_topics_that_are_older_than_the_index_are_told(rest: Rest, invoke: Invoke) -> None:
    result = invoke("check", "--admin-url", rest.url)
    assert "1 of 2 topics of public/default has entries that are older than the index" in result.stdout
    assert "consumers of Kafka do not see them" in result.stdout
    assert "public/default/old" in result.stdout


def test_describe_counts_the_older_entries_of_a_topic(rest: Rest, kop: Kop) -> None:
    kop.ok("topics", "create", "old", "-p", "1")
    try:
        result = kop("topics", "describe", "old", "--admin-url", rest.url)
        (described,) = json.loads(kop.ok("topics", "describe", "old", "--admin-url", rest.url, "--json"))
        assert "OLDER" not in kop.ok("topics", "describe", "old")
    finally:
        kop.ok("topics", "delete", "old")
    assert result.code == 0
    head, row = result.out.splitlines()[-2:]
    assert (head.split()[-1], row.split()[-1]) == ("OLDER", "7")
    assert result.err == "old: 7 entries are older than Pulsar's index; consumers do not see them\n"
    assert described["partitions"][0]["older_entries"] == 7


def test_an_offset_is_found_behind_entries_that_are_older_than_the_index(rest: Rest, invoke: Invoke) -> None:
    def ask(offset: int) -> tuple[int, str, str]:
        result = invoke("offsets", "old", "--plain", "--offset", str(offset), "--admin-url", rest.url)
        return result.exit_code, result.stdout, result.stderr

    for offset in (0, 1):
        assert ask(offset) == (0, f"9:{offset}:0\n", "")
    assert ask(2) == (1, "", "kop: no message of persistent://public/default/old has offset 2\n")
    rest.last = "3:6"
    code, _, said = ask(0)
    assert (code, said.partition(":")[2].partition(":")[0]) == (1, " the Pulsar broker keeps no entry index")


def test_describe_goes_on_without_a_pulsar_that_only_the_environment_names(kop: Kop) -> None:
    name = f"t-{uuid.uuid4().hex[:8]}"
    kop.ok("topics", "create", name)
    asked = kop("topics", "describe", name, "--admin-url", "http://127.0.0.1:1")
    assert (asked.code, asked.out) == (1, "")
    variables = environment(KOP_BOOTSTRAP=kop.bootstrap, KOP_PULSAR_ADMIN_URL="http://127.0.0.1:1")
    result = kop.preloaded.run(["topics", "describe", name], variables, b"", SECONDS)
    assert (result.code, result.out.splitlines()[0]) == (0, name)
    assert result.err.startswith("entries older than Pulsar's index are not counted: cannot ask Pulsar: ")
