"""`keras-vit search` and `keras-vit cluster`: what an index shows, as a page and a CSV file."""
