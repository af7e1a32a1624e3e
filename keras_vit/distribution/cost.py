"""What one step costs each device, from the program that XLA compiles for it: no weight is made.

    name, kind, devices ──► model without values ──► training step ──► XLA ──► bytes, operations

The devices may be simulated, or those of a TPU that is elsewhere: its compiler runs on any machine.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import Any

import keras

from keras_vit.backend import compile_step, tpu_devices
from keras_vit.distribution.kinds import create, distribution_over
from keras_vit.errors import check_positive
from keras_vit.models import create as create_model

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


@dataclass(frozen=True)
class StepCost:
    """The cost of a training step for one device.

    Attributes:
        devices: Over how many devices the step runs.
        chip: The kind of device; None where it is not a TPU.
        state: Bytes of weights and optimizer states.
        temporaries: Bytes of what the step keeps meanwhile, at most.
        flops: Operations, as XLA counts them.
        moved: Bytes between the device and its memory, as XLA counts them.
        collectives: Bytes that collective operations give it.
    """

    devices: int
    chip: Chip | None
    state: int
    temporaries: int
    flops: float
    moved: float
    collectives: int

    def __str__(self) -> str:
        """The lines of a table; with the roofline, where the chip is known."""
        total = self.state + self.temporaries
        lines = [
            f"  weights, states   {self.state / 2**30:>12,.2f} GiB",
            f"  temporaries       {self.temporaries / 2**30:>12,.2f} GiB",
            f"  operations        {self.flops / 1e12:>12,.2f} Tflop",
            f"  memory traffic    {self.moved / 2**30:>12,.2f} GiB",
            f"  collectives       {self.collectives / 2**30:>12,.2f} GiB",
        ]
        if chip := self.chip:
            compute, memory = 1e3 * self.flops / chip.flops, 1e3 * self.moved / chip.bandwidth
            bound = "operations" if compute > memory else "memory traffic"
            verdict = "fits" if total <= chip.memory else "does NOT fit"
            room = f"{verdict} in {chip.memory / 2**30:g}"
            lines += [
                f"  least time        {max(compute, memory):>12,.1f} ms, bound by {bound} "
                f"({compute:,.1f} and {memory:,.1f} ms)",
                f"  memory            {total / 2**30:>12,.2f} GiB {room}",
            ]
        return "\n".join(lines)


def step_cost(
    name: str,
    kind: str = "data_parallel",
    devices: int | str | None = None,
    batch_size: int = 32,
    precision: str = "float32",
    **arguments: Any,
) -> StepCost:
    """Compiles the training step of a named model with AdamW, and counts what it costs.

    Args:
        name: A name that `keras_vit.create` knows.
        kind: As for `keras_vit.distribution.create`.
        devices: How many of the devices here; None for all; or a TPU such as `"v5e:4x4"`, which
            needs the package `libtpu` and no TPU.
        batch_size: Images of the step, on all devices together.
        precision: A Keras dtype policy.
        **arguments: Further arguments of the model, such as `remat=True`.

    Raises:
        RuntimeError: Keras does not run on JAX.
        ImportError: `devices` names a TPU, and `libtpu` is not installed.
        ValueError: A name or a number is not accepted.

    Example:

    >>> import keras
    >>> from keras_vit.distribution.cost import step_cost
    >>> if keras.backend.backend() == "jax":
    ...     cost = step_cost("ViT-Ti/16", batch_size=2)
    ...     assert cost.state > 3 * 4 * 5_717_416  # weights and two moments of AdamW
    """
    check_positive(batch_size=batch_size)
    if keras.backend.backend() != "jax":
        raise RuntimeError("Compiling for other devices is JAX's: set KERAS_BACKEND=jax.")
    chip = None
    if isinstance(devices, str):
        chip = CHIPS.get(devices.split(":")[0])
        distribution = distribution_over(kind, tpu_devices(devices))
    else:
        distribution = create(kind, devices)
    with keras.StatelessScope(initialize_variables=False):
        model = create_model(name, dtype=precision, **arguments)
    count = distribution.device_mesh.devices.size
    program = compile_step(model, distribution, batch_size)
    memory, cost = program.memory_analysis(), program.cost_analysis()
    return StepCost(
        count,
        chip,
        memory.argument_size_in_bytes,
        memory.temp_size_in_bytes,
        cost["flops"],
        cost["bytes accessed"],
        _collective_bytes(program.as_text()),
    )


def _collective_bytes(program: str) -> int:
    """Bytes of the results of collective operations in the text of a program."""
    total = 0
    for line in program.splitlines():
        results = re.search(rf"= (.*?) (?:{_COLLECTIVES})(?:-start)?\(", line)
        for dtype, shape in re.findall(r"(\w+)\[([\d,]*)\]", results[1] if results else ""):
            total += _BYTES.get(dtype, 4) * math.prod(int(n) for n in shape.split(",") if n)
    return total
