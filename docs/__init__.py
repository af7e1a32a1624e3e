"""The documentation; `docs.tools` builds the site."""
