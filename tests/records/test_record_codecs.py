"""The codecs against other implementations of them, both ways, and against bombs."""

from __future__ import annotations

import gzip
import io
import pickle
import random
import struct
import subprocess
import sys
import zlib
from collections.abc import Callable
from functools import partial

import lz4.frame
import pytest
import snappy
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st
from support.examples import examples

from kop.errors import ErrorCode, PeerError
from kop.records.compression import Codec, check_lz4_for_java, compress, decompress

LIMIT = 1 << 22
CODECS = [Codec.GZIP, Codec.SNAPPY, Codec.LZ4, Codec.ZSTD]
XERIAL = b"\x82SNAPPY\x00" + struct.pack(">ii", 1, 1)


def xerial(*blocks: bytes) -> bytes:
    packed = [snappy.compress(block) for block in blocks]
    return XERIAL + b"".join(struct.pack(">i", len(block)) + block for block in packed)


def unxerial(data: bytes) -> bytes:
    """snappy-java's stream, read by the book."""
    assert data[:16] == XERIAL
    out, at = b"", 16
    while at < len(data):
        (length,) = struct.unpack_from(">i", data, at)
        out += snappy.decompress(data[at + 4 : at + 4 + length])
        at += 4 + length
    return out


def unzstd(data: bytes) -> bytes:
    with zstandard.ZstdDecompressor().stream_reader(io.BytesIO(data), read_across_frames=True) as reader:
        return reader.read()


def zstd_stream(data: bytes) -> bytes:
    """A frame without content size, as Java and librdkafka's streaming writers make it."""
    packer = zstandard.ZstdCompressor(level=3, write_content_size=False).compressobj()
    return packer.compress(data) + packer.flush()


WRITERS: dict[str, tuple[Codec, Callable[[bytes], bytes]]] = {
    "gzip": (Codec.GZIP, gzip.compress),
    "gzip level 1": (Codec.GZIP, lambda data: gzip.compress(data, 1)),
    "gzip members": (Codec.GZIP, lambda data: gzip.compress(data[:9]) + gzip.compress(b"") + gzip.compress(data[9:])),
    "gzip with a file name": (
        Codec.GZIP,
        lambda data: b"\x1f\x8b\x08\x08" + bytes(6) + b"n\0" + gzip.compress(data)[10:],
    ),
    "snappy raw": (Codec.SNAPPY, snappy.compress),
    "snappy xerial": (Codec.SNAPPY, lambda data: xerial(data) if data else XERIAL),
    "snappy xerial blocks": (Codec.SNAPPY, lambda data: xerial(data[:9], data[9:])),
    "snappy xerial streams": (Codec.SNAPPY, lambda data: xerial(data[:9]) + xerial(data[9:])),
    "snappy xerial, librdkafka's versions": (Codec.SNAPPY, lambda data: XERIAL[:8] + bytes(8) + xerial(data)[16:]),
    "lz4": (Codec.LZ4, lz4.frame.compress),
    "lz4 independent": (Codec.LZ4, lambda data: lz4.frame.compress(data, block_linked=False, block_size=4)),
    "lz4 linked": (Codec.LZ4, lambda data: lz4.frame.compress(data, block_linked=True, block_size=4)),
    "lz4 checksums": (Codec.LZ4, lambda data: lz4.frame.compress(data, content_checksum=True, block_checksum=True)),
    "lz4 no size": (Codec.LZ4, lambda data: lz4.frame.compress(data, store_size=False)),
    "lz4 frames": (Codec.LZ4, lambda data: lz4.frame.compress(data[:9]) + lz4.frame.compress(data[9:])),
    "zstd": (Codec.ZSTD, zstandard.compress),
    "zstd no size": (Codec.ZSTD, zstd_stream),
    "zstd checksum": (Codec.ZSTD, zstandard.ZstdCompressor(write_checksum=True).compress),
    "zstd frames": (Codec.ZSTD, lambda data: zstandard.compress(data[:9]) + zstd_stream(data[9:])),
    "zstd skippable frame": (
        Codec.ZSTD,
        lambda data: struct.pack("<II", 0x184D2A50, 3) + b"abc" + zstandard.compress(data),
    ),
}
READERS: dict[Codec, Callable[[bytes], bytes]] = {
    Codec.GZIP: gzip.decompress,
    Codec.SNAPPY: unxerial,
    Codec.LZ4: lz4.frame.decompress,
    Codec.ZSTD: unzstd,
}


