"""The base class of all models here, which extends Keras's `fit`, `evaluate` and `predict`.

It checks data, chooses XLA where enough steps repay compiling, places batches on the devices, and
recovers the model after an error.

Unnecessary from Keras: see the table of overrides in `__init__.py`.
"""

import functools
import inspect
import threading
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, TypeVar

import keras

from keras_vit.layers.inside import set_trainable_inside
from keras_vit.ops import (
    batches_on_host,
    current_distribution,
    current_processes,
    is_first_process,
    is_tensorflow,
    keras_shares_steps,
    on_all_devices,
    on_all_processes,
    on_devices,
    single_process,
    whole_values,
)
from keras_vit.trainer.compile_checks import warn_of_activation
from keras_vit.trainer.data_checks import DataCheck, checked_data
from keras_vit.trainer.device_batches import global_batch, on_devices_that_are_set
from keras_vit.trainer.guarded_step import guard_step, synchronized, takes_variables_away
from keras_vit.trainer.loss_scaling import with_loss_scaling
from keras_vit.trainer.saved_file import LEGACY_SUFFIXES, check_config_size, save_legacy
from keras_vit.trainer.spec import Spec
from keras_vit.trainer.strategies import check_strategy, strategy_replicas
from keras_vit.trainer.turns import taking_turns
from keras_vit.trainer.xla import (
    calls_host,
    choose_xla_by_steps,
    compiled_by_xla,
    without_xla,
)

# What changes weights or metrics, so that on every backend one thread at a time may do it.
CHANGING = ("fit", "evaluate", "train_on_batch", "test_on_batch", "set_weights", "load_weights")
_making = threading.RLock()  # of step functions, which takes no time: they are traced later
Method = TypeVar("Method", bound=Callable[..., Any])


def as_in(method: Any) -> Callable[[Method], Method]:
    """Takes signature and docstring of Keras's method; a type checker still sees a method."""
    documented: Any = functools.wraps(method)
    return documented


