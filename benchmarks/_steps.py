"""What one step costs each device, from the program that XLA compiles for it: no weight is made.

    name, kind, devices ──► model without values ──► step ──► XLA ──► bytes, operations

The devices may be simulated, or those of a TPU that is elsewhere: its compiler runs on any machine.
Beside it stands what arithmetic on the model's shapes expects, which needs no compiler.
"""

from __future__ import annotations

import importlib.util
import math
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import keras

from keras_vit._base.errors import check_choice, check_positive, counted
from keras_vit._base.version import DISTRIBUTION
from keras_vit.applications import create
from keras_vit.distribution.axes import KINDS, held_parameters
from keras_vit.distribution.kinds import distribution_of, distribution_over
from keras_vit.models import named_model
from keras_vit.models.cost import BYTES, cost_of
from keras_vit.models.geometry import DEFAULT_SIZE
from keras_vit.models.skeleton import without_values
from keras_vit.ops.devices import layout_of

_COLLECTIVES = "all-reduce|all-gather|reduce-scatter|collective-permute|all-to-all"
_BYTES = {"pred": 1, "u8": 1, "s8": 1, "bf16": 2, "f16": 2, "f32": 4, "s32": 4, "u32": 4, "f64": 8}


@dataclass(frozen=True)
class Chip:
    """A TPU chip, by Google Cloud's documentation.

    Attributes:
        flops: Peak operations per second in bfloat16.
        bandwidth: Bytes per second between it and its memory.
        memory: Bytes of its memory.
    """

    flops: float
    bandwidth: float
    memory: float


CHIPS = {
    "v4": Chip(275e12, 1228e9, 32 * 2**30),
    "v5e": Chip(197e12, 819e9, 16 * 2**30),
    "v5p": Chip(459e12, 2765e9, 95 * 2**30),
    "v6e": Chip(918e12, 1640e9, 32 * 2**30),
}


class DoesNotFitError(RuntimeError):
    """The step needs more memory than the device has."""


@dataclass(frozen=True)
class StepCost:
    """The cost of a step for one device; a field is None where nobody knows.

    Attributes:
        devices: Over how many devices the step runs.
        chip: The kind of device; None where it is not a TPU.
        state: Bytes of weights and optimizer states.
        temporaries: Bytes of what the step keeps meanwhile, at most.
        flops: Operations.
        moved: Bytes between the device and its memory.
        collectives: Bytes that collective operations give it.
        loops: Loops of the program. XLA counts one turn of each, so that operations, traffic and
            collectives are at least these: with FSDP, it computes products in turns over the TPU's
            chips while it exchanges weights.
        held: Share of the parameters that the device holds; None where nobody counted.
    """

    devices: int
    chip: Chip | None
    state: int
    temporaries: int
    flops: float
    moved: float | None
    collectives: int | None
    loops: int = 0
    held: float | None = None

    @property
    def memory(self) -> int:
        """Bytes of its memory in use, at most."""
        return self.state + self.temporaries

    @property
    def least_seconds(self) -> float | None:
        """Seconds by the roofline; no step of so many operations and bytes takes less."""
        if self.chip is None:
            return None
        return max(self.flops / self.chip.flops, (self.moved or 0) / self.chip.bandwidth)

    @property
    def bound(self) -> str | None:
        """What bounds the least time, "operations" or "memory traffic"."""
        if self.chip is None:
            return None
        computes = self.least_seconds == self.flops / self.chip.flops
        return "operations" if computes else "memory traffic"

    @property
    def fits(self) -> str | None:
        """Whether the memory of the chip suffices."""
        if self.chip is None:
            return None
        size = f"{self.chip.memory / 2**30:g} GiB"
        return f"in {size}" if self.memory <= self.chip.memory else f"NOT in {size}"

    def __str__(self) -> str:
        return cost_table({"": self})


def cost_table(costs: Mapping[str, StepCost]) -> str:
    """Costs as columns of a table, under their titles."""

    def cell(value: float | str | None, unit: str) -> str:
        scale = {"GiB": 2**30, "Tflop": 1e12, "ms": 1e-3}.get(unit, 1)
        return f"{value / scale:,.2f} {unit}" if isinstance(value, float | int) else value or "-"

    rows = {
        "weights, states": ("state", "GiB"),
        "temporaries": ("temporaries", "GiB"),
        "memory": ("memory", "GiB"),
        "fits": ("fits", ""),
        "operations": ("flops", "Tflop"),
        "memory traffic": ("moved", "GiB"),
        "collectives": ("collectives", "GiB"),
        "least time": ("least_seconds", "ms"),
        "bound by": ("bound", ""),
    }
    cells = {
        row: [cell(getattr(cost, name), unit) for cost in costs.values()]
        for row, (name, unit) in rows.items()
    }
    lines = [("", list(costs)), *cells.items()] if any(costs) else [*cells.items()]
    return "\n".join(f"  {row:16}" + "".join(f"{c:>18}" for c in columns) for row, columns in lines)


