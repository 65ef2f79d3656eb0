"""Each command against a `kop serve`, as its user sees it: results on stdout, the rest on stderr, exit codes."""

from __future__ import annotations

import json
import signal
import socket
import time
import uuid
from pathlib import Path

import pytest
from cli.cli_support import Invoke, Kop, Reset
from cli.preloaded import Preloaded
from support.child import free_port
from support.waiting import SECONDS

from kop.cli import check


@pytest.fixture
def topic(kop: Kop) -> str:
    """A topic of the test's own, with two partitions."""
    name = f"t-{uuid.uuid4().hex[:8]}"
    assert kop.ok("topics", "create", name, "--partitions", "2") == f"{name}: created\n"
    return name


def rows(output: str) -> list[list[str]]:
    """The cells of a table without its head."""
    return [line.split() for line in output.splitlines()[1:]]


def test_check_passes_against_our_own_server(kop: Kop) -> None:
    output = kop.ok("check")
    lines = output.splitlines()
    assert lines[-1] == f"Everything works: all 14 steps against {kop.bootstrap}."
    assert len(lines) == 15
    assert all(line.startswith("ok ") for line in lines[:-1])
    assert [f"records, {codec}" in output for codec in ("none", "gzip", "snappy", "lz4", "zstd")] == [True] * 5
    assert "kop-check-" not in kop.ok("topics", "list"), "its topic is gone"
    assert "kop-check-" not in kop.ok("groups", "list"), "its group is gone"


@pytest.mark.parametrize("step", ["consumer_group", "committed_offset"])
def test_ctrl_c_leaves_neither_topic_nor_group(
    step: str, kop: Kop, invoke: Invoke, monkeypatch: pytest.MonkeyPatch
) -> None:
    done = getattr(check.RoundTrip, step)
    names: list[str] = []

    def interrupted(trip: check.RoundTrip) -> str:
        done(trip)
        names.append(trip.name)
        assert trip.name in kop.ok("groups", "list")
        raise KeyboardInterrupt

    monkeypatch.setattr(check.RoundTrip, step, interrupted)
    result = invoke("check", "--bootstrap", kop.bootstrap)
    assert (result.exit_code, len(names)) == (1, 1), result.output
    assert result.stderr.splitlines()[-1] == "kop: interrupted"
    assert names[0] not in kop.ok("groups", "list")
    assert names[0] not in kop.ok("topics", "list")


