"""The settings of the answers to requests. Owns: their names, defaults and limits."""

from __future__ import annotations

from kop.values import Int, Settings, setting


class HandlerSettings(Settings):
    """The settings of requests: how much clients may ask for, and what they may do to topics."""

    auto_create_topics_enable: bool = setting(
        "auto.create.topics.enable", True, "Create a topic when a client asks for its metadata and allows it."
    )
    delete_topic_enable: bool = setting("delete.topic.enable", True, "Let clients delete topics.")
    kop_max_partitions: Int = setting(
        "kop.max.partitions", 100_000, "Partitions of all topics together that clients may ask for.", ge=1
    )
    fetch_max_bytes: Int = setting(
        "fetch.max.bytes",
        57_671_680,
        "Most bytes of records in one Fetch response, a first larger batch aside.",
        ge=1024,
    )
    max_incremental_fetch_session_cache_slots: Int = setting(
        "max.incremental.fetch.session.cache.slots", 1000, "Incremental fetch sessions that are remembered.", ge=0
    )
