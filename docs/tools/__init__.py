"""Tools of the documentation site: `make docs`, `make guides`."""
