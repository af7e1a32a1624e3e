"""`keras-vit serve`: a model behind HTTP, and a page on which a person drops a photograph.

image bytes ── app ──► images (checked, decoded in threads) ──► batches ──► model ──► JSON
                                                                  ▲
                          a new file or numbered folder ── versions
"""

from keras_vit_cli.serve.server import serve

__all__ = ["serve"]
