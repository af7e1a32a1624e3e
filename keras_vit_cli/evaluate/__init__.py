"""keras-vit evaluate: tables of accuracy, and VTAB."""
