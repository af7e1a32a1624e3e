"""The `.npz` files of ResNets: BiT as released and as in big_vision, and its ResNet of version 1.

The hybrids' stem and units, in `google.py`, have the names of version 1.
"""

from functools import partial

from keras_vit.data.eval_transform import EvalTransform
from keras_vit.weights.tables.flax_rows import dense, norm, under_prefix
from keras_vit.weights.tables.layout import SAME, Codec, Layout, Row, SourceConventions

# Group norms of the older code have leading axes of one, those of linen do not. Both are read.
SCALE_4D = Codec(lambda x: x.reshape(x.shape[-1:]), lambda x, _: x.reshape(1, 1, 1, -1))
SCALE_1D = Codec(lambda x: x.reshape(x.shape[-1:]), SAME.write)
# A 1 x 1 convolution over one pixel is a dense layer.
DENSE_4D = Codec(lambda x: x.reshape(x.shape[-2:]), lambda x, _: x[None, None])

# A ResNet has one activation and no positions. big_transfer evaluates on a plain resize, see its
# bit_pytorch/train.py.
BIG_TRANSFER = SourceConventions("", 0.0, "inception", "zoom", EvalTransform("stretch"))
BIG_VISION = SourceConventions("", 0.0, "inception", "zoom", EvalTransform("big_vision"))


def unit_rows(codec: Codec, with_norm: bool) -> tuple[Row, ...]:
    """Return the rows of a unit; `with_norm` when its projection has a norm."""
    rows: list[Row] = []
    for i in (1, 2, 3):
        rows.append((f"conv{i}/kernel", (f"conv_{i}/kernel",), SAME))
        rows += norm(f"gn{i}", f"norm_{i}", codec)
    rows.append(("conv_proj/kernel", ("projection/kernel",), SAME))
    return (*rows, *(norm("gn_proj", "projection_norm", codec) if with_norm else ()))


def stem_rows(codec: Codec) -> tuple[Row, ...]:
    """Return the rows of version 1's stem."""
    return (
        ("conv_root/kernel", ("stem/conv/kernel",), SAME),
        *norm("gn_root", "stem/norm", codec),
    )


def _released_unit() -> tuple[Row, ...]:
    rows: list[Row] = []
    for i, letter in enumerate("abc", 1):
        kernel = f"{letter}/standardized_conv2d/kernel"
        rows += [
            (kernel, (f"conv_{i}/kernel",), SAME),
            (f"{letter}/group_norm/gamma", (f"norm_{i}/scale",), SAME),
            (f"{letter}/group_norm/beta", (f"norm_{i}/bias",), SAME),
        ]
    return (*rows, ("a/proj/standardized_conv2d/kernel", ("projection/kernel",), SAME))


# gs://bit_models, as TensorFlow wrote it.
BIT = Layout(
    name="bit",
    family="bit",
    suffix=".npz",
    conventions=BIG_TRANSFER,
    signature=r"^resnet/root_block/",
    rows=(
        ("resnet/root_block/standardized_conv2d/kernel", ("stem/conv/kernel",), SAME),
        ("resnet/group_norm/gamma", ("norm/scale",), SAME),
        ("resnet/group_norm/beta", ("norm/bias",), SAME),
        ("resnet/head/conv2d/kernel", ("head/kernel",), DENSE_4D),
        ("resnet/head/conv2d/bias", ("head/bias",), SAME),
    ),
    unit="resnet/block{}/unit{:02d}/",
    unit_rows=_released_unit(),
    # Some files count their convolutions.
    renames=((r"/standardized_conv2d_\d+/", "/standardized_conv2d/"),),
)

BIT_PAPER = Layout(
    name="bit_paper",
    family="bit",
    suffix=".npz",
    conventions=BIG_VISION,
    signature=r"(^|/)root_block/conv_root/kernel$",
    rows=(
        ("root_block/conv_root/kernel", ("stem/conv/kernel",), SAME),
        *norm("norm-pre-head", "norm", SCALE_4D),
        *dense("head", "head"),
    ),
    unit="block{}/unit{:02d}/",
    unit_rows=unit_rows(SCALE_4D, with_norm=False),
    prepare=partial(under_prefix, root="root_block/conv_root/kernel"),
)

BIT_V1 = Layout(
    name="bit_v1",
    family="bit_v1",
    suffix=".npz",
    conventions=BIG_VISION,
    signature=r"(^|/)block1/unit1/conv1/kernel$",
    rows=(*stem_rows(SCALE_1D), *dense("head", "head")),
    unit="block{}/unit{}/",
    unit_rows=unit_rows(SCALE_1D, with_norm=True),
    prepare=partial(under_prefix, root="conv_root/kernel"),
)
