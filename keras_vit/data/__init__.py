"""Photographs in, batches out: sources of labelled images and the tf.data pipelines over them.

    source ── load() ──► Splits ── pipeline() ──► batches of (images 0..255, labels)
                                      │
                                      ├── decode_image       bytes to uint8 pixels
                                      ├── training_image     a random crop and flip
                                      └── evaluation_image   a resize and a central crop

Importing this package imports neither TensorFlow nor anything else that is heavy; calling it does.
"""

from .augmentation import AUGMENTATIONS, Augmentation
from .decoding import decode_image
from .errors import BadImageError, DatasetUnavailableError
from .folder import FileSplit
from .input_pipeline import pipeline
from .loading import load
from .mixing import mix_pairs
from .preprocessing import EVALUATION, evaluation_image, training_image
from .splits import ArraySplit, FileReport, Split, Splits
from .tfds import TFDSSplit
from .verification import read_image

__all__ = [
    "AUGMENTATIONS",
    "EVALUATION",
    "ArraySplit",
    "Augmentation",
    "BadImageError",
    "DatasetUnavailableError",
    "FileReport",
    "FileSplit",
    "Split",
    "Splits",
    "TFDSSplit",
    "decode_image",
    "evaluation_image",
    "load",
    "mix_pairs",
    "pipeline",
    "read_image",
    "training_image",
]