def test_topics_list_create_describe_alter_delete(kop: Kop) -> None:
    name = f"life-{uuid.uuid4().hex[:8]}"
    created = kop("topics", "create", name, "-p", "3", "-c", "cleanup.policy=compact", "--validate-only")
    assert (created.code, created.out) == (0, f"{name}: could be created\n")
    assert name not in kop.ok("topics", "list")
    assert kop.ok("topics", "create", name, "-p", "3", "-c", "cleanup.policy=compact") == f"{name}: created\n"
    assert [name, "3"] in rows(kop.ok("topics", "list"))
    assert "__consumer_offsets" not in kop.ok("topics", "list")
    assert "__consumer_offsets" in kop.ok("topics", "list", "--internal")

    own = f"__kop_{name}"
    created = kop("topics", "create", own, "--replication-factor", "3")
    assert (created.out, created.err) == (
        f"{own}: created\n",
        f"{own}: the server gives it a replication factor of 1, not 3\n",
    )
    assert own not in kop.ok("topics", "list")
    assert own in kop.ok("topics", "list", "--internal")

    again = kop("topics", "create", name)
    assert (again.code, again.out) == (1, "")
    assert again.err.startswith(f"kop: {name}: TOPIC_ALREADY_EXISTS")
    assert kop.ok("topics", "create", name, "--if-not-exists") == f"{name}: exists already\n"

    assert kop.ok("topics", "alter", name, "-p", "4", "-c", "retention.ms=5", "-c", "max.message.bytes=99") == (
        f"{name}: configs changed\n{name}: has 4 partitions now\n"
    )
    shown = kop.ok("topics", "describe", name)
    assert "  cleanup.policy = compact\n  max.message.bytes = 99\n  retention.ms = 5\n" in shown
    assert shown.count(" 0 B") == 4
    kop.ok("topics", "alter", name, "--delete-config", "retention.ms")
    assert "retention.ms" not in kop.ok("topics", "describe", name)
    assert "retention.ms = 604800000" in kop.ok("topics", "describe", name, "--all-configs")

    assert kop.ok("topics", "delete", name) == f"{name}: deleted\n"
    gone = kop("topics", "describe", name)
    assert (gone.code, gone.out) == (1, "")
    assert gone.err.startswith(f"kop: {name}: UNKNOWN_TOPIC_OR_PARTITION")


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (["create", "a/b"], "a/b: INVALID_TOPIC_EXCEPTION"),
        (["create", "x", "-c", "no.such=1"], "x: INVALID_CONFIG"),
        (["create", "x", "-c", "retention.ms=soon"], "x: INVALID_CONFIG"),
        (["create", "__consumer_offsets"], "__consumer_offsets: "),
        (["alter", "no-such", "-p", "2"], "no-such: UNKNOWN_TOPIC_OR_PARTITION"),
        (["alter", "no-such", "-c", "retention.ms=1"], "no-such: UNKNOWN_TOPIC_OR_PARTITION"),
        (["delete", "no-such"], "no-such: UNKNOWN_TOPIC_OR_PARTITION"),
        (["describe", "no-such"], "no-such: UNKNOWN_TOPIC_OR_PARTITION"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_topics_refusals_have_kafkas_names(kop: Kop, arguments: list[str], error: str) -> None:
    outcome = kop("topics", *arguments)
    assert (outcome.code, outcome.out) == (1, "")
    assert outcome.err.startswith(f"kop: {error}")
    assert len(outcome.err.splitlines()) == 1
    told = "(`kop topics list` shows what there is)"
    assert told in outcome.err or arguments[0] not in {"describe", "delete"}


def test_partitions_cannot_shrink(kop: Kop, topic: str) -> None:
    outcome = kop("topics", "alter", topic, "-p", "1")
    assert outcome.code == 1
    assert outcome.err.startswith(f"kop: {topic}: INVALID_PARTITIONS")


def test_produced_lines_come_out_again(kop: Kop, topic: str) -> None:
    given = b"one\ntwo words\n\nlast without newline"
    sent = kop("produce", topic, "-p", "1", given=given)
    assert (sent.code, sent.out) == (0, "")
    assert sent.err.startswith("4 records, 35 B in ")
    assert kop.ok("consume", topic, "-B", "-n", "4") == given.decode() + "\n"
    assert [line.split()[2:4] for line in kop.ok("topics", "describe", topic).splitlines()[3:]] == [
        ["0", "0"],
        ["0", "4"],
    ]


@pytest.mark.parametrize("codec", ["gzip", "snappy", "lz4", "zstd"])
def test_each_codec_round_trips(kop: Kop, topic: str, codec: str, tmp_path: Path) -> None:
    lines = "".join(f"{codec} {number}\n" for number in range(2000))
    path = tmp_path / "lines"
    path.write_text(lines)
    sent = kop("produce", topic, "-p", "0", "--file", str(path), "--compression", codec)
    assert sent.err.startswith("2,000 records, ")
    assert " records/s, " in sent.err
    assert kop.ok("consume", topic, "-B", "-n", "2000") == lines
    size = kop.ok("topics", "describe", topic).splitlines()[3]
    assert "KiB" in size
    assert float(size.split()[4]) < 18, "it is stored compressed: 26 KiB of lines"


@pytest.mark.parametrize("acks", ["0", "1", "all"])
def test_acks(kop: Kop, topic: str, acks: str) -> None:
    assert kop("produce", topic, "-p", "0", "--acks", acks, given=b"a\nb\n").err.startswith("2 records")
    assert kop.ok("consume", topic, "-B", "-n", "2", "-t", "10") == "a\nb\n"


def test_keys_and_headers(kop: Kop, topic: str) -> None:
    kop.ok("produce", topic, "-p", "0", "-K", ": ", "-H", "from=me", "-H", "empty=", given=b"k1: v1\nk: with: two\n")
    shown = kop.ok("consume", topic, "-B", "-n", "2", "--print-key", "--print-headers")
    assert shown == "from=me,empty=\tk1\tv1\nfrom=me,empty=\tk\twith: two\n"
    first = json.loads(kop.ok("consume", topic, "-B", "-n", "1", "--json"))
    assert abs(first.pop("timestamp") / 1000 - time.time()) < 120
    assert first == {
        "topic": topic,
        "partition": 0,
        "offset": 0,
        "key": "k1",
        "value": "v1",
        "headers": [{"name": "from", "value": "me"}, {"name": "empty", "value": ""}],
    }


def test_bytes_that_are_no_text_survive(kop: Kop, topic: str) -> None:
    kop.ok("produce", topic, "-p", "0", given=b"\xff\xfe\n")
    record = json.loads(kop.ok("consume", topic, "-B", "-n", "1", "--json"))
    assert (record["key"], record["value_base64"]) == (None, "//4=")


def test_a_line_without_the_separator_ends_with_its_number(kop: Kop, topic: str) -> None:
    outcome = kop("produce", topic, "-p", "0", "-K", ":", given=b"a:1\nb2\nc:3\n")
    assert outcome.code == 1
    assert outcome.err == "kop: line 2 has no ':'; 1 of 2 was sent\n"
    assert kop.ok("consume", topic, "-B", "-t", "1") == "1\n"


def test_a_refused_record_is_exit_code_1_with_the_servers_reason(kop: Kop) -> None:
    name = f"compact-{uuid.uuid4().hex[:8]}"
    kop.ok("topics", "create", name, "-c", "cleanup.policy=compact")
    outcome = kop("produce", name, given=b"no key\n")
    assert outcome.code == 1
    assert outcome.err.startswith("kop: INVALID_RECORD: ")
    assert outcome.err.endswith("; 0 of 1 were sent\n")


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (["produce", "a/b"], "a/b: INVALID_TOPIC_EXCEPTION"),
        (["consume", "a/b"], "a/b: INVALID_TOPIC_EXCEPTION: this server has no topics of such a name"),
        (["consume", "no-such-topic"], "no-such-topic: UNKNOWN_TOPIC_OR_PARTITION"),
    ],
)
def test_topics_that_cannot_be(kop: Kop, arguments: list[str], error: str) -> None:
    outcome = kop(*arguments, given=b"x\n")
    assert (outcome.code, outcome.out) == (1, "")
    assert outcome.err.startswith(f"kop: {error}")


