"""A soak: Kafka and native writers on shared topics, two gateways, faults; then every acknowledgement is compared."""
