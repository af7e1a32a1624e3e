"""`keras-vit predict`: what a model answers for any number of images, as a table or a file.

files, folders, patterns, lists ── image_paths ──► batches ── model ──► answers ── schema ──► rows
                                       ▲                                                       │
                                what is done ── answer_files ◄─────────────────────────────────┘
"""
