"""Reads and writes weights: one module per layout and file format, one table of released ones."""

from keras_vit.checkpoints.catalogue import list_weights
from keras_vit.checkpoints.errors import CheckpointError
from keras_vit.checkpoints.folder_configs import folder_transform
from keras_vit.checkpoints.models import arguments_for, from_checkpoint, load_model
from keras_vit.checkpoints.reader import load_weights
from keras_vit.checkpoints.released import Weights
from keras_vit.checkpoints.report import Entry, LoadReport
from keras_vit.checkpoints.sums import verify_sums
from keras_vit.checkpoints.writer import save_weights

__all__ = [
    "CheckpointError",
    "Entry",
    "LoadReport",
    "Weights",
    "arguments_for",
    "folder_transform",
    "from_checkpoint",
    "list_weights",
    "load_model",
    "load_weights",
    "save_weights",
    "verify_sums",
]
