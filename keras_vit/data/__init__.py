"""Sources of labelled images and the tf.data pipelines that turn them into batches.

    source ── load() ──► Splits ── pipeline() ──► batches of (images 0..255, labels)
                                      │
                                      ├── decode_image       bytes to uint8 pixels
                                      ├── training_image     a random crop and flip, and more
                                      └── evaluation_image   a resize and a central crop

Importing this package imports neither TensorFlow nor anything else that is heavy; calling it does.
"""

from .array_splits import ArraySplit
from .augmentation import AUGMENTATIONS, Augmentation
from .augmentation_plot import format_soft_label, plot_augmentations
from .decoder import decode_image
from .erasing import random_erasing
from .errors import BadImageError, DamagedShardError, DatasetUnavailableError
from .fallback import map_or_else
from .folder import FileSplit
from .headers import MAX_PIXELS
from .image_files import read_image
from .input_pipeline import pipeline
from .mixtures import cutmix, mixup
from .preprocessing import EVAL_TRANSFORMS, evaluation_image, training_image
from .rand_augment import OPERATIONS, rand_augment
from .records import RecordSplit
from .sources import load
from .splits import FileReport, Split, Splits
from .tfds import TFDSSplit

__all__ = [
    "AUGMENTATIONS",
    "EVAL_TRANSFORMS",
    "MAX_PIXELS",
    "OPERATIONS",
    "ArraySplit",
    "Augmentation",
    "BadImageError",
    "DamagedShardError",
    "DatasetUnavailableError",
    "FileReport",
    "FileSplit",
    "RecordSplit",
    "Split",
    "Splits",
    "TFDSSplit",
    "cutmix",
    "decode_image",
    "evaluation_image",
    "format_soft_label",
    "load",
    "map_or_else",
    "mixup",
    "pipeline",
    "plot_augmentations",
    "rand_augment",
    "random_erasing",
    "read_image",
    "training_image",
]
