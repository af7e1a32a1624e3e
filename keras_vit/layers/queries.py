"""Queries that pass the last blocks of a ViT and become masks (EoMT; Kerssies et al. 2025).

    QueryTokens ──► blocks ──► SplitTokens ──► queries ──┐
                                    └► patches ──► MaskUpscale ──► QueryMasks ──► SemanticMaps

They compute what transformers' `modeling_eomt.py` computes. `MaskedQueries` is the attention mask.
"""

from typing import Any

import keras
from keras import ops

from keras_vit._base.errors import check_positive
from keras_vit.layers._dense import Dense
from keras_vit.layers.activations import activation_function
from keras_vit.layers.composite import CompositeLayer
from keras_vit.layers.configured import ConfiguredLayer, Shape
from keras_vit.layers.dense_prediction import PixelUpsample
from keras_vit.layers.tokens import RegisterTokens

NORM_EPSILON = 1e-6  # of the norms between the maps, whatever that of the encoder
# That of torch's Embedding: queries begin far apart. A configuration, as those of `tokens`.
QUERY_INITIALIZER = {"class_name": "RandomNormal", "config": {"stddev": 1.0}}
SMALLEST_SCORE = 1e-30  # whose logarithm is finite in float32


@keras.saving.register_keras_serializable(package="keras_vit")
class QueryTokens(RegisterTokens):
    """Puts learned queries in front of all tokens (EoMT, section 3.2).

    Takes `(batch, length, hidden_dim)`, returns `(batch, num_tokens + length, hidden_dim)`.

    Args:
        num_tokens: Number of queries.

    Raises:
        ValueError: It is not a positive integer.

    Example:

    >>> import keras, keras_vit
    >>> tuple(keras_vit.layers.QueryTokens(5)(keras.ops.ones((2, 17, 8))).shape)
    (2, 22, 8)
    """

    initializer: Any = QUERY_INITIALIZER

    def __init__(self, num_tokens: int, after: int = 0, **kwargs: Any) -> None:
        check_positive(num_tokens=num_tokens)
        super().__init__(num_tokens, after, **kwargs)


