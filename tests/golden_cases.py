"""Recorded runs of the official code: where they lie, and how they enter a model."""

import json
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest

from keras_vit import VisionTransformer

COMMITTED = Path(__file__).parent / "golden"


class GoldenCase:
    """One recorded case: configuration, weights, inputs, outputs and tolerances."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.meta = json.loads((folder / "meta.json").read_text())
        self.config = self.meta["config"]
        self.weights = dict(np.load(folder / "weights.npz"))

    def outputs(self, size: tuple[int, int] | None = None) -> dict[str, np.ndarray]:
        name = "io.npz" if size is None else f"io_{size[0]}x{size[1]}.npz"
        return dict(np.load(self.folder / name))

    def tolerance(self, name: str, size: tuple[int, int] | None = None) -> float:
        """Largest difference allowed: as recorded, and logits within 5e-6 of their scale."""
        table = self.meta["tolerance"]["atol"]
        recorded = table.get(name)
        if self.meta["family"] == "interp":
            recorded = table[f"base/{name}" if size is None else f"{size[0]}x{size[1]}/{name}"]
        if name == "logits":
            return min(recorded, 5e-6 * max(1.0, float(np.abs(self.outputs(size)[name]).max())))
        return recorded


def golden_case(name: str, shared: Path) -> GoldenCase:
    folder = COMMITTED / name
    return GoldenCase(folder if folder.is_dir() else shared / "golden" / name)


def vit_of(case: GoldenCase) -> VisionTransformer:
    """The model that a recorded configuration describes, under the recorded weights."""
    config = case.config["config"]
    classifier = config["classifier"]
    model = VisionTransformer(
        num_classes=case.config["num_classes"],
        input_shape=(*case.config["image"], 3),
        include_preprocessing=False,
        patch_size=tuple(config["patches"]["size"]),
        hidden_dim=config["hidden_size"],
        depth=config["transformer"]["num_layers"],
        num_heads=config["transformer"]["num_heads"],
        mlp_dim=config["transformer"]["mlp_dim"],
        pooling={"token": "token", "gap": "gap"}.get(classifier),
        class_token="token" in classifier,
        representation_size=config["representation_size"],
    )
    set_released_weights(model, case.weights)
    return model


def set_released_weights(model: keras.Model, arrays: dict[str, np.ndarray]) -> None:
    """Puts the arrays of a released `.npz` file (reference layout 2a) where they belong."""
    arrays = dict(arrays)
    width = model.hidden_dim

    def take(*names: str) -> list[np.ndarray]:
        return [arrays.pop(name) for name in names]

    def put(layer: str, values: list[Any]) -> None:
        model.get_layer(layer).set_weights(values)

    put("patch_embedding", take("embedding/kernel", "embedding/bias"))
    if model.class_token:
        put("class_token", take("cls"))
    put("position_embedding", take("Transformer/posembed_input/pos_embedding"))
    put("encoder_norm", take("Transformer/encoder_norm/scale", "Transformer/encoder_norm/bias"))
    for i in range(model.depth):
        block = model.get_layer(f"block_{i}")
        prefix = f"Transformer/encoderblock_{i}"
        attention = f"{prefix}/MultiHeadDotProductAttention_1"
        for norm, name in ((block.norm_0, "LayerNorm_0"), (block.norm_1, "LayerNorm_2")):
            norm.set_weights(take(f"{prefix}/{name}/scale", f"{prefix}/{name}/bias"))
        parts = ("query", "key", "value")
        kernels = take(*(f"{attention}/{part}/kernel" for part in parts))
        biases = take(*(f"{attention}/{part}/bias" for part in parts))
        block.attention.query_key_value.set_weights(
            [
                np.concatenate([kernel.reshape(width, width) for kernel in kernels], axis=1),
                np.concatenate([bias.reshape(width) for bias in biases]),
            ]
        )
        kernel, bias = take(f"{attention}/out/kernel", f"{attention}/out/bias")
        block.attention.output_projection.set_weights([kernel.reshape(width, width), bias])
        for dense, name in ((block.mlp.dense_0, "Dense_0"), (block.mlp.dense_1, "Dense_1")):
            mlp = f"{prefix}/MlpBlock_3/{name}"
            dense.set_weights(take(f"{mlp}/kernel", f"{mlp}/bias"))
    if model.representation_size is not None:
        put("pre_logits", take("pre_logits/kernel", "pre_logits/bias"))
    put("head", take("head/kernel", "head/bias"))
    if arrays:
        pytest.fail(f"recorded arrays that no layer took: {sorted(arrays)}")
