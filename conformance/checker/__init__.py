"""A checker of transactions: clients that commit, abort and copy under faults; then the history is looked through."""