def samples() -> list[bytes]:
    rng = random.Random(7)
    text = b"".join(b'{"id": %d, "name": "user-%d"}' % (n, n % 50) for n in range(8000))
    return [b"", b"a", b"0123456789" * 3, rng.randbytes(100_000), text, bytes(1_000_000)]


@pytest.mark.parametrize("writer", WRITERS)
def test_others_write_and_we_read(writer: str) -> None:
    codec, write = WRITERS[writer]
    for data in samples():
        packed = write(data)
        for given_as in (packed, bytearray(packed), memoryview(packed)):
            assert bytes(decompress(codec, given_as, len(data) + 1)) == data
        assert bytes(decompress(codec, packed, len(data))) == data, "the bound itself is allowed"


@pytest.mark.parametrize("codec", CODECS)
def test_we_write_and_others_read(codec: Codec) -> None:
    for data in samples():
        for given_as in (data, bytearray(data), memoryview(data)):
            assert READERS[codec](bytes(compress(codec, given_as))) == data


@settings(max_examples=examples(200))
@given(st.binary(max_size=5000), st.sampled_from(Codec))
def test_round_trip(data: bytes, codec: Codec) -> None:
    assert bytes(decompress(codec, compress(codec, data), len(data))) == data


def test_lz4_is_written_as_java_takes_it() -> None:
    info = lz4.frame.get_frame_info(bytes(compress(Codec.LZ4, bytes(200_000))))
    assert not info["block_linked"]


LZ4_DATA = random.Random(4).randbytes(150_000) + bytes(150_000)


@pytest.mark.parametrize("size", [1, 64 << 10, 300_000])
@pytest.mark.parametrize("how", [{}, {"content_checksum": True, "block_checksum": True}, {"store_size": False}])
def test_lz4_of_independent_blocks_is_for_java(size: int, how: dict[str, bool]) -> None:
    check_lz4_for_java(compress(Codec.LZ4, LZ4_DATA[:size]))
    check_lz4_for_java(lz4.frame.compress(LZ4_DATA[:size], block_linked=False, block_size=4, **how))


@pytest.mark.parametrize("size", [100_000, 300_000])
def test_lz4_that_java_does_not_read_is_told(size: int) -> None:
    linked = lz4.frame.compress(LZ4_DATA[:size], block_linked=True, block_size=4)
    independent = lz4.frame.compress(LZ4_DATA[:size], block_linked=False, block_size=4)
    for packed, why in ((linked, "independent"), (2 * independent, "the first lz4 frame only")):
        decompress(Codec.LZ4, packed, 2 * size)
        with pytest.raises(PeerError, match=why) as caught:
            check_lz4_for_java(packed)
        assert caught.value.code == ErrorCode.CORRUPT_MESSAGE


@pytest.mark.parametrize("size", range(30))
def test_lz4_that_is_cut_off_is_told(size: int) -> None:
    packed = compress(Codec.LZ4, LZ4_DATA[:100])
    with pytest.raises(PeerError, match=r"cut off|the first lz4 frame only"):
        check_lz4_for_java(packed[:size])


