"""`kop users` and `kop acls`: against brokers, and `kop users` on a store that nothing serves."""

from __future__ import annotations

import json
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from cli.cli_support import Kop
from cli.preloaded import Preloaded

from kop.security.settings import STANDARD_AUTHORIZER
from kop.testing.broker import Broker


@pytest.fixture(scope="module")
def guarded(preloaded: Preloaded) -> Iterator[Kop]:
    """A broker with ACLs, whose clients are super users."""
    with Broker(authorizer_class_name=STANDARD_AUTHORIZER, super_users="User:ANONYMOUS") as broker:
        yield Kop(broker.bootstrap, preloaded)


def rows(output: str) -> list[list[str]]:
    return [line.split() for line in output.splitlines()[1:]]


def create(kop: Kop, name: str, *options: str, password: str = "secret") -> str:
    return kop.ok("users", "create", name, "--password-file", "-", *options, given=password.encode())


def test_users_are_created_listed_and_deleted(kop: Kop) -> None:
    assert create(kop, "alice") == "alice: created, SCRAM-SHA-256 and SCRAM-SHA-512\n"
    assert create(kop, "bob", "-m", "SCRAM-SHA-512", "-i", "5000") == "bob: created, SCRAM-SHA-512\n"
    assert kop.ok("users", "list").splitlines()[0].split() == ["USER", "MECHANISM", "ITERATIONS"]
    assert rows(kop.ok("users", "list")) == [
        ["alice", "SCRAM-SHA-256", "4096"],
        ["alice", "SCRAM-SHA-512", "4096"],
        ["bob", "SCRAM-SHA-512", "5000"],
    ]
    assert json.loads(kop.ok("users", "list", "--json"))[2] == {
        "user": "bob",
        "mechanism": "SCRAM-SHA-512",
        "iterations": 5000,
    }
    assert kop.ok("users", "delete", "alice", "-m", "SCRAM-SHA-256") == "alice: deleted, SCRAM-SHA-256\n"
    again = kop("users", "delete", "alice", "-m", "SCRAM-SHA-256")
    assert (again.code, again.err) == (1, "kop: alice: there is no such user with SCRAM-SHA-256\n")
    gone = kop("users", "delete", "alice", "bob", "carol")
    assert (gone.code, gone.out) == (1, "alice: deleted\nbob: deleted\n")
    assert gone.err == "kop: carol: there is no such user\n"
    empty = kop("users", "list")
    assert (empty.out, empty.err) == ("", "there are no users\n")


def test_passwords_come_from_a_file_and_are_never_empty(kop: Kop, tmp_path: Path) -> None:
    file = tmp_path / "password"
    for text in (b"", b"\n"):
        file.write_bytes(text)
        refused = kop("users", "create", "eve", "--password-file", str(file))
        assert (refused.code, refused.err) == (2, "kop: the password must not be empty\n")
    file.write_bytes(b"p" * 65536)
    too_long = kop("users", "create", "eve", "--password-file", str(file))
    assert (too_long.code, too_long.err) == (2, "kop: the password has 65536 characters, and 4096 is the most\n")
    file.write_bytes(b"\xff")
    assert "is not UTF-8" in kop("users", "create", "eve", "--password-file", str(file)).err
    assert "No such file" in kop("users", "create", "eve", "--password-file", str(tmp_path / "none")).err
    assert "give it by --password-file" in kop("users", "create", "eve").err
    assert "must not be empty" in kop("users", "create", "", "--password-file", "-", given=b"x").err
    assert kop("users", "list").out == ""


