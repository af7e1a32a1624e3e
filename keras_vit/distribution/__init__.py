"""Training on many devices: what is cut how, as `keras.distribution` objects.

keras.distribution.set_distribution(keras_vit.distribution.fsdp())
model = keras_vit.ViTB16(num_classes=5)  # fit, evaluate, predict and save as on one device

On torch, keras_vit.distribution.initialize() comes first, and torchrun starts the script.
"""

from typing import TYPE_CHECKING

from keras_vit._base.old_names import old_names
from keras_vit.distribution.axes import KINDS
from keras_vit.distribution.kinds import data_parallel, fsdp, tensor_parallel
from keras_vit.distribution.launch import initialize
from keras_vit.distribution.table import layout_table
from keras_vit.ops import is_first_process

__all__ = [
    "KINDS",
    "data_parallel",
    "fsdp",
    "initialize",
    "is_first_process",
    "layout_table",
    "tensor_parallel",
]

if not TYPE_CHECKING:
    __getattr__ = old_names(
        "keras_vit.distribution",
        {
            "create": "keras_vit.distribution.kinds.distribution_of "
            "keras_vit.distribution.data_parallel(), .fsdp() or .tensor_parallel()"
        },
    )