def test_lz4_is_written_by_the_fast_compressor() -> None:
    """As Kafka's default is. The other one, for levels of 3 and more, takes many times as long to gain a little."""
    data = b"".join(b'{"id":%d,"name":"user-%d"}' % (i, i * 7919 % 1000) for i in range(4000))
    sizes = [len(lz4.frame.compress(data, compression_level=level, block_linked=False)) for level in (0, 3)]
    assert abs(len(compress(Codec.LZ4, data)) - sizes[0]) < 100 < sizes[0] - sizes[1]


def test_snappy_is_written_in_blocks_of_32_kib() -> None:
    data = random.Random(1).randbytes(70_000)
    packed = bytes(compress(Codec.SNAPPY, data))
    (length,) = struct.unpack_from(">i", packed, 16)
    assert snappy.decompress(packed[20 : 20 + length]) == data[: 32 * 1024]


@pytest.mark.parametrize("writer", WRITERS)
def test_every_truncation_is_an_error_or_a_whole_prefix(writer: str) -> None:
    codec, write = WRITERS[writer]
    data = b"0123456789 to be cut " * 4
    packed = write(data)
    codes = set()
    for cut in range(len(packed)):
        try:
            short = bytes(decompress(codec, packed[:cut], LIMIT))
        except PeerError as error:
            codes.add(error.code)
        else:
            assert short != data
            assert data.startswith(short)  # cut between members, frames or blocks
    assert codes == {ErrorCode.CORRUPT_MESSAGE}


def outcome(codec: Codec, data: bytes | bytearray) -> str:
    try:
        return "within bounds" if len(decompress(codec, data, 10_000)) <= 10_000 else "too much"
    except PeerError as error:
        return error.code.name


@settings(max_examples=examples(300))
@given(st.sampled_from(CODECS), st.data())
def test_damage_ends_in_one_kind_of_error(codec: Codec, draw: st.DataObject) -> None:
    packed = bytearray(compress(codec, b"some text, some more text, and even more text" * 9))
    for _ in range(draw.draw(st.integers(1, 3))):
        packed[draw.draw(st.integers(0, len(packed) - 1))] = draw.draw(st.integers(0, 255))
    assert outcome(codec, packed) in ("CORRUPT_MESSAGE", "within bounds")


@pytest.mark.parametrize("codec", CODECS)
@given(garbage=st.binary(max_size=200))
def test_garbage(codec: Codec, garbage: bytes) -> None:
    assert outcome(codec, garbage) in ("CORRUPT_MESSAGE", "within bounds")


@pytest.mark.parametrize("codec", [-1, 5, 6, 7])
def test_numbers_that_are_no_codec(codec: int) -> None:
    calls: list[Callable[[], object]] = [partial(decompress, codec, b"", 1), partial(compress, codec, b"")]
    for call in calls:
        with pytest.raises(PeerError) as caught:
            call()
        assert caught.value.code is ErrorCode.UNSUPPORTED_COMPRESSION_TYPE


def test_lz4_checksums_are_checked() -> None:
    packed = bytearray(lz4.frame.compress(b"hello" * 9, content_checksum=True))
    packed[-1] ^= 1
    with pytest.raises(PeerError, match="hecksum"):
        decompress(Codec.LZ4, packed, LIMIT)
    packed = bytearray(lz4.frame.compress(b"hello" * 9, store_size=False))
    packed[6] ^= 1
    with pytest.raises(PeerError, match="hecksum"):
        decompress(Codec.LZ4, packed, LIMIT)


def test_uncompressed_bytes_are_bounded_too() -> None:
    assert decompress(Codec.NONE, b"1234", 4) == b"1234"
    with pytest.raises(PeerError, match="more than 3 bytes"):
        decompress(Codec.NONE, b"1234", 3)


def bomb(codec: Codec, size: int) -> bytes:
    if codec is Codec.SNAPPY:
        block = snappy.compress(bytes(1 << 20))
        return XERIAL + (struct.pack(">i", len(block)) + block) * (size >> 20)
    if codec is Codec.ZSTD:
        return zstd_stream(bytes(size))
    if codec is Codec.LZ4:
        return lz4.frame.compress(bytes(size), store_size=False)
    return gzip.compress(bytes(size))


