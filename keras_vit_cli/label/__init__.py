"""`keras-vit label`: which images to label next, and a page to label them on."""
