"""Masked patch prediction: the ViT paper's self-supervision (section 4.6, appendix B.1.2).

    images ──► patch embeddings ──► half of them corrupted ──► encoder ──► head ──► 512 colors
       └─────► mean color of the corrupted patches, three bits per channel ─────► labels

It needs no labels, and trains the model's own layers: for transfer, fine-tune the model itself. It
is for millions of images: on thousands it gains nothing that can be seen, and `pretrain` is for
those.
"""

from typing import Any, Self

import keras
import numpy as np
from keras import ops

from keras_vit._base.errors import check_positive
from keras_vit.layers.configured import Shape
from keras_vit.layers.tokens import TOKEN_INITIALIZER
from keras_vit.models.normalization import own_statistics
from keras_vit.models.vit import VisionTransformer
from keras_vit.ops import random_rows
from keras_vit.trainer.compiled_model import CompiledModel

# Arguments of `CorruptPatches`.
_CORRUPTION = ("mask_ratio", "mask_token_probability", "random_patch_probability", "seed")


@keras.saving.register_keras_serializable(package="keras_vit")
class MaskedPatchPrediction(CompiledModel):
    """A Vision Transformer that learns to predict the mean color of patches it does not see.

    Takes images as the model does, `(batch, height, width, channels)`, and returns a dictionary:
    `"logits"`, float32 `(batch, corrupted, colors)`, and the labels, `"colors"`, int32
    `(batch, corrupted)`. Half of the patches are corrupted, different ones in every training step;
    `evaluate` and `predict` always corrupt the same ones, so that their results are comparable.

    It shares the layers of `model`, from the patch embedding to the last norm: after `fit`, `model`
    itself is pre-trained. `fit` takes images alone, and ignores labels that come with them.
    Compile with a loss and metrics for one-hot rows and logits, or with
    `compile_model(task, keras_vit.recipes.get("masked_patches"), total_steps)`.

    Args:
        model: A `VisionTransformer` or a hybrid, for a fixed image size. Without preprocessing
            layers it must take pixels in [-1, 1], from which the colors are computed.
        mask_ratio: Fraction of the patches that are corrupted and predicted, in (0, 1].
        mask_token_probability: Probability that a corrupted patch becomes the mask token.
        random_patch_probability: Probability that it becomes another patch of the image. Otherwise
            it stays as it is.
        bits: Bits of a color per channel: 3 are 512 colors.
        seed: Seed of the corruption; with None, that of `keras.utils.set_random_seed` counts.
        name: Name of the task.

    Attributes:
        backbone: `model`, or a copy of it when loaded from a file. Its pooling and head are not
            trained by the task and not saved with it: save the model itself to keep them.

    Raises:
        ValueError: The model is not a Vision Transformer, takes images of any size or bands in a
            range of their own, or merges or drops patches; the patches of a hybrid do not divide
            its images; or a number is out of range.

    Example:

    >>> import keras, keras_vit, numpy as np
    >>> images = np.random.default_rng(0).integers(0, 256, (8, 16, 16, 3))
    >>> model = keras_vit.VisionTransformer(
    ...     patch_size=4, hidden_dim=16, depth=1, num_heads=2, num_classes=5,
    ...     input_shape=(16, 16, 3))
    >>> task = keras_vit.training.MaskedPatchPrediction(model)
    >>> task.compile("adam", keras.losses.CategoricalCrossentropy(from_logits=True))
    >>> history = task.fit(images, verbose=0)  # without labels
    >>> {name: outputs.shape for name, outputs in task.output.items()}
    {'logits': (None, 8, 512), 'colors': (None, 8)}
    >>> classifier = model.with_classifier(10)  # or go on with the model itself
    """

    backbone: VisionTransformer
    _rows_are_independent = False  # one draw of random numbers corrupts the patches of a batch

    def __init__(
        self,
        model: VisionTransformer,
        mask_ratio: float = 0.5,
        mask_token_probability: float = 0.8,
        random_patch_probability: float = 0.1,
        bits: int = 3,
        seed: int | None = None,
        name: str | None = None,
    ) -> None:
        check_positive(bits=bits)
        _check_model(model)
        corrupt = CorruptPatches(
            mask_ratio,
            mask_token_probability,
            random_patch_probability,
            seed,
            dtype=model.get_layer("patch_embedding").dtype_policy,
            name="corrupt_patches",
        )
        channels = model.inputs[0].shape[-1 if model.data_format == "channels_last" else 1]
        head = keras.layers.Dense(
            2 ** (bits * channels), kernel_initializer="zeros", dtype="float32", name="head"
        )
        features = model.feature_model(["patches", "encoder_norm"]).output
        embed = keras.Model(model.inputs[0], features["patches"], name="embedding")
        encode = keras.Model(features["patches"], features["encoder_norm"], name="encoder")

        images = keras.Input(model.inputs[0].shape[1:], name="images")
        patches, chosen = corrupt(embed(images))
        tokens = encode(patches)[:, model.num_prefix_tokens :]
        pixels = images if model.include_preprocessing else (images + 1) * 127.5
        colors = patch_colors(pixels, model.patch_pixels, bits, model.data_format)
        outputs = {
            "logits": head(ops.take_along_axis(tokens, chosen[:, :, None], axis=1)),
            "colors": ops.take_along_axis(colors, chosen, axis=1),
        }
        super().__init__(images, outputs, name=name)
        # Hidden from Keras's tracking: the model's pooling and head are not part of the task.
        self.__dict__["backbone"] = model
        self.bits = bits

    @property
    def _convolves(self) -> bool:
        return self.backbone._convolves

    def compute_loss(
        self, x: Any, y: Any, y_pred: Any, sample_weight: Any = None, training: bool = True
    ) -> Any:
        """Return the compiled loss of the logits; `y` is ignored, as `y_pred` has the labels."""
        logits = y_pred["logits"]
        return super().compute_loss(x, _one_hot_colors(y_pred), logits, sample_weight, training)

    def compute_metrics(self, x: Any, y: Any, y_pred: Any, sample_weight: Any = None) -> Any:
        """Return the compiled metrics of the logits, likewise."""
        return super().compute_metrics(x, _one_hot_colors(y_pred), y_pred["logits"], sample_weight)

    def get_config(self) -> dict[str, Any]:
        corrupt = self.get_layer("corrupt_patches").get_config()
        return {
            "model": keras.saving.serialize_keras_object(self.backbone),
            **{name: corrupt[name] for name in _CORRUPTION},
            "bits": self.bits,
            "name": self.name,
        }

    @classmethod
    def from_config(cls, config: dict[str, Any], custom_objects: Any = None) -> "Self":
        model = keras.saving.deserialize_keras_object(config["model"], custom_objects)
        return cls(**{**config, "model": model})


