"""What brokers of one cluster share in Pulsar: who is live, producer ids, small values of the gateway's own.

Compaction of the internal topics is `kop.storage.pulsar.topics.compaction`.
"""