def test_the_first_user_is_made_in_a_store_that_nothing_serves(kop: Kop, tmp_path: Path) -> None:
    path = tmp_path / "new" / "kop.db"
    store = ("--store", f"sqlite:{path}")
    assert create(kop, "admin", *store, "-m", "SCRAM-SHA-256").startswith("admin: created")
    create(kop, "other", *store)
    kop.ok("users", "delete", "other", *store)
    assert rows(kop.ok("users", "list", *store)) == [["admin", "SCRAM-SHA-256", "4096"]]
    assert path.stat().st_mode & stat.S_IRUSR
    with Broker(store=f"sqlite:{path}") as broker:
        served = Kop(broker.bootstrap, kop.preloaded)
        assert rows(served.ok("users", "list")) == [["admin", "SCRAM-SHA-256", "4096"]]
        busy = kop("users", "list", *store)
        assert busy.code == 1
        assert "in use" in busy.err or "open" in busy.err
    for bad, text in (("sqlite:", "must be sqlite:PATH"), ("memory:", "keeps nothing")):
        refused = kop("users", "list", "--store", bad)
        assert refused.code == 2
        assert text in refused.err


def test_acls_are_added_listed_and_removed(guarded: Kop) -> None:
    kop = guarded
    none = kop("acls", "list")
    assert (none.out, none.err) == ("", "there are no ACLs\n")
    added = kop.ok("acls", "add", "User:alice", "read", "Describe", "--topic", "orders", "--group", "billing")
    assert added.splitlines() == [
        "User:alice read topic orders: allowed",
        "User:alice describe topic orders: allowed",
        "User:alice read group billing: allowed",
        "User:alice describe group billing: allowed",
    ]
    kop.ok("acls", "add", "User:alice", "write", "--topic", "ord", "--prefixed")
    kop.ok("acls", "add", "User:bob", "all", "--topic", "*", "--deny", "--host", "10.0.0.1")
    kop.ok("acls", "add", "User:bob", "alter-configs", "--cluster", "--transactional-id", "t-1")
    kop.ok("acls", "add", "User:carol", "describe", "--delegation-token", "id-1", "--prefixed")
    kop.ok("acls", "add", "User:carol", "create-tokens", "--user-principal", "User:bob")
    assert {tuple(row[2:5]) for row in rows(kop.ok("acls", "remove", "--principal", "User:carol"))} == {
        ("describe", "delegation-token", "id-1"),
        ("create-tokens", "user", "User:bob"),
    }
    assert kop.ok("acls", "list").splitlines()[0].split() == [
        *("PRINCIPAL", "PERMISSION", "OPERATION", "TYPE", "NAME", "PATTERN", "HOST")
    ]
    assert rows(kop.ok("acls", "list", "--principal", "User:bob")) == [
        ["User:bob", "allow", "alter-configs", "cluster", "kafka-cluster", "literal", "*"],
        ["User:bob", "allow", "alter-configs", "transactional-id", "t-1", "literal", "*"],
        ["User:bob", "deny", "all", "topic", "*", "literal", "10.0.0.1"],
    ]
    assert {row[4] for row in rows(kop.ok("acls", "list", "--topic", "orders"))} == {"orders"}
    assert {row[4] for row in rows(kop.ok("acls", "list", "--topic", "orders", "--pattern", "match"))} == {
        *("orders", "ord", "*")
    }
    (denied,) = json.loads(kop.ok("acls", "list", "--deny", "--json"))
    assert denied == {
        "principal": "User:bob",
        "permission": "deny",
        "operation": "all",
        "type": "topic",
        "name": "*",
        "pattern": "literal",
        "host": "10.0.0.1",
    }
    removed = rows(kop.ok("acls", "remove", "--principal", "User:alice", "--topic", "orders", "--operation", "read"))
    assert removed == [["User:alice", "allow", "read", "topic", "orders", "literal", "*"]]
    again = kop("acls", "remove", "--principal", "User:alice", "--topic", "orders", "--operation", "read")
    assert (again.code, again.err) == (1, "kop: there are no such ACLs\n")
    assert len(rows(kop.ok("acls", "remove", "--all"))) == 7
    assert kop("acls", "list", "--allow").err == "there are no such ACLs\n"


