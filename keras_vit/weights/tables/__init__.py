"""The names that other packages give their tensors: one table per layout."""
