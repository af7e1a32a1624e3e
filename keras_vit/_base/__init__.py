"""Checks, files, manifests, output folders: standard library alone."""
