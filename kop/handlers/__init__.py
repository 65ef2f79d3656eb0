"""The handlers of Kafka's APIs, one module a family; `registry` is the only source of ApiVersions."""
