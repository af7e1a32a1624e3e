"""keras-vit inspect: a page of what a model looks at."""
