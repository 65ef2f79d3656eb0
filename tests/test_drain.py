"""SIGTERM and Ctrl-C: what is under way ends, data is synced, exit 0."""

from __future__ import annotations

import signal
import socket
import threading
import time
from pathlib import Path

import pytest
from confluent_kafka import Consumer, KafkaError, Message, Producer, TopicPartition
from support.child import child
from support.waiting import SECONDS, wait_until


@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_drains_and_exits_with_0_and_nothing_acknowledged_is_lost(
    tmp_path: Path, signum: signal.Signals
) -> None:
    acknowledged: list[int] = []

    def delivered(error: KafkaError | None, message: Message) -> None:
        if error is None:
            acknowledged.append(message.offset())

    with child(tmp_path) as server:
        producer = Producer(
            {
                "bootstrap.servers": server.address,
                "acks": "all",
                "linger.ms": 0,
                "message.timeout.ms": 60_000,
                "on_delivery": delivered,
                "log_level": 0,
            }
        )
        stop = threading.Event()

        def load() -> None:
            while not stop.is_set():
                try:
                    producer.produce("t", b"x" * 1000)
                except BufferError:  # the server is gone
                    stop.wait(0.01)
                producer.poll(0.0005)

        thread = threading.Thread(target=load)
        thread.start()
        wait_until(lambda: len(acknowledged) >= 50, "50 acknowledgements")
        server.signal(signum)
        assert server.wait() == 0
        stop.set()
        thread.join()
        producer.purge()
        producer.flush(5)
        assert "Traceback" not in server.log
        assert "stopped" in server.log
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.1", server.port), timeout=1)
        assert not (tmp_path / "kop.db-wal").exists() or (tmp_path / "kop.db-wal").stat().st_size == 0
        server.start()
        consumer = Consumer({"bootstrap.servers": server.address, "group.id": "g", "log_level": 0})
        end = consumer.get_watermark_offsets(TopicPartition("t", 0), timeout=SECONDS)[1]
        consumer.close()
        assert end > max(acknowledged)


def test_a_long_poll_does_not_hold_the_stop(tmp_path: Path) -> None:
    with child(tmp_path, kop_drain_timeout_ms="250000") as server:
        producer = Producer({"bootstrap.servers": server.address, "log_level": 0})
        producer.produce("t", b"x")
        assert producer.flush(SECONDS) == 0
        consumer = Consumer(
            {
                "bootstrap.servers": server.address,
                "group.id": "g",
                "fetch.wait.max.ms": 250_000,
                "socket.timeout.ms": 300_000,
                "auto.offset.reset": "earliest",
                "log_level": 0,
            }
        )
        consumer.subscribe(["t"])
        wait_until(lambda: consumer.poll(0.5), "the record")
        time.sleep(0.5)  # the next Fetch waits by now, as does a Heartbeat's turn
        server.signal(signal.SIGTERM)
        assert server.wait() == 0
        server.start()  # or the consumer would wait for minutes for its last answers
        consumer.close()
