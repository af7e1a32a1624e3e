"""Where labelled images come from: folders, records, TFDS, arrays."""
