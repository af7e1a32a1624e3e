"""The Transformer encoder as a stack of blocks (ViT paper, equations 2 and 3)."""

from typing import Any, NamedTuple

from keras_vit.layers import EncoderBlock
from keras_vit.models.config import ViTConfig


class Encoded(NamedTuple):
    """What an encoder returns.

    Attributes:
        features: The output of every block by name, `block_0` and so on.
        tokens: The last of them, `(batch, length, hidden_dim)`.
        token_index: `(index,)` after token merging (see `MergingEncoderBlock`), else ().
    """

    features: dict[str, Any]
    tokens: Any
    token_index: tuple[Any, ...] = ()


def plain_encoder(tokens: Any, config: ViTConfig, **shared: Any) -> Encoded:
    """Equations 2 and 3, block by block, which share `angles` of positions or a `bias`."""
    features: dict[str, Any] = {}
    for i in range(config.depth):
        features[f"block_{i}"] = tokens = EncoderBlock(**config.block(i))(tokens, **shared)
    return Encoded(features, tokens)