def run_cost(costs: Mapping[str, StepCost], images: int, epochs: int, batch_size: int) -> str:
    """Return the least time of a whole training, by the costs of its step: a line.

    Args:
        costs: One or several counts of the same step on TPUs, of which the largest holds.
        images: Images of the training set.
        epochs: Passes over them.
        batch_size: Images of the step, on all devices together.

    Raises:
        ValueError: A number is not positive.
    """
    check_positive(images=images, epochs=epochs, batch_size=batch_size)
    steps = epochs * math.ceil(images / batch_size)
    seconds = max(cost.least_seconds or 0 for cost in costs.values())
    hours = steps * seconds / 3600
    chips = max(cost.devices for cost in costs.values())
    return (
        f"{counted(images, 'image')}, {epochs} x: {counted(steps, 'step')}, at least {hours:,.1f} "
        f"hours, {hours * chips:,.0f} of a chip"
    )


def step_cost(
    name: str,
    kind: str = "data_parallel",
    devices: int | str | None = None,
    batch_size: int = 32,
    precision: str = "float32",
    training: bool = True,
    **arguments: Any,
) -> StepCost:
    """Compiles a step of a named model, in training with AdamW, and counts what it costs.

    Args:
        name: A name that `keras_vit.create` knows.
        kind: As for `keras_vit.distribution.layout_table`.
        devices: How many of the devices here; None for all; or a TPU such as `"v5e:4x4"`, which
            needs the package `libtpu` and no TPU.
        batch_size: Images of the step, on all devices together.
        precision: A Keras dtype policy.
        training: Whether it is a training step, or one of `predict`.
        **arguments: Further arguments of the model, such as `remat=True`.

    Raises:
        RuntimeError: Keras does not run on JAX.
        ImportError: `devices` names a TPU, and `libtpu` is not installed.
        DoesNotFitError: The step needs more memory than the TPU has.
        ValueError: A name or a number is not accepted.
    """
    check_positive(batch_size=batch_size)
    if keras.backend.backend() != "jax":
        raise RuntimeError("Compiling for other devices is JAX's: set KERAS_BACKEND=jax.")
    if isinstance(devices, str):
        distribution = distribution_over(kind, tpu_devices(devices))
    else:
        distribution = distribution_of(kind, devices)
    with keras.StatelessScope(initialize_variables=False):
        model = create(name, dtype=precision, **arguments)
    count = distribution.device_mesh.devices.size
    try:
        program = compile_step(model, distribution, batch_size, training)
    except RuntimeError as error:
        if not (needed := re.search(r"Ran out of memory [^()]*\(.*?\)[^()]*\(.*?\)", str(error))):
            raise
        raise DoesNotFitError(
            f"{name} with {batch_size} images does not fit {count} devices by {kind!r}: "
            f"{needed[0]}. Give fewer images or more devices, distribute by 'fsdp', or recompute "
            "activations: remat=True."
        ) from error
    return program_cost(program, count, _chip(devices))


def tpu_devices(topology: str) -> list[Any]:
    """Return the devices of a TPU such as `"v5e:4x4"`, for its compiler alone.

    Raises:
        ImportError: The package `libtpu` is not installed.
        ValueError: There is no such TPU.
    """
    if importlib.util.find_spec("libtpu") is None:
        raise ImportError(
            f"The compiler of TPUs is missing: pip install '{DISTRIBUTION}[tpu]'. Nothing else is "
            "needed, and no TPU."
        )
    from jax.experimental import topologies

    # Without these, the library looks for a TPU in this machine, for minutes.
    os.environ.setdefault("TPU_SKIP_MDS_QUERY", "1")
    os.environ.setdefault("TPU_WORKER_HOSTNAMES", "localhost")
    try:
        return list(topologies.get_topology_desc(topology, "tpu").devices)
    except Exception as error:  # of libtpu's own kinds
        reason = str(error).strip().split("\n")[0]
        raise ValueError(
            f"{topology!r} is not a TPU that libtpu knows ({reason}). Give one such as 'v5e:2x4'."
        ) from error


