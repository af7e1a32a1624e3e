"""Which variables a backend keeps for a layer."""

import keras


def track_variables_anew(layer: keras.layers.Layer) -> None:
    """Lets go of variables that sublayers have replaced: torch's registers keep the old ones."""
    if keras.backend.backend() == "torch":
        for each in layer._flatten_layers():
            each._track_variables()
