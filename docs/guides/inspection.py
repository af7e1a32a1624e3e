# %% [markdown]
# # What the model looks at
#
# Attention maps, attention rollout, occlusion, positions and filters of a small Vision Transformer
# that reads the orange one of two digits. `make guides GUIDES=inspection` runs it in less than a
# minute on two CPU cores, without a download. The figures come with measurements: at least 65 % of
# the attention rollout falls on the orange digit (50 % would be chance), and a test checks that.

# %% tags=["hide-input"]
import os

os.environ.setdefault("KERAS_BACKEND", "jax")  # or "tensorflow", "torch"

import keras
import matplotlib.pyplot as plt
import numpy as np

import keras_vit
from keras_vit import inspection

keras.utils.set_random_seed(0)

# %% [markdown]
# ## Images with a known answer
#
# Two digits side by side, one orange and one blue; the label is that of the orange one. So we know
# which half of each image decides, and can check whether a map shows it.

# %% tags=["hide-input"]
ORANGE, BLUE = (255, 150, 30), (30, 150, 255)


def compose(digits, labels, count, seed):
    """Images `(count, 16, 32, 3)`, their labels, and the half of the orange digit: 0 is left."""
    rng = np.random.default_rng(seed)
    digits = digits.repeat(2, axis=1).repeat(2, axis=2) / 255
    pairs, orange = rng.integers(len(digits), size=(count, 2)), rng.integers(2, size=count)
    halves = [
        digits[pairs[:, half]] * np.where((orange == half)[:, None], ORANGE, BLUE)[:, None, None]
        for half in range(2)
    ]
    images = np.concatenate(halves, axis=2).astype("uint8")
    return images, labels[pairs[np.arange(count), orange]], orange


splits = keras_vit.data.load("digits", seed=0)
images, labels, _ = compose(*splits.train.as_arrays(), count=6000, seed=0)
val_images, val_labels, orange = compose(*splits.val.as_arrays(), count=300, seed=1)

figure, axes = plt.subplots(1, 6, figsize=(8, 1.1))
for axis, image, label in zip(axes, val_images, val_labels, strict=False):
    axis.imshow(image)
    axis.set_title(f"label {label}", fontsize=11)
    axis.axis("off")
figure.tight_layout()

# %% [markdown]
# For a large model, `model = keras_vit.ViTB16(weights="augreg_in21k_ft_in1k")` replaces this cell;
# everything below takes any `VisionTransformer`.

