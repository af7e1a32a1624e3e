"""The encoder made of the blocks of `layers/merging.py`, where the matching of patches is.

Source: "Token Merging: Your ViT But Faster" (Bolya et al. 2023).
"""

from typing import Any

from keras_vit.layers import EncoderBlock, MergingEncoderBlock
from keras_vit.models.config import ViTConfig
from keras_vit.models.encoder import Encoded


def merging_encoder(tokens: Any, config: ViTConfig) -> Encoded:
    """Blocks before the first that merges are plain; `block_i_token_index` maps input tokens.

    Source: Bolya et al. 2022, section 3.
    """
    features: dict[str, Any] = {}
    index: tuple[Any, ...] = ()
    first = next(i for i, merge in enumerate(config.merging) if merge)
    for i in range(first):
        features[f"block_{i}"] = tokens = EncoderBlock(**config.block(i))(tokens)
    for i in range(first, config.depth):
        block = MergingEncoderBlock(
            **config.block(i), merge=config.merging[i], num_prefix_tokens=config.num_prefix_tokens
        )
        tokens, token_index = block(tokens, *index)
        features[f"block_{i}"], features[f"block_{i}_token_index"] = tokens, token_index
        index = (token_index,)
    return Encoded(features, tokens, index)
