"""Topics in Pulsar: the table, their ids, other namespaces, policies, deletion, and what a write needs of a topic."""
