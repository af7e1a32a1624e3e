# %% [markdown]
# # Load anyone's weights
#
# One file of released weights: loaded, adapted to other sizes, written in the layouts of four
# packages and read back. `make guides GUIDES=weights` runs it in about half a minute on two CPU
# cores, after `pip install torch transformers`. Nothing is downloaded but the weights of ViT-Ti/16,
# once (23 MB; or set `KERAS_VIT_TI16` to a file of them). A test holds it to logits that agree
# within 1e-4 in every comparison, and to an error for every damaged or foreign file.

# %%
import os

os.environ.setdefault("KERAS_BACKEND", "jax")  # or "tensorflow", "torch"
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import keras_vit

source = os.environ.get("KERAS_VIT_TI16", "ViT-Ti/16:augreg_in21k_ft_in1k")
model = keras_vit.load(source)
print(model.load_report)

# %% [markdown]
# All 200 tensors are loaded as they are. The architecture follows from their shapes. What no shape
# shows, such as the activation, follows from the layout of the file and its authors:

# %%
print(f"{model.depth} blocks of {model.num_heads} heads, width {model.hidden_dim}")
print(f"images {model.input_shape[1:]}, prepared by {model.eval_transform}")
print(f"activation {model.activation!r}")

# %% [markdown]
# ## What does it see?
#
# scikit-learn has two sample images. `read_image` prepares a file as the model was evaluated; the
# names of ImageNet's classes come with the package.

# %%
import tempfile
from pathlib import Path

import keras
import matplotlib.pyplot as plt
import numpy as np
from PIL import Image
from sklearn.datasets import load_sample_image

folder = Path(tempfile.mkdtemp())
photographs = {name: load_sample_image(f"{name}.jpg") for name in ("china", "flower")}
for name, pixels in photographs.items():
    Image.fromarray(pixels).save(folder / f"{name}.png")


def prepared(size, channels=3):
    """Both images as a batch `(2, height, width, channels)`."""
    files = [folder / f"{name}.png" for name in photographs]
    return np.stack(
        [
            keras_vit.data.read_image(file, size, channels, transform=model.eval_transform)
            for file in files
        ]
    )


images = prepared((224, 224))
logits = model.predict(images, verbose=0)
probabilities = keras.ops.convert_to_numpy(keras.ops.softmax(logits))

figure, axes = plt.subplots(2, 2, figsize=(8, 5), width_ratios=(3, 4), layout="constrained")
figure.suptitle("The five most probable of 1,000 classes, by ViT-Ti/16")
for (left, right), pixels, row in zip(axes, photographs.values(), probabilities, strict=True):
    left.imshow(pixels[::2, ::2])
    left.axis("off")
    top = np.argsort(-row)[:5]
    names = [model.class_names[i].split(",")[0] for i in top]
    bars = right.barh(names[::-1], 100 * row[top][::-1])
    right.bar_label(bars, fmt="%.0f%%", padding=3)
    right.set(xlim=(0, 80), xlabel="probability in %")
    right.spines[["top", "right"]].set_visible(False)
plt.show()

# %% [markdown]
# The thousand classes of ImageNet have neither pagodas nor dahlias: these are the nearest.
#
# ## Other sizes
#
# Your task has other classes, images or channels. The report shows how each tensor was handled.
# With five classes of your own, the head is new and starts from zeros:

# %%
print(keras_vit.load(source, num_classes=5).load_report)

# %% [markdown]
# With larger images that keep their proportions, the position embeddings are resampled by the rule
# of the file's authors. The model then sees other details, and may predict another class:

# %%
wide = keras_vit.load(source, input_shape=(288, 432, 3))
print(wide.load_report)
best = wide.predict(prepared((288, 432)), verbose=0).argmax(1)
print("most probable:", [wide.class_names[i] for i in best])

# %% [markdown]
# For images with one channel, the patch kernel is summed over its channels: a gray image then has
# the logits that it had as three equal channels. This is the first comparison.

# %%
differences = {}


def compare(name, values, reference):
    """Stores and prints the largest difference of any logit."""
    differences[name] = float(np.abs(np.asarray(values) - np.asarray(reference)).max())
    print(f"{name}: largest difference {differences[name]:.1e}")


gray = keras_vit.load(source, input_shape=(224, 224, 1))
print(gray.load_report, end="\n\n")
one = images.mean(-1, keepdims=True)
three = np.repeat(one, 3, axis=-1)
compare(
    "one gray channel, or three equal ones",
    gray.predict(one, verbose=0),
    model.predict(three, verbose=0),
)

# %% [markdown]
# ## Other packages' names
#
# The same tensors have other names and shapes in every package. `save_weights` writes them, and
# `load_weights` recognizes the layout by the names. Here it loads into a model whose weights are
# all zero, so that every number comes from the file.

