# %% [markdown]
# # Search your photographs
#
# One pass of a released ViT-Ti/16 over 2,250 photographs of five kinds of flowers, kept as an
# index. Without any training, of the 12 photographs that are most like another one at least 85 %
# show the same flower, and groups found without labels agree with the flowers to an adjusted Rand
# index of at least 0.5. `make guides GUIDES=search` takes about three minutes on two CPU cores. It
# downloads `tf_flowers` of TensorFlow Datasets and 23 MB of weights, unless `KERAS_VIT_FLOWERS` and
# `KERAS_VIT_TI16` name a folder and a file that you have.

# %% tags=["hide-input"]
import os

os.environ.setdefault("KERAS_BACKEND", "jax")  # or "tensorflow", "torch"
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ["TERM"] = "dumb"  # no colors

import io
import shlex
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
from IPython.display import Image as JPEG
from IPython.display import display
from PIL import Image, ImageOps

work = Path(tempfile.mkdtemp())
weights = os.environ.get("KERAS_VIT_TI16", "ViT-Ti/16:augreg_in21k_ft_in1k")
if Path(weights).is_file():
    (work / "vit_tiny.safetensors").symlink_to(weights)
    weights = "vit_tiny.safetensors"
if flowers := os.environ.get("KERAS_VIT_FLOWERS"):
    (work / "photos").symlink_to(flowers)
else:
    import tensorflow_datasets as tfds

    images, info = tfds.load("tf_flowers", split="train[:2250]", as_supervised=True, with_info=True)
    for i, (pixels, label) in enumerate(images.as_numpy_iterator()):
        place = work / "photos" / info.features["label"].int2str(label)
        place.mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels).save(place / f"{i:04d}.jpg", quality=95)


def run(command: str) -> str:
    """Runs a command of the command line, and shows it and what it prints."""
    words = shlex.split(command)
    words[0] = str(Path(sys.executable).with_name(words[0]))
    done = subprocess.run(words, cwd=work, capture_output=True, text=True, check=False)
    print(f"$ {command}", done.stdout, sep="\n")
    if done.returncode:
        raise SystemExit(done.stderr)
    return done.stdout


# %% [markdown]
# ## One pass
#
# `embed` reads every file once, computes what the model has of it before its last layer, and keeps
# 192 numbers for each, in half precision.

# %%
run(f"keras-vit embed photos --model {weights} --out index")
for file in sorted((work / "index").iterdir()):
    print(f"{file.stat().st_size:>10,}  {file.name}")

# %% [markdown]
# The same command again finds that nothing has changed, and reads no photograph. After new ones, it
# would compute those alone, and a call that was killed would go on where it was.

# %%
again = run(f"keras-vit embed photos --model {weights} --out index")
nothing_read = ", 0 read now" in again

# %% [markdown]
# ## What is like this photograph?
#
# `search` writes a page with the results, and a table. A dahlia, which is not one of the five
# flowers:

# %%
from sklearn.datasets import load_sample_image

Image.fromarray(load_sample_image("flower.jpg")).save(work / "dahlia.jpg")
search_output = run("keras-vit search index dahlia.jpg --top 6 --out similar.html")

# %% [markdown]
# In Python, an index is an object. Its features lie on the disk until they are asked for.

# %%
import keras_vit
from keras_vit.curation import FeatureIndex, find_clusters, find_similar, nearest_neighbors

index = FeatureIndex.open(work / "index")
print(len(index), "photographs,", index.dimension, "numbers each;", index.class_names)

model = keras_vit.load(work / weights if (work / weights).exists() else weights)
result = find_similar(index, [work / "dahlia.jpg"], k=6, model=model)


def show(*rows: list[Path], side: int = 130) -> None:
    """Rows of photographs as one small JPEG file."""
    sheet = Image.new("RGB", (side * max(map(len, rows)), side * len(rows)), "white")
    for i, files in enumerate(rows):
        for j, file in enumerate(files):
            photo = ImageOps.fit(Image.open(file).convert("RGB"), (side - 4, side - 4))
            sheet.paste(photo, (j * side, i * side))
    sheet.save(buffer := io.BytesIO(), "JPEG", quality=80)
    display(JPEG(buffer.getvalue()))


rows, cosines = (each[0] for each in result.nearest)
print("cosines:", *(f"{cosine:.2f}" for cosine in cosines))
show([work / "dahlia.jpg", *map(index.path, rows)])

# %% [markdown]
# How often is a result of the same class? Each photograph is searched among all others.

# %%
near, similarity = nearest_neighbors(index, k=12)
same = index.labels[near] == index.labels[:, None]
print(f"same flower: the nearest {same[:, 0].mean():.1%}, of the nearest 12 {same.mean():.1%}")

# %% [markdown]
# The nearest pairs of all, one above the other, are duplicates, or nearly so:

# %%
first = [row for row in np.argsort(-similarity[:, 0], kind="stable") if near[row, 0] > row][:6]
print("cosines:", *(f"{similarity[row, 0]:.3f}" for row in first))
show([index.path(row) for row in first], [index.path(near[row, 0]) for row in first])

# %% [markdown]
# ## Which groups are there?
#
# Without any label: k-means, for the number of groups whose silhouette is best.

# %%
run("keras-vit cluster index --out clusters.html")

from sklearn.metrics import adjusted_rand_score

groups = find_clusters(index)
agreement = adjusted_rand_score(index.labels, groups.labels)
print(f"adjusted Rand index with the flowers: {agreement:.2f}")
for group in range(len(groups.centers)):
    counts = np.bincount(index.labels[groups.members(group)], minlength=len(index.class_names))
    parts = (f"{n} {name}" for name, n in zip(index.class_names, counts, strict=True) if n)
    print(f"group {group + 1}:", ", ".join(parts))

# %% [markdown]
# A row per group, the nearest to its center first, as the page shows them:

# %%
show(
    *([index.path(row) for row in groups.members(group)[:8]] for group in range(len(groups.sizes)))
)

# %% [markdown]
# What an index costs, and what is in its files: [what is in a folder](../curation.md).

# %%
result = {
    "same_flower_of_12": float(same.mean()),
    "rand_index": float(agreement),
    "nothing_read_again": float(nothing_read),
}
result
