"""The Vision Transformer for Keras 3: one definition on TensorFlow, JAX and PyTorch.

>>> import keras_vit
>>> model = keras_vit.ViTTi16(num_classes=5)
>>> model.count_params()
5525381
"""

import sys
from typing import TYPE_CHECKING

from keras_vit._base.installation import check_backend

if "keras" not in sys.modules:
    check_backend()  # Keras's own error does not say what to do

# `keras_vit.evaluation` and the like are there, too, and not among the names of the face.
from keras_vit import curation as curation
from keras_vit import data, distribution, layers, tasks
from keras_vit import evaluation as evaluation
from keras_vit import inspection as inspection
from keras_vit._base.old_names import old_names
from keras_vit._base.version import __version__
from keras_vit.applications import (
    ViTB8,
    ViTB16,
    ViTB32,
    ViTG14,
    ViTg14,
    ViTH14,
    ViTL16,
    ViTL32,
    ViTS16,
    ViTS32,
    ViTTi16,
    create,
)
from keras_vit.exporting import export
from keras_vit.models import VisionTransformer, list_models
from keras_vit.training import fit, recipes
from keras_vit.verbs import evaluate, predict
from keras_vit.weights import list_weights, load, load_weights, save_weights

__all__ = [
    "ViTB8",
    "ViTB16",
    "ViTB32",
    "ViTG14",
    "ViTH14",
    "ViTL16",
    "ViTL32",
    "ViTS16",
    "ViTS32",
    "ViTTi16",
    "ViTg14",
    "VisionTransformer",
    "__version__",
    "create",
    "data",
    "distribution",
    "evaluate",
    "export",
    "fit",
    "layers",
    "list_models",
    "list_weights",
    "load",
    "load_weights",
    "predict",
    "recipes",
    "save_weights",
    "tasks",
]

_MOVED = {
    "applications": "BiTR50x1 BiTR50x3 BiTR101x1 BiTR101x3 BiTR152x2 BiTR152x4 MixerB16 MixerB32 "
    "MixerH14 MixerL16 MixerL32 MixerS8 MixerS16 MixerS32 R26ViTB32 R26ViTS32 R50ViTB16 R50ViTL32 "
    "RViTTi16",
    "data": "DataRangeWarning",
    "models": "BiTResNet MLPMixer",
    "training": "Distillation MaskedPatchPrediction average_weights compile_model model_stock "
    "sharpness_aware",
    "weights": "CheckpointError LoadReport",
}
if not TYPE_CHECKING:
    __getattr__ = old_names(
        "keras_vit",
        {
            "average_views": "keras_vit.models.views.mean_of_views model.with_views",
            "export_model": "keras_vit.export",
            "from_checkpoint": "keras_vit.load",
            "load_model": "keras_vit.load",
            **{n: f"keras_vit.{room}.{n}" for room, names in _MOVED.items() for n in names.split()},
        },
    )
