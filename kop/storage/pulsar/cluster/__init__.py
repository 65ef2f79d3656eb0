"""The shared state of the brokers of a cluster in Pulsar: live brokers, producer ids, the gateway's small values.

Compaction of the internal topics is `kop.storage.pulsar.topics.compaction`.
"""
