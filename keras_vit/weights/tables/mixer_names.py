"""The `.npz` files of MLP-Mixer: vision_transformer's and big_vision's are the same.

The first files named and shaped everything otherwise (`Mixer/encoderblock_0/...`, kernels with
leading axes of one); they are read as well.
"""

from functools import partial

from keras_vit.weights.tables.flax_rows import dense, norm, under_prefix
from keras_vit.weights.tables.google import RELEASED_CODE
from keras_vit.weights.tables.layout import Codec, Layout, Row

MATRIX = Codec(lambda x: x.reshape(x.shape[-2:]), lambda x, _: x)
VECTOR = Codec(lambda x: x.reshape(x.shape[-1:]), lambda x, _: x)


def mixing(name: str) -> tuple[Row, ...]:
    """Return the rows of an MLP across tokens or channels."""
    return (
        *dense(f"{name}/Dense_0", f"{name}/dense_0", MATRIX, VECTOR),
        *dense(f"{name}/Dense_1", f"{name}/dense_1", MATRIX, VECTOR),
    )


MIXER = Layout(
    name="mixer",
    family="mixer",
    suffix=".npz",
    conventions=RELEASED_CODE,
    signature=r"(^|/)MixerBlock_0/token_mixing/",
    rows=(
        *dense("stem", "patch_embedding"),
        *norm("pre_head_layer_norm", "encoder_norm"),
        *dense("head", "head"),
    ),
    block="MixerBlock_{}/",
    block_rows=(
        *norm("LayerNorm_0", "norm_0"),
        *mixing("token_mixing"),
        *norm("LayerNorm_1", "norm_1"),
        *mixing("channel_mixing"),
    ),
    renames=(
        (r"(^|/)Mixer/encoderblock_(\d+)/", r"\1MixerBlock_\2/"),
        (r"(^|/)embedding/", r"\1stem/"),
        (r"(^|/)Mixer/encoder_norm/", r"\1pre_head_layer_norm/"),
        (r"_mixing_phase_0/(kernel|bias)1$", r"_mixing/Dense_0/\1"),
        (r"_mixing_phase_0/(kernel|bias)2$", r"_mixing/Dense_1/\1"),
    ),
    prepare=partial(under_prefix, root="stem/kernel"),
)
