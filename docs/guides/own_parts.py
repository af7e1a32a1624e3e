# %% [markdown]
# # Write your own layer, recipe and layout
#
# A token mixer without attention, a recipe of your own and the weights of a model that this package
# does not know, each in a few lines and each checked. `make guides GUIDES=own_parts` runs it in
# about a minute on two CPU cores, after `pip install torch`; nothing is downloaded. A test holds
# the new model to a mean accuracy of at least 90 % on 360 digits that it has not seen, and its
# saved file and the foreign weights to the same logits.

# %% tags=["hide-input"]
import os

os.environ.setdefault("KERAS_BACKEND", "jax")  # or "tensorflow", "torch"
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import keras
import matplotlib.pyplot as plt
import numpy as np
from keras import ops

import keras_vit

# %% [markdown]
# ## A layer
#
# FNet ([Lee-Thorp et al. 2022](https://arxiv.org/abs/2105.03824)) mixes tokens by a Fourier
# transform in place of attention: it does not have weights, and takes any number of tokens. As a
# Keras layer that is five lines. The decorator lets saved models find the class again.


# %%
@keras.saving.register_keras_serializable(package="guide")
class FourierMixing(keras.layers.Layer):
    """The real part of a Fourier transform over tokens and channels; keeps the shape."""

    def call(self, tokens):
        real = ops.cast(tokens, "float32")  # there is no transform in bfloat16
        mixed, _ = ops.fft2((real, ops.zeros_like(real)))
        _, length, width = ops.shape(tokens)
        scale = ops.sqrt(ops.cast(length * width, "float32"))  # keeps the size of the numbers
        return ops.cast(mixed / scale, tokens.dtype)

    def compute_output_shape(self, tokens_shape):
        return tokens_shape


FourierMixing()(np.random.default_rng(0).normal(size=(2, 16, 64))).shape

# %% [markdown]
# Keras checks its own layers with `run_layer_test`: configuration, saving, symbolic and eager
# calls, training, mixed precision. The tests of this package use it for every public layer. It is
# not part of Keras's public interface: a later version may have it elsewhere.

# %%
import warnings

from keras.src.testing import TestCase


class LayerTest(TestCase):
    """Keras's harness, usable outside of unittest."""

    def runTest(self): ...


with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # the harness trains on a generator that it does not shuffle
    LayerTest().run_layer_test(
        FourierMixing,
        init_kwargs={},
        input_shape=(2, 16, 64),
        expected_output_shape=(2, 16, 64),
        expected_num_trainable_weights=0,
        supports_masking=False,
    )
print("passed")

# %% [markdown]
# ## A model with it
#
# Every intermediate of a `VisionTransformer` has a name. `feature_model("tokens")` is the part up
# to the first block. What comes after it is up to you: here a block of FNet and one of the ViT, a
# hybrid as in the FNet paper.

# %%
sizes = {"patch_size": 2, "hidden_dim": 64, "num_heads": 4, "mlp_dim": 128, "pooling": "gap"}


def attention_model():
    """A ViT of two blocks for the digits: 4 x 4 patches of 2 x 2 pixels."""
    return keras_vit.VisionTransformer(num_classes=10, input_shape=(8, 8, 1), depth=2, **sizes)


def fourier_model():
    """The same, with Fourier mixing in place of attention in the first block."""
    layers = keras_vit.layers
    stem = attention_model().feature_model("tokens")
    x = stem.output
    # Equations 2 and 3 of the ViT paper, with another mixer.
    x = x + FourierMixing()(keras.layers.LayerNormalization(epsilon=1e-6)(x))
    x = x + layers.MLP(mlp_dim=128)(keras.layers.LayerNormalization(epsilon=1e-6)(x))
    x = layers.EncoderBlock(layers.BlockConfig(num_heads=4, mlp_dim=128))(x)
    x = layers.MeanPooling()(keras.layers.LayerNormalization(epsilon=1e-6)(x))
    logits = keras.layers.Dense(10, kernel_initializer="zeros", name="head")(x)
    return keras.Model(stem.input, logits, name="fourier")


print(f"attention {attention_model().count_params():7,} parameters")
print(f"Fourier   {fourier_model().count_params():7,} parameters")

# %% [markdown]
# ## A comparison that means something
#
# One seed of a small model is an anecdote. So both models are trained with three, by the recipe
# `digits`, which `compile_model` turns into optimizer, schedule and loss for any Keras model.

# %%
splits = keras_vit.data.load("digits", seed=0)
images, labels = splits.train.as_arrays()
val_images, val_labels = splits.val.as_arrays()


