"""Throughput, latency and CPU of `kop serve` and of Apache Kafka, in one run with the same client."""
