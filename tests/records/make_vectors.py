"""Write vectors.json: record batches, and what Apache Kafka's own classes make of them (see KafkaLab.java).

    python tests/records/make_vectors.py "$KAFKA_HOME/libs"

The answers in the file are those of Apache Kafka 4.3.1. The tests need neither Kafka nor Java.
"""

from __future__ import annotations

import gzip
import json
import struct
import subprocess
import sys
from pathlib import Path
from typing import Any

from crc32c import crc32c

from kop.records.batch import HEADER_SIZE, BatchHeader, Record, build, iter_records
from kop.records.compression import Codec

HERE = Path(__file__).parent
T = 1_700_000_000_000
CODECS = [codec.value for codec in Codec]


def sealed(batch: bytes | bytearray, *, crc: bool = True, **fields: int) -> str:
    """The batch with other header fields, as hex; the checksum is renewed unless `crc` is false."""
    layout = struct.Struct(">qiibIhiqqqhii")
    out = bytearray(batch)
    layout.pack_into(out, 0, *BatchHeader._make(layout.unpack_from(out))._replace(**fields))
    if crc:
        struct.pack_into(">I", out, 17, crc32c(bytes(out[21:])))
    return out.hex()


def with_body(body: bytes, count: int = 1, codec: int = 0) -> str:
    header = build([Record(i, T, b"k", b"v") for i in range(count)])[:HEADER_SIZE]
    return sealed(header + body, batch_length=HEADER_SIZE + len(body) - 12, attributes=codec)


