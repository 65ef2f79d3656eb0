"""Reading entries of Pulsar: as batches, at any place, by time and offset, in bounded memory."""
