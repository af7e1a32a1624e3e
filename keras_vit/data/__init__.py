"""Sources of labeled images, and the pipelines of tf.data or Grain that turn them into batches.

    source ── load() ──► Splits ── pipeline() ──► batches of (images 0..255, labels)
                                      │
                                      ├── decode_image       bytes to uint8 pixels
                                      ├── training_image     a random crop and flip, and more
                                      └── evaluation_image   a resize and a central crop

Importing this package imports neither TensorFlow nor anything else that is heavy; calling it does.
"""

from keras_vit._base.errors import DataRangeWarning
from keras_vit.data.augment.augmentation import AUGMENTATIONS, Augmentation
from keras_vit.data.augment.augmentation_plot import format_soft_label, plot_augmentations
from keras_vit.data.augment.rand_augment import OPERATIONS
from keras_vit.data.augment.training_image import training_boxes, training_image, training_mask
from keras_vit.data.band_statistics import band_statistics
from keras_vit.data.data_errors import BadImageError, DamagedShardError, DatasetUnavailableError
from keras_vit.data.decode.decoder import decode_image
from keras_vit.data.decode.fallback import map_or_else
from keras_vit.data.decode.headers import MAX_PIXELS
from keras_vit.data.decode.image_files import read_image
from keras_vit.data.eval_transform import EvalTransform
from keras_vit.data.input_pipeline import pipeline
from keras_vit.data.preprocessing import EVAL_TRANSFORMS, evaluation_image
from keras_vit.data.sources.array_splits import ArraySplit
from keras_vit.data.sources.cached_files import cached_photographs
from keras_vit.data.sources.folder import FileSplit
from keras_vit.data.sources.load import load
from keras_vit.data.sources.records import RecordSplit
from keras_vit.data.sources.splits import FileReport, Split, Splits
from keras_vit.data.sources.tfds import TFDSSplit

__all__ = [
    "AUGMENTATIONS",
    "EVAL_TRANSFORMS",
    "MAX_PIXELS",
    "OPERATIONS",
    "ArraySplit",
    "Augmentation",
    "BadImageError",
    "DamagedShardError",
    "DataRangeWarning",
    "DatasetUnavailableError",
    "EvalTransform",
    "FileReport",
    "FileSplit",
    "RecordSplit",
    "Split",
    "Splits",
    "TFDSSplit",
    "band_statistics",
    "cached_photographs",
    "decode_image",
    "evaluation_image",
    "format_soft_label",
    "load",
    "map_or_else",
    "pipeline",
    "plot_augmentations",
    "read_image",
    "training_boxes",
    "training_image",
    "training_mask",
]
