"""kcat: one process for each call. Debian's 1.7.1 is built on librdkafka 2.0.2, older than what confluent-kafka brings.

Needs kcat on PATH and the standard library; topics are made and deleted by hand-written requests.
"""

from __future__ import annotations

import json
import re
import shutil
import struct
import subprocess
import threading
import time
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

import rawlog
from checks import CODECS, check_codec, check_idempotent, stored, values, wait_stored
from suite import Run, Suite, eventually, same

KCAT = shutil.which("kcat") or shutil.which("kafkacat") or "kcat"


def version() -> str:
    try:
        text = subprocess.run([KCAT, "-V"], capture_output=True, text=True, check=False).stdout
    except OSError:
        return ""
    versions = re.search(r"Version (\S+).*librdkafka (\S+)", text)
    return f"{versions[1]} (librdkafka {versions[2]})" if versions else text.strip()


suite = Suite("kcat", version())


def command(run: Run) -> list[str]:
    """Return kcat's command with what it needs to come in."""
    return [KCAT, *(part for name, value in run.librdkafka.items() for part in ("-X", f"{name}={value}"))]


def kcat(run: Run, *arguments: str, stdin: bytes | None = None, code: int = 0, seconds: float = 15) -> str:
    """What kcat prints; its exit code must be `code`."""
    done = subprocess.run(
        [*command(run), *arguments],
        input=stdin,
        stdin=subprocess.DEVNULL if stdin is None else None,
        capture_output=True,
        timeout=seconds,
        check=False,
    )
    same(done.returncode, code, f"exit code ({done.stderr.decode(errors='replace').strip()[-200:]})")
    return done.stdout.decode() if code == 0 else done.stderr.decode()


def make_topic(run: Run, partitions: int = 1, **configs: str) -> str:
    topic = run.name()
    body = struct.pack(">i", 1) + rawlog._string(topic) + struct.pack(">ihii", partitions, 1, 0, len(configs))
    for name, value in configs.items():
        body += rawlog._string(name.replace("_", ".")) + rawlog._string(value)
    answer = rawlog.call(*run.plain, 19, 2, body + struct.pack(">ib", 10_000, 0))
    error = struct.unpack_from(">h", answer, 8 + 2 + len(topic))[0]
    same(error, 0, "CreateTopics")
    eventually(lambda: len(metadata(run, topic)["partitions"]) == partitions)
    return topic


def metadata(run: Run, topic: str) -> dict[str, list[dict[str, object]]]:
    topic_row: dict[str, list[dict[str, object]]] = json.loads(kcat(run, "-L", "-J", "-t", topic))["topics"][0]
    return topic_row


def produce(run: Run, topic: str, lines: list[bytes], *arguments: str) -> None:
    kcat(run, "-P", "-t", topic, "-p", "0", *arguments, stdin=b"\n".join(lines) + b"\n")


def consume(run: Run, topic: str, *arguments: str, layout: str = "%o %s\n") -> list[str]:
    return kcat(run, "-C", "-t", topic, "-p", "0", "-e", "-q", "-f", layout, *arguments).splitlines()


def clean(run: Run, topics: list[str]) -> None:
    body = struct.pack(">i", len(topics)) + b"".join(rawlog._string(t) for t in topics) + struct.pack(">i", 10_000)
    rawlog.call(*run.plain, 20, 1, body)


suite.cleanup = clean


@suite.case(codec=CODECS, acks=("0", "1", "all"), fast=lambda codec, acks: acks == "all")
def produce_consume_and_stored_codec(run: Run, codec: str, acks: str) -> None:
    topic = make_topic(run)
    wanted = values(50)
    produce(run, topic, wanted, "-z", codec, "-X", f"acks={acks}")
    wait_stored(run, topic, 50)
    same(consume(run, topic, "-o", "beginning", layout="%s\n"), [v.decode() for v in wanted])
    check_codec(run, topic, codec)


@suite.case()
def keys_null_values_and_headers(run: Run) -> None:
    topic = make_topic(run)
    produce(run, topic, [b"k1:v1", b"k2:", b":v3"], "-K:", "-Z", "-H", "a=1", "-H", "a=2", "-H", "b=x y")
    got = consume(run, topic, "-o", "beginning", layout="%k|%K|%s|%S|%h\n")
    same(got, [f"{body}|a=1,a=2,b=x y" for body in ("k1|2|v1|2", "k2|2||-1", "|-1|v3|2")])