@keras.saving.register_keras_serializable(package="keras_vit")
class CorruptPatches(keras.layers.Layer):
    """Replaces patch embeddings by a learned mask token or by each other, as BERT does words.

    Takes the grid `(batch, grid_h, grid_w, hidden_dim)`. Returns it corrupted, and the indices of
    the corrupted patches, row by row, int32 `(batch, corrupted)`, equally many in every image.
    Random in every training step; always the same outside of training.

    Args:
        mask_ratio: See `MaskedPatchPrediction`, also for the other arguments. At least one patch is
            corrupted; a random patch comes from the same image.

    Raises:
        ValueError: A number is out of range.

    Source: ViT paper, appendix B.1.2, which does not say of which image the other patch is.

    >>> patches, chosen = CorruptPatches()(keras.ops.ones((2, 4, 4, 8)))
    >>> tuple(patches.shape), tuple(chosen.shape)
    ((2, 4, 4, 8), (2, 8))
    """

    def __init__(
        self,
        mask_ratio: float = 0.5,
        mask_token_probability: float = 0.8,
        random_patch_probability: float = 0.1,
        seed: int | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        if not 0 < mask_ratio <= 1:
            raise ValueError(f"mask_ratio={mask_ratio!r} must be in (0, 1], such as 0.5.")
        probabilities = mask_token_probability, random_patch_probability
        if min(probabilities) < 0 or sum(probabilities) > 1:
            raise ValueError(
                f"mask_token_probability={mask_token_probability!r} and random_patch_probability="
                f"{random_patch_probability!r} must be 0 or more and at most 1 in sum, such as "
                "0.8 and 0.1."
            )
        self.mask_ratio = mask_ratio
        self.mask_token_probability = mask_token_probability
        self.random_patch_probability = random_patch_probability
        self.seed = seed
        self.seed_generator = keras.random.SeedGenerator(seed)

    def build(self, patches_shape: Shape) -> None:
        self.mask_token = self.add_weight(
            name="mask_token", shape=(patches_shape[-1],), initializer=TOKEN_INITIALIZER
        )

    def call(self, patches: Any, training: bool = False) -> Any:
        _, grid_h, grid_w, hidden_dim = patches.shape
        count = grid_h * grid_w
        embeddings = ops.reshape(patches, (-1, count, hidden_dim))
        seed = self.seed_generator if training else 0
        uniform = random_rows(
            lambda rows: keras.random.uniform((3, rows, count), dtype="float32", seed=seed),
            ops.shape(patches)[0],
            axis=1,
        )
        order = ops.argsort(uniform[0], axis=1)
        chosen = order[:, : max(round(self.mask_ratio * count), 1)]
        corrupted = ops.argsort(order, axis=1) < chosen.shape[1]
        # 1 to count - 1 places further on, around the end: never the patch itself.
        offset = 1 + ops.cast(uniform[2] * (count - 1), "int32")
        others = ops.take_along_axis(
            embeddings, ((ops.arange(count) + offset) % count)[:, :, None], axis=1
        )
        mask = corrupted & (uniform[1] < self.mask_token_probability)
        either = uniform[1] < self.mask_token_probability + self.random_patch_probability
        replace = corrupted & ~mask & either
        embeddings = ops.where(replace[:, :, None], others, embeddings)
        token = ops.cast(self.mask_token, patches.dtype)
        embeddings = ops.where(mask[:, :, None], token, embeddings)
        grid = ops.reshape(embeddings, (-1, grid_h, grid_w, hidden_dim))
        return grid, ops.cast(chosen, "int32")

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), **{name: getattr(self, name) for name in _CORRUPTION}}


