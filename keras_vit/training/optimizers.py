"""The optimizers of the released code, as Keras optimizers.

    gradients ── Keras: accumulation, clipping, EMA ──► direction() ──► w -= lr * direction + decay

Keras's own do not have a momentum in bfloat16 with optax's rounding, multipliers of weight decay
and learning rate by a table of parameters, or schedules that count updates under gradient
accumulation.
"""

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import keras
import ml_dtypes
import numpy as np
from keras import ops

from keras_vit._base.errors import check_choice
from keras_vit.ops import layout_of
from keras_vit.training.parameter_groups import KERNELS_DECAY, ParameterGroup, as_table, find_groups

STATE_DTYPES = ("float32", "bfloat16")


class TableOptimizer(keras.optimizers.Optimizer):
    """Base of the optimizers: steps along a direction, each parameter by its row of a table.

    A step subtracts `learning_rate * direction + weight_decay * rate * weight` from every weight.

    Args:
        learning_rate: A number or a schedule. Unlike with Keras's optimizers, a schedule counts
            updates under gradient accumulation, as in the released code.
        weight_decay: Decoupled from the gradient (Loshchilov & Hutter 2019); 0 for none.
        schedule_peak: The peak of the schedule, for a rate of weight decay that follows the
            schedule alone, learning_rate / schedule_peak, as in big_vision's configs. None: the
            rate is the learning rate, as in Keras's AdamW and the papers. A weight decay of 1e-4
            with a peak of 1e-3 equals 0.1 with None.
        groups: Table of parameters: multipliers of weight decay and learning rate, and what is
            frozen (see `parameter_groups`). It is saved with the optimizer.
        state_dtype: Dtype of the momentum, `"float32"` or `"bfloat16"` (half the memory).
        **kwargs: Arguments of every Keras optimizer: `global_clipnorm`, `use_ema`, `ema_momentum`,
            `gradient_accumulation_steps`, `loss_scale_factor`, `name`. Gradients are clipped after
            the average over an accumulation.

    Raises:
        ValueError: An argument is unknown or out of range; or, when the optimizer is built, no
            row of the table matches a parameter.
    """

    # Names of the states of a parameter, which have its shape and dtype.
    slots: tuple[str, ...] = ()
    # Further arguments of the constructor, for `get_config`.
    hyperparameters: tuple[str, ...] = ()

    def __init__(
        self,
        learning_rate: Any = 0.001,
        weight_decay: float = 0.0,
        schedule_peak: float | None = None,
        groups: Sequence[ParameterGroup | dict[str, Any]] = KERNELS_DECAY,
        state_dtype: str = "float32",
        **kwargs: Any,
    ) -> None:
        check_choice(state_dtype, "state_dtype", STATE_DTYPES)
        if not weight_decay >= 0 or not (schedule_peak is None or schedule_peak > 0):
            raise ValueError(
                f"weight_decay={weight_decay!r} must be 0 or more, and "
                f"schedule_peak={schedule_peak!r} above 0 or None."
            )
        super().__init__(learning_rate, weight_decay=weight_decay, **kwargs)
        self.schedule_peak = schedule_peak
        self.groups = as_table(groups)
        self.state_dtype = state_dtype
        self._group_of: Sequence[ParameterGroup] = ()  # by the index of the variable

    def build(self, variables: Sequence[keras.Variable]) -> None:
        if self.built:
            return
        # Loading drops "sequential/" from the paths of a Sequential model, and a pattern might not
        # match any more: so the rows of the parameters, in their order, are saved as well.
        groups = self._group_of
        if len(groups) != len(variables):
            groups = find_groups([variable.path for variable in variables], self.groups)
        pairs = list(zip(variables, groups, strict=True))
        for variable, group in pairs:
            # A model file records frozen layers; single frozen variables are in this table alone.
            if not group.trainable:
                variable.trainable = False
        pairs = [(variable, group) for variable, group in pairs if group.trainable]
        super().build([variable for variable, _ in pairs])
        self._group_of = [group for _, group in pairs]
        self._states = [self.make_states(variable) for variable, _ in pairs]

    def make_states(self, variable: keras.Variable) -> dict[str, keras.Variable]:
        """Return the states of one parameter; that of the first slot has the `state_dtype`."""
        first, *others = self.slots
        return {
            first: self.add_state(variable, first, self.state_dtype),
            **{slot: self.add_state(variable, slot) for slot in others},
        }

    def add_state(
        self, variable: keras.Variable, slot: str, dtype: str = "float32"
    ) -> keras.Variable:
        name = f"{variable.path.replace('/', '_')}_{slot}"
        if dtype == "float32":
            dtype = _compute_dtype(variable)
        layout = layout_of(variable)
        return self.add_variable(variable.shape, dtype=dtype, layout=layout, name=name)

    def direction(self, gradient: Any, index: int) -> Any:
        """Return the direction of a step for the parameter of that index; updates its states."""
        raise NotImplementedError

    def update_step(self, gradient: Any, variable: Any, learning_rate: Any) -> None:
        index = self._get_variable_index(variable)
        group = self._group_of[index]
        dtype = _compute_dtype(variable)
        rate = ops.cast(learning_rate, dtype)
        step = self.direction(ops.cast(gradient, dtype), index)
        step = step * (rate * group.learning_rate)
        decay = self.weight_decay * group.weight_decay / (self.schedule_peak or 1.0)
        if decay:
            step = step + ops.cast(variable, dtype) * (rate * decay)
        self.assign_sub(variable, ops.cast(step, variable.dtype))

    def _apply_weight_decay(self, variables: Any) -> None:
        """Does nothing: `update_step` applies weight decay by the table."""

    def _get_current_learning_rate(self) -> Any:
        # Keras calls a schedule with the number of batches, the released code with that of updates.
        schedule = self._learning_rate
        if isinstance(schedule, keras.optimizers.schedules.LearningRateSchedule):
            return schedule(self.iterations)
        return super()._get_current_learning_rate()

    def _update_model_variables_moving_average(self, trainable_variables: Any) -> None:
        # Keras averages after every batch of an accumulation, not after every update.
        steps = self.gradient_accumulation_steps
        if not steps:
            super()._update_model_variables_moving_average(trainable_variables)
            return
        is_update = ops.equal((self._iterations + 1) % steps, 0)
        momentum = ops.where(is_update, self.ema_momentum, 1.0)
        momentum = ops.where(ops.equal(self.iterations, 0), 0.0, momentum)
        averages = self._model_variables_moving_average
        for variable, average in zip(trainable_variables, averages, strict=True):
            m = ops.cast(momentum, average.dtype)
            average.assign(m * average + (1 - m) * variable)

    def get_config(self) -> dict[str, Any]:
        return {
            **super().get_config(),
            "schedule_peak": self.schedule_peak,
            "groups": [asdict(group) for group in self.groups],
            "state_dtype": self.state_dtype,
            "found_groups": [asdict(group) for group in self._group_of],
            **{name: getattr(self, name) for name in self.hyperparameters},
        }

    @classmethod
    def from_config(cls, config: dict[str, Any], custom_objects: Any = None) -> "TableOptimizer":
        config = dict(config)
        groups = config.pop("found_groups", ())
        optimizer = super().from_config(config, custom_objects)
        optimizer._group_of = as_table(groups)
        return optimizer

    def _average(self, state: keras.Variable, decay: float, value: Any, weight: float) -> Any:
        """`weight * value + decay * state`, with the decay in the precision of the state.

        The state stores the result rounded, and the step uses it unrounded, as in optax with
        `accumulator_dtype`. bfloat16(0.9) is 0.8984375.
        """
        if keras.backend.standardize_dtype(state.dtype) == "bfloat16":
            decay = float(np.float32(decay).astype(ml_dtypes.bfloat16))
        average = weight * value + decay * ops.cast(state, value.dtype)
        self.assign(state, ops.cast(average, state.dtype))
        return average