def produced() -> dict[str, dict[str, Any]]:
    """Batches to produce, by what they are."""
    ok = bytes(build([Record(i, T + i, b"k", b"value%d" % i) for i in range(3)]))
    record = bytes(build([Record(0, T, b"k", b"v")]))[HEADER_SIZE:]
    plain = bytes.fromhex("0c0000000101" + "00")  # length 6, null key and value
    cases: dict[str, str] = {
        "good": ok.hex(),
        "nothing": "",
        "11 bytes": ok[:11].hex(),
        "17 bytes": ok[:17].hex(),
        "60 bytes": ok[:60].hex(),
        "last byte missing": ok[:-1].hex(),
        "two batches": (ok + ok).hex(),
        "length 0": sealed(ok, crc=False, batch_length=0),
        "length 13": sealed(ok, crc=False, batch_length=13),
        "length 48": sealed(ok, crc=False, batch_length=48),
        "length -1": sealed(ok, crc=False, batch_length=-1),
        "magic 0": sealed(ok, magic=0),
        "magic 1": sealed(ok, magic=1),
        "magic 3": sealed(ok, magic=3),
        "magic -1": sealed(ok, magic=-1),
        "wrong checksum": sealed_crc(ok, 5),
        "base offset 1": sealed(ok, base_offset=1),
        "base offset 1 and wrong checksum": sealed_crc(bytes.fromhex(sealed(ok, base_offset=1)), 5),
        "count 0": sealed(ok, record_count=0),
        "count -1": sealed(ok, record_count=-1),
        "count 2 of 3": sealed(ok, record_count=2),
        "one record more than there are": sealed(ok, record_count=4, last_offset_delta=3),
        "one record less than there are": sealed(ok, record_count=2, last_offset_delta=1),
        "a million records announced": sealed(ok, record_count=10**6, last_offset_delta=10**6 - 1),
        "last offset delta -1": sealed(ok, last_offset_delta=-1),
        "last offset delta 5": sealed(ok, last_offset_delta=5),
        "transactional": sealed(ok, attributes=16, producer_id=77, producer_epoch=0, base_sequence=0),
        "control": sealed(ok, attributes=32),
        "unused attribute bits": sealed(ok, attributes=-32768 | 128),
        "producer id without sequence": sealed(ok, producer_id=5, producer_epoch=0),
        "producer id -2": sealed(ok, producer_id=-2),
        "sequence without producer id": sealed(ok, base_sequence=4),
        "no timestamps": bytes(build([Record(0, -1, b"k", b"v")])).hex(),
        "no records": with_body(b""),
        "record cut off": with_body(record[:-1]),
        "byte behind the records": with_body(record + b"x"),
        "record length -1": with_body(b"\x01" + record[1:]),
        "record length too long": with_body(b"\x24" + record[1:]),
        "record length too short": with_body(b"\x14" + record[1:]),
        "key length -4": with_body(bytes.fromhex("0c0000000701" + "00")),
        "key longer than the record": with_body(bytes.fromhex("0c000000780100")),
        "header count -1": with_body(bytes.fromhex("0c000000010101")),
        "header count 50": with_body(bytes.fromhex("0c000000010164")),
        "header key null": with_body(bytes.fromhex("1000000001010201" + "01")),
        "header value null": with_body(bytes.fromhex("1200000001010202" + "6101")),
        "record attributes": with_body(bytes.fromhex("0c050000010100")),
        "varint of 6 bytes": with_body(bytes.fromhex("160000808080808001" + "010100")),
        "varint of 11 bytes": with_body(bytes.fromhex("2000" + "80" * 10 + "01" + "00010100")),
        "gzip with bytes behind the records": with_body(gzip.compress(record + b"xyz", mtime=0), codec=1),
        # where we are stricter, or say it with another code
        "base offset in a damaged second batch": (ok + ok[:16] + b"\x09" + ok[17:]).hex(),
        "byte behind the batch": (ok + b"x").hex(),
        "compression type 5": sealed(ok, attributes=5),
        "LogAppendTime set": sealed(ok, attributes=8),
        "transactional without producer id": sealed(ok, attributes=16),
        "offset deltas 0 and 0": with_body(plain * 2, 2),
        "offset delta 5": with_body(bytes.fromhex("0c00000a010100")),
        "varint of 35 bits": with_body(bytes.fromhex("14000080808080700101" + "00")),
        **{f"damaged {Codec(codec).name}": with_body(b"garbage here", codec=codec) for codec in CODECS[1:]},
        "gzip and then junk": with_body(gzip.compress(record, mtime=0) + b"junkjunkjunk", codec=1),
    }
    questions: dict[str, dict[str, Any]] = {name: {"hex": text} for name, text in cases.items()}
    large = sealed(build([Record(0, T, b"k", bytes(200))]))
    small = {"log": "small", "config": {"max.message.bytes": "150"}}
    questions["too large"] = {"hex": large, **small}
    questions["too large and wrong checksum"] = {"hex": sealed_crc(bytes.fromhex(large), 5), **small}
    zstd = bytes(build([Record(0, T, b"k", b"v")], codec=Codec.ZSTD)).hex()
    questions["zstd in version 6"] = {"hex": zstd, "version": 6}
    questions["zstd in version 7"] = {"hex": zstd, "version": 7}
    without_key = bytes(build([Record(0, T, b"k", b"v"), Record(1, T, None, b"v")]))
    compact = {"log": "compact", "config": {"cleanup.policy": "compact"}}
    questions["null key on a compacted topic"] = {"hex": without_key.hex(), **compact}
    questions["null key on a plain topic"] = {"hex": without_key.hex()}
    return questions


def sealed_crc(batch: bytes, crc: int) -> str:
    return (batch[:17] + struct.pack(">I", crc) + batch[21:]).hex()


def sample_records() -> list[Record]:
    long = bytes(range(100))
    return [
        Record(10, T, b"key", b"value", ()),
        Record(11, T + 7, None, b"", ((b"h", b"x"), (b"h", None), ("ключ".encode(), b""))),
        Record(12, T - 5000, b"", None, ()),
        Record(14, T + 10**6, long, long * 2, ((b"big", long),)),
    ]


def as_json(records: list[Record]) -> list[list[Any]]:
    def text(data: bytes | None) -> str | None:
        return None if data is None else data.hex()

    return [
        [r.offset, r.timestamp, text(r.key), text(r.value), [[text(k), text(v)] for k, v in r.headers]] for r in records
    ]


