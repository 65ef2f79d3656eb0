"""What brokers of one cluster share in Pulsar: who is live, producer ids, compaction of the internal topics."""
