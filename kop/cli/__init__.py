"""The `kop` command: one file a sub-command. Only `serve` loads the server; the rest are Kafka clients."""
