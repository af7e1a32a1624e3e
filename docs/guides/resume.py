# %% [markdown]
# # Resume and reproducibility
#
# A training that is killed at any moment and resumed ends with the weights of one that was never
# killed. `make guides GUIDES=resume` shows it in about a minute on two CPU cores; nothing is
# downloaded. A test promises that all weights and the whole history are equal, bit for bit, and
# that the files of a finished run have the checksums that it lists.

# %% tags=["hide-input"]
import os

os.environ["KERAS_BACKEND"] = "tensorflow"  # or "jax", "torch"
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import subprocess
import sys
import tempfile
import time
from pathlib import Path

folder = Path(tempfile.mkdtemp())


def start(command, **options):
    """Starts a command in the folder."""
    print(f"$ {command}", flush=True)
    program, *words = command.split()
    installed = Path(sys.executable).with_name(program)  # beside Python, or a tool of the system
    words = [installed if installed.exists() else program, *words]
    return subprocess.Popen(words, **{"cwd": folder, "text": True, **options})


def show_files(name):
    """The files of a folder with their sizes."""
    for file in sorted((folder / name).rglob("*")):
        if file.is_file():
            print(f"{file.stat().st_size / 1024:9,.1f} KiB  {file.relative_to(folder)}")


TRAIN = "keras-vit train --data digits --epochs 3 --out runs/digits"
training = start(TRAIN, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
while not [*folder.glob("runs/digits.partial/checkpoints/step-*")]:
    assert training.poll() is None, "the training has ended"
    time.sleep(0.02)
training.kill()  # SIGKILL, which no program can catch
print("killed with exit status", training.wait())
show_files("runs")

# %% [markdown]
# A run stays in `OUT.partial` until everything is complete, so that no program takes a part of a
# run for a whole one. Checkpoints are written every minute and at the end of the training. The
# digits take less than a minute, so this kill, which waits for the first checkpoint, comes before
# the report.
#
# `--resume` with another option than the run was started with is refused:

# %%


def run(command, keep="", **options):
    """Runs a command, prints the lines that begin with `keep`, and returns the exit status."""
    process = start(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, **options)
    for line in process.communicate()[0].splitlines():
        if line.startswith(keep):
            print(line.replace(f"{folder}/", ""))
    return process.returncode


status = run(f"{TRAIN} --seed 1 --resume", keep="keras-vit:")
print("exit status", status)

# %% [markdown]
# The same command with `--resume` goes on from the checkpoint. Here that is the one at the end of
# the training, step 69 of 3 x 23: what is left is to evaluate the model and to write the report.

# %%
status = run(f"{TRAIN} --resume", keep=("continues", "finished", "epoch", "accuracy"))
assert status == 0
show_files("runs")

# %% [markdown]
# ## Step by step
#
# The same in Python, with a checkpoint every 20 steps, so that the kill comes in the middle of an
# epoch. `ResumableRun.fit` is `model.fit` that may be killed. It takes any Keras model and a
# function that returns the batches from a given step on.

# %%
import inspect

EPOCHS, STEPS, KILL_AT = 5, 23, 78


def train(folder, epochs, steps):
    """Trains a small ViT on the digits. When it was killed, call it again."""
    import json
    from pathlib import Path

    import keras
    import numpy as np

    import keras_vit
    from keras_vit.training.resume import ResumableRun

    class PrintLoss(keras.callbacks.Callback):
        """A callback with a state, which checkpoints hold as well."""

        step = 0

        def on_train_batch_end(self, batch, logs=None):
            self.step += 1
            print("step", self.step, logs["loss"], flush=True)

        def state_dict(self):
            return {"step": self.step}

        def load_state_dict(self, state):
            self.step = state["step"]

    keras.utils.set_random_seed(0)
    splits = keras_vit.data.load("digits", seed=0)
    recipe = keras_vit.recipes.get("digits")  # with stochastic depth and augmented images
    model = keras_vit.VisionTransformer(num_classes=10, input_shape=(8, 8, 1), **recipe.model)
    keras_vit.training.compile_model(model, recipe.scaled(epochs * steps, 64), epochs * steps)

    def batches(start_step):  # endless; each batch depends on the seed and its step alone
        return keras_vit.data.pipeline(
            splits.train, 8, 64, training=True, channels=1, repeat=True, start_step=start_step
        )

    run = ResumableRun(f"{folder}/checkpoints", every_steps=20)  # yours: every_seconds=600
    history = run.fit(model, batches, epochs, steps, callbacks=[PrintLoss()], verbose=0).history
    np.savez(f"{folder}/weights.npz", *model.get_weights())
    Path(f"{folder}/history.json").write_text(json.dumps(history))


def start_training(name):
    """Calls `train` in a process of its own, which can be killed."""
    code = f"{inspect.getsource(train)}\ntrain({name!r}, {EPOCHS}, {STEPS})"
    log = (folder / f"{name}.log").open("a")
    return subprocess.Popen(
        [sys.executable, "-c", code], cwd=folder, text=True, stdout=subprocess.PIPE, stderr=log
    )


def losses(process, kill_at=None):
    """The loss after each step that a process prints, until it ends or is killed."""
    values = {}
    for line in process.stdout:
        if line.startswith("step "):
            step, loss = line.split()[1:]
            values[int(step)] = float(loss)
            if int(step) == kill_at:
                process.kill()
        else:
            print(line, end="")
    print("exit status", process.wait())
    return values


never_killed, killed = start_training("whole"), start_training("killed")  # side by side
before_kill = losses(killed, KILL_AT)
show_files("killed")

# %% [markdown]
# Two checkpoints are left, each with its own checksum, as one may be damaged. The same call again
# finds the newest one, and computes the steps from there to the kill a second time.

# %%
after_kill = losses(start_training("killed"))
whole = losses(never_killed)

# %%
import json

import matplotlib.pyplot as plt
import numpy as np

with np.load(folder / "whole/weights.npz") as one, np.load(folder / "killed/weights.npz") as other:
    pairs = [(one[name], other[name]) for name in one.files]
differing = sum(int((a.view("uint32") != b.view("uint32")).sum()) for a, b in pairs)
print(f"{sum(a.size for a, _ in pairs):,} weights, of which {differing} differ in any bit")

one, other = (
    json.loads((folder / name / "history.json").read_text()) for name in ("whole", "killed")
)
same_losses = all(whole[step] == loss for step, loss in [*before_kill.items(), *after_kill.items()])
print(f"history of {EPOCHS} epochs equal: {one == other}")
print(f"losses after each of {len(whole)} steps equal: {same_losses}")

figure, axis = plt.subplots(figsize=(7, 3.8), layout="constrained")
axis.plot(*zip(*whole.items(), strict=True), lw=7, c="0.85", label="never killed")
axis.plot(*zip(*before_kill.items(), strict=True), c="C3", lw=2, label="until the kill")
axis.plot(*zip(*after_kill.items(), strict=True), c="C0", ls=(0, (3, 3)), lw=2, label="resumed")
axis.axvline(min(after_kill), c="C0", ls=":")
axis.axvline(KILL_AT, c="C3", ls=":")
top = max(whole.values())
axis.annotate("last checkpoint ", (min(after_kill), top), c="C0", ha="right", va="top")
axis.annotate(" SIGKILL", (KILL_AT, top), c="C3", va="top")
axis.set(xlabel="step", ylabel="training loss, mean of the epoch so far")
axis.set_title("Killed and resumed: the same losses, step by step")
axis.legend(loc="lower left")
plt.show()

# %% [markdown]
# A checkpoint holds everything that a step changes: weights, the optimizer's moments and averages,
# the seeds of dropout and stochastic depth, metrics, history, and the states of callbacks. Order
# and augmentation of the images follow from the seed and the number of the step. Keras's own
# `BackupAndRestore` saves neither the seeds nor the step within an epoch, so its resumed runs
# differ.
#
# For a large model, change the model, the data and the interval, `every_seconds=600` in place of
# `every_steps=20`. On machines that may be taken away, let the scheduler repeat the call.
#
# ## What a run records
#
# `SHA256SUMS` lists the files that a run wrote; the SavedModel has a list of its own. `sha256sum`
# checks them, and every command that loads the model compares its checksum. `--overwrite` deletes
# only files that are listed there and unchanged.

# %%
import shutil

run_folder = folder / "runs/digits"
check = "sha256sum --check" if shutil.which("sha256sum") else "shasum -a 256 --check"  # macOS
checksums_hold = run(f"{check} SHA256SUMS", cwd=run_folder) == 0

# %% [markdown]
# One byte more, and it shows:

# %%
with (run_folder / "history.csv").open("a") as file:
    file.write("\n")
change_shows = run(f"{check} --quiet SHA256SUMS", cwd=run_folder) == 1

# %% [markdown]
# `config.json` has the options, versions and settings of the run, and `report.json` what came out.

# %%
config = json.loads((run_folder / "config.json").read_text())
report = json.loads((run_folder / "report.json").read_text())
print("versions  ", ", ".join(f"{name} {version}" for name, version in config["versions"].items()))
for option in ("data", "epochs", "seed"):
    print(f"{option:10}", config["job"][option])
print("recipe    ", report["recipe"], f"and its {len(config['recipe'])} settings")
print("images    ", ", ".join(f"{count:,} in {name}" for name, count in report["data"].items()))
print("parameters", f"{report['parameters']:,}")
print("accuracy  ", f"{report['report']['scores']['accuracy'][0]:.1%}")

# %% [markdown]
# ## What is reproducible, and what is not
#
# A second run with the same seed and options ends with
#
# - **the same bits** on the same processor, backend and versions: killed or not, busy or not;
# - **weights within 1e-6 of their scale** on several devices or in several processes ([many
#   devices](../distributed.md));
# - **weights that are close at first** on another kind of processor or with another version of the
#   backend: sums are rounded in another order, and training enlarges the differences;
# - **the same bits on a GPU** only with deterministic kernels, which are slower:
#   `tf.config.experimental.enable_op_determinism()`, `XLA_FLAGS=--xla_gpu_deterministic_ops=true`
#   or `torch.use_deterministic_algorithms(True)`;
# - **other weights** with another backend: each draws its own numbers from a seed.
#
# `--resume` refuses to go on with another backend, model, optimizer, recipe or seed; the number of
# devices and processes may change. A seed makes a run repeatable, not its accuracy typical: another
# seed gets a few images more or less right. For a comparison, give means over several values of
# `--seed`.

# %%
result = {
    "weights_equal": float(differing == 0),
    "history_equal": float(one == other and same_losses),
    "checksums_hold": float(checksums_hold and change_shows),
}
result
