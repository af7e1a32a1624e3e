# %% [markdown]
# # Read and trust the report
#
# One training, its report, and every number of the report computed a second time, with scikit-learn
# and by hand. `make guides GUIDES=report` runs it in about a minute on two CPU cores; nothing is
# downloaded. A test holds it to at least 93 % accuracy on 360 digits that the model has not seen,
# and to agreement in every number.

# %%
import os

os.environ.setdefault("KERAS_BACKEND", "jax")  # or "tensorflow", "torch"
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import subprocess
import sys
import tempfile
from pathlib import Path

folder = Path(tempfile.mkdtemp())


def run(command, first=""):
    """Runs a command in the folder and prints its output from the line that begins with `first`."""
    print(f"$ {command}")
    program, *options = command.split()
    program = Path(sys.executable).with_name(program)  # installed beside Python
    done = subprocess.run([program, *options], cwd=folder, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    output = done.stdout[max(done.stdout.find(first), 0) :]
    print(output)
    return output


train_output = run(
    "keras-vit train --data digits --epochs 6 --held-out 0.1 --out runs/digits",
    first="temperature",
)

# %% [markdown]
# Six epochs instead of the recipe's 48, so that mistakes are left to look at.
#
# ## What a run leaves behind
#
# | file | what it answers |
# |---|---|
# | `report.html`, `report.md` | What was trained on what, and how good is it? A page for people. |
# | `report.json` | The same numbers for programs, and more of them. |
# | `curves.png`, `history.csv` | Did the training converge? |
# | `confusion.png`, `mistakes.png` | What does it get wrong? |
# | `calibration.png` | Do its probabilities mean what they claim? |
# | `config.json` | How was it made? Command, recipe, versions. |
# | `SHA256SUMS` | Are these still the files that the training wrote? |
# | `model.keras`, `best.keras`, `saved_models/` | The model: last epoch, best epoch, for serving. |
#
# The page begins with the task and the accuracy; below the table of scores is what to be careful
# about:

# %%
import json

run_folder = folder / "runs" / "digits"
page = (run_folder / "report.md").read_text("utf-8")
print(page[: page.index("\n\n## What")])
print(page[page.index("\n## Results") : page.index("\n\n## Plots")])

# %% [markdown]
# ## Every number, computed again
#
# From the saved model, the digits and scikit-learn alone:

# %%
import keras
import numpy as np
from scipy import special, stats
from sklearn import metrics

import keras_vit

model = keras.saving.load_model(run_folder / "model.keras")
splits = keras_vit.data.load("digits", seed=0)  # the seed of `keras-vit train`
images, labels = splits.val.as_arrays()
logits = model.predict(images, verbose=0)
probabilities = special.softmax(logits.astype("float64"), axis=1)
predicted, confidence = probabilities.argmax(1), probabilities.max(1)

report = json.loads((run_folder / "report.json").read_text("utf-8"))
in_report, computed = {}, {}

in_report["accuracy"] = report["report"]["scores"]["accuracy"][0]
computed["accuracy"] = metrics.accuracy_score(labels, predicted)

per_class = metrics.precision_recall_fscore_support(labels, predicted)
for name, values in zip(("precision", "recall", "F1", "images"), per_class, strict=True):
    in_report[f"{name} per class"] = report["report"]["names"][name]
    computed[f"{name} per class"] = values

matrix = np.zeros((10, 10))
for label, prediction, count in report["report"]["pairs"]:
    matrix[label, prediction] = count
in_report["confusion matrix"] = matrix
computed["confusion matrix"] = metrics.confusion_matrix(labels, predicted)

# %% [markdown]
# The **expected calibration error** takes a few lines. Sort the predictions into 15 bins by their
# confidence; in each bin, confidence and accuracy should agree; average the gaps, each weighted by
# the number of its predictions ([Guo et al. 2017](https://arxiv.org/abs/1706.04599), equation 3).


# %%
def expected_calibration_error(confidence, correct, bins=15):
    bin_of = np.ceil(confidence * bins).astype(int)  # 1 to 15; bin i ends at i / 15
    gaps = [
        abs(correct[bin_of == i].mean() - confidence[bin_of == i].mean()) * (bin_of == i).mean()
        for i in np.unique(bin_of)
    ]
    return sum(gaps)


calibrated_error = expected_calibration_error(confidence, predicted == labels)
of_report = report["report"]["calibration"]
in_report["expected calibration error"] = of_report["expected_calibration_error"]
computed["expected calibration error"] = calibrated_error

mistakes = sorted(np.flatnonzero(predicted != labels), key=lambda i: -confidence[i])
in_report["mistakes, the most confident first"] = [m["index"] for m in report["mistakes"]]
computed["mistakes, the most confident first"] = mistakes[:24]

differences = {
    name: np.abs(np.subtract(in_report[name], computed[name])).max() for name in in_report
}
for name, difference in differences.items():
    print(f"{name:35} {np.size(in_report[name]):4} numbers, largest difference {difference:.0e}")

# %% [markdown]
# The calibration error is a mean of float32 probabilities, of which the last digits depend on the
# size of the batches. Everything else comes from counts, and is identical.
#
# ## What 360 images can show
#
# The page gives the accuracy with a 95 % confidence interval (Wilson 1927): the accuracies on *all*
# such digits for which this count would not be a surprise. SciPy computes the same one.

# %%
right = int((predicted == labels).sum())
interval = stats.binomtest(right, len(labels)).proportion_ci(0.95, method="wilson")
low, high = (f"{bound:.1%}" for bound in interval)
print(f"{right} of {len(labels)} correct: {low} to {high}")
interval_agrees = np.allclose(report["report"]["scores"]["accuracy"][1:], interval, atol=1e-5)

# %% [markdown]
# By hand, for an accuracy of 97 % and more images or fewer:

# %%
import matplotlib.pyplot as plt


def wilson(rate, count, z=1.96):
    center = (rate + z**2 / (2 * count)) / (1 + z**2 / count)
    half = z / (1 + z**2 / count) * np.sqrt(rate * (1 - rate) / count + (z / (2 * count)) ** 2)
    return center - half, center + half


assert np.allclose(wilson(right / len(labels), len(labels)), interval, atol=1e-4)

counts = np.geomspace(50, 50_000, 100)
low, high = wilson(0.97, counts)
figure, axis = plt.subplots(figsize=(7, 3.6), layout="constrained")
axis.fill_between(counts, 100 * low, 100 * high, alpha=0.3, label="95 % interval")
axis.axhline(97, lw=1, c="C0")
axis.axvline(len(labels), c="black", ls=":", label=f"the {len(labels)} images of this run")
axis.set(xscale="log", xlabel="validation images", ylabel="accuracy in %", xlim=(50, 50_000))
ticks = [50, 100, 360, 1000, 5000, 50_000]
axis.set_xticks(ticks, [f"{tick:,}" for tick in ticks], minor=False)
axis.minorticks_off()
axis.set_title("An accuracy of 97 %, and what it may be on all images")
axis.legend(loc="lower right")
plt.show()

# %% [markdown]
# Two models on the *same* images can be compared more sharply: only those images count on which
# exactly one model is right, and without a real difference each of these is a coin toss (McNemar
# 1947). If the second model is right wherever the first is, and on a few images more, how likely
# are coins to do that?

# %%
for more in range(1, 8):
    p = stats.binomtest(more, more).pvalue
    print(f"{more} more correct, {more / len(labels):.1%} higher accuracy: p = {p:.3f}")

# %% [markdown]
# Three images are not a difference: in one of four such comparisons, chance alone does as much. It
# takes six, and more than six where each model has mistakes that the other does not make. For
# smaller differences, take more images, or means over several values of `--seed`.
#
# ## The figures of a run

# %%
from IPython.display import Image, display

display(Image(run_folder / "curves.png"))

# %% [markdown]
# Training accuracy *below* validation accuracy is as it should be: training images are rotated,
# shifted and sheared, validation images are not. If the accuracy still rises at the end, train for
# more epochs; if the validation loss turns upwards, for fewer, or with more augmentation.

# %%
display(Image(run_folder / "confusion.png"))
display(Image(run_folder / "mistakes.png"))

# %% [markdown]
# In the confusion matrix, look for pairs of classes that are taken for each other. Among the
# mistakes, check the labels first: in a folder of photographs, the most confident mistakes are
# often wrong labels.
#
# ## Do the probabilities mean what they claim?
#
# `--held-out 0.1` kept a tenth of the training images from training and chose a temperature on
# them, by which all logits are divided. Multiplying by it gives the logits as they were.

# %%
temperature = report["temperature"]
versions = {"as trained": logits * temperature, "divided by the temperature": logits}
print(f"temperature {temperature:.3f}, from {report['held_out']} images\n")
print(f"{'':28}accuracy  log-loss  calibration error")
figure, axes = plt.subplots(1, 2, figsize=(8, 4.3), layout="constrained", sharey=True)
figure.suptitle("Confidence and accuracy: on the diagonal, probabilities are what they claim")
for axis, (name, values) in zip(axes, versions.items(), strict=True):
    scores = special.softmax(values.astype("float64"), axis=1)
    error = expected_calibration_error(scores.max(1), scores.argmax(1) == labels)
    accuracy = metrics.accuracy_score(labels, scores.argmax(1))
    print(f"{name:28}{accuracy:8.2%}  {metrics.log_loss(labels, scores):8.3f}  {error:16.2%}")
    edges = np.linspace(0, 1, 6)  # five bins: 15 would be noise with so few images
    bin_of = np.digitize(scores.max(1), edges[1:-1], right=True)
    for i in np.unique(bin_of):
        inside = bin_of == i
        hits = (scores.argmax(1) == labels)[inside]
        between = stats.binomtest(int(hits.sum()), len(hits)).proportion_ci(method="wilson")
        x = scores.max(1)[inside].mean()
        axis.plot((x, x), between, c="0.4")
        axis.plot(x, hits.mean(), "o", c="C1", ms=4 + 0.5 * len(hits) ** 0.5)
    axis.plot((0, 1), (0, 1), "--", c="black", lw=1)
    axis.set_title(f"{name}: off by {error:.1%}", fontsize=11)
    axis.set(xlabel="confidence", xlim=(0, 1.03), ylim=(0, 1.03))
axes[0].set_ylabel("accuracy, with 95 % interval")
plt.show()

# %% [markdown]
# Each point is the mean over the predictions in one of five bins; the larger, the more predictions.
# Above the diagonal, the model is right more often than it claims: it was trained for a few epochs
# only, with augmentation and smoothed labels. After many epochs, models usually err on the other
# side. The accuracy stays, since a temperature does not change which class is the most probable.
# Images that choose the temperature cannot also measure its success: that is why training images
# are held out for it.
#
# ## The finished run, evaluated again
#
# `keras-vit evaluate` loads the model and prints the same table, for these or for other images.

# %%
evaluate_output = run("keras-vit evaluate runs/digits --data digits", first="class ")
same_table = evaluate_output.strip() in train_output

# %% [markdown]
# ## What a report cannot show
#
# **Leakage.** A random split puts images that belong together on both sides. These digits are an
# example: few people wrote them
# (`load_digits().DESCR`), and images that stand side by side in the file are often by the
# same hand.

# %%
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from sklearn.neighbors import KNeighborsClassifier

pixels, digits = load_digits(return_X_y=True)
nearest = KNeighborsClassifier(2).fit(pixels, digits).kneighbors(pixels)[1][:, 1]
close = (np.abs(nearest - np.arange(len(pixels))) <= 50).mean()
print(f"the most similar image is among the 50 before or after it: {close:.0%}, by chance 6%")

half = len(pixels) // 2
random_split = []
for seed in range(5):
    split = train_test_split(pixels, digits, test_size=half, stratify=digits, random_state=seed)
    train, test, train_digits, test_digits = split
    random_split.append(KNeighborsClassifier(3).fit(train, train_digits).score(test, test_digits))
knn = KNeighborsClassifier(3).fit(pixels[:half], digits[:half])
print("accuracy of 3 nearest neighbors, trained on")
print(f"  a random half:  {np.mean(random_split):.1%}, mean of 5 seeds")
print(f"  the first half: {knn.score(pixels[half:], digits[half:]):.1%}")

# %% [markdown]
# The random split hides more than half of the mistakes. With photographs, the groups are people,
# places, cameras, or frames of one video. Split by group: give folders `train/` and `val/`, or
# lists `train.txt` and `val.txt` ([data](../data.md)).
#
# **Other cameras.** The report is about images like those it was given. The same model, on the same
# 360 digits as another scanner could have delivered them:

# %%


def shifted(images, pixels):
    """The images, moved to the right."""
    return np.pad(images, ((0, 0), (0, 0), (pixels, 0), (0, 0)))[:, :, : images.shape[2]]


gray = images.astype("float32")
noise = np.random.default_rng(0).normal(0, 50, gray.shape)
changed = {
    "as in the report": gray,
    "one pixel to the right": shifted(gray, 1),
    "two pixels to the right": shifted(gray, 2),
    "blurred": (gray + shifted(gray, 1)) / 2,
    "with noise": np.clip(gray + noise, 0, 255),
    "half the contrast": gray / 2,
    "black on white": 255 - gray,
}
rows = len(changed)
figure, axes = plt.subplots(rows, 2, figsize=(7, 7), width_ratios=(1, 6), layout="constrained")
figure.suptitle("The report knows the first row only")
shown = np.flatnonzero(labels == 0)[0]
for (example, bar), (name, x) in zip(axes, changed.items(), strict=True):
    share = (model.predict(x, verbose=0).argmax(1) == labels).mean()
    example.imshow(x[shown, ..., 0], cmap="gray", vmin=0, vmax=255)
    example.axis("off")
    bar.barh(0, share, color="C0" if name == "as in the report" else "C1")
    bar.plot(wilson(share, len(labels)), (0, 0), c="black")  # the 95 % interval
    bar.set_title(f"{name}: {share:.0%}", loc="left", fontsize=10, pad=2)
    bar.set(xlim=(0, 1))
    bar.axis("off")
plt.show()

# %% [markdown]
# Before you trust a report: read the interval, split by group, and evaluate on images from where
# the model will be used.

# %%
agrees = all(difference < 1e-5 for difference in differences.values()) and interval_agrees
result = {
    "accuracy": float(report["report"]["scores"]["accuracy"][0]),
    "agrees_with_scikit_learn": float(agrees),
    "evaluate_agrees": float(same_table),
}
result
