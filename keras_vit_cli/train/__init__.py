"""keras-vit train: from images to a trained model, its report and its exported file."""
