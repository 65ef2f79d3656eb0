"""Writes corpus/: run `python tests/fuzz/make_corpus.py` after adding a frame, and describe it in corpus/README.md.

Owns: the frames that somebody thought of; those that fuzzing found are put beside them.
Must not know: mutations, gateways.
"""

from __future__ import annotations

import gzip
import struct
import zlib
from pathlib import Path

from crc32c import crc32c

from kop.records.batch import BatchHeader, Codec
from kop.records.compression import compress

T = 1_700_000_000_000
_LAYOUT = struct.Struct(">qiibIhiqqqhii")
HERE = Path(__file__).parent / "corpus"


def sized(payload: bytes) -> bytes:
    return struct.pack(">i", len(payload)) + payload


def header(key: int, version: int, *, flexible: bool, client: bytes = b"fuzz") -> bytes:
    return struct.pack(">hhih", key, version, 7, len(client)) + client + (b"\0" if flexible else b"")


def varint(value: int) -> bytes:
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes(out) + bytes([value])


def batch(content: bytes, codec: int = 0, count: int = 1, length_off: int = 0) -> bytes:
    """A well-sealed batch with any content; `content` is compressed already."""
    fields = BatchHeader(0, len(content) + 49 + length_off, 0, 2, 0, codec, count - 1, T, T, -1, -1, -1, count)
    out = bytearray(_LAYOUT.pack(*fields)) + content
    struct.pack_into(">I", out, 17, crc32c(bytes(out[21:])))
    return bytes(out)


def record(content: bytes) -> bytes:
    body = b"\0\0\0" + content
    return varint(len(body) * 2) + body


def produce(records: bytes, topic: bytes = b"fuzz-compact") -> bytes:
    part = struct.pack(">i", 0) + varint(len(records) + 1) + records + b"\0"
    body = b"\0" + struct.pack(">hi", -1, 10_000) + b"\2" + varint(len(topic) + 1) + topic + b"\2" + part + b"\0\0"
    return sized(header(0, 9, flexible=True) + body)


def zeros_gzip(size: int) -> bytes:
    squeeze = zlib.compressobj(9, wbits=31)
    return squeeze.compress(bytes(size)) + squeeze.flush()


def quadratic_fetch(partitions: int = 16_000) -> bytes:
    rows = (struct.pack(">iiqiqi", 0, -1, 0, -1, -1, 1 << 20) + b"\1\x63\0") * partitions
    body = struct.pack(">iiiibii", -1, 0, 1, 1 << 20, 0, 0, -1) + b"\2" + b"\x0bfuzz-plain" + varint(partitions + 1)
    return sized(header(1, 12, flexible=True) + body + rows + b"\0\1\1\0")