@keras.saving.register_keras_serializable(package="keras_vit")
class MomentumSGD(TableOptimizer):
    """Gradient descent with momentum, as in the released fine-tuning: u = g + 0.9 u, w -= lr u.

    Keras's SGD multiplies gradients by the learning rate before they enter the momentum.
    Source: `optax.sgd` in vit_jax, `momentum_hp` in big_vision.

    Args:
        learning_rate: See `TableOptimizer`, also for the other arguments.
        momentum: Decay of the momentum, in [0, 1).
        state_dtype: `"bfloat16"` is the released setting.
    """

    slots = ("momentum",)
    hyperparameters = ("momentum",)

    def __init__(
        self,
        learning_rate: Any = 0.01,
        momentum: float = 0.9,
        state_dtype: str = "bfloat16",
        **kwargs: Any,
    ) -> None:
        super().__init__(learning_rate, state_dtype=state_dtype, **kwargs)
        self.momentum = momentum

    def direction(self, gradient: Any, index: int) -> Any:
        return self._average(self._states[index]["momentum"], self.momentum, gradient, 1.0)


@keras.saving.register_keras_serializable(package="keras_vit")
class DecoupledAdam(TableOptimizer):
    """Adam (Kingma & Ba 2015) with decoupled weight decay, as optax and big_vision compute it.

    Args:
        learning_rate: See `TableOptimizer`, also for the other arguments.
        beta_1: Decay of the first moment.
        beta_2: Decay of the second moment.
        epsilon: Added to the root of the corrected second moment.
        state_dtype: Dtype of the first moment; big_vision trains with `"bfloat16"`.

    >>> DecoupledAdam(1e-3, weight_decay=1e-4, schedule_peak=1e-3).weight_decay  # big_vision's
    0.0001
    """

    slots = ("first_moment", "second_moment")
    hyperparameters = ("beta_1", "beta_2", "epsilon")

    def __init__(
        self,
        learning_rate: Any = 0.001,
        beta_1: float = 0.9,
        beta_2: float = 0.999,
        epsilon: float = 1e-8,
        **kwargs: Any,
    ) -> None:
        super().__init__(learning_rate, **kwargs)
        self.beta_1 = beta_1
        self.beta_2 = beta_2
        self.epsilon = epsilon

    def direction(self, gradient: Any, index: int) -> Any:
        states = self._states[index]
        first = self._average(states["first_moment"], self.beta_1, gradient, 1 - self.beta_1)
        second = self._average(
            states["second_moment"], self.beta_2, ops.square(gradient), 1 - self.beta_2
        )
        count = ops.cast(self.iterations + 1, gradient.dtype)
        first = first / (1 - ops.power(ops.cast(self.beta_1, gradient.dtype), count))
        second = second / (1 - ops.power(ops.cast(self.beta_2, gradient.dtype), count))
        return first / (ops.sqrt(second) + self.epsilon)


OPTIMIZERS: dict[str, type[TableOptimizer]] = {"sgd": MomentumSGD, "adam": DecoupledAdam}


def _compute_dtype(variable: Any) -> str:
    """float32, or float64 for a variable of that dtype."""
    return keras.backend.result_type(keras.backend.standardize_dtype(variable.dtype), "float32")
