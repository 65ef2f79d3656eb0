"""What can be set of the answers to requests.

Owns: the settings and their defaults.
Must not know: who sets them.
"""

from __future__ import annotations

from kop.values import Int, Settings, kafka, own


class HandlerSettings(Settings):
    """How much clients may ask for, and what they may do to topics."""

    auto_create_topics_enable: bool = kafka(
        "auto.create.topics.enable", True, "Create a topic when a client asks for its metadata and allows it."
    )
    delete_topic_enable: bool = kafka("delete.topic.enable", True, "Let clients delete topics.")
    kop_max_partitions: Int = own(
        "kop.max.partitions", 100_000, "Partitions of all topics together that clients may ask for.", ge=1
    )
    fetch_max_bytes: Int = kafka(
        "fetch.max.bytes",
        57_671_680,
        "Most bytes of records in one Fetch response, a first larger batch aside.",
        ge=1024,
    )
    max_incremental_fetch_session_cache_slots: Int = kafka(
        "max.incremental.fetch.session.cache.slots", 1000, "Incremental fetch sessions that are remembered.", ge=0
    )
