"""A model up to one of its layers, as the function from prepared images to a vector each."""

from dataclasses import replace
from functools import cached_property
from typing import Any

import keras
import numpy as np

from keras_vit import ops as backend
from keras_vit._base.errors import check_choice, check_positive
from keras_vit.data import MAX_PIXELS
from keras_vit.data.decode.image_files import prepare_contents
from keras_vit.evaluation.features import features_digest
from keras_vit.evaluation.prediction import (
    check_reads_files,
    check_takes_pixels,
    padded,
    pipeline_arguments,
)
from keras_vit.models.image_model import ImageModel
from keras_vit.models.shared_model import SharedModel

POOLINGS = ("mean", "token")
DTYPES = ("float16", "float32")


class Encoder:
    """The features of a layer, one vector per image.

    Args:
        layer: One of `model.feature_names`.
        pooling: What becomes of a layer with a vector per token: `"mean"` of the patches, or the
            `"token"` of the class. None for layers with one vector per image.
        batch_size: Images per batch. Every batch is filled up to it, so that the numbers of an
            image are those of one compiled function.
        max_pixels: Largest height times width of a file to decode.
        decoder: What decodes JPEG files, in place of the model's, as `EvalTransform` has it.

    Raises:
        ValueError: The model does not take pixels, the layer is unknown, or the pooling does not
            fit it.
    """

    def __init__(
        self,
        model: ImageModel,
        layer: str = "pre_logits",
        pooling: str | None = None,
        batch_size: int = 32,
        max_pixels: int = MAX_PIXELS,
        decoder: str | None = None,
    ) -> None:
        check_positive(batch_size=batch_size, max_pixels=max_pixels)
        check_choice(pooling, "pooling", (None, *POOLINGS))
        check_takes_pixels(model)
        check_reads_files(model)
        self.model, self.layer, self.pooling = model, layer, pooling
        self.batch_size, self.max_pixels = batch_size, max_pixels
        self._function = self._build()
        self.dimension: int = self._function.output_shape[-1]
        arguments = pipeline_arguments(model)
        self._size, self._channels = arguments["image_size"], arguments["channels"]
        transform = arguments["eval_transform"]
        self._transform = replace(transform, decoder=decoder or transform.decoder)

    def _build(self) -> keras.Model:
        model, layer = self.model, self.layer
        features = model.feature_model(layer)
        rank = len(features.output_shape)
        if rank == 2:
            if self.pooling is not None:
                raise ValueError(
                    f"{layer!r} has one vector per image, so that pooling={self.pooling!r} does "
                    "not have anything to do. Leave it out."
                )
            return features
        if self.pooling is None or layer == "images":
            vectors = [
                n for n in model.feature_names if len(model.feature_model(n).output_shape) == 2
            ]
            raise ValueError(
                f"{layer!r} of {model.name} has the shape {features.output_shape[1:]} per image, "
                f'not one vector. Give pooling="mean" or "token", or one of {", ".join(vectors)}.'
            )
        if self.pooling == "token":
            if rank != 3 or not getattr(model, "num_prefix_tokens", 0):
                raise ValueError(
                    f'{layer!r} of {model.name} does not have a class token. Give pooling="mean".'
                )
            vectors = features.output[:, 0]
        else:
            features = model.feature_model(layer, format="grid")
            axes = (2, 3) if model.data_format == "channels_first" else (1, 2)
            vectors = keras.ops.mean(keras.ops.cast(features.output, "float32"), axis=axes)
        return SharedModel.of(model, features.input, vectors, f"{model.name}_{self.pooling}")

    @cached_property
    def identity(self) -> dict[str, Any]:
        """All that the features depend on, but for the photographs: what two indexes share."""
        transform = self._transform
        return {
            "weights": features_digest(self.model, self.layer, preparation=False),
            "layer": self.layer,
            "pooling": self.pooling,
            "preparation": {
                "image_size": list(self._size),
                "channels": self._channels,
                "mode": transform.mode,
                "crop_fraction": transform.crop_fraction,
                "interpolation": transform.interpolation,
                # JPEG files have other pixels by the other decoder.
                "decoder": transform.decoder
                or ("tensorflow" if backend.is_tensorflow() else "pillow"),
                "max_pixels": self.max_pixels,
                **{k: v for k, v in transform.to_dict().items() if k in ("bands", "nodata")},
            },
        }

    def prepare(self, contents: bytes) -> np.ndarray:
        """Return an encoded image as the model takes it, or a BadImageError."""
        return prepare_contents(
            contents, self._size, self._channels, self.max_pixels, self._transform
        )

    def __call__(self, images: np.ndarray) -> np.ndarray:
        """Return the float32 features `(n, dimension)` of at most `batch_size` prepared images.

        Raises:
            ValueError: A feature is not finite.
        """
        if not len(images):
            return np.zeros((0, self.dimension), np.float32)
        # The last batch is padded: of another shape, the same image may have other last bits.
        batch = padded(images, self.batch_size)
        if self.model.data_format == "channels_first":
            batch = np.moveaxis(batch, -1, 1)
        if self.layer in ("pooled", "pre_logits", "logits"):
            with self.model.only_pooled_tokens():
                outputs = self._function.predict_on_batch(batch)
        else:
            outputs = self._function.predict_on_batch(batch)
        rows = np.asarray(keras.ops.convert_to_numpy(outputs)).astype(np.float32)[: len(images)]
        if not np.isfinite(rows).all():
            raise ValueError(
                f"{self.layer!r} of {self.model.name} is NaN or infinite for an image: its "
                "weights are damaged, or its training diverged. Train it again, or take another "
                "file."
            )
        return rows
