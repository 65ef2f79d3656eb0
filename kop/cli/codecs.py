"""The changes to kafka-python's clients: compression through cramjam, so that no codec needs a package of its own, and
topics of any name.

Owns: the four functions that kafka-python takes from optional packages (python-snappy, lz4, zstandard).
Must not know: anything of kop. It changes kafka-python's modules for the whole process: commands only.
"""

from __future__ import annotations

from types import SimpleNamespace

import cramjam


def lz4_encode(payload: bytes | memoryview) -> bytes:
    """Compress to an LZ4 frame of independent blocks: Kafka's Java client refuses linked ones."""
    stream = cramjam.lz4.Compressor(block_linked=False, content_checksum=False)
    stream.compress(bytes(payload))
    return bytes(stream.finish())


def lz4_decode(payload: bytes | memoryview) -> bytes:
    """Decompress an LZ4 frame."""
    return bytes(cramjam.lz4.decompress(bytes(payload)))


def zstd_encode(payload: bytes | memoryview) -> bytes:
    """Compress to a zstd frame."""
    return bytes(cramjam.zstd.compress(bytes(payload)))


def zstd_decode(payload: bytes | memoryview) -> bytes:
    """Decompress zstd frames."""
    return bytes(cramjam.zstd.decompress(bytes(payload)))


def install() -> None:
    """Give kafka-python every codec, and let it take any name of a topic, so that the server decides which names are
    legal. Cheap to call again.
    """
    from kafka import cluster, codec
    from kafka.consumer import subscription_state
    from kafka.record import default_records

    codec.snappy = SimpleNamespace(
        compress=lambda data: bytes(cramjam.snappy.compress_raw(bytes(data))),
        decompress=lambda data: bytes(cramjam.snappy.decompress_raw(bytes(data))),
    )
    codec.lz4 = codec.zstd = cramjam  # only asked whether it is there
    default_records.lz4_encode, default_records.lz4_decode = lz4_encode, lz4_decode
    default_records.zstd_encode, default_records.zstd_decode = zstd_encode, zstd_decode
    # A gateway has topics named TENANT/NAMESPACE/TOPIC.
    cluster.ensure_valid_topic_name = subscription_state.ensure_valid_topic_name = lambda _name: None
