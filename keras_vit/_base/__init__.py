"""Checks, files, manifests, output folders: the standard library and filelock."""
