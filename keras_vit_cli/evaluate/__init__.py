"""keras-vit evaluate: tables of accuracy."""
