"""The whole example by one command, with a gateway of its own that keeps nothing.

    kop spark run.py

It sends the clicks by a Kafka client, makes sessions of them in PySpark, and prints what a Kafka client reads.
"""

from __future__ import annotations

import os
import tempfile

import clicks  # type: ignore[import-not-found]  # beside this file
import read_sessions  # type: ignore[import-not-found]
import sessions  # type: ignore[import-not-found]

from kop.testing import Broker


def main() -> None:
    """Run the three steps."""
    with Broker() as broker, tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        clicks.main(broker.bootstrap)
        os.environ["KOP_BOOTSTRAP"] = broker.bootstrap
        sessions.main(f"{folder}/checkpoint")
        read_sessions.main(broker.bootstrap)


if __name__ == "__main__":
    main()
