"""Data parallel training on TensorFlow, by `tf.distribute`.

Every replica, one per device, gets the global batch. Within a step, its model computes the rows of
the replica and gathers the outputs of all of them; loss, metrics and updates are computed from all
outputs, by every replica for its own copies of the variables:

    images of the batch ──► rows of this replica ──► model ──► outputs ──► gather ──► loss, metrics
                                                       │                     │
    update ◄── clipping, ... ◄── all-reduce ◄── gradient of the weights ◄────┘

So the sum of the gradients is the gradient of the global batch's loss, whatever the loss. Keras's
own way, a loss and metrics per replica, differs where replicas have unequal rows, or none.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import Any

import keras

from keras_vit.ops.platform import is_tensorflow
from keras_vit.ops.step import current_step
from keras_vit.ops.tf_gradients import sum_gradients_first

_number = itertools.count(1)  # of strategies


class ReplicaParallel(keras.distribution.DataParallel):
    """Data parallel over devices by a strategy of `tf.distribute`.

    Models of this package follow it in `fit`, `evaluate`, `predict` and their variants for a single
    batch: their variables move to the devices, and back to one when it is no longer set. In several
    processes, all of them pass the same global batches.

    Args:
        devices: Names such as `["gpu:0", "gpu:1"]`; None for all of the processes of `TF_CONFIG`.

    Attributes:
        strategy: The strategy.
        rank: The number of this process, 0 for the first one.
        processes: The number of all processes.
    """

    def __init__(self, devices: Sequence[str] | None = None) -> None:
        self.rank, self.processes = 0, 1
        if devices is None:
            self.strategy = _strategy_over_workers()
            self.rank, self.processes = tensorflow_workers()
            kind = self.strategy.extended.worker_devices[0].split(":")[-2].lower()
            devices = [f"{kind}:{i}" for i in range(_num_replicas(self.strategy))]
        else:
            self.strategy = _strategy("MirroredStrategy", [f"/{name}" for name in devices])
        super().__init__(devices=list(devices), auto_shard_dataset=False)

    def from_all_processes(self, value: int) -> list[int]:
        """The integers that the processes pass, by process; each waits for the others."""
        import tensorflow as tf

        def gather() -> Any:
            context = tf.distribute.get_replica_context()
            return context.all_gather(tf.constant([value], "int64"), axis=0)

        values = self.strategy.experimental_local_results(self.strategy.run(gather))[0].numpy()
        return [int(each) for each in values[:: len(values) // self.processes]]


def tensorflow_workers() -> tuple[int, int]:
    """The number of this process, from 0, and of all processes that `TF_CONFIG` names."""
    import tensorflow as tf

    resolver = tf.distribute.cluster_resolver.TFConfigClusterResolver()
    cluster = resolver.cluster_spec().as_dict()
    chiefs, workers = len(cluster.get("chief", ())), len(cluster.get("worker", ()))
    if chiefs + workers <= 1:
        return 0, 1
    return resolver.task_id + (chiefs if resolver.task_type == "worker" else 0), chiefs + workers


@functools.cache
def _strategy_over_workers() -> Any:
    """The one strategy that a process may have over several; TensorFlow starts its server for it.

    Raises:
        RuntimeError: TensorFlow has computed something before.
    """
    try:
        return _strategy("MultiWorkerMirroredStrategy")
    except RuntimeError as error:
        raise RuntimeError(
            "TensorFlow joins the processes of TF_CONFIG before it computes anything: call "
            "keras_vit.distribution.create first, before models, optimizers and data are made."
        ) from error


def _strategy(name: str, *arguments: Any) -> Any:
    """A strategy of `tf.distribute` for steps whose replicas all have the global batch."""
    import tensorflow as tf

    class GlobalBatches(getattr(tf.distribute, name)):  # type: ignore[misc]
        # Keras divides losses by it. Here each replica has the loss of the global batch.
        num_replicas_in_sync = 1
        gets_global_batches = True
        # By these numbers TensorFlow distinguishes the exchanges of two strategies in a process.
        _collective_key_base = 100_000 * next(_number)

    return GlobalBatches(*arguments)


def _num_replicas(strategy: Any) -> int:
    return int(strategy.extended._num_replicas_in_sync)


def current_replicas() -> ReplicaParallel | None:
    """The distribution that is set, if it is one over replicas."""
    distribution = keras.distribution.distribution()
    return distribution if isinstance(distribution, ReplicaParallel) else None


def steps_on_replicas(model: keras.Model) -> Any:
    """What Keras takes for a strategy, for the steps of a model on replicas; None for others."""
    distribution = current_replicas()
    return distribution and _Steps(distribution, bool(model.compiled and model.jit_compile))


class _Steps:
    """Runs steps of Keras on all replicas.

    Keras would cut batches before a step, and average losses and concatenate predictions after it.
    Here every replica gets the batch, and has the results of all.
    """

    def __init__(self, distribution: ReplicaParallel, is_compiled: bool) -> None:
        self.strategy, self.processes = distribution.strategy, distribution.processes
        self.is_compiled = is_compiled

    def experimental_distribute_dataset(self, dataset: Any) -> Any:
        return dataset

    def run(self, step: Callable[..., Any], args: tuple[Any, ...]) -> Any:
        """The results of a step on a global batch: those of the first replica."""

        def replica_step(*args: Any) -> Any:
            # Each replica is traced in a thread of its own.
            current = _ReplicaStep(self.is_compiled)
            token = current_step.set(current)
            try:
                if self.processes > 1:
                    current.check_same_batch(args)
                return step(*args)
            finally:
                current_step.reset(token)

        outputs = self.strategy.run(replica_step, args=args)
        return keras.tree.map_structure(
            lambda values: self.strategy.experimental_local_results(values)[0], outputs
        )


class _ReplicaStep:
    """The rows of a replica in one step, and the random numbers that belong to them.

    Args:
        is_compiled: Whether XLA compiles what the model computes; it takes no exchange of values.
    """

    def __init__(self, is_compiled: bool) -> None:
        import tensorflow as tf

        self.context = tf.distribute.get_replica_context()
        self.is_compiled = is_compiled
        self.is_inside = False  # whether the model is computing the rows
        self.batch_axis = 0  # of random numbers that are drawn now
        self.batch: Any = 0  # how many rows the batch has
        self.index: Any = None  # the replica's rows in the batch

    def call(self, function: Callable[[Any], Any], images: Any) -> Any:
        """`on_all_processes`: equally many rows each, of which copies of the last are dropped."""
        import tensorflow as tf

        replicas = _num_replicas(self.context.strategy)
        start = self.context.replica_id_in_sync_group
        with tf.device("cpu:0"):  # only these rows go to the device
            self.batch = keras.ops.shape(images)[0]
            rows = -(-self.batch // replicas)
            self.index = tf.minimum(start * rows + tf.range(rows), self.batch - 1)
            mine = tf.gather(images, self.index)
        if self.is_compiled:
            function = tf.function(function, autograph=False, jit_compile=True)
        self.is_inside = True
        try:
            outputs = function(mine)
        finally:
            self.is_inside = False
        return keras.tree.map_structure(
            lambda x: self._gather(x, start * rows)[: self.batch], outputs
        )

    def check_same_batch(self, batch: Any) -> None:
        """Lets a step fail whose batch has other first and last rows than in other processes."""
        import tensorflow as tf

        rows = [
            tf.reduce_sum(tf.cast(tf.convert_to_tensor(leaf)[end], "float64"))
            for leaf in keras.tree.flatten(batch)
            if leaf is not None
            for end in (0, -1)
        ]
        of_all = self.context.all_gather(tf.stack(rows)[None], axis=0)
        tf.debugging.assert_equal(
            of_all,
            tf.broadcast_to(of_all[:1], tf.shape(of_all)),
            message="One process does not have the same batch as the others. Give fit, evaluate "
            "and predict the same global batches in every process, each of which computes its "
            "rows; what shuffles them needs a seed.",
        )

    def _gather(self, rows: Any, start: Any) -> Any:
        """The rows of all replicas, from those of each.

        Every replica computes the whole loss, so its own rows of the gradient are complete: the
        gradient of `all_gather` would sum those of all replicas.
        """
        import tensorflow as tf

        @tf.custom_gradient  # type: ignore[untyped-decorator]
        def gather(mine: Any) -> Any:
            def gradient(upstream: Any) -> Any:
                return upstream[start : start + tf.shape(mine)[0]]

            return self.context.all_gather(tf.stop_gradient(mine), axis=0), gradient

        is_float = rows.dtype.is_floating
        outputs = gather(rows) if is_float else self.context.all_gather(rows, axis=0)
        return tf.ensure_shape(outputs, (None, *rows.shape[1:]))

    def draw(self, draw: Callable[[Any], Any]) -> Any:
        """Random numbers for the rows of this replica: drawn for all, so that they are the same."""
        import tensorflow as tf

        return tf.gather(draw(self.batch), self.index, axis=self.batch_axis)


def place_on_replicas(model: keras.Model) -> None:
    """Moves the variables of a model, its metrics and its optimizer to the devices that are set.

    To those of the replicas, each with a copy; or, where no replicas are set any more, to one. Its
    step functions are made anew then.

    Raises:
        ValueError: The model was built for a strategy of its own.
    """
    if not is_tensorflow():
        return
    import tensorflow as tf

    distribution = current_replicas()
    strategy = distribution.strategy if distribution else None
    optimizer = getattr(model, "optimizer", None)
    if distribution is not None:
        _check_strategy(model)
        if optimizer is not None:
            sum_gradients_first(optimizer)
    variables = [*model.variables, *model.metrics_variables]
    if optimizer is not None:
        variables += optimizer.variables
    keys = {}
    for variable in variables:
        value = variable._value
        if value is None or _replicas_of(value) is strategy:
            continue
        array = value.numpy()
        # Without an aggregation, as every replica computes the same new values for its own copy.
        with strategy.scope() if strategy else nullcontext():
            variable._value = tf.Variable(
                array, trainable=value.trainable, dtype=value.dtype, name=variable.name
            )
        if optimizer is not None:
            keys[value._unique_id] = optimizer._var_key(variable)
    if keys:
        model.train_function = model.test_function = model.predict_function = None
        _rename_variables(optimizer, keys)


def _replicas_of(value: Any) -> Any:
    """The strategy of a `ReplicaParallel` that a TensorFlow variable has copies for; or None."""
    strategy = getattr(value, "distribute_strategy", None)
    return strategy if hasattr(strategy, "gets_global_batches") else None


def _check_strategy(model: keras.Model) -> None:
    if model._distribute_strategy is not None:
        raise ValueError(
            f"{model.name} was built in the scope of a {type(model._distribute_strategy).__name__}"
            ", and keras.distribution.set_distribution sets other devices. Use one of the two."
        )


# What Keras's optimizers keep by the name that TensorFlow gave a variable.
_BY_VARIABLE = (
    "_trainable_variables_indices",
    "_exclude_from_weight_decay",
    "_exclude_from_weight_decay_cache",  # up to Keras 3.15
    "_weight_decay_by_var_key",  # from Keras 3.16 on
)


def _rename_variables(optimizer: Any, keys: dict[str, str]) -> None:
    """Keras's optimizers find the state of a variable by the name that TensorFlow gave it."""
    while optimizer is not None:
        for name in _BY_VARIABLE:
            known = getattr(optimizer, name, None)
            if isinstance(known, dict):
                setattr(optimizer, name, {keys.get(key, key): i for key, i in known.items()})
            elif known:
                setattr(optimizer, name, {keys.get(key, key) for key in known})
        optimizer = getattr(optimizer, "inner_optimizer", None)


def batch_like(iterator: Any) -> Any:
    """The shapes and types of the batches of Keras's iterator, without taking one of them."""
    return keras.tree.map_structure(
        lambda spec: spec if hasattr(spec, "shape") else None, iterator._get_iterator().element_spec
    )
