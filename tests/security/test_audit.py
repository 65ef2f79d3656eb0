"""Audit lines: what they say, how many there are, where they go, and that no client writes lines of its own."""

from __future__ import annotations

import json
import logging
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from support.gateway import run
from support.waiting import until

from kop import clock
from kop.errors import BackendError, ConfigError, ErrorCode
from kop.security.audit import LINES_A_SECOND, LONGEST_TEXT, MOST_ITEMS, Audit, AuditLines
from kop.security.tenants import HOME, Space


@dataclass
class Client:
    """A client that lines are about."""

    principal: str = "User:alice"
    client_host: str = "192.0.2.1"
    space: Space = HOME


def written(path: Path) -> list[dict[str, Any]]:
    """Return the lines of a file, parsed."""
    return [json.loads(line) for line in path.read_text().splitlines()]


def values(audit: Audit) -> dict[tuple[str, ...], float]:
    return {(sample.name, *sample.labels.values()): sample.value for each in audit.collect() for sample in each.samples}


def test_a_line_says_who_did_what_from_where_and_by_which_rule(tmp_path: Path) -> None:
    path = tmp_path / "audit.log"
    audit = Audit(AuditLines(str(path)), 7)
    audit.decided(False, Client(), "WRITE", "TOPIC", "orders", lambda: "no ACL")
    audit.denied(Client(), "ALTER", "USER", "admin", "Only a super user")
    audit.changed(Client(), "CREATE", "ACL", "t", {"permission": "DENY"})
    audit.changed(Client(), "CREATE", "ACL", "t", {}, BackendError("gone", ErrorCode.REQUEST_TIMED_OUT))
    audit.login_failed(Client("User:ANONYMOUS"), "LOGIN", "PLAIN", "bob", "wrong")
    audit.login_failed(Client(), "LOGIN", "PLAIN", None, "wrong", again=True)
    audit.close()
    lines = written(path)
    assert [line.pop("time")[-1] for line in lines] == ["Z"] * 6
    failed = dict(broker=7, host="192.0.2.1", event="login failed", resource="USER", listener="LOGIN", reason="wrong")
    assert lines[4:] == [
        failed | dict(principal="User:ANONYMOUS", operation="LOG_IN", name="bob", mechanism="PLAIN"),
        failed | dict(principal="User:alice", operation="LOG_IN_AGAIN", name=None, mechanism="PLAIN"),
    ]
    del lines[4:]
    who = {"broker": 7, "principal": "User:alice", "host": "192.0.2.1"}
    assert lines == [
        who | dict(event="denied", operation="WRITE", resource="TOPIC", name="orders", rule="no ACL"),
        who | dict(event="denied", operation="ALTER", resource="USER", name="admin", rule="Only a super user"),
        who | dict(event="changed", operation="CREATE", resource="ACL", name="t", permission="DENY"),
        who | dict(event="changed", operation="CREATE", resource="ACL", name="t", failure="REQUEST_TIMED_OUT"),
    ]
    assert values(audit)["kop_audit_lines_total", "denied"] == 2


HOSTILE = (
    '\n{"event": "allowed"}', "\r\n", "\x00\x1b[31m\x7f", "\x85\u2028\u2029", "\u202eevil", '"}', "\\", "\ud800", "é😀",
)  # fmt: skip


@pytest.mark.parametrize("text", HOSTILE)
def test_what_a_client_sends_stays_in_its_line_and_is_visible(tmp_path: Path, text: str) -> None:
    path = tmp_path / "audit.log"
    audit = Audit(AuditLines(str(path)), 1)
    audit.denied(Client(f"User:{text}"), "READ", "TOPIC", text, text)
    audit.changed(Client(), "ALTER CONFIGS", "TOPIC", text, {"configs": [{"name": text, "value": text}]})
    audit.login_failed(Client(), text, text, text, text)
    audit.close()
    raw = path.read_bytes()
    assert raw.count(b"\n") == 3
    assert all(0x20 <= byte < 0x7F for byte in raw.replace(b"\n", b""))
    denied, changed, failed = written(path)
    assert {failed[name] for name in ("listener", "mechanism", "name", "reason")} == {text}
    assert (denied["principal"], denied["name"], denied["rule"]) == (f"User:{text}", text, text)
    assert changed["configs"] == [{"name": text, "value": text}]


