"""The EoMT head: queries pass the last blocks of the ViT itself (Kerssies et al. 2025).

    tokens ──► eomt_queries in front ──► last blocks ──► encoder_norm ──► eomt_classes, eomt_masks

"Your ViT is Secretly an Image Segmentation Model", arXiv 2503.19108: the encoder does what
Mask2Former adds an adapter, a pixel decoder and a Transformer decoder for.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any, ClassVar

import keras

from keras_vit._base.errors import check_choice, check_non_negative, check_positive
from keras_vit.layers import (
    MapResize,
    MaskedQueries,
    MaskUpscale,
    QueryMasks,
    QueryTokens,
    SemanticMaps,
    SplitTokens,
    TokensToGrid,
)

MOST_UPSCALE_BLOCKS = 8
# Queries without a class to answer slow the first steps: see docs/tasks.md.
LEAST_QUERIES, MOST_QUERIES = 10, 100
# What a new head of the same kind takes over, and what is new in it.
QUERY_LAYERS = (
    "eomt_queries",
    "eomt_masks",
    *(f"eomt_upscale_{i}" for i in range(MOST_UPSCALE_BLOCKS)),
)
CLASSES = "eomt_classes"
# Widest tokens -> blocks that the queries pass: S and B, L, and any wider (configs/ of the code).
BLOCKS = ((768, 3), (1024, 4), (math.inf, 5))


@dataclass(frozen=True, kw_only=True)
class EoMTHead:
    """The options of an EoMT head; what is None follows from the encoder.

    Args:
        queries: How many segments an image can have at most: 100 for ADE20k, 200 for COCO in the
            paper; None for two per class, 10 at least and 100 at most.
        blocks: How many of the last blocks the queries pass; None for 3 up to a width of 768, 4 up
            to 1024, else 5, as in the paper.
        upscale_blocks: How often the sides of the maps are doubled; None for as often as leaves 4
            pixels of the image for one of the maps, once at least.
        activation: Of the head, as of `MLP`.
        masked: Whether a query attends in these blocks only to the patches inside its mask, the
            intermediate one, which is computed for it, after training too. Trained models do not:
            training begins with masks and ends without (see `tasks.query_losses.QueryLoss`).

    Raises:
        ValueError: An argument is out of range.

    >>> EoMTHead().resolved(hidden_dim=1024, depth=24, outputs=150, patch_size=(16, 16)).blocks
    4
    """

    kind: ClassVar[str] = "eomt"
    title: ClassVar[str] = "EoMT"  # in messages
    activation: str = "gelu"
    queries: int | None = None
    blocks: int | None = None
    upscale_blocks: int | None = None
    masked: bool = False

    def __post_init__(self) -> None:
        if self.queries is not None:
            check_positive(queries=self.queries)
        if self.blocks is not None:
            check_positive(blocks=self.blocks)
        if self.upscale_blocks is not None:
            check_non_negative(upscale_blocks=self.upscale_blocks)
            check_choice(self.upscale_blocks, "upscale_blocks", range(MOST_UPSCALE_BLOCKS + 1))
        check_choice(self.masked, "masked", (True, False))

    def resolved(
        self, hidden_dim: int, depth: int, outputs: int, patch_size: tuple[int, int]
    ) -> EoMTHead:
        """Return the options with a number in place of every None.

        Raises:
            ValueError: The encoder has fewer blocks, or there are no classes.
        """
        if outputs == 0:
            raise ValueError(
                "num_classes=0 leaves the queries of the EoMT head without a class: give the "
                'number of classes, or map_head="linear".'
            )
        usual = next(blocks for width, blocks in BLOCKS if hidden_dim <= width)
        blocks = min(usual, depth) if self.blocks is None else self.blocks
        if blocks > depth:
            raise ValueError(
                f"blocks={blocks} of the EoMT head are more than the encoder's {depth}: give at "
                f"most {depth}."
            )
        steps = self.upscale_blocks
        if steps is None:
            steps = max(int(math.log2(max(patch_size))) - 2, 1)
        queries = self.queries
        if queries is None:
            queries = min(max(2 * outputs, LEAST_QUERIES), MOST_QUERIES)
        return replace(self, blocks=blocks, upscale_blocks=steps, queries=queries)

    def get_config(self) -> dict[str, Any]:
        """Return JSON values from which `map_heads.map_head_of` makes the same options."""
        return {"kind": self.kind, **asdict(self)}


class Queries:
    """The layers of the head, which every prediction shares.

    Args:
        config: That of the model.
        patches: `(n, rows, columns, d)`, for the grid.
        norm: The last norm of the encoder, through which each prediction reads the tokens.
        built: Layers by name that there are already, which then are taken in place of new ones.
    """

    def __init__(
        self, config: Any, patches: Any, norm: Any, built: Mapping[str, keras.layers.Layer]
    ) -> None:
        self.head: EoMTHead = config.map_head
        assert self.head.upscale_blocks is not None
        assert self.head.queries is not None
        self.number = self.head.queries
        self.config, self.patches, self.norm, self.built = config, patches, norm, built
        steps, activation = range(self.head.upscale_blocks), self.head.activation
        self.upscale = [
            self.layer(MaskUpscale, activation, name=f"eomt_upscale_{i}") for i in steps
        ]
        self.masks = self.layer(QueryMasks, activation, name="eomt_masks")
        # Float32 under every policy, and zeros, as every head.
        zeros = {"kernel_initializer": "zeros", "dtype": "float32"}
        self.classes = self.layer(keras.layers.Dense, config.num_classes + 1, **zeros, name=CLASSES)

    def layer(self, cls: Any, *args: Any, name: str, **options: Any) -> Any:
        """Return the layer of that name, or a new one of a class."""
        if name in self.built:
            return self.built[name]
        return cls(*args, **{"dtype": self.config.dtype, **options}, name=name)

    def add(self, tokens: Any) -> Any:
        """Return the tokens with the queries in front."""
        return self.layer(QueryTokens, self.number, name="eomt_queries")(tokens)

    def split(self, tokens: Any, name: str) -> tuple[Any, Any]:
        """Return the queries, and the other tokens."""
        split = self.layer(SplitTokens, self.number, name=f"eomt_split_{name}")
        queries, others = split(tokens)
        return queries, others

    def predict(self, queries: Any, others: Any, name: str) -> tuple[Any, Any]:
        """Return the logits of masks `(n, h, w, queries)` and of classes `(n, queries, c + 1)`.

        The last class is that of no object.
        """
        queries, tokens = self.norm(queries), self.norm(others)
        options = {"data_format": "channels_last", "name": f"eomt_grid_{name}"}
        grid = self.layer(TokensToGrid, self.config.num_prefix_tokens, **options)
        maps = grid(tokens, self.patches)
        for layer in self.upscale:
            maps = layer(maps)
        return self.masks(queries, maps), self.classes(queries)

    def attention_mask(self, mask_logits: Any, name: str, is_masked: Any) -> Any:
        """Return the `mask` of a block, from the masks that are predicted in front of it."""
        _, rows, columns, _ = self.patches.shape
        resize = self.layer(MapResize, (rows, columns), name=f"eomt_resize_{name}")
        mask = self.layer(MaskedQueries, self.config.num_prefix_tokens, name=f"eomt_mask_{name}")
        return mask(resize(mask_logits), is_masked)


def semantic_outputs(features: Any, config: Any) -> Any:
    """Return the scores of every pixel as logits, `(n, height, width, classes)`: `SemanticMaps`."""
    resize = MapResize(config.image_size, dtype="float32", name="head_resize")
    score = SemanticMaps(dtype="float32", name="logits")
    return score(resize(features["mask_logits"]), features["class_logits"])
