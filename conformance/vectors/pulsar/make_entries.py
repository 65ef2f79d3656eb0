"""Writes entries.jsonl.gz: entries that Pulsar's own clients, its compaction and the gateway stored in a real Pulsar.

    python conformance/vectors/pulsar/make_entries.py

It starts a Pulsar (../../pulsar_server.sh) whose messages are small, so that chunks are, too. Needs what that needs, Go,
openssl, and pulsar-client. Times, names and keys differ each time; what the messages are does not.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import gzip
import json
import os
import random
import string
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pulsar

from kop.pulsar_client import EARLIEST, Client, Entry, Position
from kop.pulsar_client.admin import Admin
from kop.pulsar_client.proto import pulsar_pb2 as pb
from kop.records import transcode
from kop.records.batch import Codec, Record, build, read_header

HERE = Path(__file__).parent
FILE = HERE / "entries.jsonl.gz"
SERVER = HERE.parents[1] / "pulsar_server.sh"
GO_CLIENT = "github.com/apache/pulsar-client-go@v0.19.0"
MAX_MESSAGE = 2048
"""Bytes of the largest message that the Pulsar takes without chunks."""
NOW = 1_700_000_000_000
CODECS = {"NONE": Codec.NONE, "LZ4": Codec.LZ4, "ZLIB": Codec.GZIP, "ZSTD": Codec.ZSTD, "SNAPPY": Codec.SNAPPY}

Message = dict[str, Any]
"""A message as the clients are told of it; its values are base64."""


def b64(data: bytes) -> str:
    return base64.b64encode(data).decode()


def message(value: bytes | None, **fields: Any) -> Message:
    return {"value": None if value is None else b64(value), **fields}


MESSAGES = [
    message(b"text " * 40, key="schlüssel", event_time=NOW, properties={"p": "1", "ü": "ö"}),
    message(b"", event_time=NOW + 1),
    message(b"\x00\xff", ordering_key="o", properties={"empty": ""}),
    message(b"text " * 20, key="k", ordering_key="o", event_time=NOW - 5),
]
JAVA_MESSAGES = [*MESSAGES, message(b"binary", key_bytes=b64(b"\xff\x00")), message(None, key="gone", event_time=NOW)]
LARGE = "".join(random.Random(1).choices(string.ascii_letters, k=3300)).encode()
CHUNKED = [message(LARGE, key="large", event_time=NOW, properties={"p": "1"}), message(b"small")]
COMPACTED = [
    [message(name * 40, key=name.decode(), event_time=NOW) for name in (b"a", b"b", b"c")],
    [message(b"new " * 10, key="a", properties={"p": "1"}), message(b"d" * 40, key="d", event_time=NOW + 1)],
]
END = message(b"end", key="end", event_time=NOW)
"""What comes last in each topic, from the gateway, so that a reader knows that it has all."""
KEPT = [1, 2, 3, 4]
"""Offsets of COMPACTED that compaction keeps."""


class Case(NamedTuple):
    """A topic: who wrote it, and how."""

    client: str
    codec: str
    mode: str
    sends: Sequence[Sequence[Message]]
    """Each inner list is flushed before the next."""
    compacted: bool = False
    encrypted: bool = False

    @property
    def refused(self) -> str | None:
        """A word of the reason for which a gateway refuses its messages."""
        if self.encrypted:
            return "encrypted"
        return "chunks" if self.mode == "chunked" and self.compacted else None

    @property
    def name(self) -> str:
        """What tests call it."""
        count = sum(map(len, self.sends))
        words = [self.client, self.codec, self.mode, "one" if count == 1 else ""]
        words += ["compacted" if self.compacted else "", "encrypted" if self.encrypted else ""]
        return "-".join(filter(None, words))


def cases(client: str) -> Iterator[Case]:
    messages = JAVA_MESSAGES if client == "java" else MESSAGES
    for codec in CODECS:
        yield Case(client, codec, "batched", COMPACTED, compacted=True)
        if client == "gateway":
            continue
        yield Case(client, codec, "batched", [messages])
        yield Case(client, codec, "batched", [messages[:1]])
        yield Case(client, codec, "single", [messages])
        yield Case(client, codec, "single", COMPACTED, compacted=True)
        yield Case(client, codec, "chunked", [CHUNKED])
        for mode in ("batched", "single", "chunked"):
            if codec in ("NONE", "ZLIB"):
                yield Case(client, codec, mode, [CHUNKED if mode == "chunked" else messages], encrypted=True)
        if codec == "ZLIB":
            yield Case(client, codec, "batched", COMPACTED, compacted=True, encrypted=True)
            yield Case(client, codec, "single", COMPACTED, compacted=True, encrypted=True)
            yield Case(client, codec, "chunked", [CHUNKED], compacted=True)


class Node(NamedTuple):
    """The Pulsar, and what clients need to write to it."""

    service_url: str
    admin_url: str
    work: Path

    def topic(self, case: Case) -> str:
        """The topic of a case."""
        return f"persistent://public/default/{case.name}"

    def told(self, given: Sequence[Case]) -> str:
        """What a client reads on its stdin."""
        topics = [
            {
                "topic": self.topic(case),
                "codec": case.codec,
                "mode": case.mode,
                "encrypted": case.encrypted,
                "sends": case.sends,
            }
            for case in given
        ]
        return json.dumps(
            {"service_url": self.service_url, "public_key": str(self.work / "public.pem"), "topics": topics}
        )


@contextlib.contextmanager
def running() -> Iterator[Node]:
    with tempfile.TemporaryDirectory() as folder:
        work = Path(folder)
        settings = work / "settings"
        settings.write_text(f"maxMessageSize={MAX_MESSAGE}\n")
        environ = os.environ | {"DIR": str(work / "pulsar"), "EXTRA_CONF": str(settings)}
        out = work / "urls"
        with out.open("w") as file:  # to a file: the node would keep a pipe open
            subprocess.run([SERVER, "start"], env=environ, stdout=file, check=True)
        try:
            private = work / "private.pem"
            subprocess.run(["openssl", "genrsa", "-traditional", "-out", private, "2048"], check=True)
            subprocess.run(["openssl", "rsa", "-in", private, "-pubout", "-out", work / "public.pem"], check=True)
            service_url, _, admin_url = out.read_text().strip().partition(",")
            yield Node(service_url, admin_url, work)
        finally:
            subprocess.run([SERVER, "stop"], env=environ, check=True)


def by_java(node: Node) -> None:
    home = subprocess.run([SERVER, "home"], check=True, capture_output=True, text=True).stdout.strip()
    command = ["java", "-cp", f"{home}/lib/*", str(HERE / "Entries.java")]
    subprocess.run(command, input=node.told(list(cases("java"))), text=True, check=True)


def by_go(node: Node, client: str, cgo: bool) -> None:
    """Its zstd is another one without cgo."""
    folder = node.work / client
    folder.mkdir()
    (folder / "entries.go").write_text((HERE / "entries.go").read_text())
    environ = os.environ | {"CGO_ENABLED": str(int(cgo))}
    for command in (["mod", "init", "entries"], ["get", GO_CLIENT], ["mod", "tidy"], ["build", "-o", "entries"]):
        subprocess.run(["go", *command], cwd=folder, env=environ, check=True)
    subprocess.run([folder / "entries"], input=node.told(list(cases(client))), text=True, check=True)


def by_cpp(node: Node) -> None:
    """By pulsar-client, which is the C++ client."""
    client = pulsar.Client(node.service_url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))
    keys = pulsar.CryptoKeyReader(str(node.work / "public.pem"), str(node.work / "private.pem"))
    for case in cases("cpp"):
        producer = client.create_producer(
            node.topic(case),
            compression_type=getattr(pulsar.CompressionType, case.codec.replace("ZLIB", "ZLib")),
            batching_enabled=case.mode == "batched",
            batching_max_publish_delay_ms=3_600_000,
            chunking_enabled=case.mode == "chunked",
            encryption_key="k" if case.encrypted else None,
            crypto_key_reader=keys if case.encrypted else None,
        )
        for flushed in case.sends:
            for each in flushed:
                producer.send_async(
                    base64.b64decode(each["value"]),
                    None,
                    partition_key=each.get("key"),
                    ordering_key=each.get("ordering_key"),
                    event_timestamp=each.get("event_time"),
                    properties=each.get("properties"),
                )
            producer.flush()
        producer.close()
    client.close()


async def by_gateway(node: Node, client: Client) -> None:
    for case in cases("gateway"):
        producer = await client.open_producer(node.topic(case))
        sequence = 0
        for flushed in case.sends:
            records = [
                Record(
                    number,
                    each.get("event_time", NOW + 9),
                    each["key"].encode(),
                    base64.b64decode(each["value"]),
                    tuple((k.encode(), v.encode()) for k, v in each.get("properties", {}).items()),
                )
                for number, each in enumerate(flushed)
            ]
            batch = bytes(build(records, codec=CODECS[case.codec]))
            (entry,) = transcode.to_entries(
                batch,
                read_header(batch),
                producer_name=producer.name,
                sequence_base=sequence,
                publish_time=NOW + 9,
                max_size=MAX_MESSAGE,
                compacted=True,
            )
            last = sequence + entry.num_messages - 1
            await producer.send(
                entry.metadata,
                entry.payload,
                sequence_id=sequence,
                highest_sequence_id=last,
                num_messages=entry.num_messages,
            )
            sequence = last + 1
        await producer.close()


async def compact(admin: Admin, topic: str) -> None:
    await admin.compact(topic)
    while (await admin.compaction_status(topic)).status != "SUCCESS":
        await asyncio.sleep(0.1)


async def ended(client: Client, topic: str) -> Position:
    """Put END behind what was written, and perhaps compacted."""
    producer = await client.open_producer(topic)
    metadata = pb.MessageMetadata(
        producer_name=producer.name, sequence_id=0, publish_time=NOW, partition_key=END["key"], event_time=NOW
    )
    position = await producer.send(
        metadata.SerializeToString(), b"end", sequence_id=0, highest_sequence_id=0, num_messages=1
    )
    await producer.close()
    return position


async def stored(client: Client, topic: str, end: Position, compacted: bool) -> list[Entry]:
    entries: list[Entry] = []
    done = asyncio.Event()

    def on_entry(entry: Entry) -> None:
        entries.append(entry)
        if entry.position == end:
            done.set()

    reader = await client.open_reader(topic, EARLIEST, read_compacted=compacted, permits=1000, on_entry=on_entry)
    async with asyncio.timeout(30):
        await done.wait()
    await reader.close()
    return entries


def expected(case: Case, entries: Sequence[Entry]) -> list[dict[str, Any]]:
    """The messages of a case, as Kafka's records; a message without a time has that of its entry."""
    sent = [*(each for flushed in case.sends for each in flushed), END]
    places = [*KEPT, len(sent) - 1] if case.compacted else range(len(sent))
    end = entries[-1].index or 0
    records = []
    for place in [len(sent) - 1] if case.refused else places:
        each = sent[place]
        offset = end + 1 - len(sent) + place  # only the first message may have several chunks, and it counts as its last
        (entry,) = (e for e in entries if e.index is not None and e.index - e.num_messages < offset <= e.index)
        published = pb.MessageMetadata.FromString(bytes(entry.metadata)).publish_time
        key = each["key"].encode() if "key" in each else each["ordering_key"].encode() if "ordering_key" in each else None
        records.append(
            {
                "offset": offset,
                "timestamp": each.get("event_time", published),
                "key": each.get("key_bytes", None if key is None else b64(key)),
                "value": each["value"],
                "headers": each.get("properties", {}),
            }
        )
    return records


async def main() -> None:
    with running() as node:
        by_java(node)
        by_cpp(node)
        by_go(node, "go", cgo=True)
        by_go(node, "go-without-cgo", cgo=False)
        client = Client(node.service_url)
        await client.start()
        await by_gateway(node, client)
        admin = Admin(node.admin_url)
        every = [case for name in ("java", "cpp", "go", "go-without-cgo", "gateway") for case in cases(name)]
        lines = []
        for case in every:
            if case.compacted:
                await compact(admin, node.topic(case))
            end = await ended(client, node.topic(case))
            entries = await stored(client, node.topic(case), end, case.compacted)
            vector = {
                "name": case.name,
                "refused": case.refused,
                "entries": [
                    {"index": e.index, "metadata": b64(bytes(e.metadata)), "payload": b64(bytes(e.payload))}
                    for e in entries
                ],
                "records": expected(case, entries),
            }
            lines.append(json.dumps(vector) + "\n")
        await admin.close()
        await client.close()
    FILE.write_bytes(gzip.compress("".join(lines).encode(), mtime=0))


if __name__ == "__main__":
    asyncio.run(main())