def test_partition_that_is_not_there(kop: Kop, topic: str) -> None:
    assert kop("produce", topic, "-p", "5", given=b"x\n").err == f"kop: {topic} has no partition 5; it has 2\n"
    assert kop("produce", "a/b/c", given=b"x\n").err == (
        "kop: a/b/c: INVALID_TOPIC_EXCEPTION: this server has no topics of such a name, or it is an internal one; "
        "names have a slash only over Pulsar, as TENANT/NAMESPACE/TOPIC\n"
    )
    assert kop("consume", topic, "-p", "5").err == f"kop: {topic} has no partition 5; it has 2\n"


def test_consume_from_an_offset_and_from_the_end(kop: Kop, topic: str) -> None:
    kop.ok("produce", topic, "-p", "0", given=b"0\n1\n2\n3\n")
    assert kop.ok("consume", topic, "-p", "0", "-o", "2", "-n", "2") == "2\n3\n"
    assert kop.ok("consume", topic, "-o", "-1", "-n", "1") == "3\n"
    assert kop.ok("consume", topic, "-t", "0.5") == "", "without an option, only what is new"
    outcome = kop("consume", topic, "-p", "0", "-o", "9")
    assert (outcome.code, outcome.err) == (1, f"kop: {topic}-0 has offsets 0 to 4, not 9\n")


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM])
def test_ctrl_c_is_a_clean_end(kop: Kop, topic: str, signum: int) -> None:
    kop.ok("produce", topic, "-p", "0", given=b"a\nb\n")
    process = kop.start("consume", topic, "-B", "-g", f"g-{topic}")
    assert process.stdout is not None
    assert process.stderr is not None
    try:
        assert process.stdout.readline() == b"a\n"
        assert process.stdout.readline() == b"b\n"
        # A line comes out of the process behind a flush, which is done when its record is noted as printed.
        process.send_signal(signum)
        out, err = process.communicate(timeout=SECONDS)
    finally:
        process.kill()
    assert (process.returncode, out, err) == (0, b"", b"")
    committed = {row[1]: row[2] for row in rows(kop.ok("groups", "describe", f"g-{topic}"))[0:]}
    assert committed["0"] == "2", "what was printed is committed"


