"""Training on many devices: what is cut how, as `keras.distribution` objects.

keras.distribution.set_distribution(keras_vit.distribution.create("fsdp"))
model = keras_vit.ViTB16(num_classes=5)  # fit, evaluate, predict and save as on one device

On torch, keras_vit.distribution.initialize() comes first, and torchrun starts the script.
"""

from keras_vit.distribution.axes import KINDS
from keras_vit.distribution.kinds import create
from keras_vit.distribution.launch import initialize
from keras_vit.distribution.table import layout_table
from keras_vit.ops import is_first_process

__all__ = ["KINDS", "create", "initialize", "is_first_process", "layout_table"]