def train(build, recipe, epochs=8, seeds=(0, 1, 2)):
    """The accuracies on the validation images, one per seed, and the last model."""
    steps = epochs * -(-len(images) // recipe.batch_size)
    model = build()
    keras_vit.training.compile_model(model, recipe.scaled(steps), total_steps=steps)
    accuracies = []
    for seed in seeds:
        # New weights and an empty optimizer: the same training step, compiled only once.
        keras.utils.set_random_seed(seed)
        model.set_weights(build().get_weights())
        for variable in model.optimizer.variables:
            variable.assign(np.zeros(variable.shape, variable.dtype))
        model.fit(images, labels, batch_size=recipe.batch_size, epochs=epochs, verbose=0)
        predicted = model.predict(val_images, batch_size=360, verbose=0).argmax(-1)
        accuracies.append(float((predicted == val_labels).mean()))
    return np.array(accuracies), model


recipe = keras_vit.recipes.get("digits")
accuracies = {}
accuracies["attention"], _ = train(attention_model, recipe)
accuracies["Fourier"], fourier = train(fourier_model, recipe)
for name, values in accuracies.items():
    print(f"{name:10} {values.mean():.1%} ± {values.std(ddof=1):.1%}")

# %% [markdown]
# ## It is saved like any other model

# %%
import tempfile
from pathlib import Path

folder = Path(tempfile.mkdtemp())
fourier.save(folder / "fourier.keras")
again = keras.saving.load_model(folder / "fourier.keras")
logits = fourier.predict(val_images, verbose=0)
file_agrees = np.array_equal(again.predict(val_images, verbose=0), logits)
file_agrees

# %% [markdown]
# ## A recipe
#
# A recipe is a frozen dataclass, so a new one is `dataclasses.replace` of another. Names and ranges
# are checked at once:

# %%
from dataclasses import replace

try:
    replace(recipe, label_smoothing=1.5)
except ValueError as error:
    print(error)

# %% [markdown]
# The recipe was tuned for 48 epochs. For eight, batches half as large give twice as many updates;
# with twice the learning rate on top, is that better?

# %%
faster = replace(recipe, source="This guide: eight epochs.", batch_size=32, learning_rate=4e-3)
accuracies["Fourier, own recipe"], _ = train(fourier_model, faster)

figure, axis = plt.subplots(figsize=(7, 2.8), layout="constrained")
for row, values in enumerate(accuracies.values()):
    axis.plot(100 * values, [row] * len(values), "o", c="C0", alpha=0.6)
    axis.plot(100 * values.mean(), row, "|", c="black", ms=22, mew=2)
    label = f"{values.mean():.1%} ± {values.std(ddof=1):.1%}"
    axis.text(100 * values.mean(), row - 0.28, label, ha="center")
axis.set_yticks(range(len(accuracies)), accuracies)
axis.set(ylim=(len(accuracies) - 0.6, -0.7), xlabel="accuracy on 360 digits in %")
axis.margins(x=0.15)  # room for the labels
axis.set_title("Eight epochs: three seeds each, and their mean")
plt.show()

# %% [markdown]
# Differences between rows count where they are larger than the spread within them.
#
# ## Weights of a model that nobody knows
#
# Many ViTs are written with PyTorch's `nn.TransformerEncoder`, and their authors chose the names.
# This one is trained for a few epochs, so that there is something to compare.

# %%
import torch
from torch import nn


class TorchViT(nn.Module):
    def __init__(self, width=64, depth=2, heads=4):
        super().__init__()
        self.patches = nn.Conv2d(1, width, 2, stride=2)
        self.class_token = nn.Parameter(torch.zeros(1, 1, width))
        self.positions = nn.Parameter(0.02 * torch.randn(1, 17, width))
        block = nn.TransformerEncoderLayer(
            width, heads, 2 * width, 0.0, "gelu", batch_first=True, norm_first=True
        )
        norm = nn.LayerNorm(width)
        self.encoder = nn.TransformerEncoder(block, depth, norm, enable_nested_tensor=False)
        self.head = nn.Linear(width, 10)

    def forward(self, images):
        tokens = self.patches(images).flatten(2).transpose(1, 2)
        tokens = torch.cat([self.class_token.expand(len(images), -1, -1), tokens], 1)
        return self.head(self.encoder(tokens + self.positions)[:, 0])


def as_torch(images):
    """Pixels in [-1, 1], the channels first."""
    return torch.tensor(images / 127.5 - 1, dtype=torch.float32).permute(0, 3, 1, 2)


torch.manual_seed(0)
torch.set_num_threads(1)  # faster for so small a model
foreign = TorchViT()
optimizer = torch.optim.AdamW(foreign.parameters(), 2e-3)
inputs, targets = as_torch(images), torch.tensor(labels, dtype=torch.long)
for _ in range(8):
    for batch in torch.randperm(len(inputs)).split(64):
        optimizer.zero_grad()
        nn.functional.cross_entropy(foreign(inputs[batch]), targets[batch]).backward()
        optimizer.step()

foreign.eval()
with torch.no_grad():
    foreign_logits = foreign(as_torch(val_images)).numpy()
print(f"accuracy in torch {(foreign_logits.argmax(1) == val_labels).mean():.1%}")

from safetensors.torch import load_file, save_file

save_file(foreign.state_dict(), folder / "foreign.safetensors")
for name, tensor in list(foreign.state_dict().items())[:8]:
    print(f"{name:42} {tuple(tensor.shape)}")

# %% [markdown]
# As it is, the file is refused: nothing is guessed. The quick way in is to give its tensors the
# names of a layout that is known. Their shapes are those of timm, so only the names change. What no
# tensor shows are arguments: the number of heads, and PyTorch's epsilon.

# %%
import re

RENAMES = {
    r"^class_token$": "cls_token",
    r"^positions$": "pos_embed",
    r"^patches\.": "patch_embed.proj.",
    r"^encoder\.norm\.": "norm.",
    r"^encoder\.layers\.": "blocks.",
    r"\.self_attn\.in_proj_": ".attn.qkv.",
    r"\.self_attn\.out_proj\.": ".attn.proj.",
    r"\.linear([12])\.": r".mlp.fc\1.",
}
renamed = {}
for name, tensor in load_file(folder / "foreign.safetensors").items():
    for pattern, replacement in RENAMES.items():
        name = re.sub(pattern, replacement, name)
    renamed[name] = tensor
save_file(renamed, folder / "renamed.safetensors")

model = keras_vit.load(folder / "renamed.safetensors", num_heads=4, norm_epsilon=1e-5)
print(model.load_report)
renamed_logits = model.predict(val_images, verbose=0)
print(f"largest difference of the logits {np.abs(renamed_logits - foreign_logits).max():.1e}")

# %% [markdown]
# ## A layout
#
# For files that keep coming, or to write them as well, a layout is a table. On the left are the
# file's names, then the [canonical names](../extending.md#canonical-names-of-checkpoint-tensors)
# that stand in it side by side, then how the shapes differ: `LINEAR` transposes, `CONV` moves the
# channels. `conventions` holds what no tensor shows. Everything else (reports, other sizes, checks
# of damaged files) follows.

# %%
from keras_vit.weights.tables.layout import (
    CONV,
    LINEAR,
    SAME,
    Layout,
    SourceConventions,
    torch_norm,
    weight_and_bias,
)
from keras_vit.weights.tables.layouts import LAYOUTS

LAYOUTS["torch_encoder"] = Layout(
    name="torch_encoder",
    suffix=".safetensors",
    signature=r"^encoder\.layers\.0\.self_attn\.in_proj_weight$",  # only this layout has it
    conventions=SourceConventions(
        activation="gelu",
        norm_epsilon=1e-5,
        normalization="inception",
        resampling="bicubic_antialias",
    ),
    arguments=lambda tensors: {"num_heads": 4},
    rows=(
        ("class_token", ("class_token",), SAME),
        ("positions", ("position_embedding",), SAME),
        *weight_and_bias("patches", "patch_embedding", CONV),
        *torch_norm("encoder.norm", "encoder_norm"),
        *weight_and_bias("head", "head"),
    ),
    block="encoder.layers.{}.",
    block_rows=(
        *torch_norm("norm1", "norm_0"),
        ("self_attn.in_proj_weight", ("query/kernel", "key/kernel", "value/kernel"), LINEAR),
        ("self_attn.in_proj_bias", ("query/bias", "key/bias", "value/bias"), SAME),
        *weight_and_bias("self_attn.out_proj", "output"),
        *torch_norm("norm2", "norm_1"),
        *weight_and_bias("linear1", "mlp/dense_0"),
        *weight_and_bias("linear2", "mlp/dense_1"),
    ),
)

model = keras_vit.load(folder / "foreign.safetensors")
print(model.load_report)
read_logits = model.predict(val_images, verbose=0)
print(f"accuracy in Keras {(read_logits.argmax(1) == val_labels).mean():.1%}")
print(f"largest difference of the logits {np.abs(read_logits - foreign_logits).max():.1e}")

# %% [markdown]
# And back: what is written in that layout loads into the PyTorch model, every tensor bit for bit.

# %%
keras_vit.save_weights(model, folder / "back.safetensors", layout="torch_encoder")
back = load_file(folder / "back.safetensors")
foreign.load_state_dict(back)
bits_agree = all(
    torch.equal(back[name], load_file(folder / "foreign.safetensors")[name]) for name in back
)
bits_agree

# %% [markdown]
# This entry of `LAYOUTS` lasts as long as the process. A layout that others use as well belongs in
# the package: [how to extend it](../extending.md).

# %%
foreign_agrees = all(
    np.abs(values - foreign_logits).max() < 1e-4 for values in (renamed_logits, read_logits)
)
result = {
    "fourier_accuracy": float(accuracies["Fourier"].mean()),
    "saved_model_agrees": float(file_agrees),
    "foreign_weights_agree": float(foreign_agrees and bits_agree),
}
result
