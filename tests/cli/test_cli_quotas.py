"""`kop quotas` against a broker."""

from __future__ import annotations

import json

import pytest
from cli.cli_support import Invoke, Kop


def test_quotas_are_set_listed_and_removed(kop: Kop) -> None:
    none = kop("quotas", "list")
    assert (none.out, none.err) == ("", "there are no quotas\n")
    said = kop.ok("quotas", "set", "producer_byte_rate=1000", "request_percentage=12.5", "--user", "alice")
    assert said == "user alice: producer_byte_rate is 1000\nuser alice: request_percentage is 12.5\n"
    both = ("--user-defaults", "--client-id", "app")
    assert kop.ok("quotas", "set", "consumer_byte_rate=2e6", *both) == (
        "user <default>, client-id app: consumer_byte_rate is 2000000\n"
    )
    kop.ok("quotas", "set", "connection_creation_rate=5", "--ip", "10.0.0.1")
    assert kop.ok("quotas", "set", "connection_creation_rate=6", "--ip-defaults", "--dry-run") == (
        "ip <default>: connection_creation_rate would be 6\n"
    )
    assert [line.split() for line in kop.ok("quotas", "list").splitlines()] == [
        ["USER", "CLIENT-ID", "IP", "QUOTA", "VALUE"],
        ["-", "-", "10.0.0.1", "connection_creation_rate", "5"],
        ["<default>", "app", "-", "consumer_byte_rate", "2000000"],
        ["alice", "-", "-", "producer_byte_rate", "1000"],
        ["alice", "-", "-", "request_percentage", "12.5"],
    ]
    assert json.loads(kop.ok("quotas", "list", "--user-defaults", "--json")) == [
        {"entity": {"user": None, "client-id": "app"}, "quota": "consumer_byte_rate", "value": 2000000}
    ]
    assert kop("quotas", "list", "--client-defaults").err == "there are no such quotas\n"
    assert kop("quotas", "remove", "consumer_byte_rate", "--user", "alice").err == (
        "kop: user alice: there is no consumer_byte_rate\n"
    )
    refused = kop("quotas", "set", "producer_byte_rate=0", "--user", "alice")
    assert refused.code == 1
    assert refused.err == "kop: user alice: INVALID_REQUEST: Quota producer_byte_rate must be greater than 0\n"
    assert kop.ok("quotas", "remove", "request_percentage", "--user", "alice") == (
        "user alice: removed request_percentage\n"
    )
    assert kop.ok("quotas", "remove", "--user", "alice") == "user alice: removed producer_byte_rate\n"
    assert kop("quotas", "remove", "--user", "alice").err == "kop: user alice: there are no quotas\n"


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (("set", "bytes=1", "--user", "a"), "must be QUOTA=NUMBER with one of producer_byte_rate"),
        (("set", "producer_byte_rate", "--user", "a"), "must be QUOTA=NUMBER"),
        (("set", "producer_byte_rate=x", "--user", "a"), "'x' is no number"),
        (("set", "producer_byte_rate=1", "producer_byte_rate=2", "--user", "a"), "is given twice"),
        (("set", "producer_byte_rate=1"), "say whose: --user"),
        (("remove",), "say whose: --user"),
        (("set", "producer_byte_rate=1", "--user", "a", "--user-defaults"), "give --user or --user-defaults, not both"),
    ],
)
def test_wrong_use_is_told(invoke: Invoke, arguments: tuple[str, ...], text: str) -> None:
    result = invoke("quotas", *arguments)
    assert (result.exit_code, text in result.output) == (2, True), result.output
