"""`keras-vit choose`: which weights are worth fine-tuning on a folder."""
