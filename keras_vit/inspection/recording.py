"""Records the calls of a Vision Transformer's layers, at any depth of a model."""

from collections.abc import Iterator
from typing import Any, NamedTuple

import keras

from keras_vit.layers import (
    AttentionPooling,
    ClassToken,
    ConvStemStage,
    EncoderBlock,
    MeanPooling,
    PatchEmbedding,
    QueryTokens,
    ResidualUnit,
    ResNetStem,
    TokenPooling,
)
from keras_vit.layers.observation import Observer

_RECORDED = (
    *(ResNetStem, ResidualUnit, ConvStemStage, PatchEmbedding, QueryTokens),
    *(ClassToken, EncoderBlock, TokenPooling, MeanPooling, AttentionPooling),
)


class Call(NamedTuple):
    """A call of a layer.

    Attributes:
        layer: The layer.
        arguments: What it was called with, by name.
        output_shape: The shape of what it returned, of the first array where it returned several.
        token_index: What a `MergingEncoderBlock` returned beside its tokens, else None.
    """

    layer: Any
    arguments: dict[str, Any] = {}  # noqa: RUF012 read alone
    output_shape: tuple[int, ...] = ()
    token_index: Any = None


class Recorder(Observer):
    """Keeps what the layers that matter to inspection were called with, in their order."""

    def __init__(self) -> None:
        self.calls: list[Call] = []

    def called(self, layer: Any, arguments: dict[str, Any], outputs: Any) -> Any:
        first, *others = outputs if isinstance(outputs, tuple) else (outputs,)
        if isinstance(layer, _RECORDED) and not isinstance(first, keras.KerasTensor):
            self.calls.append(Call(layer, arguments, tuple(first.shape), *others))
        return outputs

    def of(self, kind: Any) -> list[Call]:
        """Return the calls of layers of a class, or of one of several classes."""
        return [call for call in self.calls if isinstance(call.layer, kind)]


class Holder(NamedTuple):
    """A model, or another layer, that encoder blocks are directly in."""

    path: tuple[str, ...]  # names, from outside to inside; () for the inspected model itself
    layer: Any
    blocks: list[EncoderBlock]


def holders(layer: Any, path: tuple[str, ...] = ()) -> Iterator[Holder]:
    """Where the encoder blocks of a model are, at any depth."""
    if not isinstance(layer, keras.layers.Layer):
        return
    layers = layer._flatten_layers(include_self=False, recursive=False)
    inside: list[Any] = []
    blocks: list[EncoderBlock] = []
    for each in layers:
        (blocks if isinstance(each, EncoderBlock) else inside).append(each)
    if blocks:
        yield Holder(path, layer, blocks)
    for each in inside:
        yield from holders(each, (*path, each.name))


def encoder_blocks(model: keras.Model) -> list[EncoderBlock]:
    """Return a model's encoder blocks at any depth; a ValueError for one without attention."""
    blocks = {id(block): block for holder in holders(model) for block in holder.blocks}
    if not blocks:
        raise ValueError(
            f"{getattr(model, 'name', model)!r} is a {type(model).__name__} without encoder "
            "blocks, so there is no attention to inspect. Give a model with a VisionTransformer "
            "in it, such as keras_vit.ViTTi16(). Where a ResNet or a Mixer looks, Grad-CAM shows: "
            "docs/inspection/README.md has the lines."
        )
    return list(blocks.values())


def only_layer(model: keras.Model, kind: type) -> Any:
    """Return a model's only layer of a class, at any depth, or None; a ValueError for several."""
    layers = model._flatten_layers() if isinstance(model, keras.layers.Layer) else ()
    unique = list({id(layer): layer for layer in layers if isinstance(layer, kind)}.values())
    if len(unique) > 1:
        raise ValueError(
            f"{model.name!r} has {len(unique)} layers of the kind {kind.__name__}. Give the model "
            f"with one of them; encoder blocks are in {_places(model)}."
        )
    return unique[0] if unique else None


def check_one_transformer(model: keras.Model, recorder: Recorder, batch: Any) -> None:
    """Raises a ValueError unless one Vision Transformer ran once, on each image of a batch."""
    calls = recorder.of(EncoderBlock)
    if not calls:
        raise ValueError(
            f"{model.name!r} has encoder blocks, in {_places(model)}, but did not call them. Give "
            "the model that calls them, with the images that it gets."
        )
    images, sequences = len(keras.tree.flatten(batch)[0]), len(calls[0].arguments["tokens"])
    repeated = len({id(call.layer) for call in calls}) < len(calls)
    if repeated:
        problem = "calls the same encoder blocks several times for an image"
    elif len(recorder.of(PatchEmbedding)) > 1:
        problem = "has several Vision Transformers"
    elif sequences != images:
        problem = f"runs its encoder blocks on {sequences} sequences for {images} images"
    else:
        return
    raise ValueError(
        f"{model.name!r} {problem}, so it is not clear which attention to inspect. Its blocks are "
        f"in {_places(model)}. Give one of these models, with the images that it gets."
    )


def _places(model: keras.Model) -> str:
    """Return Python expressions for the places of a model's blocks, for messages."""
    lines = []
    for path, layer, blocks in holders(model):
        place = "model" + "".join(f".get_layer({name!r})" for name in path)
        lines.append(f"{place} (a {type(layer).__name__} with {len(blocks)})")
    return ", ".join(lines)
