"""keras-vit plan: what a model and its training step cost."""
