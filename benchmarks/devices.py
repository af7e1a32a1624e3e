"""What a training step costs each of many devices, from the program that XLA compiles for them.

`python -m benchmarks devices --model ViT-S/16 --devices 1 2 4 8 16 32 64` compiles the step of each
kind of `keras_vit.distribution` for simulated devices, with AdamW and a fixed number of images per
device, and prints for one device: the weights and optimizer states that it keeps, the temporaries
of the step, and the bytes that collective operations give it. Nothing is trained, and no weight is
made.
"""

import argparse
import json
import math
import os
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

KINDS = ("data_parallel", "fsdp", "tensor_parallel")
_COLLECTIVES = "all-reduce|all-gather|reduce-scatter|collective-permute|all-to-all"
_BYTES = {"pred": 1, "u8": 1, "s8": 1, "bf16": 2, "f16": 2, "f32": 4, "s32": 4, "u32": 4, "f64": 8}


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks devices", description=__doc__)
    parser.add_argument("--model", default="ViT-S/16", help="name of a model")
    parser.add_argument("--devices", type=int, nargs="+", default=[1, 2, 4, 8, 16, 32, 64])
    parser.add_argument("--kinds", nargs="+", default=list(KINDS), choices=KINDS)
    parser.add_argument("--images", type=int, default=8, help="images per device")
    options = parser.parse_args(arguments)
    print(f"{options.model}, {options.images} images per device; MiB per device")
    print(f"{'kind':16} {'devices':>7} {'kept':>7} {'temporaries':>12} {'collectives':>12}")
    for kind in options.kinds:
        for devices in options.devices:
            row = _measure(options.model, kind, devices, options.images)
            cells = (row["kept"], row["temporaries"], row["collectives"])
            print(f"{kind:16} {devices:7} {cells[0]:7.1f} {cells[1]:12.1f} {cells[2]:12.1f}")
    return 0


def _measure(model: str, kind: str, devices: int, images: int) -> dict[str, float]:
    environment = {
        **os.environ,
        "KERAS_BACKEND": "jax",
        "JAX_PLATFORMS": "cpu",
        "XLA_FLAGS": f"--xla_force_host_platform_device_count={devices}",
        "PYTHONPATH": str(Path(__file__).parents[1]),
    }
    command = [sys.executable, str(Path(__file__)), model, kind, str(images * devices)]
    printed = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    return json.loads(printed.stdout.splitlines()[-1])


def compiled_step(name: str, distribution: Any, batch: int) -> Any:
    """The compiled training step of a named model, whose variables have no values."""
    import jax
    import keras

    import keras_vit

    unset = lambda: keras.StatelessScope(initialize_variables=False)  # noqa: E731
    with distribution.scope():
        with unset():
            model = keras_vit.create(name)
        model.compile(
            keras.optimizers.AdamW(1e-3),
            keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        )
        images = keras.KerasTensor((batch, *model.input_shape[1:]), "uint8")
        labels = keras.KerasTensor((batch,), "int32")
        with unset():
            model.optimizer.build(model.trainable_variables)
            model._symbolic_build(data_batch=(images, labels))

    def sharded(shape: Any, dtype: str, layout: Any) -> Any:
        return jax.ShapeDtypeStruct(shape, dtype, sharding=layout.backend_layout)

    groups = (
        model.trainable_variables,
        model.non_trainable_variables,
        model.optimizer.variables,
        model.metrics_variables,
    )
    state = tuple(
        [sharded(v.shape, v.dtype, distribution.get_variable_layout(v)) for v in group]
        for group in groups
    )
    data = tuple(
        sharded(x.shape, x.dtype, distribution.get_data_layout(x.shape)) for x in (images, labels)
    )
    shardings = jax.tree.map(lambda leaf: leaf.sharding, state)
    with distribution.scope():
        step = jax.jit(model.train_step, donate_argnums=0, out_shardings=(None, shardings))
        return step.lower(state, data).compile()


def collective_bytes(program: str) -> int:
    """Bytes of the results of collective operations in the text of a program."""
    total = 0
    for line in program.splitlines():
        found = re.search(rf"= (.*?) (?:{_COLLECTIVES})(?:-start)?\(", line)
        for dtype, shape in re.findall(r"(\w+)\[([\d,]*)\]", found[1] if found else ""):
            total += _BYTES.get(dtype, 4) * math.prod(int(n) for n in shape.split(",") if n)
    return total


def _work(name: str, kind: str, batch: int) -> None:
    import keras_vit

    step = compiled_step(name, keras_vit.distribution.create(kind), batch)
    memory = step.memory_analysis()
    row = {
        "kept": memory.argument_size_in_bytes,
        "temporaries": memory.temp_size_in_bytes,
        "collectives": collective_bytes(step.as_text()),
    }
    print(json.dumps({column: value / 2**20 for column, value in row.items()}))


if __name__ == "__main__":
    _work(sys.argv[1], sys.argv[2], int(sys.argv[3]))