# %%
files = {
    "google": "google.npz",
    "big_vision": "big_vision.npz",
    "timm": "timm.safetensors",
    "huggingface": "huggingface.safetensors",
}
twin = model.copy()
reports = {}
for layout, name in files.items():
    keras_vit.save_weights(model, folder / name, layout=layout)
    twin.set_weights([np.zeros_like(values) for values in twin.get_weights()])
    reports[layout] = keras_vit.load_weights(twin, folder / name)
    compare(f"read from the layout of {layout}", twin.predict(images, verbose=0), logits)

# %% [markdown]
# What the packages call the same four tensors, from the reports:

# %%
parts = {
    "position_embedding": "positions",
    "block_0/query/kernel": "block 0, queries",
    "block_0/mlp/dense_0/kernel": "block 0, MLP",
    "head/bias": "head, bias",
}
for layout, report in reports.items():
    print(layout)
    names = {entry.name: entry.source for entry in report.entries}
    for name, part in parts.items():
        print(f"    {part:17} {names[name]}")

# %% [markdown]
# ## A folder for transformers
#
# The command line converts as well. With a folder as its target, it writes the configuration, the
# names of the classes and how images are prepared, too.

# %%
import subprocess
import sys


def run(command):
    """Runs a command in the folder and prints what it prints."""
    print(f"$ {command}")
    program, *options = command.split()
    program = Path(sys.executable).with_name(program)  # installed beside Python
    done = subprocess.run([program, *options], cwd=folder, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    print(done.stdout)


run("keras-vit convert google.npz for_transformers --layout huggingface")
sorted(file.name for file in (folder / "for_transformers").iterdir())

# %%
import warnings

os.environ["HF_HUB_OFFLINE"] = "1"  # nothing is looked up
warnings.filterwarnings("ignore", "IProgress not found")  # a progress bar for notebooks

import torch
import transformers

transformers.utils.logging.disable_progress_bar()
theirs = transformers.AutoModelForImageClassification.from_pretrained(folder / "for_transformers")


def predict_theirs(images):
    """Logits of transformers, which takes normalized images with the channels first."""
    pixels = torch.tensor(images / 127.5 - 1).permute(0, 3, 1, 2)
    with torch.no_grad():
        return theirs(pixels).logits.numpy()


compare("transformers opens our folder", predict_theirs(images), logits)
best = predict_theirs(images).argmax(1)
print("most probable:", [theirs.config.id2label[i] for i in best])

# %% [markdown]
# And back: files that transformers and torch write open here. First, the bias of class 0 is changed
# there, so that no earlier file can give the same logits.

# %%
with torch.no_grad():
    theirs.classifier.bias[0] += 0.5
theirs.save_pretrained(folder / "by_transformers")
torch.save(theirs.state_dict(), folder / "by_torch.pth")

reference = predict_theirs(images)
back = keras_vit.load(folder / "by_transformers")
compare("a folder of transformers, opened here", back.predict(images, verbose=0), reference)

twin.set_weights([np.zeros_like(values) for values in twin.get_weights()])
keras_vit.load_weights(twin, folder / "by_torch.pth")
compare("a state dict of torch, opened here", twin.predict(images, verbose=0), reference)

# %% [markdown]
# ## Files that cannot be trusted
#
# A download that broke off, a flipped bit, a file of something else, a model of another depth: each
# is an error that gives the reason, and the model stays as it was. Weights are never unpickled.

# %%
import textwrap

whole = (folder / "by_transformers" / "model.safetensors").read_bytes()
(folder / "cut_off.safetensors").write_bytes(whole[: len(whole) // 2])
flipped = bytearray((folder / "timm.safetensors").read_bytes())
flipped[len(flipped) // 2] ^= 1  # one bit of 183 million
(folder / "flipped.safetensors").write_bytes(flipped)
np.savez(folder / "other.npz", weight=np.ones((3, 3)), bias=np.ones(3))

refused = []
small = keras_vit.ViTTi16(num_classes=10, depth=3)
for target, name in (
    (model, "cut_off.safetensors"),
    (model, "flipped.safetensors"),
    (model, "other.npz"),
    (small, "timm.safetensors"),
):
    try:
        keras_vit.load_weights(target, folder / name)
        refused.append(False)
    except keras_vit.weights.CheckpointError as error:
        refused.append(True)
        message = str(error).replace(str(folder) + os.sep, "")
        if name not in message:
            message = f"{name}: {message}"
        print(textwrap.fill(message, 90) + "\n")
compare("the model after four refused files", model.predict(images, verbose=0), logits)

# %% [markdown]
# A file that this package wrote carries its SHA-256 sum, which showed the flipped bit. For other
# files, give the sum that the report printed: `load_weights(model, file, sha256="...")`.
#
# ## All comparisons

# %%
width = max(map(len, differences))
print(f"{'two images, 1,000 logits each':{width}}  largest difference")
for name, difference in differences.items():
    print(f"{name:{width}}  {difference:.1e}")

# %%
result = {
    "comparisons_that_agree": float(np.mean([value < 1e-4 for value in differences.values()])),
    "damaged_files_refused": float(np.mean(refused)),
}
result

# %% [markdown]
# Which families and files are read: [the weights that people download](../weights.md). What the
# folders hold, and how closely the preparation of images agrees: [folders](../folders.md).
