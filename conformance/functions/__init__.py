"""Functions under faults: instances are killed, paused, replaced; what comes out is compared with a clean run."""
