"""What the gateway does for each Kafka API, one module a family; `registry` is the only source of ApiVersions."""