def test_what_is_refused_is_told(guarded: Kop, kop: Kop) -> None:
    refused = guarded("acls", "add", "alice", "read", "--topic", "t")
    assert refused.code == 1
    assert refused.err.startswith("kop: alice read topic t: INVALID_REQUEST: Could not parse principal from `alice`")
    assert "give --topic, --group" in guarded("acls", "add", "User:a", "read").err
    assert "say which rights, or --all" in guarded("acls", "remove").err
    assert "say which rights, or --all" in guarded("acls", "remove", "--all", "--topic", "t").err
    for arguments in (("list",), ("remove", "--all"), ("add", "User:a", "read", "--topic", "t")):
        disabled = kop("acls", *arguments)
        assert disabled.code == 1
        assert (
            "SECURITY_DISABLED: No Authorizer is configured; a server has them with kop serve --set auth"
            in disabled.err
        )


def with_users(kop: Kop, folder: Path, *names: str) -> dict[str, Any]:
    """Make a store with these users; return the settings of a broker at which they log in. `admin` may do all."""
    store = f"sqlite:{folder / 'kop.db'}"
    for name in names:
        create(kop, name, "--store", store)
    return {
        "store": store,
        "listeners": "LOGIN://127.0.0.1:0",
        "listener.security.protocol.map": "LOGIN:SASL_PLAINTEXT",
        "authorizer.class.name": STANDARD_AUTHORIZER,
        "super.users": "User:admin",
    }


def login_as(name: str, broker: Broker, folder: Path) -> tuple[Path, tuple[str, str]]:
    """Return a file of client properties for a user, and the option that names it."""
    properties = folder / f"{name}.properties"
    properties.write_text(
        f"bootstrap.servers={broker.bootstrap}\nsecurity.protocol=SASL_PLAINTEXT\nsasl.mechanism=SCRAM-SHA-256\n"
        "sasl.jaas.config=org.apache.kafka.common.security.scram.ScramLoginModule required "
        f'username="{name}" password="secret";\n'
    )
    return properties, ("--client-config", str(properties))


def test_commands_log_in_by_a_file_of_client_properties(kop: Kop, tmp_path: Path) -> None:
    settings = with_users(kop, tmp_path, "admin")
    with Broker(**settings) as broker:
        properties, config = login_as("admin", broker, tmp_path)
        assert kop.ok("topics", "create", "t", *config) == "t: created\n"
        kop.ok("produce", "t", *config, given=b"a\n")
        assert kop.ok("consume", "t", "--from-beginning", "-n", "1", *config) == "a\n"
        assert kop.ok("groups", "list", *config) == ""
        broker.restart()
        assert rows(kop.ok("topics", "list", *config)) == [["t", "1"]]
    properties.write_text("security.protocol=SASL_SSL\nssl.keystore.type=JKS\n")
    refused = kop("topics", "list", *config)
    assert refused.code == 2
    assert str(properties) in refused.err


def test_produce_tells_which_right_a_producer_id_needs(kop: Kop, tmp_path: Path) -> None:
    settings = with_users(kop, tmp_path, "admin", "app")
    with Broker(**settings) as broker:
        (_, admin), (_, app) = (login_as(name, broker, tmp_path) for name in ("admin", "app"))
        kop.ok("topics", "create", "orders", *admin)
        kop.ok("acls", "add", "User:app", "describe", "--topic", "orders", *admin)
        refused = kop("produce", "orders", *app, given=b"a\n")
        assert (refused.code, refused.err) == (
            1,
            "kop: CLUSTER_AUTHORIZATION_FAILED: a producer id needs the right write on a topic, or idempotent-write on "
            "the cluster: kop acls add PRINCIPAL write --topic orders; with --acks 1 none is asked for\n",
        )
        for command in (("acls", "list"), ("users", "list")):
            refused = kop(*command, *app)
            assert refused.code == 1
            assert refused.err.startswith("kop: CLUSTER_AUTHORIZATION_FAILED: ")
            assert "; this needs the right describe on the cluster: kop acls add PRINCIPAL describe" in refused.err
        refused = kop("mesh", "list", *app)
        assert refused.code == 1
        assert "kop: let this user read what meshes write: TOPIC_AUTHORIZATION_FAILED" in refused.err
        kop.ok("acls", "add", "User:app", "write", "--topic", "orders", *admin)
        kop.ok("produce", "orders", *app, given=b"a\n")
