"""`keras-vit audit`: what is wrong in a folder, a page to decide on it, and the cleaned lists."""
