"""Topics in Pulsar: their table, ids, policies and deletion, topics of other namespaces, and what a write needs."""