def test_long_texts_and_lists_are_cut(tmp_path: Path) -> None:
    path = tmp_path / "audit.log"
    audit = Audit(AuditLines(str(path)), 1)
    audit.changed(Client(), "ALTER", "TOPIC", "n" * 32_767, {"configs": [{"x" * 5000: "y" * 5000}] * 1000})
    audit.close()
    (line,) = written(path)
    assert line["name"] == f"{'n' * LONGEST_TEXT}... (32767 characters)"
    assert len(line["configs"]) == MOST_ITEMS + 1
    assert line["configs"][-1] == "... (1000 items)"
    assert len(path.read_bytes()) < 3 * MOST_ITEMS * LONGEST_TEXT


def test_a_flood_of_one_kind_is_counted_and_hides_no_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "audit.log"
    now = 1000.25
    monkeypatch.setattr(clock, "monotonic", lambda: now)

    async def main() -> None:
        nonlocal now
        audit = Audit(AuditLines(str(path)), 1)
        asked = 0

        def rule() -> str:
            nonlocal asked
            asked += 1
            return "no ACL"

        for _ in range(LINES_A_SECOND + 30):
            audit.decided(False, Client(), "WRITE", "TOPIC", "t", rule)
        audit.changed(Client(), "CREATE", "ACL", "t", {})
        assert asked == LINES_A_SECOND  # nothing is looked up for a line that is not written
        assert [line["event"] for line in written(path)] == ["denied"] * LINES_A_SECOND + ["changed"]
        now = 1001.0
        audit.decided(False, Client(), "WRITE", "TOPIC", "t", rule)
        audit.close()
        last, told = written(path)[-2:]
        assert last["event"] == "denied"
        assert (told["event"], told["of"], told["lines"]) == ("left out", "denied", 30)
        counted = values(audit)
        assert counted["kop_audit_lines_total", "denied"] == LINES_A_SECOND + 1
        assert counted["kop_audit_lines_left_out_total", "denied"] == 30
        assert counted["kop_audit_lines_left_out_total", "changed"] == 0

    run(main())


def test_what_was_left_out_is_told_when_the_second_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "audit.log"
    monkeypatch.setattr(clock, "monotonic", lambda: 1000.999)

    async def main() -> None:
        audit = Audit(AuditLines(str(path)), 1)
        for _ in range(LINES_A_SECOND + 1):
            audit.denied(Client(), "READ", "TOPIC", "t", "")
        await until(lambda: written(path)[-1]["event"] == "left out")
        audit.close()
        assert len(written(path)) == LINES_A_SECOND + 1

    run(main())


def test_lines_go_to_the_log_of_all_else_whatever_its_level(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logging.root, "level", logging.ERROR)
    Audit(AuditLines(""), 1).denied(Client(), "READ", "TOPIC", "t\n", "")
    (record,) = [record for record in caplog.records if record.name == "kop.audit"]
    assert json.loads(record.getMessage())["name"] == "t\n"
    assert "kop.audit" not in logging.root.manager.loggerDict  # so no client alters its level


def test_a_file_that_was_moved_away_is_made_anew(tmp_path: Path) -> None:
    path = tmp_path / "audit.log"
    audit = Audit(AuditLines(str(path)), 1)
    audit.denied(Client(), "READ", "TOPIC", "a", "")
    path.rename(tmp_path / "audit.log.1")
    audit.denied(Client(), "READ", "TOPIC", "b", "")
    audit.close()
    assert [line["name"] for line in written(tmp_path / "audit.log.1")] == ["a"]
    assert [line["name"] for line in written(path)] == ["b"]


def test_a_line_that_cannot_be_written_is_counted_and_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    audit = Audit(AuditLines(str(folder / "audit.log")), 1)
    folder.rename(tmp_path / "gone")
    for name in "ab":
        audit.denied(Client(), "READ", "TOPIC", name, "")
    (record,) = [record for record in caplog.records if record.levelno == logging.ERROR]
    assert "audit lines cannot be written" in record.getMessage()
    assert '"name": "a"' in record.getMessage()
    assert values(audit)["kop_audit_lines_lost_total",] == 2
    folder.mkdir()
    audit.denied(Client(), "READ", "TOPIC", "c", "")
    audit.close()
    assert [line["name"] for line in written(folder / "audit.log")] == ["c"]


def test_a_file_that_cannot_be_opened_ends_the_start(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"kop\.audit\.file: .* cannot be written: Is a directory"):
        AuditLines(str(tmp_path))
