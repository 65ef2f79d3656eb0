"""What the example wrote, as consumers get it.

python read_sessions.py BOOTSTRAP                      a Kafka client
python read_sessions.py PULSAR-URL TOPIC-IN-PULSAR     Pulsar's own client
"""

from __future__ import annotations

import json
import sys
from typing import Any, NamedTuple


class Session(NamedTuple):
    """A session; times in ms since the epoch, the end is the gap behind the last click."""

    user: str
    start: int
    end: int
    clicks: int
    pages: tuple[str, ...]


def _session(user: str, value: bytes) -> Session:
    fields: dict[str, Any] = json.loads(value)
    return Session(user, fields["start"], fields["end"], fields["clicks"], tuple(fields["pages"]))


def by_kafka(bootstrap: str, topic: str = "sessions") -> list[Session]:
    """All sessions that are committed, as kafka-python reads them."""
    from kafka import KafkaConsumer, TopicPartition

    sessions = []
    with KafkaConsumer(
        bootstrap_servers=bootstrap, isolation_level="read_committed", auto_offset_reset="earliest"
    ) as consumer:
        parts = [TopicPartition(topic, number) for number in consumer.partitions_for_topic(topic)]
        consumer.assign(parts)
        ends = consumer.end_offsets(parts)
        while any(consumer.position(part) < ends[part] for part in parts):
            for records in consumer.poll(timeout_ms=500).values():
                sessions += [_session(record.key.decode(), record.value) for record in records]
    return sorted(sessions)


def by_pulsar(url: str, topic: str, seconds: float = 10) -> list[Session]:
    """The same as Pulsar's client reads them, until none came for some seconds."""
    import pulsar

    client = pulsar.Client(url)
    try:
        consumer = client.subscribe(
            topic,
            "example-reader",
            initial_position=pulsar.InitialPosition.Earliest,
            consumer_type=pulsar.ConsumerType.Shared,
        )
        sessions: list[Session] = []
        while True:
            try:
                message = consumer.receive(int(seconds * 1000))
            except pulsar.Timeout:
                return sorted(sessions)
            sessions.append(_session(message.partition_key(), message.data()))
            consumer.acknowledge(message)
    finally:
        client.close()


def main(where: str, topic: str = "") -> None:
    """Print the sessions."""
    for session in by_pulsar(where, topic) if topic else by_kafka(where):
        seconds = (session.end - session.start) / 1000
        print(f"{session.user:6} {session.clicks:3} clicks in {seconds:6.1f} s on {' '.join(session.pages)}")


if __name__ == "__main__":
    main(*sys.argv[1:])