def sequences() -> list[list[int]]:
    """Producer id, epoch, base sequence, count of each batch, in order; Kafka's answers are added."""
    top = 2**31 - 1
    rows = [[1, 0, n, 1] for n in range(7)] + [[1, 0, n, 1] for n in range(8)]
    rows += [[2, 3, 100, 2], [2, 3, 102, 1], [2, 3, 50, 2], [2, 2, 103, 1], [2, 4, 5, 1], [2, 4, 0, 1], [2, 3, 103, 1]]
    rows += [[2, 4, 1, 1], [2, 4, 0, 1], [2, 3, 102, 1]]
    rows += [[3, 0, top - 1, 2], [3, 0, 0, 3], [3, 0, top - 1, 2], [3, 0, 3, 1], [3, 0, 0, 3]]
    rows += [[4, 0, top - 1, 4], [4, 0, 2, 1], [4, 0, top - 1, 4], [4, 0, 1, 1]]
    rows += [[5, 0, 0, 5], [5, 0, 3, 4], [5, 0, 0, 3], [5, 0, 0, 6], [5, 0, 5, 5], [5, 0, 0, 5]]
    return rows


def main() -> None:
    command = ["java", "-cp", f"{sys.argv[1]}/*", str(HERE / "KafkaLab.java")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as kafka:
        questions, answers = kafka.stdin, kafka.stdout
        assert questions is not None
        assert answers is not None

        def ask(**question: Any) -> dict[str, Any]:
            questions.write(json.dumps(question) + "\n")
            questions.flush()
            answer: dict[str, Any] = json.loads(answers.readline())
            return answer

        produce = {}
        for name, question in produced().items():
            answer = ask(op="append", **question)
            produce[name] = {**question, "kafka": answer.get("error", "NONE")}

        records = sample_records()
        builds = []
        for codec in CODECS:
            for extra in ({}, {"producer_id": 7, "producer_epoch": 2, "base_sequence": 40, "transactional": True}):
                options = {"codec": codec, "base_offset": 10, **extra}
                builds.append({**options, "hex": ask(op="build", records=as_json(records), **options)["hex"]})
        ours = []
        for codec in CODECS:
            text = bytes(build(records, codec=codec)).hex()
            read = ask(op="read", hex=text)
            assert read.get("records") == as_json(records), read
            ours.append(text)
        blocks = b"".join(b"%06d" % n for n in range(30_000))  # more than one block of every codec
        for codec in CODECS:
            read = ask(op="read", hex=bytes(build([Record(0, T, None, blocks)], codec=codec)).hex())
            assert read["records"][0][3] == blocks.hex(), codec

        append_time = []
        for codec in CODECS:
            before = bytes(build([Record(0, T - 5, b"k", b"v"), Record(1, T, b"k", b"v")], codec=codec)).hex()
            log = {"log": "append-time", "config": {"message.timestamp.type": "LogAppendTime"}}
            answer = ask(op="append", hex=before, **log)
            append_time.append({"before": before, **answer})

        filters = []
        for source in [b["hex"] for b in builds] + [
            ask(op="build", records=as_json(records), base_offset=10, log_append_time=True, append_time=T + 1)["hex"]
        ]:
            for keep in ([10, 11, 12, 14], [11, 14], [12], []):
                for keep_empty in (False, True):
                    question = {"keep": keep, "now": T, "delete_retention": 1000, "keep_empty": keep_empty}
                    answer = ask(op="filter", hex=source, **question)
                    again = ask(op="filter", hex=answer["hex"], **{**question, "now": T + 99})
                    assert again["hex"] == answer["hex"] or not keep_empty, "a second pass changes nothing"
                    filters.append({"hex": source, **question, "kafka": answer["hex"]})

        order = []
        for producer_id, epoch, sequence, count in sequences():
            batch = build(
                [Record(n, T, b"k", b"v") for n in range(count)],
                producer_id=producer_id,
                producer_epoch=epoch,
                base_sequence=sequence,
            )
            answer = ask(op="append", hex=bytes(batch).hex(), log="sequences", config={})
            order.append([producer_id, epoch, sequence, count, answer.get("error", answer.get("first"))])
        questions.close()

    vectors = {
        "made_by": "make_vectors.py and KafkaLab.java, with the classes of Apache Kafka 4.3.1",
        "produce": produce,
        "records": as_json(records),
        "built_by_kafka": builds,
        "read_by_kafka": ours,
        "append_time": append_time,
        "filter": filters,
        "sequences": order,
    }
    assert all(list(iter_records(bytes.fromhex(b["hex"]), max_bytes=1 << 20)) for b in builds)
    (HERE / "vectors.json").write_text(json.dumps(vectors, indent=1) + "\n")


if __name__ == "__main__":
    main()
