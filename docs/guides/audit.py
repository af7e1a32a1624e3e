# %% [markdown]
# # Find what is wrong in a folder
#
# 600 photographs of five kinds of flowers, 30 of which are put into the folder of another flower,
# and 20 of which are put beside themselves once more, smaller and saved anew. `keras-vit audit`
# finds at least 80 % of the wrong labels among the 60 most doubtful ones, and at least 95 % of the
# planted duplicates; nothing is trained before. `make guides GUIDES=audit` takes about two
# minutes on two CPU cores. It downloads `tf_flowers` of TensorFlow Datasets and 23 MB of weights,
# unless `KERAS_VIT_FLOWERS` and `KERAS_VIT_TI16` name a folder and a file that you have.

# %% tags=["hide-input"]
import os

os.environ.setdefault("KERAS_BACKEND", "jax")  # or "tensorflow", "torch"
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ["TERM"] = "dumb"  # no colors

import csv
import shlex
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
from PIL import Image

work = Path(tempfile.mkdtemp())
photos = work / "photos"
weights = os.environ.get("KERAS_VIT_TI16", "ViT-Ti/16:augreg_in21k_ft_in1k")
if Path(weights).is_file():
    (work / "vit_tiny.safetensors").symlink_to(weights)
    weights = "vit_tiny.safetensors"
if flowers := os.environ.get("KERAS_VIT_FLOWERS"):
    for folder in sorted(path for path in Path(flowers).iterdir() if path.is_dir()):
        (photos / folder.name).mkdir(parents=True)
        for file in sorted(folder.glob("*.jpg"))[:120]:
            (photos / folder.name / file.name).write_bytes(file.read_bytes())
else:
    import tensorflow_datasets as tfds

    images, info = tfds.load("tf_flowers", split="train[:600]", as_supervised=True, with_info=True)
    for i, (pixels, label) in enumerate(images.as_numpy_iterator()):
        place = photos / info.features["label"].int2str(label)
        place.mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels).save(place / f"{i:04d}.jpg", quality=95)


def run(command: str) -> None:
    """Runs a command of the command line, and shows it and what it prints."""
    words = shlex.split(command)
    words[0] = str(Path(sys.executable).with_name(words[0]))
    done = subprocess.run(words, cwd=work, capture_output=True, text=True, check=False)
    print(f"$ {command}", done.stdout, sep="\n")
    if done.returncode:
        raise SystemExit(done.stderr)


# %% [markdown]
# ## What we do to them

# %%
random = np.random.default_rng(0)
names = sorted(path.name for path in photos.iterdir())
files = sorted(photos.glob("*/*.jpg"))
chosen = random.permutation(len(files))[:50]
moved = set()
for i in chosen[:30]:
    others = [name for name in names if name != files[i].parent.name]
    target = photos / others[random.integers(len(others))] / f"moved_{files[i].name}"
    files[i].rename(target)
    moved.add(target.relative_to(photos).as_posix())
again = set()
for i in chosen[30:]:
    image = Image.open(files[i])
    copy = files[i].with_name(f"again_{files[i].name}")
    image.resize((image.width // 2, image.height // 2)).save(copy, quality=50)
    again.add(copy.relative_to(photos).as_posix())

# %% [markdown]
# ## What is found
#
# One command makes an index of the photographs, and the page on which a person decides: with the
# arrow keys from photograph to photograph, and `K`, `R` or `D` to keep, relabel or drop it.

# %%
run(f"keras-vit audit photos --model {weights} --out audit")

# %% [markdown]
# The table has every finding with its score.

# %%
with (work / "audit/audit.csv").open(encoding="utf-8", newline="") as lines:
    table = list(csv.DictReader(lines))
doubtful = [row for row in table if row["problem"] == "wrong label"][:60]
for row in doubtful[:5]:
    print(f"{row['score']:8}  {row['file']}, rather {row['suggestion']}")
wrong_found = len(moved & {row["file"] for row in doubtful}) / len(moved)
pairs = [row for row in table if row["problem"] == "near duplicate"]
twice = {name for row in pairs for name in (row["file"], row["other"])}
again_found = len(again & twice) / len(again)
print(f"wrong labels: {wrong_found:.0%} among the 60 most doubtful")
print(f"duplicates: {again_found:.0%} of those planted, {len(pairs)} pairs in all")

# %% [markdown]
# ## Decide
#
# The page downloads a file with a line for each decision. Here we relabel what was moved to what is
# suggested, as a person would who looks at the page, and drop the duplicates.

# %%
with (work / "decisions.csv").open("w", encoding="utf-8", newline="") as lines:
    writer = csv.writer(lines, quoting=csv.QUOTE_ALL)
    writer.writerow(("file", "decision", "label"))
    for row in doubtful:
        if row["file"] in moved:
            writer.writerow((row["file"], "relabel", row["suggestion"]))
    for name in sorted(again - {row["file"] for row in doubtful}):
        writer.writerow((name, "drop", ""))
run("keras-vit audit audit_index --decisions decisions.csv --out cleaned")
print((work / "cleaned/cleaned.csv").read_text("utf-8")[:200])

# %% [markdown]
# `cleaned.csv` is what `keras-vit train --data photos --labels cleaned/cleaned.csv` trains on. The
# photographs lie where they were. How each problem is found, and how well, is on the page
# [What is in a folder](../curation.md).

# %%
result = {"wrong_labels_found": wrong_found, "duplicates_found": again_found}
result
