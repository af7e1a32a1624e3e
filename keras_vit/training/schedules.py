"""Learning rate schedules of the released code, by Keras's own where it has the same."""

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

import keras
from keras import ops

from keras_vit._base.errors import check_choice


@keras.saving.register_keras_serializable(package="keras_vit")
@dataclass(eq=False)
class WarmupDecay(keras.optimizers.schedules.LearningRateSchedule):
    """A linear warm-up from 0, then one of big_vision's decays, then a linear cooldown to 0.

    Equal to `create_learning_rate_schedule` of vit_jax and of big_vision. Steps count from 0, so
    with a warm-up the first update has the learning rate 0. After `total_steps`, where training
    ends, a cooldown goes below 0, as in those.

    Args:
        peak: The learning rate after the warm-up.
        total_steps: Steps of the whole training.
        decay: `"cosine"`, `"linear"`, `"polynomial"`, `"rsqrt"` or `"stair"`.
        warmup_steps: Steps of the warm-up; 0 for none.
        cooldown_steps: Steps of the fall to 0 at the end, on top of the decay; 0 for none.
        end: Learning rate at the end, for `"cosine"`, `"linear"` and `"polynomial"`.
        power: Exponent of `"polynomial"`.
        timescale: Timescale of `"rsqrt"` in steps: after three of them the rate is half the peak.
        shift: Offset of `"rsqrt"`: steps that count as done when the decay begins.
        boundaries: Steps of `"stair"` at which the learning rate changes.
        multipliers: Factors of `"stair"` for the peak, from each boundary on.

    Raises:
        ValueError: The decay is unknown, `peak` is not above 0, the warm-up takes the whole
            training, or there are not as many multipliers as boundaries.

    Example:

    >>> from keras_vit.training.schedules import WarmupDecay
    >>> schedule = WarmupDecay(0.1, total_steps=10, decay="linear", warmup_steps=2)
    >>> [round(float(schedule(step)), 3) for step in (0, 1, 2, 6, 10)]
    [0.0, 0.05, 0.1, 0.05, 0.0]
    """

    peak: float
    total_steps: int
    decay: str = "linear"
    warmup_steps: int = 0
    cooldown_steps: int = 0
    end: float = 0.0
    power: float = 1.0
    timescale: float = 10_000.0
    shift: float = 0.0
    boundaries: Sequence[int] = ()
    multipliers: Sequence[float] = ()

    def __post_init__(self) -> None:
        check_choice(self.decay, "decay", DECAYS)
        if not 0 < self.peak < math.inf:
            raise ValueError(f"peak={self.peak!r} must be a learning rate above 0, such as 0.001.")
        if not 0 <= self.warmup_steps < self.total_steps:
            raise ValueError(
                f"warmup_steps={self.warmup_steps} must be 0 or more and fewer than "
                f"total_steps={self.total_steps}. Shorten the warm-up, or train longer."
            )
        if len(self.boundaries) != len(self.multipliers):
            raise ValueError(
                f"{len(self.boundaries)} boundaries and {len(self.multipliers)} multipliers: "
                "give one multiplier for each boundary."
            )
        # Lists, as a saved configuration holds them.
        self.boundaries, self.multipliers = list(self.boundaries), list(self.multipliers)

    def __call__(self, step: Any) -> Any:
        step = ops.cast(step, "float32")
        progress = (step - self.warmup_steps) / (self.total_steps - self.warmup_steps)
        rate = DECAYS[self.decay](self, step, ops.clip(progress, 0.0, 1.0))
        if self.warmup_steps:
            rate = rate * ops.minimum(1.0, step / self.warmup_steps)
        if self.cooldown_steps:
            rate = rate * ops.minimum(1.0, (self.total_steps - step) / self.cooldown_steps)
        return rate

    def get_config(self) -> dict[str, Any]:
        return asdict(self)


def _falling(part: Callable[[WarmupDecay, Any], Any], schedule: Any, _: Any, progress: Any) -> Any:
    """Return the rate on the way from the peak to the end, of which a part is left."""
    return schedule.end + (schedule.peak - schedule.end) * part(schedule, progress)


def _rsqrt(schedule: WarmupDecay, step: Any, progress: Any) -> Any:
    # During the warm-up, the value with which the decay begins.
    since = ops.maximum(step - schedule.warmup_steps, 0.0)
    return schedule.peak / ops.sqrt(1.0 + (since + schedule.shift) / schedule.timescale)


def _stair(schedule: WarmupDecay, step: Any, progress: Any) -> Any:
    rate = schedule.peak * ops.ones_like(step)
    for boundary, multiplier in zip(schedule.boundaries, schedule.multipliers, strict=True):
        rate = ops.where(step >= boundary, schedule.peak * multiplier, rate)
    return rate


DECAYS: dict[str, Callable[[WarmupDecay, Any, Any], Any]] = {
    "cosine": partial(_falling, lambda _, done: 0.5 * (1.0 + ops.cos(math.pi * done))),
    "linear": partial(_falling, lambda _, done: 1.0 - done),
    "polynomial": partial(_falling, lambda schedule, done: (1.0 - done) ** schedule.power),
    "rsqrt": _rsqrt,
    "stair": _stair,
}


def make_schedule(
    decay: str, peak: float, total_steps: int, warmup_steps: int = 0, **options: Any
) -> keras.optimizers.schedules.LearningRateSchedule:
    """Return the schedule for `decay`: Keras's `CosineDecay` if it is the same, or `WarmupDecay`.

    Its arguments and errors are those of `WarmupDecay`.

    >>> schedule = make_schedule("cosine", 0.03, total_steps=100, warmup_steps=10)
    >>> round(float(schedule(10)), 6), round(float(schedule(55)), 6)
    (0.03, 0.015)
    """
    schedule = WarmupDecay(peak, total_steps, decay, warmup_steps, **options)
    if decay != "cosine" or schedule.cooldown_steps:
        return schedule
    return keras.optimizers.schedules.CosineDecay(
        initial_learning_rate=0.0 if warmup_steps else peak,
        decay_steps=total_steps - warmup_steps,
        alpha=schedule.end / peak,
        warmup_target=peak if warmup_steps else None,
        warmup_steps=warmup_steps,
    )
