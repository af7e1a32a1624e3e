"""Learning rates against those that the official code gave, step by step."""

import json
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest

from keras_vit.training.schedules import WarmupDecay, make_schedule
from tests.training.common import array, refused


def schedule_of(args: dict[str, Any], recorded: dict[str, Any]) -> Any:
    """The schedule that the arguments of the official function mean; takes them out of `args`."""
    total, batch, peak = recorded["total_steps"], recorded["batch_size"], args.pop("base", 1.0)
    if args.pop("scale_with_batchsize", False):
        peak *= batch / 256
    warmup = args.pop("warmup_steps", 0)
    warmup = warmup or round(args.pop("warmup_percent", 0) * total)
    warmup = warmup or round(args.pop("warmup_epochs", 0) * recorded["data_size"] / batch)
    names = {"linear_end": "end", "steps": "boundaries", "mults": "multipliers"}
    options = {names.get(key, key): value for key, value in args.items() if key != "decay_type"}
    return make_schedule(args["decay_type"], peak, total, warmup, **options)


def values_of(schedule: Any, steps: list[int]) -> np.ndarray:
    if isinstance(schedule, WarmupDecay):
        return array(schedule(np.array(steps)))
    return np.array([float(schedule(step)) for step in steps])


@pytest.mark.parametrize("code", ["vit_jax", "big_vision"])
def test_schedules_equal_the_official_ones(code: str, shared: Path) -> None:
    recorded = json.loads((shared / "golden" / "schedules" / "schedules.json").read_text())
    for row in recorded[code]:
        args = dict(row["args"])
        if code == "vit_jax" and args["decay_type"] == "linear":
            args.setdefault("linear_end", 1e-5)
        schedule = schedule_of(args, recorded)
        # JAX compiles Keras's schedule anew for every single step: a few of them will do.
        every = 1 if isinstance(schedule, WarmupDecay) else 7
        actual, values = values_of(schedule, recorded["steps"][::every]), row["values"][::every]
        np.testing.assert_allclose(actual, values, rtol=2e-6, atol=1e-9, err_msg=str(row["args"]))


def test_kerass_own_schedule_a_configuration_and_errors() -> None:
    assert type(make_schedule("cosine", 0.1, 20, 5)) is keras.optimizers.schedules.CosineDecay
    steps = [0, 1, 5, 6, 12, 20, 22]
    for options in ({}, {"end": 0.01}):
        ours = WarmupDecay(0.1, 20, "cosine", 5, **options)
        theirs = make_schedule("cosine", 0.1, 20, 5, **options)
        np.testing.assert_allclose(values_of(ours, steps), values_of(theirs, steps), atol=1e-8)
    for options in (
        {"decay": "stair", "boundaries": [3, 6], "multipliers": [0.1, 0.01]},
        {"decay": "rsqrt", "timescale": 4, "shift": 2, "cooldown_steps": 3},
        {"decay": "polynomial", "power": 2, "end": 0.01},
    ):
        schedule = WarmupDecay(0.1, 10, warmup_steps=2, **options)
        saved = json.loads(json.dumps(keras.saving.serialize_keras_object(schedule)))
        again = keras.saving.deserialize_keras_object(saved)
        of_both = (values_of(each, list(range(11))) for each in (schedule, again))
        np.testing.assert_array_equal(*of_both)
    for options, *words in (
        ({"decay": "exponential"}, "'exponential'", "'cosine'", "'stair'"),
        ({"warmup_steps": 10}, "warmup_steps=10", "total_steps=10"),
        ({"decay": "stair", "boundaries": [3]}, "1 boundaries", "0 multipliers"),
    ):
        with refused(*words):
            WarmupDecay(0.1, 10, **options)