def test_a_reader_that_goes_ends_consume(kop: Kop, topic: str) -> None:
    kop.ok("produce", topic, "-p", "0", given=b"".join(b"%d\n" % number for number in range(50_000)))
    process = kop.start("consume", topic, "-B")
    assert process.stdout is not None
    assert process.stderr is not None
    try:
        assert process.stdout.readline() == b"0\n"
        process.stdout.close()
        assert process.wait(SECONDS) == 0
        assert process.stderr.read() == b""
    finally:
        process.kill()
        process.stderr.close()


def test_a_group_goes_on_where_it_left_and_commits_only_what_was_printed(kop: Kop, topic: str) -> None:
    group = f"go-{topic}"
    kop.ok("produce", topic, "-p", "0", given=b"0\n1\n2\n3\n4\n")
    assert kop.ok("consume", topic, "-g", group, "-B", "-n", "2") == "0\n1\n"
    assert kop.ok("consume", topic, "-g", group, "-n", "2") == "2\n3\n"
    shown = kop.ok("groups", "describe", group).splitlines()
    assert shown[0] == f"{group}: state Empty, 0 members"
    assert shown[1].split() == ["TOPIC", "PARTITION", "COMMITTED", "END", "LAG", "MEMBER"]
    assert shown[2].split() == [topic, "0", "4", "5", "1", "-"]
    assert [group, "Empty", "classic", "consumer"] in rows(kop.ok("groups", "list"))


def test_describe_shows_members_and_reset_waits_for_them_to_stop(kop: Kop, topic: str) -> None:
    group = f"live-{topic}"
    kop.ok("produce", topic, "-p", "0", given=b"a\n")
    process = kop.start("consume", topic, "-g", group, "-B")
    assert process.stdout is not None
    assert process.stderr is not None
    try:
        assert process.stdout.readline() == b"a\n"
        shown = kop.ok("groups", "describe", group).splitlines()
        assert shown[0] == f"{group}: state Stable, 1 member, assignor range"
        assert [line.split()[:2] for line in shown[2:]] == [[topic, "0"], [topic, "1"]]
        assert all(line.endswith("(127.0.0.1)") for line in shown[2:])
        refused = kop("groups", "reset-offsets", group, "--topic", topic, "--to-earliest", "--execute")
        assert refused.code == 1
        assert refused.err == (
            f"kop: {group} is in state Stable: its consumers have to stop before its offsets can be moved\n"
        )
        busy = kop("groups", "delete", group)
        assert (busy.code, busy.err.split(":")[2]) == (1, " NON_EMPTY_GROUP")
    finally:
        process.terminate()
        process.communicate(timeout=SECONDS)


