"""Photographs in, batches out: sources of labelled images and the tf.data pipelines over them.

    source ── load() ──► Splits ── pipeline() ──► batches of (images 0..255, labels)
                                      │
                                      ├── decode_image       bytes to uint8 pixels
                                      ├── training_image     a random crop and flip, and more
                                      └── evaluation_image   a resize and a central crop

Importing this package imports neither TensorFlow nor anything else that is heavy; calling it does.
"""

from .augmentation import AUGMENTATIONS, Augmentation
from .decoding import decode_image
from .erasing import random_erasing
from .errors import BadImageError, DatasetUnavailableError
from .folder import FileSplit
from .guarding import attempt
from .headers import MAX_PIXELS
from .image_files import read_image
from .input_pipeline import pipeline
from .loading import load
from .mixing import cut_pairs, mix_pairs
from .preprocessing import EVALUATION, evaluation_image, training_image
from .rand_augment import OPERATIONS, rand_augment
from .sheet import augmentation_sheet
from .splits import ArraySplit, FileReport, Split, Splits
from .tfds import TFDSSplit

__all__ = [
    "AUGMENTATIONS",
    "EVALUATION",
    "MAX_PIXELS",
    "OPERATIONS",
    "ArraySplit",
    "Augmentation",
    "BadImageError",
    "DatasetUnavailableError",
    "FileReport",
    "FileSplit",
    "Split",
    "Splits",
    "TFDSSplit",
    "attempt",
    "augmentation_sheet",
    "cut_pairs",
    "decode_image",
    "evaluation_image",
    "load",
    "mix_pairs",
    "pipeline",
    "rand_augment",
    "random_erasing",
    "read_image",
    "training_image",
]
