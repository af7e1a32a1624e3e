"""What does not work in the scope of a `tf.distribute` strategy, where each replica has a loss.

    part of the batch ──► loss / replicas ──► gradient, clipped ──► sum over replicas ──► update

Keras carries it out; `docs/distributed.md` lists what is equal to one device.

Unnecessary from Keras: none yet. It clips before it sums, and accumulation fails without a reason.
"""

import keras

from keras_vit._base.errors import warn_at_caller
from keras_vit.ops import is_tensorflow
from keras_vit.trainer.xla import calls_host

_CLIPPING = ("clipnorm", "global_clipnorm", "clipvalue")


def strategy_replicas(model: keras.Model) -> int:
    """Over how many replicas the strategy in whose scope a model was built trains it; 1 without."""
    return int(model.distribute_strategy.num_replicas_in_sync) if is_tensorflow() else 1


def check_strategy(model: keras.Model) -> None:
    """Checks that the replicas of a strategy can share the training of a compiled model.

    Raises:
        ValueError: Its optimizer accumulates gradients or overwrites weights with their average.

    Warns:
        UserWarning: Its optimizer clips gradients, which gives other numbers than on one device.
    """
    if (replicas := strategy_replicas(model)) == 1 or model.optimizer is None:
        return
    where = f"{model.name} was built in the scope of a {type(model.distribute_strategy).__name__}"
    where += f" with {replicas} replicas"
    elsewhere = "train on one device, or with KERAS_BACKEND=jax and keras_vit.distribution"
    if calls_host(model.loss):
        raise ValueError(
            f"{where}, and its loss counts masks over the whole batch, of which each replica has a "
            f"part: {elsewhere}."
        )
    optimizer = getattr(model.optimizer, "inner_optimizer", model.optimizer)
    for name in ("gradient_accumulation_steps", "ema_overwrite_frequency"):
        value = getattr(optimizer, name)
        if value and (name == "gradient_accumulation_steps" or optimizer.use_ema):
            raise ValueError(
                f"{where}, and {name}={value} does not work with several: TensorFlow cannot "
                f"exchange values within a condition. Leave it out, or {elsewhere}."
            )
    for name in _CLIPPING:
        if (value := getattr(optimizer, name)) is not None:
            warn_at_caller(
                f"{where}, of which each clips its own part of the gradient ({name}={value}), about"
                f" 1/{replicas} of the whole: the weights will differ from those of one device. "
                f"Leave it out, or {elsewhere}."
            )