def frames() -> dict[str, bytes]:
    meta9 = header(3, 9, flexible=True)
    meta1 = header(3, 1, flexible=False)
    plain = record(b"\2k\2v\0")
    return {
        "quadratic_tags_fetch": quadratic_fetch(),
        "unknown_tags_1mb": sized(meta9 + b"\1\1\0\0" + varint(340_000) + b"\x63\1\0" * 340_000),
        "one_tag_of_1mb": sized(meta9 + b"\1\1\0\0" + b"\1\x63" + varint(1 << 20) + bytes(1 << 20)),
        "tags_in_header_1mb": sized(
            header(3, 9, flexible=False) + varint(340_000) + b"\x63\1\0" * 340_000 + b"\0\1\0\0\0"
        ),
        "repeated_known_tag": sized(header(1, 13, flexible=True) + bytes(25) + b"\1\1\1" + b"\2\0\1\0\0\1\0"),
        "negative_array": sized(meta1 + struct.pack(">i", -2)),
        "negative_string": sized(meta1 + struct.pack(">ih", 1, -2)),
        "count_of_2_31": sized(meta1 + struct.pack(">i", 2**31 - 1)),
        "compact_count_of_2_31": sized(meta9 + b"\xff\xff\xff\xff\x07"),
        "nested_counts_of_2_31": sized(
            header(1, 4, flexible=False) + struct.pack(">iiiib", -1, 0, 0, 1, 0) + b"\0\0\0\1\0\1t\x7f\xff\xff\xff"
        ),
        "varint_of_10_bytes": sized(meta9 + b"\xff" * 9 + b"\1"),
        "varint_without_end": sized(meta9 + b"\x80" * 4000),
        "string_beyond": sized(meta1 + struct.pack(">ih", 1, 500) + b"short"),
        "string_not_utf8": sized(meta1 + struct.pack(">ih", 1, 3) + b"\xff\xfe\xc0"),
        "string_of_nul": sized(meta1 + struct.pack(">ih", 1, 3) + b"a\0b"),
        "client_id_beyond": sized(struct.pack(">hhih", 18, 0, 7, 30_000) + b"x"),
        "client_id_negative": sized(struct.pack(">hhih", 18, 0, 7, -2)),
        "client_id_null": sized(struct.pack(">hhih", 18, 0, 7, -1)),
        "header_of_one_byte": sized(b"\0"),
        "unknown_api": sized(header(999, 0, flexible=False)),
        "api_versions_from_the_future": sized(header(18, 99, flexible=True) + b"whatever"),
        "api_versions_negative": sized(header(18, -1, flexible=False)),
        "tls_hello": bytes.fromhex("160301007a0100007603030102030405060708") + bytes(108),
        "http_get": b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n",
        "size_zero": bytes(4),
        "size_negative": b"\xff\xff\xff\xff" + bytes(20),
        "size_lowest": b"\x80\0\0\0" + bytes(20),
        "size_2_31": b"\x7f\xff\xff\xff" + meta1,
        "size_100_mb_metadata": struct.pack(">i", 100_000_000) + meta1,
        "batch_of_200_000_empty_headers": produce(
            batch(bytes(compress(Codec.GZIP, record(b"\2k\1" + varint(400_000) + b"\0\1" * 200_000))), Codec.GZIP)
        ),
        "bomb_gzip": produce(batch(zeros_gzip(1 << 28), Codec.GZIP)),
        "bomb_snappy": produce(batch(bytes(compress(Codec.SNAPPY, bytes(1 << 24))), Codec.SNAPPY)),
        "bomb_lz4": produce(batch(bytes(compress(Codec.LZ4, bytes(1 << 26))), Codec.LZ4)),
        "bomb_zstd": produce(batch(bytes(compress(Codec.ZSTD, bytes(1 << 28))), Codec.ZSTD)),
        "bomb_recompressed": produce(batch(zeros_gzip(1 << 28), Codec.GZIP), b"fuzz-recompressed"),
        "batch_length_longer": produce(batch(plain, length_off=1000)),
        "batch_length_shorter": produce(batch(plain, length_off=-10)),
        "batch_length_negative": produce(batch(plain, length_off=-(2**31))),
        "batch_length_2_31": produce(batch(plain, length_off=2**31 - 1 - 49 - len(plain))),
        "batch_count_higher": produce(batch(bytes(compress(Codec.LZ4, plain)), Codec.LZ4, count=5)),
        "batch_count_2_31": produce(batch(bytes(compress(Codec.LZ4, plain)), Codec.LZ4, count=2**31 - 1)),
        "batch_count_lower": produce(batch(plain * 3)),
        "batch_wrong_crc": produce(batch(plain)[:-1] + b"\1"),
        "batch_null_key": produce(batch(record(b"\1\2v\0"))),
        "batch_not_compressed_as_said": produce(batch(b"\xde\xad\xbe\xef" * 9, Codec.ZSTD)),
    }


def main() -> None:
    for name, data in frames().items():
        if len(data) > 800:
            (HERE / f"{name}.bin.gz").write_bytes(gzip.compress(data, 9, mtime=0))
        else:
            text = data.hex()
            lines = [text[at : at + 100] for at in range(0, len(text), 100)]
            (HERE / f"{name}.hex").write_text("\n".join(lines) + "\n", encoding="ascii")


if __name__ == "__main__":
    main()