@pytest.fixture
def read(kop: Kop, topic: str) -> Reset:
    """A group that has read 10 records of partition 0, and a function that resets it."""
    kop.ok("produce", topic, "-p", "0", given=b"".join(b"%d\n" % number for number in range(10)))
    kop.ok("produce", topic, "-p", "1", given=b"x\ny\n")
    group = f"read-{topic}"
    assert kop("consume", topic, "-g", group, "-B", "-n", "12").code == 0

    def reset(*arguments: str) -> dict[int, tuple[int, int]]:
        """Committed and new offset by partition."""
        output = kop.ok("groups", "reset-offsets", group, *arguments)
        return {int(row[1]): (int(row[2]), int(row[3])) for row in rows(output)}

    return reset


def test_reset_offsets_in_every_way(kop: Kop, topic: str, read: Reset) -> None:
    everything = "--all-topics"
    assert read(everything, "--to-earliest") == {0: (10, 0), 1: (2, 0)}
    assert read(everything, "--to-latest") == {0: (10, 10), 1: (2, 2)}
    assert read(everything, "--to-offset", "5") == {0: (10, 5), 1: (2, 2)}, "beyond the end is the end"
    assert read(everything, "--shift-by", "-3") == {0: (10, 7), 1: (2, 0)}, "before the start is the start"
    assert read(everything, "--shift-by", "3") == {0: (10, 10), 1: (2, 2)}
    assert read(everything, "--to-datetime", "2020-01-01") == {0: (10, 0), 1: (2, 0)}
    assert read(everything, "--to-datetime", "2999-01-01T00:00:00Z") == {0: (10, 10), 1: (2, 2)}
    assert read(everything, "--by-duration", "PT1H") == {0: (10, 0), 1: (2, 0)}
    assert read("--topic", f"{topic}:0", "--to-earliest") == {0: (10, 0)}
    assert read("--topic", topic, "--to-offset", "1") == {0: (10, 1), 1: (2, 1)}


