"""Masked patch prediction: the ViT paper's self-supervision (section 4.6, appendix B.1.2).

    images ──► patch embeddings ──► half of them corrupted ──► the encoder ──► head ──► 512 colours
       └─────► mean colour of the corrupted patches, three bits a channel ─────────────► the truth

No label is needed. The model's own layers are trained, so transfer is nothing but going on with it.
"""

from typing import TYPE_CHECKING, Any

import keras
import numpy as np
from keras import ops

from keras_vit.errors import check_positive
from keras_vit.layers.patches import Shape
from keras_vit.layers.tokens import TOKEN_INITIALIZER
from keras_vit.models.compiled import CompiledModel
from keras_vit.models.vit import VisionTransformer

if TYPE_CHECKING:
    from typing import Self  # Python 3.11


@keras.saving.register_keras_serializable(package="keras_vit")
class MaskedPatchPrediction(CompiledModel):
    """A Vision Transformer that learns to tell the mean colour of patches it does not see.

    Takes images as the model does, `(batch, height, width, channels)`, and returns a dictionary:
    `"logits"`, float32 `(batch, corrupted, colours)`, and the truth beside them, `"colours"`,
    int32 `(batch, corrupted)`. Half of the patches are corrupted, other ones in every step; in
    `evaluate` and `predict` always the same ones, so that two figures can be compared.

    It shares the layers of `model`, from the patch embedding to the last norm: after `fit`, `model`
    itself is pre-trained. `fit` takes images alone; labels that come with them are not looked at.
    Compile with a loss and metrics for one-hot rows of logits, or with
    `compile_model(task, keras_vit.recipes.get("masked_patches"), total_steps)`.

    Args:
        model: A `VisionTransformer` or a hybrid, for images of a fixed size. Without
            preprocessing of its own it must take pixels in [-1, 1], from which colours are read.
        share: Of the patches that are corrupted and predicted, in (0, 1].
        masked: Of these, how many become the mask token.
        swapped: Of these, how many become the embedding of another patch of the image. The rest is
            kept as it is.
        bits: Of a colour, for each channel: 3 are 512 colours.
        seed: Of the draws. Together with `keras.utils.set_random_seed` None is as reproducible.
        name: Name of the task.

    Attributes:
        backbone: `model`, or when loaded from a file, its like. Pooling and head, which the task
            does not train, are not in its file: save the model itself to keep them.

    Raises:
        ValueError: The model is no Vision Transformer, takes images of any size, or merges or
            drops patches; the patches of a hybrid do not divide its images; or a number is out of
            range.

    Example:

    >>> import keras, keras_vit, numpy as np
    >>> images = np.random.default_rng(0).integers(0, 256, (8, 16, 16, 3))
    >>> model = keras_vit.VisionTransformer(
    ...     patch_size=4, hidden_dim=16, depth=1, num_heads=2, num_classes=5,
    ...     input_shape=(16, 16, 3))
    >>> task = keras_vit.MaskedPatchPrediction(model)
    >>> task.compile("adam", keras.losses.CategoricalCrossentropy(from_logits=True))
    >>> history = task.fit(images, verbose=0)  # without any label
    >>> {name: outputs.shape for name, outputs in task.output.items()}
    {'logits': (None, 8, 512), 'colours': (None, 8)}
    >>> classifier = model.with_classifier(10)  # or go on with the model itself
    """

    backbone: VisionTransformer

    def __init__(
        self,
        model: VisionTransformer,
        share: float = 0.5,
        masked: float = 0.8,
        swapped: float = 0.1,
        bits: int = 3,
        seed: int | None = None,
        name: str | None = None,
    ) -> None:
        if not isinstance(model, VisionTransformer):
            raise ValueError(
                f"{type(model).__name__} has no patch tokens to mask. Give a VisionTransformer."
            )
        check_positive(bits=bits)
        parts = model.feature_model(["patches", "encoder_norm"]).output
        _, grid_h, grid_w, _ = parts["patches"].shape
        if grid_h is None or grid_w is None:
            raise ValueError(
                f"{model.name} takes images of any size, {model.input_shape[1:]}. Masked patches "
                "need a fixed number: give model.with_input_shape((224, 224, 3))."
            )
        images = keras.Input(model.input_shape[1:], name="images")
        embed = keras.Model(model.inputs[0], parts["patches"], name="embedding")
        encode = keras.Model(parts["patches"], parts["encoder_norm"], name="encoder")

        corrupt = CorruptPatches(
            share,
            masked,
            swapped,
            seed,
            dtype=model.get_layer("patch_embedding").dtype_policy,
            name="corrupt_patches",
        )
        patches, chosen = corrupt(embed(images))
        tokens = encode(patches)[:, model.num_prefix_tokens :]
        dropped = any(layer.name == "patch_dropout" for layer in model.layers)
        if tokens.shape[1] != grid_h * grid_w or dropped:
            raise ValueError(
                f"{model.name} merges or drops patches, whose colours nothing is left to tell "
                "from. Give a model with token_merging=0 and patch_dropout=0."
            )
        pixels = images if model.include_preprocessing else (images + 1) * 127.5
        colours = patch_colours(pixels, model.patch_pixels, bits, model.data_format)
        if colours.shape[1] != grid_h * grid_w:
            raise ValueError(
                f"{model.name} makes {grid_h} x {grid_w} patches of {model.patch_pixels} pixels of "
                f"images of {model.input_shape[1:]}. Give an input_shape that they divide."
            )
        channels = model.input_shape[-1 if model.data_format == "channels_last" else 1]
        head = keras.layers.Dense(
            2 ** (bits * channels), kernel_initializer="zeros", dtype="float32", name="head"
        )
        outputs = {
            "logits": head(ops.take_along_axis(tokens, chosen[:, :, None], axis=1)),
            "colours": ops.take_along_axis(colours, chosen, axis=1),
        }
        super().__init__(images, outputs, name=name)
        # Past Keras's tracking: pooling and head of the model are no part of this one.
        self.__dict__["backbone"] = model
        self.bits = bits

    @property
    def _convolves(self) -> bool:
        return self.backbone._convolves

    def compute_loss(
        self,
        x: Any = None,
        y: Any = None,
        y_pred: Any = None,
        sample_weight: Any = None,
        training: bool = True,
    ) -> Any:
        """The compiled loss of the logits, whatever `y` is: the truth comes with them."""
        logits = y_pred["logits"]
        return super().compute_loss(x, _truth(y_pred), logits, sample_weight, training)

    def compute_metrics(self, x: Any, y: Any, y_pred: Any, sample_weight: Any = None) -> Any:
        """The compiled metrics of the logits, likewise."""
        return super().compute_metrics(x, _truth(y_pred), y_pred["logits"], sample_weight)

    def get_config(self) -> dict[str, Any]:
        corrupt = self.get_layer("corrupt_patches").get_config()
        return {
            "model": keras.saving.serialize_keras_object(self.backbone),
            **{name: corrupt[name] for name in ("share", "masked", "swapped", "seed")},
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

    Takes the grid `(batch, grid_h, grid_w, hidden_dim)`; returns it corrupted, and where: numbers
    of patches, row by row, int32 `(batch, corrupted)`. In every image as many are corrupted; what
    becomes of one of them is drawn for itself. Other draws in every training step; outside of
    training always the same.

    Args:
        share: Of the patches that are corrupted, in (0, 1]; at least one patch is.
        masked: Probability that one of these becomes the mask token.
        swapped: Probability that it becomes the embedding of another patch of the same image.
        seed: Of the draws, or None.

    Raises:
        ValueError: A number is out of range.

    Source: ViT paper, appendix B.1.2; where it leaves open whose patch comes instead, of the same
    image.

    Example:

    >>> import keras
    >>> from keras_vit.training.masked_patches import CorruptPatches
    >>> patches, chosen = CorruptPatches()(keras.ops.ones((2, 4, 4, 8)))
    >>> tuple(patches.shape), tuple(chosen.shape)
    ((2, 4, 4, 8), (2, 8))
    """

    def __init__(
        self,
        share: float = 0.5,
        masked: float = 0.8,
        swapped: float = 0.1,
        seed: int | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        if not 0 < share <= 1:
            raise ValueError(f"share={share!r} must lie in (0, 1], for instance 0.5.")
        if min(masked, swapped) < 0 or masked + swapped > 1:
            raise ValueError(
                f"masked={masked!r} and swapped={swapped!r} must be 0 or more and at most 1 "
                "together, for instance 0.8 and 0.1."
            )
        self.share = share
        self.masked = masked
        self.swapped = swapped
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
        draws = keras.random.uniform(
            (3, ops.shape(patches)[0], count),
            dtype="float32",
            seed=self.seed_generator if training else 0,
        )
        order = ops.argsort(draws[0], axis=1)
        chosen = order[:, : max(round(self.share * count), 1)]
        corrupted = ops.argsort(order, axis=1) < chosen.shape[1]
        # 1 to count - 1 places further round the image: never the patch itself.
        ahead = 1 + ops.cast(draws[2] * (count - 1), "int32")
        others = ops.take_along_axis(
            embeddings, ((ops.arange(count) + ahead) % count)[:, :, None], axis=1
        )
        mask = corrupted & (draws[1] < self.masked)
        swap = corrupted & ~mask & (draws[1] < self.masked + self.swapped)
        embeddings = ops.where(swap[:, :, None], others, embeddings)
        token = ops.cast(self.mask_token, patches.dtype)
        embeddings = ops.where(mask[:, :, None], token, embeddings)
        grid = ops.reshape(embeddings, (-1, grid_h, grid_w, hidden_dim))
        return grid, ops.cast(chosen, "int32")

    def get_config(self) -> dict[str, Any]:
        return {
            **super().get_config(),
            "share": self.share,
            "masked": self.masked,
            "swapped": self.swapped,
            "seed": self.seed,
        }


def patch_colours(
    images: Any,
    patch_size: tuple[int, int],
    bits: int = 3,
    data_format: str = "channels_last",
) -> Any:
    """The mean colour of every patch, as one of `2 ** (bits * channels)` classes.

    Args:
        images: Pixels 0..255, `(batch, height, width, channels)`, or as `data_format` says.
            Of a Keras model, too.
        patch_size: Height and width of a patch in pixels.
        bits: Of a channel: its range is cut into `2 ** bits` equal parts.
        data_format: `"channels_last"` or `"channels_first"`.

    Returns:
        int32 `(batch, patches)`, row by row. The first channel counts most: three bits of RGB are
        `64 red + 8 green + blue`, with parts 0..7.

    Source: ViT paper, appendix B.1.2.

    Example:

    >>> import keras, numpy as np
    >>> from keras_vit.training.masked_patches import patch_colours
    >>> orange = np.full((1, 8, 4, 3), [255, 130, 31])
    >>> keras.ops.convert_to_numpy(patch_colours(orange, (4, 4))).tolist()  # 7 * 64 + 4 * 8 + 0
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


def _truth(y_pred: Any) -> Any:
    logits = y_pred["logits"]
    return ops.one_hot(y_pred["colours"], logits.shape[-1], dtype=logits.dtype)
