"""Functions: a Python function between topics of any Kafka server, with Pulsar's API."""
