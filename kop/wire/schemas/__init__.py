"""Schemas of messages that kafka-python does not have, as facts of Kafka's protocol, in the form that it reads."""
