"""Folders as transformers and timm write them: configurations beside weights."""
