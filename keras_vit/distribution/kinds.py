"""Data parallel, FSDP and tensor parallel, as objects for `keras.distribution.set_distribution`."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import keras
import numpy as np

from keras_vit._base.errors import check_choice, check_positive
from keras_vit.distribution.axes import BATCH, KINDS, Axes, cut_axes
from keras_vit.distribution.launch import find_launch
from keras_vit.ops import MODEL, ProcessParallel, process_count


class CutWeights(keras.distribution.ModelParallel):
    """A `keras.distribution.ModelParallel` whose layouts follow from shapes and paths.

    With `"fsdp"`, every device has a part of each large weight, and of its states (ZeRO, stage 3,
    Rajbhandari et al. 2020); with `"tensor_parallel"`, groups of devices share the products of each
    block (Megatron-LM, Shoeybi et al. 2019).

    Args:
        mesh: The devices: the first axis cuts batches, the last one weights.
    """

    def __init__(self, kind: str, mesh: keras.distribution.DeviceMesh) -> None:
        layouts = keras.distribution.LayoutMap(mesh)
        super().__init__(layout_map=layouts, batch_dim_name=BATCH, auto_shard_dataset=False)
        self.kind = kind

    def _axes(self, variable: Any) -> Axes:
        return cut_axes(self.kind, variable.path, variable.shape, self.device_mesh.shape[-1])

    def get_variable_layout(self, variable: Any) -> keras.distribution.TensorLayout:
        return keras.distribution.TensorLayout(self._axes(variable), self.device_mesh)

    def check_model(self, model: keras.Model) -> None:
        """Refuses to copy a whole model to every device where it was to be cut.

        Raises:
            ValueError: No variable of the model is cut.
        """
        if not any(any(self._axes(variable)) for variable in model.trainable_variables):
            sizes = " x ".join(map(str, self.device_mesh.shape))
            raise ValueError(
                f"{self.kind!r} over {sizes} devices cuts no weight of {model.name}, and every "
                "device would hold it whole. Take a number of devices that divides the widths of "
                "its layers, or keras_vit.distribution.data_parallel()."
            )


def data_parallel(
    devices: int | Sequence[str] | None = None,
) -> keras.distribution.Distribution:
    """Give every device the whole model and a part of each batch.

    Like the other kinds, it is for `keras.distribution.set_distribution`, and set before the model
    is built. `fit`, `evaluate` and `predict` then take any number of examples, and give what one
    device gives; files and resumed runs do not depend on the number of devices.

    On JAX, one process has all devices. On torch, this kind is over the processes that torchrun
    started and `initialize` joined, with one device each: every process passes the same global
    batches to `fit`, `evaluate` and `predict`, and computes its rows of them. Other models than
    those of this package then compute all rows in every process.

    TensorFlow has strategies of its own, `tf.distribute`, in whose scope a model is built: they
    give other numbers than one device, which the page "Many devices" lists.

    Args:
        devices: How many, or their names, such as `["gpu:0", "gpu:1"]`; None for all. On torch, the
            number of processes, or None.

    Raises:
        RuntimeError: The backend does not have this kind (TensorFlow: none), or `initialize` was
            not called.
        ValueError: There are not as many devices.

    Example:

    >>> import keras, keras_vit
    >>> if keras.backend.backend() == "jax":
    ...     one = keras_vit.distribution.data_parallel(devices=1)
    ...     with one.scope():
    ...         model = keras_vit.VisionTransformer(
    ...             patch_size=8, hidden_dim=8, depth=1, num_heads=2, input_shape=(16, 16, 3))
    """
    return distribution_of("data_parallel", devices)


def fsdp(devices: int | Sequence[str] | None = None) -> keras.distribution.Distribution:
    """Give every device a part of each batch and of each large weight, gathered when it is needed.

    Args:
        devices: As for `data_parallel`.

    Raises:
        RuntimeError: The backend is not JAX.
        ValueError: There are not as many devices.
    """
    return distribution_of("fsdp", devices)


def tensor_parallel(
    devices: int | Sequence[str] | None = None, *, model_devices: int | None = None
) -> keras.distribution.Distribution:
    """Let groups of devices share the products of each block, and cut batches between groups.

    Args:
        devices: As for `data_parallel`.
        model_devices: Devices of a group; None for all.

    Raises:
        RuntimeError: The backend is not JAX.
        ValueError: There are not as many devices, or the groups do not divide them.
    """
    return distribution_of("tensor_parallel", devices, model_devices)


def distribution_of(
    kind: str, devices: int | Sequence[str] | None = None, model_devices: int | None = None
) -> keras.distribution.Distribution:
    """Return `data_parallel`, `fsdp` or `tensor_parallel` by its name.

    Raises:
        RuntimeError: As these.
        ValueError: As these, or the name is unknown.
    """
    check_choice(kind, "kind", KINDS)
    if model_devices is not None and kind != "tensor_parallel":
        raise ValueError(f"model_devices={model_devices!r} is for kind='tensor_parallel'.")
    if keras.backend.backend() == "torch" and kind == "data_parallel":
        return _over_processes(devices)
    if keras.backend.backend() != "jax":
        where = "JAX and torch" if kind == "data_parallel" else "JAX"
        raise RuntimeError(
            f"{kind!r} works on {where}, and Keras runs on {keras.backend.backend()}. "
            f"{_INSTEAD[keras.backend.backend()]} Or set KERAS_BACKEND=jax."
        )
    return distribution_over(kind, _names(devices), model_devices)


def distribution_over(
    kind: str, devices: Sequence[Any], model_devices: int | None = None
) -> keras.distribution.Distribution:
    """Return `distribution_of` these devices: names, or JAX's own, perhaps a compiler's alone.

    Raises:
        ValueError: As `distribution_of`.
    """
    check_choice(kind, "kind", KINDS)
    count = len(devices)
    group = model_devices or count if kind == "tensor_parallel" else 1
    check_positive(model_devices=group if model_devices is None else model_devices)
    if count % group:
        raise ValueError(f"model_devices={group!r} must divide the {count} devices.")
    shape = (count // group, group) if kind == "tensor_parallel" else (count,)
    mesh = keras.distribution.DeviceMesh(shape, [BATCH, MODEL][: len(shape)], np.array(devices))
    if kind == "data_parallel":
        return keras.distribution.DataParallel(device_mesh=mesh, auto_shard_dataset=False)
    return CutWeights(kind, mesh)


_INSTEAD = {
    "tensorflow": "There, build, compile and fit the model within `with tf.distribute."
    "MirroredStrategy().scope():`; docs/distributed.md lists what is then equal to one device.",
    "torch": "There, data_parallel() works, in processes that torchrun starts.",
}


def _over_processes(devices: int | Sequence[str] | None) -> ProcessParallel:
    """Data parallel over torch's processes."""
    processes = process_count()
    launch = find_launch(os.environ)
    if launch is not None and launch.processes > 1 and processes == 1:
        raise RuntimeError(
            f"{launch.processes} processes were started: call "
            "keras_vit.distribution.initialize() first."
        )
    if devices not in (None, processes):
        raise ValueError(
            f"devices={devices!r}, and there are {processes} processes, each with one device. "
            "Start the script by torchrun --nproc-per-node DEVICES, and leave devices out."
        )
    return ProcessParallel()


def _names(devices: int | Sequence[str] | None) -> list[str]:
    """Return the names of the devices to use."""
    available = keras.distribution.list_devices()
    if devices is None:
        return available
    if isinstance(devices, int):
        check_positive(devices=devices)
        if devices > len(available):
            # With fewer threads than devices, XLA can wait for itself.
            raise ValueError(
                f"devices={devices}, and there are {len(available)}: {', '.join(available)}. To "
                f"try it on a CPU, set XLA_FLAGS=--xla_force_host_platform_device_count={devices} "
                f"and PJRT_NPROC={4 * devices} before Python starts."
            )
        return available[:devices]
    unknown = [name for name in devices if name not in available]
    if unknown or not devices:
        raise ValueError(
            f"devices={list(devices)!r} must be among {', '.join(available)}, at least one."
        )
    return list(devices)
