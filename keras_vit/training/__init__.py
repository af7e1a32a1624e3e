"""From a recipe and a source of labelled images to a trained model and its report."""
