"""Topics, brokers and their configs, in Kafka's words."""
