# %% [markdown]
# # Which weights suit your photographs
#
# Before anything is trained: 250 photographs of five kinds of flowers, and the question which file
# of weights to fine-tune, and at which image size. `keras-vit choose` answers it from features
# alone. The released ViT-Ti/16 comes out first, far before the same network with random weights,
# and what the probe promises of it, at least 85 % accuracy, is kept for 150 photographs that took
# no part. `make guides GUIDES=choose` takes about a minute on two CPU
# cores. It downloads `tf_flowers` of TensorFlow Datasets and 23 MB of weights, unless
# `KERAS_VIT_FLOWERS` and `KERAS_VIT_TI16` name a folder and a file that you have.

# %% tags=["hide-input"]
import os

os.environ.setdefault("KERAS_BACKEND", "jax")  # or "tensorflow", "torch"
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ.pop("FORCE_COLOR", None)  # of IPython
os.environ["COLUMNS"] = "120"

import csv
import shlex
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
from IPython.display import Image as PNG
from PIL import Image

work = Path(tempfile.mkdtemp())
weights = os.environ.get("KERAS_VIT_TI16", "ViT-Ti/16:augreg_in21k_ft_in1k")
if Path(weights).is_file():
    (work / "vit_tiny.safetensors").symlink_to(weights)
    weights = "vit_tiny.safetensors"
# Of each flower, 50 photographs to choose by, and 30 new ones.
if flowers := os.environ.get("KERAS_VIT_FLOWERS"):
    for folder in sorted(path for path in Path(flowers).iterdir() if path.is_dir()):
        for i, file in enumerate(sorted(folder.glob("*.jpg"))[:80]):
            place = work / ("photos" if i < 50 else "new") / folder.name
            place.mkdir(parents=True, exist_ok=True)
            (place / file.name).write_bytes(file.read_bytes())
else:
    import tensorflow_datasets as tfds

    images, info = tfds.load("tf_flowers", split="train[:400]", as_supervised=True, with_info=True)
    for i, (pixels, label) in enumerate(images.as_numpy_iterator()):
        name = info.features["label"].int2str(label)
        place = work / ("photos" if i < 250 else "new") / name
        place.mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels).save(place / f"{i:04d}.jpg", quality=95)


def run(command: str) -> list[dict[str, str]]:
    """Runs a command of the command line, shows it and what it prints, and reads its table."""
    words = shlex.split(command)
    words[0] = str(Path(sys.executable).with_name(words[0]))
    done = subprocess.run(words, cwd=work, capture_output=True, text=True, check=False)
    print(f"$ {command}", done.stdout, sep="\n")
    if done.returncode:
        raise SystemExit(done.stderr)
    table = work / words[words.index("--out") + 1] / "choice.csv"
    with table.open(encoding="utf-8", newline="") as lines:
        return list(csv.DictReader(lines))


# %% [markdown]
# ## Which weights?
#
# Anything that opens as a model can be compared: released weights by name, files of your own, runs.
# Here the released ones stand beside a file of the same network with random weights.

# %%
import keras

import keras_vit

keras.utils.set_random_seed(0)
keras_vit.save_weights(keras_vit.ViTTi16(num_classes=0), work / "random.keras")
files = run(f"keras-vit choose photos --among {weights} random.keras --sizes 160 --out files")

# %% [markdown]
# Each of the 200 training images is answered by the other 199, by its nearest neighbors and by a
# linear probe; the 50 that `keras-vit train` would hold out take no part. Memory is that of
# fine-tuning with batches of 32.
#
# ## Which image size?
#
# The features are kept: of 160 pixels, they are not computed again. On the plot, up is more
# accurate, and left is faster. `--layers` compares layers in the same way.

# %%
sizes = run(f"keras-vit choose photos --among {weights} --sizes 96 160 --out sizes")
PNG(work / "sizes/choice.png", width=560)

# %% [markdown]
# ## Does it hold for new photographs?
#
# The same probe, a ridge regression on features of length 1 with the penalty that was chosen,
# answers the 150 photographs that `choose` has never seen. The features of the others are in the
# cache.

# %%
from sklearn.linear_model import Ridge
from sklearn.preprocessing import normalize

from keras_vit.curation import index_of

best = sizes[0]
model = keras_vit.load(work / weights if (work / weights).exists() else weights)
model = model.with_input_shape((int(best["height"]), int(best["width"]), 3))
seen = index_of(model, work / "photos")
new = index_of(model, work / "new", work / "new_index")
probe = Ridge(alpha=float(best["penalty"]))
probe.fit(normalize(seen.rows()), np.eye(len(seen.class_names))[seen.labels])
accuracy = float((probe.predict(normalize(new.rows())).argmax(1) == new.labels).mean())
promised, low, high = (float(best[f"probe_accuracy{end}"]) for end in ("", "_low", "_high"))
print(f"promised {promised:.1%} ({low:.1%} to {high:.1%}), of new photographs {accuracy:.1%}")

# %% [markdown]
# Fine-tuning all layers, which the last line of the command starts, reaches more: 96 % with 1,800
# photographs of 224 pixels ([photographs](../photographs.md)). What `choose` measures, and for
# which tasks, is on the page [What is in a folder](../curation.md).

# %%
result = {
    "probe_accuracy": promised,
    "new_photographs": accuracy,
    "released_before_random": float(files[0]["weights"] == weights),
}
result