@pytest.mark.parametrize("codec", CODECS)
def test_a_bomb_is_named_and_not_inflated(codec: Codec) -> None:
    packed = bomb(codec, 64 << 20)
    with pytest.raises(PeerError, match="decompress to more than 1000000 bytes") as caught:
        decompress(codec, packed, 1_000_000)
    assert caught.value.code is ErrorCode.CORRUPT_MESSAGE


MEASURE = """
import pickle, re, sys
from kop.errors import PeerError
from kop.records.compression import decompress

bound, bombs = pickle.load(sys.stdin.buffer)

def peak():
    return int(re.search(r"VmHWM:\\s+(\\d+) kB", open("/proc/self/status").read())[1]) * 1024

before = peak()
for codec, data in bombs:
    try:
        decompress(codec, data, bound)
    except PeerError:
        pass
    else:
        raise SystemExit(f"codec {codec} was inflated")
print(peak() - before)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="peak memory is read from /proc")
def test_memory_stays_bounded_under_bombs() -> None:
    """In a process of its own: its peak may grow by a few times the bound; the bombs hold 128 times as much."""
    bound = 2 << 20
    bombs = [(codec.value, bomb(codec, 256 << 20)) for codec in CODECS]
    bombs.append((Codec.SNAPPY.value, snappy.compress(bytes(64 << 20))))  # one raw block
    bombs.append((Codec.SNAPPY.value, b"\x80\x80\x80\x80\x0f" + b"a" * 40))  # one that says it holds 4 GiB
    done = subprocess.run(
        [sys.executable, "-c", MEASURE], input=pickle.dumps((bound, bombs)), capture_output=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) < 8 * bound


@pytest.mark.parametrize("said", [0, 1, 2**31, 2**32 - 1])
def test_what_gzip_says_of_its_size_is_only_a_hint(said: int) -> None:
    packed = gzip.compress(b"abc" * 1000)[:-4] + struct.pack("<I", said)
    with pytest.raises(PeerError):
        decompress(Codec.GZIP, packed, LIMIT)
    members = gzip.compress(b"abc" * 100_000) + gzip.compress(b"x")  # the last one's size is far too small
    assert bytes(decompress(Codec.GZIP, members, LIMIT)) == b"abc" * 100_000 + b"x"


def test_what_zstd_says_of_its_size_is_only_a_hint() -> None:
    frame = bytearray(zstandard.ZstdCompressor(write_content_size=True).compress(bytes(100_000)))
    packed = bytes(frame)
    for said in (0, 1, 2**20, 2**31):
        # single segment, 4 bytes of content size
        lying = packed[:4] + bytes([0xA0]) + struct.pack("<I", said) + packed[packed.index(b"\0", 5) :]
        with pytest.raises(PeerError):
            decompress(Codec.ZSTD, lying, LIMIT)
    two = zstandard.compress(b"x") + zstandard.compress(bytes(300_000))
    assert bytes(decompress(Codec.ZSTD, two, LIMIT)) == b"x" + bytes(300_000)


def test_a_zstd_window_that_would_take_gibibytes_is_refused() -> None:
    huge = struct.pack("<I", 0xFD2FB528) + b"\x00" + bytes([(31 - 10) << 3]) + b"\x01\x00\x00"
    with pytest.raises(PeerError) as caught:
        decompress(Codec.ZSTD, huge, LIMIT)
    assert caught.value.code is ErrorCode.CORRUPT_MESSAGE


def test_gzip_against_zlib() -> None:
    packer = zlib.compressobj(9, zlib.DEFLATED, 31)
    packed = packer.compress(b"abc" * 99) + packer.flush()
    assert bytes(decompress(Codec.GZIP, packed, LIMIT)) == b"abc" * 99