@keras.saving.register_keras_serializable(package="keras_vit")
class SplitTokens(ConfiguredLayer):
    """Splits a sequence into its first tokens and the others.

    Takes `(batch, length, hidden_dim)`, returns `(batch, number, hidden_dim)` and
    `(batch, length - number, hidden_dim)`.

    Args:
        number: How many are the first ones.

    Example:

    >>> import keras, keras_vit
    >>> parts = keras_vit.layers.SplitTokens(5)(keras.ops.ones((2, 22, 8)))
    >>> [tuple(part.shape) for part in parts]
    [(2, 5, 8), (2, 17, 8)]
    """

    def __init__(self, number: int, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        check_positive(number=number)
        self.number = number

    def call(self, tokens: Any) -> tuple[Any, Any]:
        return tokens[:, : self.number], tokens[:, self.number :]

    def compute_output_shape(self, tokens_shape: Shape) -> tuple[Shape, Shape]:
        batch, length, hidden_dim = tokens_shape
        rest = None if length is None else length - self.number
        return (batch, self.number, hidden_dim), (batch, rest, hidden_dim)


@keras.saving.register_keras_serializable(package="keras_vit")
class MaskUpscale(CompositeLayer):
    """Doubles the sides of maps: transposed convolution, activation, 3 x 3 depthwise, layer norm.

    Takes `(batch, rows, columns, channels)`, returns `(batch, 2 rows, 2 columns, channels)`.

    Args:
        activation: As of `MLP`.

    Example:

    >>> import keras, keras_vit
    >>> tuple(keras_vit.layers.MaskUpscale()(keras.ops.ones((2, 3, 5, 8))).shape)
    (2, 6, 10, 8)
    """

    def __init__(self, activation: str = "gelu", **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.activation = activation
        self.activation_function = activation_function(activation)
        self.upsample = self.sublayer(PixelUpsample, 2, name="upsample")
        self.convolution = self.sublayer(
            keras.layers.DepthwiseConv2D,
            3,
            padding="same",
            use_bias=False,
            data_format="channels_last",
            name="convolution",
        )
        norm = keras.layers.LayerNormalization
        self.norm = self.sublayer(norm, epsilon=NORM_EPSILON, name="norm")

    def build(self, maps_shape: Shape) -> None:
        self.upsample.build(maps_shape)
        for layer in (self.convolution, self.norm):
            layer.build(self.compute_output_shape(maps_shape))

    def call(self, maps: Any) -> Any:
        maps = self.activation_function(self.upsample(maps))
        return self.cast(self.norm(self.convolution(maps)))

    def compute_output_shape(self, maps_shape: Shape) -> Shape:
        batch, *sides, channels = maps_shape
        return batch, *(None if side is None else 2 * side for side in sides), channels


@keras.saving.register_keras_serializable(package="keras_vit")
class QueryMasks(CompositeLayer):
    """Makes a mask of each query: the products of its embedding with every pixel of the maps.

    Takes queries `(batch, queries, hidden_dim)` and maps `(batch, rows, columns, hidden_dim)`,
    returns logits `(batch, rows, columns, queries)`. Three dense layers embed a query.

    Args:
        activation: Between the dense layers, as of `MLP`.

    Example:

    >>> import keras, keras_vit
    >>> queries, maps = keras.ops.ones((2, 5, 8)), keras.ops.ones((2, 6, 4, 8))
    >>> tuple(keras_vit.layers.QueryMasks()(queries, maps).shape)
    (2, 6, 4, 5)
    """

    def __init__(self, activation: str = "gelu", **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.activation = activation
        self.activation_function = activation_function(activation)

    def build(self, queries_shape: Shape, maps_shape: Shape) -> None:
        for i in range(3):
            dense = self.sublayer(Dense, queries_shape[-1], name=f"dense_{i}")
            dense.build(queries_shape)
            setattr(self, f"dense_{i}", dense)

    def call(self, queries: Any, maps: Any) -> Any:
        for dense in (self.dense_0, self.dense_1):
            queries = self.activation_function(dense(queries))
        queries = self.cast(self.dense_2(queries))
        rows, columns, channels = maps.shape[1:]
        # Products of matrices of three axes, which every exported format has.
        pixels = ops.reshape(maps, (-1, rows * columns, channels))
        masks = ops.matmul(pixels, ops.transpose(queries, (0, 2, 1)))
        return ops.reshape(masks, (-1, rows, columns, queries.shape[1]))

    def compute_output_shape(self, queries_shape: Shape, maps_shape: Shape) -> Shape:
        return *maps_shape[:3], queries_shape[1]


@keras.saving.register_keras_serializable(package="keras_vit")
class MaskedQueries(ConfiguredLayer):
    """Lets a query attend to the patches inside its mask alone (EoMT, section 3.3).

    Takes the mask logits at the places of the patches, `(batch, rows, columns, queries)`, and
    returns what a block takes as `mask`, bool `(batch, 1, tokens, tokens)` for the sequence of
    queries, `num_prefix_tokens` and patches. A query attends to all queries and to the tokens in
    front of the patches as well, which attend to everything, as patches do. With `is_masked`, bool
    `(batch, queries)`, only these queries are held to their masks (mask annealing).

    Args:
        num_prefix_tokens: Tokens between the queries and the patches: class token and registers.

    Example:

    >>> import keras, keras_vit
    >>> masks = keras_vit.layers.MaskedQueries(1)(-keras.ops.ones((1, 1, 2, 1)))
    >>> keras.ops.convert_to_numpy(masks)[0, 0].astype(int).tolist()
    [[1, 1, 0, 0], [1, 1, 1, 1], [1, 1, 1, 1], [1, 1, 1, 1]]
    """

    def __init__(self, num_prefix_tokens: int = 1, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.num_prefix_tokens = num_prefix_tokens

    def call(self, mask_logits: Any, is_masked: Any = None) -> Any:
        rows, columns, queries = mask_logits.shape[1:]
        before = queries + self.num_prefix_tokens
        inside = ops.reshape(mask_logits, (-1, rows * columns, queries)) > 0
        if is_masked is not None:
            inside = inside | ops.logical_not(is_masked)[:, None]
        inside = ops.pad(
            ops.transpose(inside, (0, 2, 1)), ((0, 0), (0, 0), (before, 0)), "constant", True
        )
        rest = before - queries + rows * columns
        return ops.pad(inside, ((0, 0), (0, rest), (0, 0)), "constant", True)[:, None]

    def compute_output_spec(self, mask_logits: Any, is_masked: Any = None) -> keras.KerasTensor:
        batch, rows, columns, queries = mask_logits.shape
        tokens = queries + self.num_prefix_tokens + rows * columns
        return keras.KerasTensor((batch, 1, tokens, tokens), "bool")


@keras.saving.register_keras_serializable(package="keras_vit")
class SemanticMaps(ConfiguredLayer):
    """Scores the classes of every pixel by the masks and classes of all queries.

    Takes mask logits `(batch, height, width, queries)` and class logits
    `(batch, queries, 1 + classes)`, of which the last is for no object. A class has the sum over
    the queries of the probability that the pixel is in the mask, times that of the class
    (MaskFormer, Cheng et al. 2021, section 3.4). Returns the logarithm of these scores
    `(batch, height, width, classes)`: their softmax is the part that each class has of
    the sum, and the largest score stays the largest.

    Example:

    >>> import keras, keras_vit
    >>> masks, classes = keras.ops.ones((2, 6, 4, 5)), keras.ops.ones((2, 5, 3))
    >>> tuple(keras_vit.layers.SemanticMaps()(masks, classes).shape)
    (2, 6, 4, 2)
    """

    def build(self, mask_logits_shape: Shape, class_logits_shape: Shape) -> None:
        """Does nothing: there are no weights to create."""

    def call(self, mask_logits: Any, class_logits: Any) -> Any:
        masks, classes = (ops.cast(x, "float32") for x in (mask_logits, class_logits))
        height, width, queries = mask_logits.shape[1:]
        inside = ops.reshape(ops.sigmoid(masks), (-1, height * width, queries))
        classes = ops.softmax(classes, axis=-1)[..., :-1]
        scores = ops.matmul(inside, classes)
        scores = ops.reshape(scores, (-1, height, width, classes.shape[-1]))
        return ops.cast(ops.log(ops.maximum(scores, SMALLEST_SCORE)), self.compute_dtype)

    def compute_output_shape(self, mask_logits_shape: Shape, class_logits_shape: Shape) -> Shape:
        assert class_logits_shape[-1] is not None
        return *mask_logits_shape[:3], class_logits_shape[-1] - 1
