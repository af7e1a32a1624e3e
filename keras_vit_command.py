"""Starts `keras-vit`. A module of its own, since importing keras_vit imports the backend."""

import os


def main() -> int:
    """Runs the command line, without TensorFlow's notes about processors and plug-ins."""
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")  # has no effect once TensorFlow is imported
    from keras_vit.cli import main as run

    return run()
