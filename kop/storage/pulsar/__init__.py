"""The engine over Apache Pulsar: topics live there, Kafka and Pulsar clients share them."""