@suite.case()
def binary_value_of_900_kb_round_trips(run: Run) -> None:
    topic = make_topic(run)
    value = bytes(i % 251 for i in range(900_000))
    with TemporaryDirectory() as folder:
        path = Path(folder) / "value"
        path.write_bytes(value)
        kcat(run, "-P", "-t", topic, "-p", "0", str(path))
        done = subprocess.run(
            [*command(run), "-C", "-t", topic, "-p", "0", "-o", "beginning", "-e", "-q", "-D", ""],
            capture_output=True,
            timeout=15,
            check=True,
        )
    assert done.stdout == value, f"{len(done.stdout)} bytes came back"


@suite.case()
def too_large_a_message_is_named_so(run: Run) -> None:
    topic = make_topic(run)
    with TemporaryDirectory() as folder:
        path = Path(folder) / "value"
        path.write_bytes(b"x" * (3 << 20))
        error = kcat(run, "-P", "-t", topic, "-p", "0", "-X", "message.max.bytes=9000000", str(path), code=1)
    assert "Message size too large" in error, error


@suite.case()
def idempotent_producer_is_ordered_without_holes(run: Run) -> None:
    topic = make_topic(run)
    produce(run, topic, values(1000), "-X", "enable.idempotence=true", "-X", "batch.num.messages=50")
    check_idempotent(run, topic, 1000)


@suite.case()
def transaction_commits(run: Run) -> None:
    topic = make_topic(run)
    # The only messages of this call: kcat commits the transaction when its input ends.
    produce(run, topic, [b"a", b"b"], "-X", f"transactional.id={run.group('tx')}")
    same(consume(run, topic, "-o", "beginning", "-X", "isolation.level=read_committed", layout="%s\n"), ["a", "b"])


@suite.case()
def consume_from_every_kind_of_offset(run: Run) -> None:
    topic = make_topic(run)
    produce(run, topic, [b"v%d" % i for i in range(10)])
    everything = [f"{i} v{i}" for i in range(10)]
    same(consume(run, topic, "-o", "beginning"), everything)
    same(consume(run, topic, "-o", "7"), everything[7:])
    same(consume(run, topic, "-o", "-3"), everything[7:], "the last three")
    same(consume(run, topic, "-o", "beginning", "-c", "4"), everything[:4])
    same(consume(run, topic, "-o", "end"), [])
    same(consume(run, topic, "-o", "5000", "-X", "auto.offset.reset=earliest"), everything, "out of range")
    error = kcat(run, "-C", "-t", topic, "-p", "0", "-e", "-q", "-o", "5000", "-X", "auto.offset.reset=error", code=1)
    assert "out of range" in error.lower(), error


@suite.case()
def consume_between_two_times(run: Run) -> None:
    topic = make_topic(run)
    produce(run, topic, [b"before"])
    time.sleep(0.05)
    begin = int(time.time() * 1000)
    produce(run, topic, [b"inside"])
    time.sleep(0.05)
    end = int(time.time() * 1000)
    produce(run, topic, [b"after"])
    same(consume(run, topic, "-o", f"s@{begin}", "-o", f"e@{end}", layout="%s\n"), ["inside"])


@suite.case()
def query_offsets_by_time(run: Run) -> None:
    topic = make_topic(run)
    produce(run, topic, [b"one"])
    time.sleep(0.05)
    middle = int(time.time() * 1000)
    produce(run, topic, [b"two", b"three"])

    def query(stamp: int) -> int:
        printed = re.search(r"offset (-?\d+)", kcat(run, "-Q", "-t", f"{topic}:0:{stamp}"))
        assert printed, "no offset printed"
        return int(printed[1])

    same([query(-2), query(-1)], [0, 3], "earliest and latest")
    same([query(1), query(middle)], [0, 1], "by time")
    same(query(middle + 3_600_000), -1, "a time beyond the end")


@suite.case()
def metadata_as_text_and_json(run: Run) -> None:
    topic = make_topic(run, partitions=3)
    listing = json.loads(kcat(run, "-L", "-J", "-t", topic))
    brokers = {broker["id"] for broker in listing["brokers"]}
    assert listing["controllerid"] in brokers, f"controller {listing['controllerid']} of {brokers}"
    same([t["topic"] for t in listing["topics"]], [topic])
    partitions = listing["topics"][0]["partitions"]
    same([p["partition"] for p in partitions], [0, 1, 2])
    assert {p["leader"] for p in partitions} <= brokers, "a leader is no broker"
    same([[r["id"] for r in p["isrs"]] for p in partitions], [[p["leader"]] for p in partitions])
    text = kcat(run, "-L")
    assert f'topic "{topic}" with 3 partitions' in text, "the topic is not among all topics"


@suite.case()
def produce_creates_a_missing_topic(run: Run) -> None:
    topic = run.name("auto")
    kcat(run, "-P", "-t", topic, stdin=b"x\n")
    got = kcat(run, "-C", "-t", topic, "-e", "-q", "-o", "beginning", "-f", "%s %o\n")
    same(got.split(), ["x", "0"])


