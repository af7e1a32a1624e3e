"""`keras-vit compare`: several models on the same images that none of them was made with."""
