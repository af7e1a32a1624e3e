"""From a recipe and a source of labeled images to a trained model and its report."""