class CompiledModel(keras.Model):
    """A `keras.Model` that checks its data, and whose `jit_compile="auto"` uses XLA on CPUs, too.

    Keras does without XLA on TensorFlow's CPUs. A long `fit`, `evaluate` or `predict` is faster
    with it; a short one is over before XLA has compiled. So "auto" takes XLA where at least 64
    steps are ahead (more for small models). Otherwise it takes what Keras takes: in shorter calls,
    in `train_on_batch`, `test_on_batch` and `predict_on_batch`, for variable image sizes, with
    convolutions (slower under XLA), on a GPU and on the other backends. `jit_compile=True` and
    `jit_compile=False` are followed everywhere.

    `compile` warns of a loss or metric that takes logits for probabilities, and scales the loss
    where layers compute in float16 (`auto_scale_loss=False`: not); `fit`, `evaluate` and `predict`
    raise a ValueError for labels outside the classes, one-hot rows in place of integers or the
    other way round, images with other channels or several sizes, and NaN in the first batch, and
    warn of pixels in another range than the model takes (`data.DataRangeWarning`), as their
    counterparts of one batch do. After any error the model still has its weights.
    """

    _xla_is_free = False  # whether "auto" may choose
    _xla_functions: tuple[str, ...] = ()  # the step functions for which it chose XLA
    _steps_looked_at: tuple[str, ...] = ()  # the steps on a batch whose first one was checked
    _is_prepared = False  # whether what is compiled has its variables

    # Whether no row of a batch influences the outputs of another one.
    _rows_are_independent = True

    _spec: Spec | None = None

    @property
    def spec(self) -> Spec | None:
        """What data, losses and metrics are compared with; None where nothing is known.

        On JAX, Keras's own `predict` takes images of another size than that of the inputs.
        """
        return self._spec

    @property
    def _convolves(self) -> bool:
        """Whether a ResNet is part of the model."""
        return False

    def __setattr__(self, name: str, value: Any) -> None:
        if name == "trainable":
            set_trainable_inside(self, value)
        else:
            super().__setattr__(name, value)

    def compile(self, *args: Any, **options: Any) -> None:
        arguments = self._compile(*args, **options)
        warn_of_activation(self, [arguments["metrics"], arguments["weighted_metrics"]])

    def _compile(self, *args: Any, **options: Any) -> dict[str, Any]:
        """Compiles without a look at loss and metrics; returns all arguments of `compile`."""
        call = inspect.signature(keras.Model.compile).bind(self, *args, **options)
        call.apply_defaults()
        arguments = call.arguments
        self._scales_loss = arguments["auto_scale_loss"]
        if self._scales_loss:
            arguments["optimizer"] = with_loss_scaling(self, arguments["optimizer"])
        self._requested_jit_compile = arguments["jit_compile"]
        on_host = calls_host(arguments["loss"])
        if on_host:
            arguments["jit_compile"] = without_xla(self._requested_jit_compile)
        super().compile(*call.args[1:], **call.kwargs)
        self._xla_functions = ()
        self._is_prepared = False
        self._xla_is_free = (
            is_tensorflow()
            and self._requested_jit_compile == "auto"
            and not self.run_eagerly
            and not self._convolves
            and not on_host
            and strategy_replicas(self) == 1
            and all(None not in tensor.shape[1:] for tensor in self.inputs)
        )
        return arguments

    def get_compile_config(self) -> dict[str, Any]:
        config = super().get_compile_config()
        if not config:
            return config
        # What was requested, not what Keras made of it here: elsewhere it chooses otherwise.
        asked = {"jit_compile": self._requested_jit_compile, "auto_scale_loss": self._scales_loss}
        return {**config, **asked}

    def compile_from_config(self, config: dict[str, Any]) -> None:
        """Compile as Keras does, without the warning that was given before the model was saved."""
        config = keras.saving.deserialize_keras_object(config)
        self._compile(**config)
        if self.built:
            self.optimizer.build(self.trainable_variables)

    @as_in(keras.Model.fit)
    def fit(self, *args: Any, **options: Any) -> Any:
        self._before_fit()
        with self._turn("fit"):
            return self._run("train_function", super().fit, args, options)

    @as_in(keras.Model.evaluate)
    def evaluate(self, *args: Any, **options: Any) -> Any:
        if "_use_cached_eval_dataset" in options:  # called by `fit`, which has checked the data
            return super().evaluate(*args, **options)
        with self._turn("evaluate"):
            return self._run("test_function", super().evaluate, args, options)

    @as_in(keras.Model.predict)
    def predict(self, *args: Any, **options: Any) -> Any:
        with self._turn("predict"):
            return self._run("predict_function", super().predict, args, options)

    def _before_fit(self) -> None:
        """Warns of what training makes untrue; a subclass knows."""

    def _turn(self, action: str) -> AbstractContextManager[None]:
        """Keeps other threads off the variables that a method takes away or changes."""
        everything = takes_variables_away()
        reads = action not in CHANGING
        several = current_distribution() or current_processes()
        if reads and not everything and not several:
            return nullcontext()
        return taking_turns(self, action, with_layers=everything)

    def _run(
        self,
        function: str,
        method: Callable[..., Any],
        args: tuple[Any, ...],
        options: dict[str, Any],
    ) -> Any:
        """Calls a method of Keras, which runs a step function, within what Keras lacks."""
        call = inspect.signature(method).bind(*args, **options)
        with (
            checked_data(self, function, call.arguments),
            on_devices_that_are_set(self, function, call.arguments),
            synchronized(self),
        ):
            choose_xla_by_steps(self, function, call.arguments)
            return method(*call.args, **call.kwargs)

    def __call__(self, *args: Any, **options: Any) -> Any:
        if any(isinstance(leaf, keras.KerasTensor) for leaf in keras.tree.flatten(args)):
            return super().__call__(*args, **options)  # a graph is built, without values
        with self._turn("__call__"):
            return super().__call__(*args, **options)

    def call(self, inputs: Any, training: Any = None, mask: Any = None, **options: Any) -> Any:
        distribute = on_all_devices if self._rows_are_independent else on_all_processes
        return distribute(lambda rows: self._forward(rows, training, mask, **options), inputs)

    def _forward(self, inputs: Any, training: Any = None, mask: Any = None, **options: Any) -> Any:
        """Return what `call` computes of a batch, or of the rows of one device."""
        return super().call(inputs, training, mask, **options)

    def _symbolic_build(self, iterator: Any = None, data_batch: Any = None) -> None:
        """Keras's: makes the variables of metrics and optimizer, once after `compile`."""
        if data_batch is None and not self._is_prepared:
            data_batch = global_batch(iterator)
        with on_devices():
            super()._symbolic_build(iterator, data_batch)
        self._is_prepared = True

    def _check_batch(self, step: str, x: Any, y: Any = None, class_weight: Any = None) -> None:
        """Checks shapes, and the values of the first batch that a kind of step is given."""
        check = DataCheck(self, labels=step != "predict")
        check.class_weight(class_weight)
        if step in self._steps_looked_at:
            check.shapes(x, y)
            return
        check.arrays(x, y)
        if step == "train" and check.seen:
            self._targets_seen = check.seen
        if not check.looks:
            self._steps_looked_at += (step,)

    def get_metrics_result(self) -> dict[str, Any]:
        """Return the metrics; on torch, Keras 3.16 would sum those of all rows over processes."""
        if keras_shares_steps():
            return super().get_metrics_result()
        results: dict[str, Any] = {}
        for metric in self.metrics:
            result = metric.result()
            results.update(result if isinstance(result, dict) else {metric.name: result})
        return results

    @as_in(keras.Model.train_on_batch)
    def train_on_batch(
        self,
        x: Any,
        y: Any = None,
        sample_weight: Any = None,
        class_weight: Any = None,
        return_dict: bool = False,
    ) -> Any:
        self._check_batch("train", x, y, class_weight)
        with self._turn("train_on_batch"), batches_on_host():
            return super().train_on_batch(x, y, sample_weight, class_weight, return_dict)

    @as_in(keras.Model.test_on_batch)
    def test_on_batch(self, x: Any, y: Any = None, *args: Any, **options: Any) -> Any:
        self._check_batch("test", x, y)
        with self._turn("test_on_batch"), batches_on_host():
            return super().test_on_batch(x, y, *args, **options)

    @as_in(keras.Model.predict_on_batch)
    def predict_on_batch(self, x: Any) -> Any:
        self._check_batch("predict", x)
        with self._turn("predict_on_batch"), batches_on_host():
            return super().predict_on_batch(x)

    @as_in(keras.Model.save)
    def save(self, filepath: Any, *args: Any, **options: Any) -> None:
        check_config_size(self)
        if str(filepath).endswith(LEGACY_SUFFIXES):
            self._write(save_legacy, self, super().save, filepath, *args, **options)
        else:
            self._write(super().save, filepath, *args, **options)

    @as_in(keras.Model.save_weights)
    def save_weights(self, *args: Any, **options: Any) -> None:
        self._write(super().save_weights, *args, **options)

    def _write(self, method: Callable[..., None], *args: Any, **options: Any) -> None:
        """Calls a method that writes a file: in several processes, the first one alone."""
        optimizer = getattr(self, "optimizer", None)
        writes = is_first_process() or not current_processes()
        with (
            self._turn("save"),
            whole_values([*self.variables, *(optimizer.variables if optimizer else ())]),
            single_process(),  # Keras makes an optimizer to look at
        ):
            if writes:
                method(*args, **options)

    def get_weights(self) -> list[Any]:
        """Return all weights as NumPy arrays, in several processes whole in each."""
        with self._turn("get_weights"), whole_values(self.variables):
            return super().get_weights()

    def set_weights(self, weights: Sequence[Any]) -> None:
        with self._turn("set_weights"):
            super().set_weights(weights)

    def load_weights(self, filepath: Any, *args: Any, **options: Any) -> None:
        with self._turn("load_weights"):
            super().load_weights(filepath, *args, **options)

    def make_train_function(self, force: bool = False) -> Any:
        return self._make("train_function", super().make_train_function, force)

    def make_test_function(self, force: bool = False) -> Any:
        return self._make("test_function", super().make_test_function, force)

    def make_predict_function(self, force: bool = False) -> Any:
        return self._make("predict_function", super().make_predict_function, force)

    def _make(self, function: str, make: Callable[[bool], Any], force: bool) -> Any:
        def variables() -> list[Sequence[keras.Variable]]:
            """Return the variables that the step changes, in the order of Keras's state on JAX."""
            optimizer = [self.optimizer.variables] if function == "train_function" else []
            metrics = [self.metrics_variables] if function != "predict_function" else []
            return [self.trainable_variables, self.non_trainable_variables, *optimizer, *metrics]

        if not keras_shares_steps():
            self.ddp_model = False  # where it is None, Keras 3.16 makes one
        with _making:
            if not force and getattr(self, function) is not None:
                return getattr(self, function)
            if function == "train_function":
                check_strategy(self)
            compiled = compiled_by_xla(self) if function in self._xla_functions else nullcontext()
            with compiled, on_devices():
                make(force)
            guard_step(self, function, variables)
            return getattr(self, function)
