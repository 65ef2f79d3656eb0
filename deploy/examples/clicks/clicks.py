"""The clicks of the example, and what sends them: a Kafka client, and a Pulsar client beside it.

    python clicks.py BOOTSTRAP [PULSAR-URL TOPIC-IN-PULSAR]

Every user comes back some times, and clicks some times then. One click of the user `end`, hours later, tells the query
that nothing earlier is to come.
"""

from __future__ import annotations

import json
import random
import sys
import time
from collections.abc import Iterable
from typing import NamedTuple

TOPIC = "clicks"
USERS = ("ada", "ben", "cleo", "dora", "emil", "fay")
GAP_SECONDS = 10
"""A session is over when its user clicked nothing for so long."""


class Click(NamedTuple):
    """Who clicked what, and when (ms since the epoch)."""

    user: str
    page: str
    ms: int


def clicks(begin: int) -> list[list[Click]]:
    """The sessions of all users, from a time on (ms); always the same but for the time."""
    chance = random.Random(7)
    sessions = []
    for user in USERS:
        ms = begin
        for _ in range(4):
            ms += chance.randrange(60_000, 120_000)
            session = []
            for _ in range(chance.randrange(2, 7)):
                ms += chance.randrange(500, GAP_SECONDS * 1000 - 500)
                session.append(Click(user, f"/{chance.choice('abcdef')}", ms))
            sessions.append(session)
    return sessions


def the_end(begin: int) -> Click:
    """A click behind all sessions and everything that is late for them."""
    return Click("end", "/", begin + 4 * 3_600_000)


def send_by_kafka(bootstrap: str, clicks: Iterable[Click], topic: str = TOPIC) -> None:
    """Send clicks with kafka-python; the time of the click is the record's timestamp."""
    from kafka import KafkaProducer

    with KafkaProducer(bootstrap_servers=bootstrap) as producer:
        for click in clicks:
            value = json.dumps({"page": click.page}).encode()
            producer.send(topic, value, click.user.encode(), timestamp_ms=click.ms)
        producer.flush()


def send_by_pulsar(url: str, topic: str, clicks: Iterable[Click]) -> None:
    """Send clicks with Pulsar's own client; the time of the click is the message's event time."""
    import pulsar

    client = pulsar.Client(url)
    try:
        producer = client.create_producer(topic)
        for click in clicks:
            value = json.dumps({"page": click.page}).encode()
            producer.send(value, partition_key=click.user, event_timestamp=click.ms)
    finally:
        client.close()


def main(bootstrap: str, url: str = "", topic_in_pulsar: str = "") -> None:
    """Send all clicks; every other session by the Pulsar client where there is one."""
    begin = int(time.time() * 1000) - 6 * 3_600_000
    sessions = clicks(begin)
    others = sessions[1::2] if url else []
    own = sessions[::2] if url else sessions
    if url:
        send_by_pulsar(url, topic_in_pulsar, [click for session in others for click in session])
    send_by_kafka(bootstrap, [click for session in own for click in session] + [the_end(begin)])
    print(f"{sum(map(len, sessions))} clicks in {len(sessions)} sessions of {len(USERS)} users")


if __name__ == "__main__":
    main(*sys.argv[1:])
