"""One partition: its log, appends, producers, and what Pulsar holds back of it."""
