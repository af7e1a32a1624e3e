# %% [markdown]
# # Ship and serve
#
# Train, export, serve over HTTP, and check that what arrives at the other end is what the model
# computes. `make guides GUIDES=serve` runs it in about a minute on two CPU cores; nothing is
# downloaded. A test promises that the server and the exported file predict the class of the model
# for every one of 360 digits, and at least 93 % accuracy.

# %%
import os

os.environ.setdefault("KERAS_BACKEND", "jax")  # of this guide; the commands run on TensorFlow
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import subprocess
import sys
import tempfile
from pathlib import Path

folder = Path(tempfile.mkdtemp())


def start(command, **options):
    """Starts a command in the folder, on TensorFlow."""
    print(f"$ {command}")
    program, *words = command.split()
    program = Path(sys.executable).with_name(program)  # installed beside Python
    environment = os.environ | {"KERAS_BACKEND": "tensorflow"}
    return subprocess.Popen([program, *words], cwd=folder, env=environment, text=True, **options)


def run(command, first=""):
    """Runs a command and prints its output from the line that begins with `first`."""
    process = start(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    output, errors = process.communicate()
    assert process.returncode == 0, errors
    print(output[max(output.find(first), 0) :])


run("keras-vit train --data digits --epochs 6 --out runs/digits", first="accuracy   ")

# %% [markdown]
# Your images: `--data photos/ --weights ViT-Ti/16:augreg_in21k_ft_in1k`. Nothing below changes.
#
# ## Files for other engines
#
# The run has a SavedModel already, in the layout that TensorFlow Serving reads: `NAME/VERSION`. It
# decodes image files itself and loads where neither keras_vit nor Keras is installed.

# %%
for file in sorted((folder / "runs/digits/saved_models").rglob("*")):
    if file.is_file():
        print(f"{file.stat().st_size / 1024:9,.1f} KiB  {file.relative_to(folder)}")

# %% [markdown]
# `keras-vit export` writes it from any model file, and the formats of other engines. Each file is
# run in its own engine before it is kept; one whose probabilities differ from the model's is not.

# %%
from importlib.util import find_spec

has_onnx = all(map(find_spec, ("onnx", "onnxruntime", "tf2onnx")))
if has_onnx:  # pip install 'keras3-vit[onnx]'
    run("keras-vit export runs/digits --format onnx --out digits.onnx")
else:
    run("keras-vit export runs/digits --out exported/digits/1")

# %% [markdown]
# ## A server
#
# `--port 0` takes any free port, and `--top 10` answers with all ten classes. The model may be a
# run, a model file, an exported file of any format, or a folder of numbered versions.

# %%
import atexit
import re

log = (folder / "server.log").open("w+")
server = start("keras-vit serve runs/digits --port 0 --batch-size 8 --top 10", stdout=log)
atexit.register(server.kill)  # also where a later cell fails

import time

while not (serving := re.search(r"serving version .*", (folder / "server.log").read_text())):
    assert server.poll() is None, "the server has ended"
    time.sleep(0.1)
address = re.search(r"http://\S+", serving[0])[0]
print(re.sub(r":\d+ ", ":PORT ", serving[0]))

# %% [markdown]
# The bytes of an image file go in, JSON comes out: `curl --data-binary @digit.png ADDRESS/predict`,
# or in Python, with nothing but the standard library on the side of the client:

# %%
import io
import json
import urllib.request

from PIL import Image

import keras_vit

images, labels = keras_vit.data.load("digits", seed=0).val.as_arrays()


def png(image):
    """An array `(height, width, 1)` as the bytes of a PNG file."""
    file = io.BytesIO()
    Image.fromarray(image[..., 0].astype("uint8")).save(file, "PNG")
    return file.getvalue()


def post(contents, route="predict"):
    """The answer of the server to an image."""
    with urllib.request.urlopen(f"{address}/{route}", data=contents) as answer:
        return json.load(answer)


files = [png(image) for image in images]
answer = post(files[0])
print(json.dumps({**answer, "predictions": answer["predictions"][:3]}, indent=2))
print(f"... and seven more; the label is {labels[0]}")

# %% [markdown]
# `/attention` returns where the model looked, on the grid of patches: what speaks for the class
# that it predicts or, as here, the attention rollout, which is the same for every class. The page
# at `/` draws the former for an image that is dropped on it.

# %%
import matplotlib.pyplot as plt
import numpy as np

figure, axes = plt.subplots(2, 3, figsize=(6, 4.6), layout="constrained")
for image, file, axis in zip(images, files, axes.flat, strict=False):
    best = post(file)["predictions"][0]
    rollout = np.array(post(file, "attention?method=rollout")["map"])  # two rows of two patches
    axis.imshow(image[..., 0], cmap="gray_r", vmax=400, extent=(0, 8, 8, 0))
    share = rollout / rollout.sum()
    axis.imshow(share, cmap="Oranges", vmin=0, vmax=0.5, alpha=0.5, extent=(0, 8, 8, 0))
    for (row, column), part in np.ndenumerate(share):  # each number in a corner of the image
        place = {"ha": ("left", "right")[column], "va": ("top", "bottom")[row]}
        axis.text(0.2 + 7.6 * column, 0.2 + 7.6 * row, f"{part:.0%}", fontsize=11, **place)
    axis.set_title(f"{best['class']}, {best['probability']:.0%}", fontsize=11)
    axis.axis("off")
figure.suptitle("Answers of the server: class, probability, attention per patch")
plt.show()

# %% [markdown]
# The model sees four patches of 4 x 4 pixels, and 25 % on each would be even. The first seven is
# read mostly from the patch at the bottom right, where its bar and its stem meet, the first three
# from all four alike. With a larger model the map is as fine as its grid, 14 x 14 for ViT-B/16.

# %% [markdown]
# ## Is it the same model?
#
# All 360 digits, through HTTP and by the exported files, beside the model in memory: three engines,
# TensorFlow, ONNX Runtime and, in this process, JAX.

# %%
from concurrent.futures import ThreadPoolExecutor

import keras

from keras_vit.exporting import load_exported

model = keras.saving.load_model(folder / "runs/digits/model.keras")
logits = model.predict(images, verbose=0)
expected = keras.ops.convert_to_numpy(keras.ops.softmax(logits))


def served(file):
    """The probabilities that the server answers, by class."""
    by_class = {row["class"]: row["probability"] for row in post(file)["predictions"]}
    return [by_class[name] for name in model.class_names]


with ThreadPoolExecutor(8) as clients:
    engines = {"keras-vit serve": np.array([*clients.map(served, files)])}
for path in ("runs/digits/saved_models/digits/1", "digits.onnx"):
    if (folder / path).exists():
        exported = load_exported(folder / path)
        engines[f"{exported.contract.format} file"] = exported.predict_on_batch(images)

same = {}
for name, probabilities in engines.items():
    same[name] = float((probabilities.argmax(1) == expected.argmax(1)).mean())
    largest = np.abs(probabilities - expected).max()
    print(
        f"{name:20} same class {same[name]:.1%}, largest difference of a probability {largest:.0e}"
    )
accuracy = float((engines["keras-vit serve"].argmax(1) == labels).mean())
print(f"accuracy {accuracy:.1%}")

# %% [markdown]
# ## How fast is it?
#
# Clients that each send their next request when the last one is answered. What arrives while a
# batch is computed becomes the next batch, so that more clients share a batch and nobody waits for
# one to fill. The server's own `/metrics`, in Prometheus's format, has the counts.

# %%


def computed():
    """How many images the server has computed so far, and in how many batches."""
    text = urllib.request.urlopen(f"{address}/metrics").read().decode()
    counts = (re.search(rf"^keras_vit_batch_images_{n} (.*)", text, re.M) for n in ("sum", "count"))
    return np.array([float(count[1]) for count in counts])


numbers = (1, 2, 4, 8, 16)
speeds, sizes = ({number: [] for number in numbers} for _ in range(2))
for _ in range(3):  # in turns, as other programs may slow down one of them
    for number in numbers:
        before, began = computed(), time.perf_counter()
        with ThreadPoolExecutor(number) as clients:
            [*clients.map(post, files[:120])]
        speeds[number].append(120 / (time.perf_counter() - began))
        images_served, batches = computed() - before
        sizes[number].append(images_served / batches)

figure, axis = plt.subplots(figsize=(7, 3.4), layout="constrained")
best = [max(speeds[number]) for number in numbers]
bars = axis.bar([str(number) for number in numbers], best)
pairs = zip(best, map(np.mean, sizes.values()), strict=True)
axis.bar_label(bars, [f"{speed:.0f}\n{size:.1f} per batch" for speed, size in pairs])
axis.set(xlabel="clients at a time", ylabel="requests per second", ylim=(0, 1.25 * max(best)))
axis.set_title("Requests per second, the best of three turns, and images per batch")
plt.show()

# %% [markdown]
# Clients and server share a processor here, and the model is so small that most of the time goes
# into HTTP and decoding. With a large model on a GPU, take `--batch-size 32` and above; [figures
# for ViT-Ti/16](../serving.md) are in the page on serving. More than `--queue` requests in progress
# (twice the batch size) are answered with status 429 at once, instead of making everyone wait.
#
# ## Keep an eye on it
#
# `/health` has the version, and why a newer one could not be loaded; `/ready` turns to 503 before
# the server stops. A file that is not an image is an error for its sender alone.

# %%
import urllib.error

with urllib.request.urlopen(f"{address}/health") as health:
    print("GET /health", json.dumps(json.load(health), indent=2))
try:
    post(b"not an image")
except urllib.error.HTTPError as error:
    print("POST /predict", error.code, json.load(error))
for line in urllib.request.urlopen(f"{address}/metrics").read().decode().splitlines():
    if line.startswith("keras_vit_requests_total"):
        print(line)

# %% [markdown]
# SIGTERM, which Docker, systemd and Kubernetes send, and Ctrl-C let it answer what it has accepted:

# %%
server.terminate()
status = server.wait(timeout=40)
print((folder / "server.log").read_text().splitlines()[-1], "with exit status", status)

# %% [markdown]
# ## In a container
#
# The SavedModel in TensorFlow Serving:
#
# <!-- not run: there is no Docker where the tests run -->
#
# ```bash
# docker run -p 127.0.0.1:8501:8501 -e MODEL_NAME=digits \
#   -v "$PWD/runs/digits/saved_models:/models" tensorflow/serving
# echo "{\"instances\": [{\"b64\": \"$(base64 -w0 digit.png)\"}]}" |
#   curl -d @- localhost:8501/v1/models/digits:predict
# ```
#
# [Serving a model](../serving.md) has a Dockerfile for `keras-vit serve`, and the files for Triton
# and KServe; [Shipping a model](../export.md) compares the engines.

# %%
result = {"same_class": min(same.values()), "accuracy": accuracy}
result
