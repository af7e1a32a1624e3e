# %% [markdown]
# # Fine-tune on your folder in ten minutes
#
# 1,800 photographs of five kinds of flowers, a released ViT-Ti/16 and one command reach at least
# 94 % of 450 photographs that the model has not seen: `make guides GUIDES=finetune_folder`, after
# `.venv/bin/pip install torch==2.13.0`, less than ten minutes on two CPU cores. It downloads
# `tf_flowers` of TensorFlow Datasets and 23 MB of weights, unless `KERAS_VIT_FLOWERS` and
# `KERAS_VIT_TI16` name a folder and a file that you have.

# %% tags=["hide-input"]
import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import json
import shlex
import subprocess
import sys
import tempfile
from pathlib import Path

from IPython.display import Image, Markdown, display

work = Path(tempfile.mkdtemp())
photos = os.environ.get("KERAS_VIT_FLOWERS")
weights = os.environ.get("KERAS_VIT_TI16", "ViT-Ti/16:augreg_in21k_ft_in1k")
if photos:
    (work / "photos").symlink_to(photos)
if Path(weights).is_file():
    (work / "vit_tiny.safetensors").symlink_to(weights)
    weights = "vit_tiny.safetensors"
data = "photos" if photos else "tf_flowers"


def run(command: str) -> None:
    """Runs a command of the command line, and shows it and what it prints, but for progress."""
    words = shlex.split(command)
    words[0] = str(Path(sys.executable).with_name(words[0]))
    done = subprocess.run(words, cwd=work, capture_output=True, text=True, check=False)
    lines = (line for line in done.stdout.splitlines() if "val_" in line or " step " not in line)
    print(f"$ {command}", *lines, sep="\n")
    if done.returncode:
        raise SystemExit(done.stderr)


# %% [markdown]
# ## One command
#
# A folder with one folder of images per class is all it needs. The recipe follows from the number
# of images per class; the log says which, and why. `--precision mixed_bfloat16` is faster on
# processors and GPUs that multiply in bfloat16; leave it out on others. Most is learned in the
# first of the recipe's six epochs, so `--epochs 2` gives a first result sooner.

# %%
os.environ["TERM"] = "dumb"  # no colors
os.environ["KERAS_BACKEND"] = "torch"  # the fastest of the three on such CPUs
run(
    f"keras-vit train --data {data} --model ViT-Ti/16 --weights {weights} "
    "--precision mixed_bfloat16 --out runs/photos"
)

# %% [markdown]
# ## How good is it?
#
# The run's folder has a report for people, `report.md`, and one for programs, `report.json`.

# %%
folder = work / "runs/photos"
report = json.loads((folder / "report.json").read_text("utf-8"))
table = (folder / "report.md").read_text("utf-8")
display(Markdown(table[table.index("| class") : table.index("\n\n", table.index("| class"))]))
display(Image(folder / "confusion.png", width=480))

# %% [markdown]
# The curves mark the best epoch. With pretrained weights, the first epoch already reaches 94 % of
# the photographs that the model has not seen; the other five add two to three points.

# %%
display(Image(folder / "curves.png", width=640))

# %% [markdown]
# `mistakes.png` shows the worst mistakes with their file names: look at it first. It often finds
# labels that are wrong. [Read and trust the report](report.ipynb) goes through all of it.
#
# ## Use it
#
# On new photographs, as a web service, or in another program:

# %%
first = next((folder.parent.parent / "photos").glob("roses/*.jpg"), None) if photos else None
if first is not None:
    (work / "new.jpg").symlink_to(first)
    run("keras-vit predict runs/photos new.jpg")
run("keras-vit export runs/photos --format onnx --out photos.onnx")

# %% [markdown]
# `keras-vit serve runs/photos` answers over HTTP ([ship and serve](serve.ipynb)), and
# `keras-vit convert runs/photos/model.keras FOLDER --layout huggingface` writes a folder that
# transformers opens ([load anyone's weights](weights.ipynb)).
#
# ## What to try next
#
# - More accuracy from the same photographs: averages of runs and of views, a temperature, a teacher
#   ([more accuracy](../accuracy.md)).
# - Ten photographs per class? The same command chooses another recipe.
# - A larger model: `--model ViT-B/16 --weights ViT-B/16:augreg_in21k`, and a GPU.

# %%
result = {"accuracy": report["report"]["scores"]["accuracy"][0]}
result
