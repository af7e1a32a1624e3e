"""Other people's weight files, in and out: one module an origin, one table of released weights."""

from keras_vit.checkpoints.building import arguments_for, from_checkpoint
from keras_vit.checkpoints.catalogue import list_weights
from keras_vit.checkpoints.errors import CheckpointError
from keras_vit.checkpoints.loading import load_weights
from keras_vit.checkpoints.model_file import load_model
from keras_vit.checkpoints.released import Weights
from keras_vit.checkpoints.report import Entry, LoadReport
from keras_vit.checkpoints.saving import save_weights
from keras_vit.checkpoints.sums import verify_sums

__all__ = [
    "CheckpointError",
    "Entry",
    "LoadReport",
    "Weights",
    "arguments_for",
    "from_checkpoint",
    "list_weights",
    "load_model",
    "load_weights",
    "save_weights",
    "verify_sums",
]
