"""Where labeled images come from: folders, records, TFDS, arrays."""