@suite.case()
def log_append_time_is_shown(run: Run) -> None:
    topic = make_topic(run, message_timestamp_type="LogAppendTime")
    before = int(time.time() * 1000) - 1000
    produce(run, topic, [b"x"])
    stamp = int(consume(run, topic, "-o", "beginning", layout="%T\n")[0])
    assert before < stamp < before + 20_000, f"timestamp {stamp}"
    same([b.log_append_time for b in stored(run, topic)], [True])


@suite.case()
def group_resumes_from_its_commit(run: Run) -> None:
    topic, group = make_topic(run), run.group()
    produce(run, topic, [b"v%d" % i for i in range(6)])
    arguments = ("-X", "auto.offset.reset=earliest", "-q", "-f", "%s\n", topic)
    # The end of input must not be awaited: -e counts partitions that were assigned, -c messages.
    first = kcat(run, "-G", group, "-c", "4", *arguments).split()
    same(first, ["v0", "v1", "v2", "v3"])
    same(kcat(run, "-G", group, "-c", "2", *arguments).split(), ["v4", "v5"])


class Reader:
    """A kcat that reads on; its lines with the time at which they came."""

    def __init__(self, run: Run, *arguments: str) -> None:
        self.lines: list[tuple[float, str]] = []
        self._process = subprocess.Popen(
            [*command(run), *arguments, "-u", "-q", "-f", "%p %s\n"],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self.lines.append((time.monotonic(), line.strip()))

    def has(self, lines: int) -> bool:
        return len(self.lines) == lines

    @property
    def words(self) -> list[str]:
        return [line.split()[1] for _, line in self.lines]

    @property
    def partitions(self) -> set[str]:
        return {line.split()[0] for _, line in self.lines}

    def stop(self) -> None:
        self._process.terminate()
        try:
            self._process.wait(10)
        finally:
            self._process.kill()


@suite.case(limit=40)
def two_members_share_a_topic_and_one_takes_over(run: Run) -> None:
    topic, group = make_topic(run, partitions=4), run.group()
    settings = ("-X", "auto.offset.reset=earliest", "-X", "heartbeat.interval.ms=200", "-X", "session.timeout.ms=6000")
    readers = [Reader(run, "-G", group, *settings, topic) for _ in range(2)]
    try:
        sent: list[str] = []

        def send() -> None:
            for partition in range(4):
                sent.append(f"m{len(sent)}")
                kcat(run, "-P", "-t", topic, "-p", str(partition), stdin=f"{sent[-1]}\n".encode())

        def shared() -> bool:
            for reader in readers:
                reader.lines.clear()
            send()
            eventually(lambda: sum(len(r.lines) for r in readers) >= 4, 5)
            return [len(r.partitions) for r in readers] == [2, 2]

        eventually(shared, 25)
        readers[0].stop()

        def taken_over() -> bool:
            readers[1].lines.clear()
            send()
            eventually(lambda: len(readers[1].partitions) == 4, 2)
            return True

        eventually(taken_over, 10)
    finally:
        for reader in readers:
            reader.stop()


@suite.case(alone=True)
def a_waiting_consumer_is_woken_at_once(run: Run) -> None:
    topic = make_topic(run)
    produce(run, topic, [b"first"])
    reader = Reader(run, "-C", "-t", topic, "-p", "0", "-o", "beginning", "-X", "fetch.wait.max.ms=5000")
    try:
        eventually(lambda: reader.words == ["first"])
        took = []
        for number in range(2):
            time.sleep(0.3)
            produce(run, topic, [b"next"])
            acknowledged = time.monotonic()
            eventually(partial(reader.has, number + 2), 8, 0.01)
            took.append(reader.lines[-1][0] - acknowledged)
        assert min(took) < 0.5, f"seen {took} s after the acknowledgements; a busy machine may delay one of them"
    finally:
        reader.stop()


@suite.case()
def json_envelopes_show_all_of_a_message(run: Run) -> None:
    topic = make_topic(run)
    produce(run, topic, [b"k:v"], "-K:", "-H", "h=1")
    envelope = json.loads(kcat(run, "-C", "-t", topic, "-p", "0", "-e", "-q", "-o", "beginning", "-J"))
    same(
        {name: envelope[name] for name in ("topic", "partition", "offset", "tstype", "key", "payload", "headers")},
        {
            "topic": topic,
            "partition": 0,
            "offset": 0,
            "tstype": "create",
            "key": "k",
            "payload": "v",
            "headers": ["h", "1"],
        },
    )


if __name__ == "__main__":
    suite.main()
