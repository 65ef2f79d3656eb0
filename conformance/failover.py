"""How transactions get on while the gateway is killed: python -m conformance.failover [--seconds N] [--embedded].

Transactional producers write small transactions to one gateway: for some time in peace, then while it is killed by
SIGKILL every few seconds and started again at once on the port that it had. It is measured how many records were
acknowledged in each part, and how long after its port was open again a gateway acknowledged the first transactional
record and the first commit.

Owns: the load, when the gateway is killed, what is measured of it.
Must not know: what is right (conformance.checker looks after that).

The exit code is 0 where the shares and times are within the limits, 1 where they are not, 2 where the run could not be
done.
"""

from __future__ import annotations

import argparse
import random
import secrets
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

from confluent_kafka import KafkaError, KafkaException, Message, Producer
from confluent_kafka.admin import AdminClient, NewTopic

from conformance.harness.targets import Target, embedded, over_pulsar
from conformance.servers import StartFailed

PRODUCERS = 4
TOPICS, PARTITIONS = 2, 2
RECORDS = 5
"""Of each transaction."""
SPACING = 4.0, 7.0
"""Seconds from the open port of a gateway to its end."""
LEAST_SHARE = 0.44
"""Of the records that are acknowledged in peace, those that have to be under kills in the same time."""
FIRST_SECONDS = 2.0
"""From the open port to the first acknowledged transactional record, at most."""
ANSWER_SECONDS = 30.0


class Load:
    """Transactional producers, each in a thread of its own, and when what they sent was acknowledged."""

    def __init__(self, bootstrap: str, run: str) -> None:
        self.acknowledged: list[float] = []
        """Times of records."""
        self.committed: list[float] = []
        """Times of transactions."""
        self._bootstrap = bootstrap
        self._run = run
        self._stop = threading.Event()
        self._threads = [threading.Thread(target=self._work, args=(number,)) for number in range(PRODUCERS)]

    def __enter__(self) -> Load:
        admin = AdminClient({"bootstrap.servers": self._bootstrap})
        topics = [NewTopic(f"{self._run}-{number}", PARTITIONS, 1) for number in range(TOPICS)]
        for future in admin.create_topics(topics, operation_timeout=60).values():
            future.result(90)
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join(2 * ANSWER_SECONDS)

    def _work(self, number: int) -> None:
        while not self._stop.is_set():
            producer = Producer(
                {
                    "bootstrap.servers": self._bootstrap,
                    "transactional.id": f"{self._run}-{number}",
                    "linger.ms": 1,
                    "reconnect.backoff.ms": 50,
                    "reconnect.backoff.max.ms": 200,
                    "log_level": 0,
                }
            )
            try:
                producer.init_transactions(ANSWER_SECONDS)
                while not self._stop.is_set():
                    self._transaction(producer)
            except KafkaException as failed:
                if not failed.args[0].fatal() and not self._stop.is_set():
                    print(f"producer {number} is made anew: {failed}", flush=True)

    def _transaction(self, producer: Producer) -> None:
        """Write a transaction, which is aborted where a record of it was refused. KafkaException: a new producer."""
        producer.begin_transaction()
        for _ in range(RECORDS):
            producer.produce(
                f"{self._run}-{random.randrange(TOPICS)}",
                secrets.token_bytes(50),
                partition=random.randrange(PARTITIONS),
                on_delivery=self._delivered,
            )
        try:
            producer.flush(ANSWER_SECONDS)
            producer.commit_transaction(ANSWER_SECONDS)
        except KafkaException as failed:
            error: KafkaError = failed.args[0]
            if not error.txn_requires_abort():
                raise
            producer.abort_transaction(ANSWER_SECONDS)
        else:
            self.committed.append(time.monotonic())

    def _delivered(self, error: KafkaError | None, _: Message) -> None:
        if error is None:
            self.acknowledged.append(time.monotonic())


def kill_repeatedly(target: Target, rng: random.Random, seconds: float) -> list[float]:
    """Kill the gateway every few seconds, and start it again at once; returns when its port was open each time."""
    (server,) = target.servers
    end = time.monotonic() + seconds
    opened: list[float] = []
    while (pause := rng.uniform(*SPACING)) < end - time.monotonic():
        time.sleep(pause)  # for so long the gateway serves
        server.kill()
        server.start()
        opened.append(time.monotonic())
    time.sleep(max(end - time.monotonic(), 0))  # what is left of the time
    return opened


def first_behind(times: Sequence[float], at: float) -> float:
    """Seconds from `at` to the first of these times behind it."""
    return min((each - at for each in times if each > at), default=float("inf"))


def count(times: Sequence[float], begin: float, end: float) -> int:
    """How many of these times lie between."""
    return sum(begin <= each < end for each in times)


def main() -> int:
    """Run it."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--seconds", type=float, default=60, help="of each part (60)")
    parser.add_argument("--seed", type=int, default=secrets.randbelow(10_000), help="repeats the plan of kills")
    parser.add_argument("--embedded", action="store_true", help="a gateway with the embedded engine")
    parser.add_argument("--folder", type=Path, help="for logs (a new one in /tmp)")
    given = parser.parse_args()
    folder = given.folder or Path(tempfile.mkdtemp(prefix="failover-"))
    folder.mkdir(parents=True, exist_ok=True)
    print(f"seed {given.seed}, folder {folder}", flush=True)
    try:
        with ExitStack() as stack:
            target = embedded(stack, folder) if given.embedded else over_pulsar(stack, folder, 1, restart=False)
            load = stack.enter_context(Load(target.bootstrap, f"failover-{secrets.token_hex(3)}"))
            while not load.committed:
                time.sleep(0.1)  # how often it is looked whether the load has begun
            peace = time.monotonic()
            time.sleep(given.seconds)  # the part in peace
            kills = time.monotonic()
            opened = kill_repeatedly(target, random.Random(given.seed), given.seconds)
            end = time.monotonic()
    except (StartFailed, KafkaException) as error:
        print(f"the run could not be done: {error}", file=sys.stderr)
        return 2
    firsts = [first_behind(load.acknowledged, at) for at in opened]
    for number, (at, first) in enumerate(zip(opened, firsts, strict=True), 1):
        print(
            f"kill {number}: open at {at - kills:.1f} s, first record after {first:.2f} s, first commit after "
            f"{first_behind(load.committed, at):.2f} s"
        )
    before, under = count(load.acknowledged, peace, kills), count(load.acknowledged, kills, end)
    share = under / max(before, 1)
    print(
        f"{given.seconds:.0f} s each: {before} records and {count(load.committed, peace, kills)} commits in peace, "
        f"{under} and {count(load.committed, kills, end)} with {len(opened)} kills: a share of {share:.2f}; the first "
        f"record came after {max(firsts):.2f} s at most"
    )
    return 0 if share >= LEAST_SHARE and max(firsts) <= FIRST_SECONDS else 1


if __name__ == "__main__":
    sys.exit(main())