# %%
model = keras_vit.VisionTransformer(
    num_classes=10,
    input_shape=(16, 32, 3),
    patch_size=4,
    hidden_dim=64,
    mlp_dim=128,
    depth=3,
    num_heads=4,
)
epochs, batch_size = 6, 64
steps = epochs * -(-len(images) // batch_size)
recipe = keras_vit.recipes.get("digits").scaled(steps, batch_size)
keras_vit.training.compile_model(model, recipe, total_steps=steps)
model.fit(images, labels, batch_size=batch_size, epochs=epochs, verbose=0)
predicted = model.predict(val_images, verbose=0).argmax(-1)
accuracy = float((predicted == val_labels).mean())
print(f"accuracy on {len(val_images)} held-out images: {accuracy:.1%}")

# %% [markdown]
# ## Attention rollout
#
# `attention_rollout` follows the attention through all layers and gives, for each patch, its
# contribution to the class token. `plot_rollout` darkens each image where that is small.

# %%
inspection.plot_rollout(model, val_images[:8])

# %% [markdown]
# Does it follow the color, or does the model always look at the same places? Red and blue channels
# swapped, the same two digits stand at the same places, and the other one is orange:

# %%
swapped_images = val_images[..., ::-1]
rollout = inspection.attention_rollout(model, val_images)
swapped_rollout = inspection.attention_rollout(model, swapped_images)

figure, axes = plt.subplots(4, 4, figsize=(8, 4))
rows = (val_images, rollout, swapped_images, swapped_rollout)
titles = ("image", "rollout", "swapped", "rollout")
for axis_row, row, title in zip(axes, rows, titles, strict=True):
    for axis, values in zip(axis_row, row, strict=False):
        axis.imshow(values, cmap="inferno", vmin=0)
        axis.set(xticks=[], yticks=[])
    axis_row[0].set_ylabel(title, rotation=0, ha="right", va="center", fontsize=11)
figure.tight_layout()

# %% [markdown]
# ## How much of it is on the digit that decides?
#
# A few good-looking maps prove little. The share of the rollout on the orange half, over all
# held-out images, is about 50 % for a model that does not know what to look at: the same model
# without training shows that. The last column counts images with more than half on the orange
# digit, and misleads: the slightest preference of random weights for a color is enough for it.


# %%
def share_on(half, maps):
    """The part of each map `(count, 4, 8)` on the left half (0) or the right one (1)."""
    halves = maps.reshape(len(maps), 4, 2, 4).sum(axis=(1, 3))
    return halves[np.arange(len(maps)), half] / halves.sum(axis=1)


untrained = keras_vit.VisionTransformer.from_config(model.get_config())
share = share_on(orange, rollout)
shares = {
    "trained": share,
    "trained, colors swapped": share_on(1 - orange, swapped_rollout),
    "untrained": share_on(orange, inspection.attention_rollout(untrained, val_images)),
}
for name, values in shares.items():
    print(f"{name:26} {values.mean():6.1%}    more than half: {(values > 0.5).mean():6.1%}")

# %% [markdown]
# ## Heads and layers
#
# Rollout averages the heads. `attention_maps` returns the probabilities of every head, `(batch,
# depth, heads, tokens, tokens)`; `readout_attention` the row of the class token, on the grid of
# patches. One row per head and one column per layer, for the first image above:

# %%
inspection.plot_attention(model, val_images[0])

# %% [markdown]
# The share on the orange digit, over all images. The first layer selects the digit. By the last
# one its information has moved to other tokens, and the attention shows less.

# %%
heads = inspection.readout_attention(model, val_images)  # (batch, depth, heads, rows, columns)
for layer in range(model.depth):
    means = [share_on(orange, heads[:, layer, head]).mean() for head in range(model.num_heads)]
    print(f"layer {layer + 1}, heads 1 to 4: " + "  ".join(f"{mean:4.0%}" for mean in means))

# %% [markdown]
# ## A check against occlusion
#
# Attention shows where information may come from. Occlusion shows what the prediction depends on:
# hide one patch, and see by how much the log-probability of the predicted class falls.


# %%
def hide(images, patches):
    """Images whose `patches`, True in `(count, 4, 8)`, have the color of the background."""
    pixels = patches.repeat(4, axis=1).repeat(4, axis=2)
    return np.where(pixels[..., None], 0, images).astype("uint8")


def log_probability(images):
    """Of the class that is predicted for the whole image."""
    scores = keras.ops.log_softmax(model.predict(images, batch_size=256, verbose=0))
    return keras.ops.convert_to_numpy(scores)[np.arange(len(images)), predicted]


whole = log_probability(val_images)
occlusion = np.zeros_like(rollout)
for row, column in np.ndindex(4, 8):
    patch = np.zeros(rollout.shape, bool)
    patch[:, row, column] = True
    occlusion[:, row, column] = whole - log_probability(hide(val_images, patch))
occlusion_share = share_on(orange, np.abs(occlusion))
print(f"share of the effect on the orange digit: {occlusion_share.mean():.1%}")

halves = np.broadcast_to(np.arange(8) // 4, rollout.shape)
for name, half in {"orange": orange, "blue": 1 - orange}.items():
    hidden = hide(val_images, halves == half[:, None, None])
    same = model.predict(hidden, verbose=0).argmax(-1) == predicted
    print(f"the {name} digit hidden: {same.mean():.1%} of the predictions stay")

# %% [markdown]
# The deletion curve is the strictest test of a map: hide patches in its order, the most important
# first. The faster the predictions change, the better the map has found what they depend on.

# %%
rng = np.random.default_rng(0)
orders = {
    "in the order of occlusion": occlusion,
    "in the order of rollout": rollout,
    "in random order": rng.random(rollout.shape),
}
counts = (0, 1, 2, 3, 4, 6, 8, 12, 16)
figure, axis = plt.subplots(figsize=(6.5, 3.8), layout="constrained")
for name, importance in orders.items():
    rank = (-importance.reshape(len(rollout), -1)).argsort(axis=1).argsort(axis=1)
    unchanged = [
        model.predict(hide(val_images, rank.reshape(rollout.shape) < count), verbose=0).argmax(-1)
        == predicted
        for count in counts
    ]
    axis.plot(counts, 100 * np.mean(unchanged, axis=1), marker="o", label=name)
axis.set(title="Predictions that stay when patches are hidden", ylim=(0, 103))
axis.set(xlabel="patches hidden, of 32", ylabel="unchanged (%)", xticks=counts)
axis.grid(alpha=0.3)
figure.legend(loc="outside lower center", ncols=2, frameon=False)
plt.show()

# %% [markdown]
# ## What the weights have learned
#
# How similar the position embedding of each patch is to those of all others (ViT paper, figure 7).
# Nobody gave the model the layout of these images, and it shows here: each patch resembles the one
# four columns further, at the same place of the other digit.

# %%
inspection.plot_position_similarity(model)

# %% [markdown]
# How far each head looks, on average. Heads of large models start with a few pixels, like a
# convolution; these look across the image from the first layer on.

# %%
inspection.plot_attention_distance(model, val_images[:128])

# %% [markdown]
# `plot_embedding_filters(model)` shows the principal components of the patch embedding. Those of a
# released model are smooth waves and colors; after a minute of training they are still noise.
#
# ## What attention maps cannot show
#
# - **Why this class.** Rollout ends at the class token and never sees the head: it is the same map
#   for every class, as the next cell checks. It shows which digit is read, not why it is a 3.
# - **The sign.** A patch that speaks against the class gets as much attention as one in its favor;
#   occlusion distinguishes them.
# - **What is done with it.** Value projections and MLPs do not enter into rollout; a token may be
#   attended to and change nothing. In deeper models tokens also mix: after some layers, the token
#   of a patch holds information of other patches.
# - **Small differences.** Each layer's shortcut counts half, so most of the mass spreads evenly.
#   Compare with a baseline, as above, not with zero.
#
# Occlusion has its own limit: one hidden patch changes nothing where two show the same, and on
# photographs a gray patch is an image that the model has never seen.

# %%
another_head = model.with_classifier(1000)
float(np.abs(inspection.attention_rollout(another_head, val_images) - rollout).max())

# %% [markdown]
# ## All of it on one page
#
# `keras-vit inspect runs/photos photo.jpg --out inspection` writes `index.html` and each plot as a
# PNG file, for a model and image files; a slider overlays the attention of every layer and head on
# the images. In Python:

# %%
import tempfile
from pathlib import Path

folder = Path(tempfile.mkdtemp())
files = [folder / f"{index}.png" for index in range(3)]
for file, image in zip(files, val_images, strict=False):
    keras.utils.save_img(file, image, scale=False)
from keras_vit_cli.inspect.inspect_files import inspect_files
from keras_vit_cli.options.inspect import InspectOptions

options = InspectOptions(model=folder, files=tuple(files), out=folder / "inspection")
inspect_files(model, options)
print(*sorted(file.name for file in (folder / "inspection").iterdir()), sep="\n")

# %%
result = {
    "rollout on the orange digit": float(share.mean()),
    "occlusion on the orange digit": float(occlusion_share.mean()),
    "accuracy": accuracy,
}
result
