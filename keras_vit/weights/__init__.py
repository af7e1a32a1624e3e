"""Reads and writes weights: one module per layout and file format, one table of released ones."""

from keras_vit.weights.catalog import list_weights
from keras_vit.weights.checkpoint_error import CheckpointError
from keras_vit.weights.containers.sums import verify_sums
from keras_vit.weights.folders.configs import folder_transform
from keras_vit.weights.load_report import Entry, LoadReport
from keras_vit.weights.loading import arguments_for, load
from keras_vit.weights.reader import load_weights
from keras_vit.weights.released import Weights
from keras_vit.weights.writer import save_weights

__all__ = [
    "CheckpointError",
    "Entry",
    "LoadReport",
    "Weights",
    "arguments_for",
    "folder_transform",
    "list_weights",
    "load",
    "load_weights",
    "save_weights",
    "verify_sums",
]
