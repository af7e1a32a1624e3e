"""What a training step costs each chip of a TPU that is elsewhere, and a whole training.

`python -m benchmarks plan ViT-G/14 --compile v5e:4x4 --distribution fsdp --batch-size 256` prints
what arithmetic on the model's shapes expects, and with `libtpu` (`pip install 'keras3-vit[tpu]'`)
what the TPU's compiler counts beside it. No TPU is needed, and no weight is made.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from keras_vit_cli.options.shared import DISTRIBUTIONS

if TYPE_CHECKING:
    from benchmarks._steps import StepCost


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks plan",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("model", help="name of a model")
    parser.add_argument("--compile", required=True, metavar="TPU", help="such as v5e:4x4")
    parser.add_argument("--distribution", default="data_parallel", choices=DISTRIBUTIONS)
    parser.add_argument("--batch-size", type=int, default=32, help="images on all chips together")
    parser.add_argument("--image-size", type=int, help="default: that of the name, else 224")
    parser.add_argument("--num-classes", type=int, help="default: that of the name, else 1000")
    parser.add_argument("--precision", default="float32", help="a Keras dtype policy")
    parser.add_argument("--remat", action="store_true", help="recompute activations")
    parser.add_argument("--training-images", type=int, help="print the least time of a training")
    parser.add_argument("--epochs", type=int, default=1, help="passes over them")
    options = parser.parse_args(arguments)
    if find_spec("jax"):
        os.environ["KERAS_BACKEND"] = "jax"  # only JAX compiles for a TPU that is elsewhere
    from benchmarks._steps import run_cost

    costs = _costs(options)
    if options.training_images is not None:
        print(run_cost(costs, options.training_images, options.epochs, options.batch_size))
    return 0


def _costs(options: argparse.Namespace) -> dict[str, StepCost]:
    """Print a step's costs by arithmetic, and by the compiler where it is installed."""
    from benchmarks._steps import DoesNotFitError, cost_table, expected_cost, step_cost
    from keras_vit._base.errors import counted
    from keras_vit.models import named_model
    from keras_vit.models.geometry import DEFAULT_SIZE

    size = options.image_size or named_model(options.model).image_size or DEFAULT_SIZE
    step = (options.model, options.distribution, options.compile, options.batch_size)
    arguments: dict[str, Any] = {"precision": options.precision, "remat": options.remat}
    if options.num_classes is not None:
        arguments["num_classes"] = options.num_classes
    expected = expected_cost(*step, image_size=size, **arguments)
    costs, notes = {"by arithmetic": expected}, []
    if options.distribution == "fsdp" and (expected.held or 0) > 2 / expected.devices:
        notes.append(
            f"Each chip holds {expected.held:.1%} of the weights, as {expected.devices} divides no "
            "axis of the others: a number of chips that divides the model's width cuts all of them."
        )
    try:
        compiled = step_cost(*step, input_shape=(size, size, 3), **arguments)
        costs = {"compiled": compiled, **costs}
        if compiled.loops:
            notes.append(
                f"The program has {counted(compiled.loops, 'loop')}, and XLA counts one turn of "
                "each: operations, memory traffic and collectives are at least these."
            )
    except (ImportError, DoesNotFitError) as error:
        notes.append(f"Not compiled: {error}")
    chips = counted(expected.devices, "chip")
    print(f"a training step on {options.compile}, {options.distribution}: each of {chips}")
    print("\n".join([cost_table(costs), *notes]))
    return costs
