"""kop: the Kafka protocol in front of Apache Pulsar, or of one durable file."""

__version__ = "0.1.0"
