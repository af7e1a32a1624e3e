"""From a recipe and labeled images to a trained model."""

from keras_vit.training import recipes
from keras_vit.training.averaging import average_weights, model_stock
from keras_vit.training.callbacks import default_callbacks
from keras_vit.training.compilation import compile_model
from keras_vit.training.distillation import Distillation
from keras_vit.training.fitting import fit
from keras_vit.training.lora import enable_lora, merged
from keras_vit.training.masked_patches import MaskedPatchPrediction
from keras_vit.training.parameter_groups import ParameterGroup, freeze, layerwise_decay
from keras_vit.training.pretraining import pretrain
from keras_vit.training.resume import ResumableRun
from keras_vit.training.sam import sharpness_aware
from keras_vit.training.schedules import WarmupDecay
from keras_vit.training.visreg import unit_slices, visreg_loss

__all__ = [
    "Distillation",
    "MaskedPatchPrediction",
    "ParameterGroup",
    "ResumableRun",
    "WarmupDecay",
    "average_weights",
    "compile_model",
    "default_callbacks",
    "enable_lora",
    "fit",
    "freeze",
    "layerwise_decay",
    "merged",
    "model_stock",
    "pretrain",
    "recipes",
    "sharpness_aware",
    "unit_slices",
    "visreg_loss",
]
