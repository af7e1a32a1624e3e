"""What a training step costs each of many devices, from the program that XLA compiles for them.

`python -m benchmarks devices --model ViT-S/16 --devices 1 2 4 8 16 32 64` compiles the step of each
kind of `keras_vit.distribution` for simulated devices, with AdamW and a fixed number of images per
device, and prints for one device: the weights and optimizer states that it keeps, the temporaries
of the step, and the bytes that collective operations give it. Nothing is trained, and no weight is
made.
"""

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from keras_vit_cli.options.shared import DISTRIBUTIONS


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks devices", description=__doc__)
    parser.add_argument("--model", default="ViT-S/16", help="name of a model")
    parser.add_argument("--devices", type=int, nargs="+", default=[1, 2, 4, 8, 16, 32, 64])
    parser.add_argument("--kinds", nargs="+", default=list(DISTRIBUTIONS), choices=DISTRIBUTIONS)
    parser.add_argument("--images", type=int, default=8, help="images per device")
    options = parser.parse_args(arguments)
    print(f"{options.model}, {options.images} images per device; MiB per device")
    print(f"{'kind':16} {'devices':>7} {'state':>7} {'temporaries':>12} {'collectives':>12}")
    for kind in options.kinds:
        for devices in options.devices:
            row = _measure(options.model, kind, devices, options.images)
            cells = (row["state"], row["temporaries"], row["collectives"])
            print(f"{kind:16} {devices:7} {cells[0]:7.1f} {cells[1]:12.1f} {cells[2]:12.1f}")
    return 0


def _measure(model: str, kind: str, devices: int, images: int) -> dict[str, float]:
    environment = {
        **os.environ,
        "KERAS_BACKEND": "jax",
        "JAX_PLATFORMS": "cpu",
        "XLA_FLAGS": f"--xla_force_host_platform_device_count={devices}",
        "PJRT_NPROC": "32",  # threads: with fewer than devices, XLA can wait for itself
        "PYTHONPATH": str(Path(__file__).parents[1]),
    }
    command = [sys.executable, str(Path(__file__)), model, kind, str(images * devices)]
    printed = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    return json.loads(printed.stdout.splitlines()[-1])


def _work(name: str, kind: str, batch: int) -> None:
    from benchmarks._steps import step_cost

    cost = step_cost(name, kind, batch_size=batch)
    sizes = {"state": cost.state, "temporaries": cost.temporaries, "collectives": cost.collectives}
    print(json.dumps({column: value / 2**20 for column, value in sizes.items()}))


if __name__ == "__main__":
    _work(sys.argv[1], sys.argv[2], int(sys.argv[3]))
