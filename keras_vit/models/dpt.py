"""The DPT head: from blocks of a ViT to a map of the size of the image (Ranftl et al. 2021).

    grid_0 ... grid_3 ──► dpt_reassemble_i ──► dpt_fusion_0 (deepest) ... 3 ──► head_conv_0 ...

Its sizes by default are those of Depth Anything V2 (Yang et al. 2024), which `depth_anything_v2/
dpt.py` has for ViT-S, B and L.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, ClassVar

import keras

from keras_vit._base.errors import (
    check_above_zero,
    check_choice,
    check_finite,
    check_non_negative,
    check_positive,
)
from keras_vit.layers import FeatureFusion, MapResize, Reassemble
from keras_vit.layers.dense_prediction import BATCH_NORM, FACTORS, READOUTS

STAGES = len(FACTORS)
NECK_LAYERS = tuple(f"dpt_{part}_{i}" for part in ("reassemble", "fusion") for i in range(STAGES))
# Arguments of a DPTHead whose outputs are to mean something else than before.
NEW_OUTPUTS: dict[str, Any] = {"for_classes": None, "activation": "linear", "scale": 1.0}
ACTIVATIONS = ("linear", "relu", "sigmoid")
DROPOUT = 0.1  # before the classifier of segmentation, as in the paper's code


@dataclass(frozen=True, kw_only=True)
class DPTHead:
    """The options of a DPT head; what is None follows from the encoder.

    Args:
        blocks: The four blocks whose tokens it reads, from 0 on, in their order; None for the last
            of each quarter of the encoder, such as (2, 5, 8, 11) of 12. The last is its last.
        channels: Channels of the four maps while they are resized; None for an eighth, a quarter, a
            half and all of the width of the tokens.
        width: Channels of the maps that are fused, an even number; None for 64 up to a width of
            384, 128 up to 768, else 256.
        readout: `"ignore"`, or `"project"`, which joins the class token to every patch.
        normalized: Whether the encoder's last norm is applied to the tokens of every block, as
            Depth Anything does and the DPT of the paper does not.
        batch_norm: Whether the fusion has batch norms, as the paper's for segmentation.
        for_classes: Whether the last layers are those of segmentation (convolution, batch norm,
            dropout, linear layer, resize), or those of depth (convolution, resize, convolution,
            linear layer); None for the first where there are several outputs.
        depth_width: Channels between the last two layers of depth.
        activation: `"linear"`; `"relu"`, as of relative depth, or `"sigmoid"`, as of depth in
            meters up to `scale`.
        scale: What the outputs are multiplied by.

    Raises:
        ValueError: An argument is out of range.

    >>> DPTHead().resolved(hidden_dim=384, depth=12, outputs=1).channels
    (48, 96, 192, 384)
    """

    kind: ClassVar[str] = "dpt"
    title: ClassVar[str] = "DPT"  # in messages
    blocks: Sequence[int] | None = None
    channels: Sequence[int] | None = None
    width: int | None = None
    readout: str = "ignore"
    normalized: bool = True
    batch_norm: bool = False
    for_classes: bool | None = None
    depth_width: int = 32
    activation: str = "linear"
    scale: float = 1.0

    def __post_init__(self) -> None:
        for name in ("blocks", "channels"):
            values = getattr(self, name)
            if values is None:
                continue
            is_list = isinstance(values, Sequence) and not isinstance(values, str)
            if not is_list or len(values) != STAGES:
                raise ValueError(
                    f"{name}={values!r} of the DPT head must be {STAGES} integers, or None."
                )
            check = check_non_negative if name == "blocks" else check_positive
            check(**{f"{name}[{i}]": value for i, value in enumerate(values)})
            object.__setattr__(self, name, tuple(values))
        if self.width is not None:
            check_positive(width=self.width)
        check_positive(depth_width=self.depth_width)
        check_choice(self.readout, "readout", READOUTS)
        check_choice(self.activation, "activation", ACTIVATIONS)
        check_finite(scale=self.scale)
        check_above_zero(scale=self.scale)

    def resolved(self, hidden_dim: int, depth: int, outputs: int, **_: Any) -> DPTHead:
        """Return the options with a number in place of every None.

        Raises:
            ValueError: The blocks are not four of the encoder up to its last, in their order.
        """
        quarters = tuple(max(depth * (i + 1) // STAGES - 1, 0) for i in range(STAGES))
        blocks = quarters if self.blocks is None else tuple(self.blocks)
        if blocks[-1] != depth - 1 or list(blocks) != sorted(blocks):
            raise ValueError(
                f"blocks={blocks} of the DPT head are not {STAGES} blocks in their order, up to "
                f"the last of the encoder's {depth}: give for example {quarters}."
            )
        eighths = tuple(max(hidden_dim * part // 8, 1) for part in (1, 2, 4, 8))
        width = 64 if hidden_dim <= 384 else 128 if hidden_dim <= 768 else 256
        return replace(
            self,
            blocks=blocks,
            channels=eighths if self.channels is None else self.channels,
            width=width if self.width is None else self.width,
            for_classes=outputs > 1 if self.for_classes is None else self.for_classes,
        )

    def get_config(self) -> dict[str, Any]:
        """Return JSON values from which `map_heads.map_head_of` makes the same options."""
        return {k: list(v) if isinstance(v, tuple) else v for k, v in asdict(self).items()}


def neck(features: Mapping[str, Any], config: Any, head: DPTHead) -> Any:
    """Fuse the maps `grid_0` to `grid_3` of four blocks, from the deepest to the shallowest.

    Returns `(n, 8 rows, 8 columns, width)`.
    """
    assert head.channels is not None
    assert head.width is not None
    maps = []
    for i, (channels, factor) in enumerate(zip(head.channels, FACTORS, strict=True)):
        reassemble = Reassemble(
            channels,
            factor,
            head.width,
            head.readout,
            dtype=config.dtype,
            name=f"dpt_reassemble_{i}",
        )
        inputs = [features[f"grid_{i}"]]
        if head.readout == "project":
            inputs.append(features[f"grid_{i}_token"])
        maps.append(reassemble(*inputs))
    maps.reverse()
    fused: tuple[Any, ...] = ()
    for i, shallow in enumerate(maps):
        larger = maps[i + 1].shape[1:3] if i + 1 < STAGES else [2 * n for n in shallow.shape[1:3]]
        fusion = FeatureFusion(
            (larger[0], larger[1]), head.batch_norm, dtype=config.dtype, name=f"dpt_fusion_{i}"
        )
        fused = (fusion(*fused, shallow),)
    return fused[0]


def last_layers(maps: Any, config: Any, head: DPTHead, linear: Any) -> Any:
    """Compute the outputs of every pixel, float32 `(n, height, width, outputs)`.

    Args:
        linear: The function that applies the layer named `head`.
    """
    assert head.width is not None
    resize = MapResize(config.image_size, align_corners=True, dtype="float32", name="head_resize")
    if head.for_classes:
        maps = _convolution(config, head.width, "head_conv_0", use_bias=False)(maps)
        norm = keras.layers.BatchNormalization(dtype="float32", name="head_norm", **BATCH_NORM)
        maps = keras.layers.ReLU(dtype="float32", name="head_relu")(norm(maps))
        maps = keras.layers.Dropout(DROPOUT, dtype="float32", name="head_dropout")(maps)
        outputs = resize(linear(maps))
    else:
        maps = resize(_convolution(config, max(head.width // 2, 1), "head_conv_0")(maps))
        relu = {"activation": "relu"}
        outputs = linear(_convolution(config, head.depth_width, "head_conv_1", **relu)(maps))
    if head.activation == "linear" and head.scale == 1:
        return outputs
    activated = keras.layers.Activation(head.activation, dtype="float32", name="head_activation")
    rescale = keras.layers.Rescaling(head.scale, dtype="float32", name="logits")
    return rescale(activated(outputs))


def _convolution(config: Any, filters: int, name: str, **options: Any) -> Any:
    """Return a convolution of 3 x 3 pixels in the model's dtype."""
    return keras.layers.Conv2D(
        filters,
        3,
        padding="same",
        data_format="channels_last",
        dtype=config.dtype,
        name=name,
        **options,
    )
