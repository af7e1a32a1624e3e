"""The Transformer encoder as a stack of blocks (ViT paper, equations 2 and 3)."""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

from keras_vit.layers import EncoderBlock
from keras_vit.models.config import ViTConfig


class Encoded(NamedTuple):
    """What an encoder returns.

    Attributes:
        features: The output of every block by name, `block_0` and so on.
        tokens: The last of them, `(batch, length, hidden_dim)`.
        first_tokens: Computes so many of these tokens alone, `(batch, number, hidden_dim)`.
        token_index: `(index,)` after token merging (see `MergingEncoderBlock`), else ().
    """

    features: dict[str, Any]
    tokens: Any
    first_tokens: Callable[[int], Any]
    token_index: tuple[Any, ...] = ()


def plain_encoder(tokens: Any, config: ViTConfig, **shared: Any) -> Encoded:
    """Equations 2 and 3, block by block, which share `angles` of positions or a `bias`."""
    features: dict[str, Any] = {}
    for i in range(config.depth):
        block, inputs = EncoderBlock(**config.block(i)), tokens
        features[f"block_{i}"] = tokens = block(inputs, **shared)
    return Encoded(features, tokens, partial(first_tokens_alone, block, inputs, shared))


def first_tokens_alone(
    block: EncoderBlock, tokens: Any, shared: dict[str, Any], number: int
) -> Any:
    """The last block with the class token as the only query, or with the first tokens.

    No logit depends on what the last block makes of the patches: this gives identical logits with
    6 % fewer operations for ViT-B.
    """
    return block(tokens[:, :number], context=tokens, **shared)