def test_reset_offsets_changes_nothing_without_execute(kop: Kop, topic: str, read: Reset) -> None:
    dry = kop("groups", "reset-offsets", f"read-{topic}", "--all-topics", "--to-earliest")
    assert dry.err == "nothing has changed yet; add --execute to do it\n"
    assert [row[2] for row in rows("\n".join(kop.ok("groups", "describe", f"read-{topic}").splitlines()[1:]))] == [
        "10",
        "2",
    ]
    done = kop("groups", "reset-offsets", f"read-{topic}", "--topic", f"{topic}:0", "--shift-by", "-3", "--execute")
    assert (done.code, done.err) == (0, "done\n")
    assert kop.ok("consume", topic, "-g", f"read-{topic}", "-n", "3") == "7\n8\n9\n"


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (["describe", "no-such"], "no-such: GROUP_ID_NOT_FOUND: The group id does not exist. (`kop groups list` shows"),
        (["delete", "no-such"], "no-such: GROUP_ID_NOT_FOUND: The group id does not exist. (`kop groups list` shows"),
        (["reset-offsets", "no-such", "--all-topics", "--to-latest"], "no-such has no committed offsets"),
        (["reset-offsets", "g", "--topic", "no-such", "--to-latest"], "no-such: UNKNOWN_TOPIC_OR_PARTITION"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_groups_refusals(kop: Kop, arguments: list[str], error: str) -> None:
    outcome = kop("groups", *arguments)
    assert (outcome.code, outcome.out) == (1, "")
    assert outcome.err.startswith(f"kop: {error}")
    assert ("(`kop groups list` shows what there is)" in outcome.err) == ("GROUP_ID_NOT_FOUND" in error)


def test_reset_of_partitions_that_are_not_there(kop: Kop, topic: str) -> None:
    outcome = kop("groups", "reset-offsets", "g", "--topic", f"{topic}:0,7", "--to-latest")
    assert (outcome.code, outcome.err) == (1, f"kop: {topic} has no partition 7\n")
    for number in ("x", "²"):
        outcome = kop("groups", "reset-offsets", "g", "--topic", f"{topic}:{number}", "--to-latest")
        assert (outcome.code, outcome.err) == (
            2,
            f"kop: {topic}:{number}: partitions must be numbers, as in {topic}:0,2\n",
        )


def test_deleting_a_group_takes_its_offsets(kop: Kop, topic: str, read: Reset) -> None:
    group = f"read-{topic}"
    assert kop.ok("groups", "delete", group) == f"{group}: deleted\n"
    assert kop("groups", "describe", group).code == 1


def test_serve_says_which_address_is_taken(kop: Kop, tmp_path: Path) -> None:
    outcome = kop("serve", "--listen", kop.bootstrap, "--http", "", "--store", f"sqlite:{tmp_path}/kop.db")
    assert outcome.code == 1
    assert outcome.err.splitlines()[-1] == (
        f"kop: {kop.bootstrap} is in use by another program; choose another with --listen"
    )
    outcome = kop("serve", "--listen", "127.0.0.1:0", "--http", kop.bootstrap, "--store", "memory:")
    assert outcome.err.splitlines()[-1] == (
        f"kop: {kop.bootstrap} is in use by another program; choose another with --http, or none with --http ''"
    )


def test_serve_says_all_addresses_that_are_taken(kop: Kop, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        http = f"127.0.0.1:{other.getsockname()[1]}"
        outcome = kop("serve", "--listen", kop.bootstrap, "--http", http, "--store", f"sqlite:{tmp_path}/kop.db")
    assert outcome.code == 1
    assert outcome.err.splitlines()[-1] == (
        f"kop: {kop.bootstrap} and {http} are in use by other programs; choose others with --listen (Kafka) and --http "
        "(metrics); beside another kop serve it needs a --store of its own, too"
    )


def test_serve_says_which_address_is_not_of_this_machine(kop: Kop) -> None:
    outcome = kop("serve", "--listen", "192.0.2.77:9092", "--http", "", "--store", "memory:")
    assert outcome.code == 1
    assert outcome.err.splitlines()[-1] == (
        "kop: cannot listen on 192.0.2.77:9092: Cannot assign requested address; choose another with --listen"
    )


def test_a_broker_that_advertises_what_cannot_be_reached(preloaded: Preloaded, tmp_path: Path) -> None:
    """The classic of Kafka in containers: bootstrap works, then nothing does."""
    port, nowhere = free_port(), free_port()
    kop = Kop(f"127.0.0.1:{port}", preloaded)
    process = kop.start(
        *("serve", "--listen", kop.bootstrap, "--advertise", f"127.0.0.1:{nowhere}", "--http", ""),
        *("--store", f"sqlite:{tmp_path}/kop.db"),
    )
    assert process.stderr is not None
    line = (
        f"broker 1 tells clients to connect to 127.0.0.1:{nowhere}, which does not work from here "
        "(connection refused); it has to advertise another address"
    )
    try:
        while b"Ctrl-C stops" not in process.stderr.readline():
            assert process.poll() is None
        listed = kop("topics", "list")
        checked = kop("check")
    finally:
        process.terminate()
        process.communicate(timeout=SECONDS)
    assert (listed.code, listed.err) == (1, f"kop: {line}\n")
    assert checked.code == 1
    assert checked.out.splitlines()[1] == f"FAIL  addresses         {line}"
    assert checked.err == "kop: 1 of 14 steps failed: addresses; 12 not tried\n"


def test_unreadable_store_is_one_line(kop: Kop, tmp_path: Path) -> None:
    path = tmp_path / "not-a-database"
    path.write_bytes(b"this is not SQLite" * 1000)
    outcome = kop("serve", "--listen", "127.0.0.1:0", "--http", "", "--store", f"sqlite:{path}")
    assert outcome.code == 1
    assert outcome.err.splitlines()[-1].startswith("kop: cannot ")
    assert str(path) in outcome.err


def test_log_of_the_client_only_with_debug(kop: Kop) -> None:
    assert kop("topics", "list").err in {"", "there are no topics; make one with: kop topics create NAME\n"}
    assert "INFO kafka" in kop("topics", "list", "--debug").err