def compile_step(
    model: keras.Model, distribution: Any, batch_size: int, training: bool = True
) -> Any:
    """Return the compiled step of an image classifier, in place of `fit`'s or `predict`'s.

    Args:
        model: Built in `keras.StatelessScope(initialize_variables=False)`: without values.
        distribution: A `keras.distribution.Distribution`.
        batch_size: Images of a step, on all devices together: uint8.
        training: A training step with AdamW; else the logits of a batch.

    Returns:
        A `jax.stages.Compiled`.
    """
    import jax

    for variable in model.variables:
        variable._layout = distribution.get_variable_layout(variable)  # its states follow it

    def on_devices(values: Any, layout: Any) -> Any:
        return jax.ShapeDtypeStruct(values.shape, values.dtype, sharding=layout.backend_layout)

    def state_of(*groups: Any) -> tuple[Any, ...]:
        return tuple(
            [on_devices(v, layout_of(v) or distribution.get_variable_layout(v)) for v in group]
            for group in groups
        )

    images = keras.KerasTensor((batch_size, *model.input_shape[1:]), "uint8")
    labels = keras.KerasTensor((batch_size,), "int32")
    data = tuple(on_devices(x, distribution.get_data_layout(x.shape)) for x in (images, labels))
    weights = model.trainable_variables, model.non_trainable_variables
    if not training:
        with distribution.scope():
            step = jax.jit(lambda *arguments: model.stateless_call(*arguments, training=False)[0])
            return step.lower(*state_of(*weights), data[0]).compile()
    model.compile(
        keras.optimizers.AdamW(1e-3), keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    )
    with keras.StatelessScope(initialize_variables=False):
        model.optimizer.build(model.trainable_variables)
        model._symbolic_build(data_batch=(images, labels))
    state = state_of(*weights, model.optimizer.variables, model.metrics_variables)
    shardings = jax.tree.map(lambda leaf: leaf.sharding, state)
    with distribution.scope():
        step = jax.jit(model.train_step, donate_argnums=0, out_shardings=(None, shardings))
        return step.lower(state, data).compile()


def program_cost(program: Any, devices: int, chip: Chip | None = None) -> StepCost:
    """Return what XLA counts in a `jax.stages.Compiled` for one of its devices."""
    memory, cost, text = program.memory_analysis(), program.cost_analysis(), program.as_text()
    return StepCost(
        devices,
        chip,
        memory.argument_size_in_bytes,
        memory.temp_size_in_bytes,
        cost["flops"],
        cost["bytes accessed"],
        _collective_bytes(text),
        len(re.findall(r" while\(", text)),
    )


def expected_cost(
    name: str,
    kind: str = "data_parallel",
    devices: int | str = 1,
    batch_size: int = 32,
    precision: str = "float32",
    remat: bool = False,
    **options: Any,
) -> StepCost:
    """Estimate what a training step with AdamW costs a device, from the model's shapes alone.

    Args:
        name: As for `step_cost`, like all others.
        kind: How the devices share the training.
        devices: How many, or a TPU such as `"v5e:4x4"`.
        batch_size: Images of the step, on all devices together.
        precision: A Keras dtype policy.
        remat: Recompute activations in the backward pass.
        **options: `image_size` and `num_classes`.

    Raises:
        ValueError: A name or a number is not accepted.
    """
    check_choice(kind, "kind", KINDS)
    count = _chip_count(devices) if isinstance(devices, str) else devices
    check_positive(batch_size=batch_size, devices=count)
    size = options.setdefault("image_size", named_model(name).image_size or DEFAULT_SIZE)
    classes = {k: v for k, v in options.items() if k == "num_classes"}
    arguments = {"input_shape": (size, size, 3), "dtype": precision, "remat": remat, **classes}
    model = without_values(lambda: create(name, **arguments))
    shapes = [(variable.path, variable.shape) for variable in model.trainable_variables]
    total, held = (held_parameters(shapes, kind, n) for n in (1, count))
    cost = cost_of(model, batch_size)
    activations = cost.training_bytes - 16 * cost.parameters
    # Data parallel: the sum of the gradients. FSDP: the weights twice, and its gradients' sum.
    values = {"data_parallel": total, "fsdp": 2 * total + held}.get(kind)
    per_value = BYTES[keras.dtype_policies.get(precision).compute_dtype]
    collectives = None if values is None else values * per_value
    return StepCost(
        count,
        _chip(devices),
        3 * 4 * held,
        4 * held + activations // count,
        6 * cost.macs * batch_size / count,  # forward, and twice that backward
        None,
        collectives if count > 1 else 0,
        held=held / total,
    )


def _chip(devices: int | str | None) -> Chip | None:
    return CHIPS.get(devices.split(":")[0]) if isinstance(devices, str) else None


def _chip_count(topology: str) -> int:
    """Return how many chips `"v5e:4x4"` has."""
    sides = topology.partition(":")[2].split("x")
    if not all(side.isdecimal() and int(side) for side in sides):
        raise ValueError(f"{topology!r} is not a TPU. Give one such as 'v5e:2x4'.")
    return math.prod(map(int, sides))


def _collective_bytes(program: str) -> int:
    """Return bytes of the results of collective operations in the text of a program."""
    total = 0
    for line in program.splitlines():
        results = re.search(rf"= (.*?) (?:{_COLLECTIVES})(?:-start)?\(", line)
        for dtype, shape in re.findall(r"(\w+)\[([\d,]*)\]", results[1] if results else ""):
            total += _BYTES.get(dtype, 4) * math.prod(int(n) for n in shape.split(",") if n)
    return total
