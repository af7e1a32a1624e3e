"""The linear heads of masks that DINOv2 and DINOv3 are released with: in a file without an encoder.

A batch norm and a convolution of one pixel on the last block's normalized patches: DINOv2's
`decode_head` (eval/segmentation/models/decode_heads/linear_head.py), and DINOv3's `LinearHead`,
which its training writes as `segmentation_model.1`.
"""

from keras_vit.data.eval_transform import EvalTransform
from keras_vit.weights.tables.huggingface_dpt import PIXEL, batch_norm
from keras_vit.weights.tables.layout import Layout, SourceConventions, weight_and_bias

DINO_LINEAR_HEAD = Layout(
    name="dino_linear_head",
    suffix=".safetensors",
    # Not asked for: those of the encoder's file hold.
    conventions=SourceConventions("gelu", 1e-6, "imagenet", "bicubic", EvalTransform()),
    signature=r"^batchnorm_layer\.running_mean$",
    rows=(*weight_and_bias("conv", "head", PIXEL), *batch_norm("batchnorm_layer", "head_norm")),
    block="",
    block_rows=(),
    renames=(
        (r"^module\.", ""),
        (r"^(segmentation_model\.1|decode_head)\.", ""),
        (r"^conv_seg\.", "conv."),
        (r"^bn\.", "batchnorm_layer."),
    ),
    ignored=(r"num_batches_tracked$",),
    is_head=True,
)
