"""Models that XLA compiles wherever this is the faster way, and that say what does not fit them."""

import functools
import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import keras

from keras_vit.backend import compile_on_cpu, guard_step, synchronize
from keras_vit.models.data_checks import DataCheck, warn_of_activation


class CompiledModel(keras.Model):
    """A `keras.Model` whose `jit_compile="auto"` takes XLA on TensorFlow's CPU, too.

    Keras does without it there: convolutions train slower under XLA. Matrix products and what
    stands between them take up to 1.8 times as many steps (`docs/performance.md`), and cost two
    seconds more before the first. `jit_compile=False` goes without.

    What a classifier is compiled with and trained on is held against it: `compile` warns of a loss
    that takes its logits for probabilities; `fit`, `evaluate` and `predict` raise a ValueError for
    labels outside the classes, one-hot rows in place of integers or the other way round, and
    images with other channels, and warn of images in 0..1 where it takes 0..255. After any error
    the model still has its weights.
    """

    @property
    def _convolves(self) -> bool:
        """Whether a ResNet is part of the model."""
        return False

    def compile(self, *args: Any, **options: Any) -> None:
        self._compile(*args, **options)
        warn_of_activation(self, stacklevel=2)

    def _compile(self, *args: Any, **options: Any) -> None:
        super().compile(*args, **options)
        given = inspect.signature(keras.Model.compile).bind(self, *args, **options).arguments
        self._jit_compile_given = given.get("jit_compile", "auto")
        free = self._jit_compile_given == "auto" and not self.run_eagerly
        if free and not self._convolves:
            compile_on_cpu(self)

    def get_compile_config(self) -> dict[str, Any]:
        config = super().get_compile_config()
        if not config:
            return config
        # What was asked for, not what became of it here: elsewhere the choice is another one.
        return {**config, "jit_compile": self._jit_compile_given}

    def compile_from_config(self, config: dict[str, Any]) -> None:
        """As Keras does where `compile` is its own; who saved the model has been warned."""
        self._compile(**keras.saving.deserialize_keras_object(config))
        if self.built:
            self.optimizer.build(self.trainable_variables)

    @functools.wraps(keras.Model.fit)
    def fit(self, *args: Any, **options: Any) -> Any:
        with self._checked(super().fit, args, options) as call:
            return call()

    @functools.wraps(keras.Model.evaluate)
    def evaluate(self, *args: Any, **options: Any) -> Any:
        if "_use_cached_eval_dataset" in options:  # `fit`, which has checked it
            return super().evaluate(*args, **options)
        with self._checked(super().evaluate, args, options) as call:
            return call()

    @functools.wraps(keras.Model.predict)
    def predict(self, *args: Any, **options: Any) -> Any:
        with self._checked(super().predict, args, options, labels=False) as call:
            return call()

    @contextmanager
    def _checked(
        self,
        method: Callable[..., Any],
        args: tuple[Any, ...],
        options: dict[str, Any],
        labels: bool = True,
    ) -> Iterator[Callable[[], Any]]:
        """The method with its data checked; whatever it raises, the model has its variables."""
        given = inspect.signature(method).bind(*args, **options)
        data = given.arguments
        trained, validated = DataCheck(self, labels), DataCheck(self, labels)
        data["x"] = trained.data(data.get("x"), data.get("y"))
        validation = data.get("validation_data")
        if isinstance(validation, tuple | list):
            x, *rest = validation
            data["validation_data"] = (validated.data(x, rest[0] if rest else None), *rest)
        elif validation is not None:
            data["validation_data"] = validated.data(validation)
        try:
            yield lambda: method(*given.args, **given.kwargs)
        except Exception as error:
            found = trained.error or validated.error
            if found in (None, error):
                raise
            raise found from None  # which TensorFlow reports as an error of its own
        finally:
            synchronize(self)

    @functools.wraps(keras.Model.train_on_batch)
    def train_on_batch(self, x: Any, y: Any = None, *args: Any, **options: Any) -> Any:
        DataCheck(self).shapes(x, y)
        return super().train_on_batch(x, y, *args, **options)

    @functools.wraps(keras.Model.test_on_batch)
    def test_on_batch(self, x: Any, y: Any = None, *args: Any, **options: Any) -> Any:
        DataCheck(self).shapes(x, y)
        return super().test_on_batch(x, y, *args, **options)

    def make_train_function(self, force: bool = False) -> Any:
        if force or self.train_function is None:
            super().make_train_function(force)
            guard_step(
                self,
                "train_function",
                lambda: (
                    self.trainable_variables,
                    self.non_trainable_variables,
                    self.optimizer.variables,
                    self.metrics_variables,
                ),
            )
        return self.train_function

    def make_test_function(self, force: bool = False) -> Any:
        if force or self.test_function is None:
            super().make_test_function(force)
            guard_step(
                self,
                "test_function",
                lambda: (
                    self.trainable_variables,
                    self.non_trainable_variables,
                    self.metrics_variables,
                ),
            )
        return self.test_function

    def make_predict_function(self, force: bool = False) -> Any:
        if force or self.predict_function is None:
            super().make_predict_function(force)
            guard_step(
                self,
                "predict_function",
                lambda: (self.trainable_variables, self.non_trainable_variables),
            )
        return self.predict_function
