"""Apache Kafka's answers to one who may do nothing, everything, or all but one thing: recorded once, for tests."""
