# %% [markdown]
# # From a TPU pod to a laptop
#
# The same training on one device and on eight simulated ones, by all three kinds of distribution.
# `make guides GUIDES=distribution` runs it in about a minute on two CPU cores; nothing is
# downloaded. A test promises that all four end with the same weights and logits to five decimal
# places, and with at least 90 % accuracy, and that FSDP keeps less than a fifth on each device.

# %% tags=["hide-input"]
import os

os.environ["KERAS_BACKEND"] = "jax"
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
# Eight devices from one CPU. With GPUs or TPUs, leave both lines out: JAX finds them.
os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=8"
os.environ["PJRT_NPROC"] = "32"  # threads: with two, devices that wait for others block them

import keras
import numpy as np

import keras_vit

splits = keras_vit.data.load("digits", seed=0)
images, labels = splits.train.as_arrays()
val_images, val_labels = splits.val.as_arrays()


def train(kind=None, **options):
    """A small ViT, trained on all devices, or on one without `kind`; its logits and its loss."""
    distribution = kind and getattr(keras_vit.distribution, kind)(**options)
    keras.distribution.set_distribution(distribution)  # before the model is built
    keras.utils.set_random_seed(0)
    sizes = {"patch_size": 4, "hidden_dim": 128, "mlp_dim": 512, "depth": 1, "num_heads": 8}
    # Yours: keras_vit.create("ViT-L/16", num_classes=...).
    model = keras_vit.VisionTransformer(num_classes=10, input_shape=(8, 8, 1), dropout=0.1, **sizes)
    optimizer = keras.optimizers.SGD(0.03, momentum=0.9, global_clipnorm=1.0)
    model.compile(optimizer, keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    # 60 images per batch: eight devices do not divide it, and need not.
    history = model.fit(images[:1380], labels[:1380], batch_size=60, epochs=6, verbose=0)
    logits = model.predict(val_images, batch_size=60, verbose=0)
    return model, logits, history.history["loss"][-1]


runs = {
    "one device": train(),
    "data_parallel": train("data_parallel"),
    "fsdp": train("fsdp"),
    "tensor_parallel": train("tensor_parallel", model_devices=4),  # two groups of four
}
for name, (_, logits, loss) in runs.items():
    print(f"{name:16}loss {loss:.6f}, accuracy {(logits.argmax(1) == val_labels).mean():.1%}")

# %% [markdown]
# The losses agree. So do all weights and logits; the table has the largest difference from those of
# one device:

# %%


def difference(values, expected):
    """The largest difference of two lists of arrays, relative to each array's largest value."""
    return max(
        np.abs(one - other).max() / max(np.abs(other).max(), 0.1)  # new biases are close to zero
        for one, other in zip(values, expected, strict=True)
    )


def bytes_per_device(model):
    """Bytes of the weights and the optimizer's states on each device."""
    count = {}
    for variable in [*model.variables, *model.optimizer.variables]:
        for shard in variable.value.addressable_shards:
            count[shard.device] = count.get(shard.device, 0) + shard.data.nbytes
    return list(count.values())


reference, reference_logits, _ = runs["one device"]
table = {
    name: {
        "devices": len(bytes_per_device(model)),
        "accuracy": float((logits.argmax(1) == val_labels).mean()),
        "weights": difference(model.get_weights(), reference.get_weights()),
        "logits": difference([logits], [reference_logits]),
        "MiB": max(bytes_per_device(model)) / 2**20,
    }
    for name, (model, logits, _) in runs.items()
}
print("                 devices  weights differ by  logits differ by  MiB per device")
for name, row in table.items():
    print(
        f"{name:16}{row['devices']:8}{row['weights']:19.0e}{row['logits']:18.0e}{row['MiB']:16.2f}"
    )

# %% [markdown]
# Dropout, clipping by the global norm and batches that eight devices do not divide give what one
# device gives. What differs is the last of float32's seven decimal places, as sums are taken in
# another order. AdamW enlarges this where a gradient is nothing but rounding, as that of the biases
# of the keys, which no logit depends on: compare logits then. The simulated devices share one CPU,
# so nothing is faster here; but the program is that of a pod.
#
# ## Who holds what
#
# The kernel of queries, keys and values, `(128, 384)`. The numbers are those of the devices that
# hold a part.

# %%
import matplotlib.pyplot as plt

figure, axes = plt.subplots(3, 1, figsize=(7, 6.4), layout="constrained")
for axis, kind in zip(axes, keras_vit.distribution.KINDS, strict=True):
    (kernel,) = (
        variable.value
        for variable in runs[kind][0].trainable_variables
        if variable.path.endswith("query_key_value/kernel")
    )
    height, width = kernel.shape
    parts = {}
    for shard in kernel.addressable_shards:
        top, bottom, _ = shard.index[0].indices(height)
        left, right, _ = shard.index[1].indices(width)
        parts.setdefault((left, top, right, bottom), []).append(shard.device.id)
    for (left, top, right, bottom), devices in parts.items():
        size = (right - left, bottom - top)
        color = f"C{min(devices)}" if len(devices) < 8 else "0.85"
        part = plt.Rectangle((left, top), *size, facecolor=color, edgecolor="white", lw=3)
        axis.add_patch(part)
        text = (
            ", ".join(map(str, sorted(devices))) if len(devices) < 8 else "whole, on each of 0 to 7"
        )
        axis.annotate(text, (left + size[0] / 2, top + size[1] / 2), ha="center", va="center")
    axis.set(xlim=(0, width), ylim=(height, 0), title=kind, ylabel="input", yticks=(0, 64, 128))
axes[-1].set_xlabel("output: queries, keys, values")
plt.show()

# %% [markdown]
# FSDP cuts the largest axis, whatever it means, and gathers the kernel whenever it is needed.
# Tensor parallel cuts between heads: a device computes its heads alone, and nothing is gathered;
# with `model_devices=4`, two groups of four devices share each batch. `layout_table` prints this
# for every variable, also of models that no single machine could hold:

# %%
keras.distribution.set_distribution(None)
with keras.StatelessScope(initialize_variables=False):  # shapes without values
    huge = keras_vit.create("ViT-H/14")
print(keras_vit.distribution.layout_table(huge, "fsdp", 8))

# %% [markdown]
# ## What a device has to hold
#
# Counted on the devices after training. Variables of less than 16,384 values stay whole on each
# device, as cutting them would save little; that is why FSDP keeps more than an eighth here.

# %%
figure, axis = plt.subplots(figsize=(7, 2.8), layout="constrained")
sizes = [row["MiB"] for row in table.values()]
bars = axis.barh(list(table), sizes, color=["0.6", "C0", "C1", "C2"])
axis.bar_label(bars, [f"{size:.2f}" for size in sizes], padding=4)
axis.invert_yaxis()
axis.set(xlabel="MiB on the fullest device", xlim=(0, 1.15 * max(sizes)))
axis.set_title("Weights and optimizer states per device")
plt.show()

# %% [markdown]
# ## Will it fit the pod?
#
# In a clone of the repository, `python -m benchmarks plan` answers before anything is rented: what
# a training step costs each chip of a TPU that is elsewhere, by arithmetic and by its compiler
# ([Many devices](../distributed.md#a-tpu-that-is-elsewhere)).
#
# ## The same line elsewhere
#
# The line that matters is `set_distribution(create(kind))`. On several machines, one more comes
# first, in every process:
#
# ```python
# keras_vit.distribution.initialize()  # finds torchrun, SLURM or the TPU pod
# keras.distribution.set_distribution(keras_vit.distribution.fsdp())
# ```
#
# On the command line, `--distribution KIND` does both:
#
# <!-- not run: needs the machines -->
#
# ```bash
# # torch on one machine with eight GPUs, a process per GPU
# KERAS_BACKEND=torch torchrun --nproc-per-node 8 \
#   -m keras_vit_cli train --data photos --out runs/photos --distribution data_parallel
#
# # JAX under SLURM on two machines with all their GPUs, a process per machine
# KERAS_BACKEND=jax srun --nodes 2 --ntasks-per-node 1 --gpus-per-node 8 --kill-on-bad-exit=1 \
#   keras-vit train --data photos --out runs/photos --distribution fsdp
#
# # JAX on all machines of a TPU pod slice
# gcloud compute tpus tpu-vm ssh my-slice --zone us-west4-a --worker=all --command \
#   "KERAS_BACKEND=jax keras-vit train --data photos --out runs/photos --distribution fsdp"
# ```
#
# All machines need the same data and one `--out` folder that each of them sees. `--resume`
# continues a run, also on another number of devices. [Many devices](../distributed.md) has a script
# for each launcher, and what is equal to what.

# %%
import math

largest = max(max(row["weights"], row["logits"]) for row in table.values())
result = {
    "equal_decimal_places": -math.log10(largest),
    "accuracy": min(row["accuracy"] for row in table.values()),
    "fsdp_saves": table["one device"]["MiB"] / table["fsdp"]["MiB"],  # how many times less
}
result
