"""Transactions over Pulsar: a Kafka transaction is a Pulsar transaction, with whole batches in it."""