def patch_colors(
    images: Any, patch_size: tuple[int, int], bits: int = 3, data_format: str = "channels_last"
) -> Any:
    """Return the mean color of every patch, as one of `2 ** (bits * channels)` classes.

    Args:
        images: Pixels 0..255, `(batch, height, width, channels)`, or channels first; an array, a
            tensor or a Keras tensor.
        patch_size: Height and width of a patch in pixels.
        bits: Bits per channel, whose range is divided into `2 ** bits` equal parts.
        data_format: `"channels_last"` or `"channels_first"`.

    Returns:
        int32 `(batch, patches)`, row by row. The first channel is the most significant: three bits
        of RGB are `64 red + 8 green + blue`, each 0..7.

    Source: ViT paper, appendix B.1.2.

    >>> orange = np.full((1, 8, 4, 3), [255, 130, 31])
    >>> keras.ops.convert_to_numpy(patch_colors(orange, (4, 4))).tolist()  # 7 * 64 + 4 * 8 + 0
    [[480, 480]]
    """
    images = ops.cast(images, "float32")
    if data_format == "channels_first":
        images = ops.transpose(images, (0, 2, 3, 1))
    means = ops.average_pool(images, patch_size, patch_size, "valid", "channels_last")
    parts = 2**bits
    levels = ops.cast(ops.clip(ops.floor(means * (parts / 256)), 0, parts - 1), "int32")
    powers = parts ** np.arange(images.shape[-1], dtype="int32")[::-1]
    return keras.layers.Reshape((-1,), dtype="int32")(ops.sum(levels * powers, axis=-1))


def _one_hot_colors(y_pred: Any) -> Any:
    logits = y_pred["logits"]
    return ops.one_hot(y_pred["colors"], logits.shape[-1], dtype=logits.dtype)


def _check_model(model: VisionTransformer) -> None:
    if not isinstance(model, VisionTransformer):
        raise ValueError(
            f"{type(model).__name__} does not have patch tokens to mask. Give a VisionTransformer."
        )
    if own_statistics(model) is not None:
        raise ValueError(
            f"{model.name} takes bands in a range of their own, and colors are those of pixels 0 "
            'to 255. Give a model with normalization="inception", or call pretrain(model, images).'
        )
    shape = model.inputs[0].shape[1:]
    features = model.feature_model(["patches", "encoder_norm"]).output
    _, grid_h, grid_w, _ = features["patches"].shape
    if grid_h is None or grid_w is None:
        raise ValueError(
            f"{model.name} takes images of any size, {shape}. Masked patches "
            "need a fixed number: give model.with_input_shape((224, 224, 3))."
        )
    tokens = features["encoder_norm"].shape[1] - model.num_prefix_tokens
    drops_patches = any(layer.name == "patch_dropout" for layer in model.layers)
    if tokens != grid_h * grid_w or drops_patches:
        raise ValueError(
            f"{model.name} merges or drops patches, whose colors then cannot be predicted. "
            "Give a model with token_merging=0 and patch_dropout=0."
        )
    # The colors are means over whole patches of the image.
    size = shape[:2] if model.data_format == "channels_last" else shape[1:]
    patch_h, patch_w = model.patch_pixels
    if (size[0] // patch_h) * (size[1] // patch_w) != grid_h * grid_w:
        raise ValueError(
            f"{model.name} makes {grid_h} x {grid_w} patches of {model.patch_pixels} pixels of "
            f"images of {shape}. Give an input_shape that they divide."
        )
