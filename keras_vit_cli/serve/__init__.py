"""`keras-vit serve`: a model behind HTTP, and a page on which a person drops a photograph.

image bytes ── app ──► images (checked, decoded in threads) ──► batches ──► model ──► JSON
                                                                  ▲
                          a new file or numbered folder ── versions
"""
