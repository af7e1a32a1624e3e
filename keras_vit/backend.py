"""The one place that knows which backend Keras runs on."""

import os
import sys
import warnings
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import Any

import keras
import numpy as np


def is_tensorflow() -> bool:
    """Whether this process runs Keras on TensorFlow."""
    return keras.backend.backend() == "tensorflow"


def tensorflow_process() -> tuple[list[str], dict[str, str]]:
    """The interpreter and the environment of a process that runs Keras on TensorFlow."""
    return [sys.executable], {**os.environ, "KERAS_BACKEND": "tensorflow"}


def synchronize(model: keras.Model) -> None:
    """Brings the variables of a model that is in `fit` up to date: JAX keeps them elsewhere."""
    if keras.backend.backend() == "jax":
        model.jax_state_sync()


def guard_step(
    model: keras.Model, name: str, variables: Callable[[], Sequence[Sequence[keras.Variable]]]
) -> None:
    """A train, test or predict function that can fail without harm to its model.

    On JAX, Keras takes the variables off the model before the first step, and a step that fails,
    mostly when it is traced, leaves `None` in their place. On TensorFlow, a step that failed when
    it was first traced may not create the optimizer's variables later: it is made anew.

    Args:
        model: The model.
        name: `"train_function"`, `"test_function"` or `"predict_function"`, made by Keras.
        variables: Gives groups of variables in the order of the step's state.
    """
    step = getattr(model, name)

    def jax_step(state: Any, iterator: Any) -> Any:
        try:
            return step(state, iterator)
        except BaseException:
            if not any(value.is_deleted() for values in state for value in values):
                for group, values in zip(variables(), state, strict=True):
                    for variable, value in zip(group, values, strict=True):
                        variable.assign(value)
                model._jax_state_synced = True  # nothing newer is elsewhere
            raise

    layout: Any = None

    def tensorflow_step(iterator: Any) -> Any:
        nonlocal layout
        given = _label_layout(iterator)
        if layout not in (None, given):
            setattr(model, name, None)
            getattr(model, f"make_{name}")()
            return getattr(model, name)(iterator)
        try:
            outputs = step(iterator)
        except BaseException:
            if layout is None:
                setattr(model, name, None)
            raise
        layout = given
        return outputs

    guarded = {"jax": jax_step, "tensorflow": tensorflow_step}.get(keras.backend.backend())
    if guarded is not None:
        setattr(model, name, guarded)


def _label_layout(iterator: Any) -> list[Any]:
    """Ranks of what a TensorFlow iterator gives, and the width of its rows."""
    specs = keras.tree.flatten(getattr(iterator, "element_spec", ()))
    shapes = [getattr(spec, "shape", None) for spec in specs]  # a strategy's specs have none
    return [None if s is None else ("row", s[-1]) if s.rank == 2 else s.rank for s in shapes]


def compile_on_cpu(model: keras.Model) -> None:
    """Turns XLA on where `jit_compile="auto"` leaves it off: on TensorFlow without a GPU."""
    if not is_tensorflow():
        return
    import tensorflow as tf

    accelerated = any(d.device_type != "CPU" for d in tf.config.list_physical_devices())
    if accelerated or tf.distribute.has_strategy():
        return
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # asked for deterministic operators, Keras declines
        model.jit_compile = True


def has_fused_attention() -> bool:
    """Whether `fused_attention` works here: on torch, and on JAX's GPUs and TPUs."""
    return keras.backend.backend() == "torch" or (
        keras.backend.backend() == "jax" and _jax_is_accelerated()
    )


def _jax_is_accelerated() -> bool:
    import jax

    return jax.devices()[0].platform != "cpu"


def fused_attention(query: Any, key: Any, value: Any, bias: Any, dropout: float) -> Any:
    """Scaled dot-product attention by the backend's operator.

    Queries, keys, values and the result are `(batch, length, heads, head_dim)`, the bias can be
    broadcast to `(batch, heads, queries, keys)`. torch's operator is called without the copies that
    Keras makes for it.

    Args:
        dropout: Rate on the probabilities; only where `masks_come_from` says "kernel".
    """
    if keras.backend.backend() != "torch":
        return keras.ops.dot_product_attention(query, key, value, bias=bias)
    import torch

    query, key, value = (x.transpose(1, 2) for x in (query, key, value))
    operator = torch.nn.functional.scaled_dot_product_attention
    return operator(query, key, value, bias, dropout).transpose(1, 2)


def multiply_in_float32(x: Any, y: Any) -> Any:
    """The product of matrices in float32, not rounded to theirs where the backend allows it."""
    if keras.backend.backend() != "jax":
        return keras.ops.cast(keras.ops.matmul(x, y), "float32")
    import jax.numpy as jnp

    return jnp.matmul(x, y, preferred_element_type="float32")


def remat(function: Callable[..., Any], *constants: Any) -> Callable[..., Any]:
    """`keras.remat`, and on JAX one that spares memory on CPUs, too.

    XLA's CPU compiler drops the barriers of `jax.checkpoint`: it computes everything again at the
    start of the backward pass, as nothing there depends on a gradient, and fuses the sums along the
    residual stream across blocks. Both keep every block's arrays at once. Here, a block's backward
    pass is the branch of a condition on its gradient, which XLA neither moves nor looks into. (A
    GPU would have to tell its host what the condition is; there, XLA heeds the barriers.)

    Args:
        constants: Integers that `function` gets behind its other arguments.
    """
    if is_tensorflow():
        import tensorflow as tf

        # A variable as an argument is counted twice by an eager tape: as that, and as a variable.
        recomputed = keras.remat(lambda *arguments: function(*arguments, *constants))
        return lambda *arguments: recomputed(*map(tf.convert_to_tensor, arguments))
    if keras.backend.backend() != "jax" or _jax_is_accelerated():
        return keras.remat(lambda *arguments: function(*arguments, *constants))
    import jax
    import jax.numpy as jnp

    def backward(kept: tuple[Any, ...], gradients: Any) -> tuple[Any, ...]:
        of = len(kept) - len(constants)
        arguments, rest = kept[:of], kept[of:]

        def again() -> tuple[Any, ...]:
            return jax.vjp(lambda *given: function(*given, *rest), *arguments)[1](gradients)

        def not_a_number() -> tuple[Any, ...]:
            return tuple(jnp.full_like(argument, jnp.nan) for argument in arguments)

        first = jax.tree.leaves(gradients)[0].ravel()[0]
        return (*jax.lax.cond(first == first, again, not_a_number), *(None for _ in rest))

    checkpointed = jax.custom_vjp(function)
    checkpointed.defvjp(lambda *kept: (function(*kept), kept), backward)
    return lambda *arguments: checkpointed(*arguments, *constants)


def has_gelu_kernel() -> bool:
    """Whether GELU is one kernel (torch); elsewhere, a compiler fuses its formula."""
    return keras.backend.backend() == "torch"


def multiply_add(inputs: Any, kernel: Any, bias: Any = None) -> Any:
    """Rows `(..., features)` times a matrix, plus a row or None: torch has one operator for it."""
    if keras.backend.backend() != "torch":
        outputs = keras.ops.matmul(inputs, kernel)
        return outputs if bias is None else keras.ops.add(outputs, bias)
    import torch

    kernel = keras.ops.convert_to_tensor(kernel).mT
    bias = None if bias is None else keras.ops.convert_to_tensor(bias)
    return torch.nn.functional.linear(keras.ops.convert_to_tensor(inputs), kernel, bias)


def track_variables_anew(layer: keras.layers.Layer) -> None:
    """Lets go of variables that sublayers have replaced: torch's registers keep the old ones."""
    if keras.backend.backend() == "torch":
        for each in layer._flatten_layers():
            each._track_variables()


def masks_come_from() -> str:
    """Where dropout's masks cost least.

    "kernel": torch's own dropout, one kernel on its GPUs. "bits": `random_int16`, on its CPUs,
    where nothing fuses passes. "remainders": where a compiler does, and random numbers cost.
    """
    if keras.backend.backend() != "torch":
        return "remainders"
    import torch

    return "kernel" if torch.accelerator.is_available() else "bits"


def random_int16(shape: Sequence[int], seed: keras.random.SeedGenerator) -> Any:
    """All integers of 16 bits, equally likely; on torch, four cut from one of 64 bits."""
    import torch

    words = (*shape[:-1], -(-shape[-1] // 4))
    drawn = keras.random.randint(words, -(2**63), 2**63 - 1, dtype="int64", seed=seed)
    return drawn.view(torch.int16)[..., : shape[-1]]


Tensors = list[Any]


def two_pass_step(
    model: keras.Model,
    perturb: Callable[[Tensors, Tensors, Any], Tensors],
    combine: Callable[[Tensors, Tensors], Tensors],
) -> Callable[..., Any]:
    """A `train_step` for `fit` with two gradients: at the weights, and at weights beside them.

    Both see the same batch under the same masks of dropout. Loss, metrics and the state of layers
    are those of the first pass. What does not depend on the loss has the gradient None.

    Args:
        model: The model, compiled when it trains.
        perturb: From weights, gradients and the optimizer's iterations to the other weights.
        combine: From both gradients to those that the optimizer gets.
    """
    step = {"jax": _jax_step, "tensorflow": _tensorflow_step, "torch": _torch_step}
    return step[keras.backend.backend()](model, perturb, combine)


def _jax_step(model: keras.Model, perturb: Any, combine: Any) -> Callable[..., Any]:
    import jax

    def train_step(state: Any, data: Any) -> Any:
        weights, others, optimizer_state, metrics_state = state
        x, y, sample_weight = keras.utils.unpack_x_y_sample_weight(data)
        differentiate = jax.value_and_grad(model.compute_loss_and_updates, has_aux=True)

        def gradients(at: Tensors) -> Any:
            return differentiate(
                at,
                others,
                metrics_state,
                x,
                y,
                sample_weight,
                training=True,
                optimizer_variables=optimizer_state,
            )

        (_, (loss, outputs, new_others, metrics_state)), first = gradients(weights)
        mapping = list(zip(model.optimizer.variables, optimizer_state, strict=True))
        with keras.StatelessScope(state_mapping=mapping):
            beside = perturb(weights, first, model.optimizer.iterations)
        # The seeds among `others` have not moved: the second pass draws the same masks.
        _, second = gradients(beside)
        weights, optimizer_state = model.optimizer.stateless_apply(
            optimizer_state, combine(first, second), weights
        )
        logs, metrics_state = model._update_metrics_variables(
            metrics_state, loss, x, y, outputs, sample_weight
        )
        return logs, (weights, new_others, optimizer_state, metrics_state)

    return train_step


def _tensorflow_step(model: keras.Model, perturb: Any, combine: Any) -> Callable[..., Any]:
    import tensorflow as tf

    def gradients(batch: Any) -> Any:
        with tf.GradientTape() as tape:
            loss, outputs = _loss_and_outputs(model, batch)
            scaled = model.optimizer.scale_loss(loss)
        return tape.gradient(scaled, [v.value for v in model.trainable_weights]), loss, outputs

    return _stateful_step(model, perturb, combine, gradients, tf.identity, nullcontext)


def _torch_step(model: keras.Model, perturb: Any, combine: Any) -> Callable[..., Any]:
    import torch

    def gradients(batch: Any) -> Any:
        model.zero_grad()
        loss, outputs = _loss_and_outputs(model, batch)
        model.optimizer.scale_loss(loss).backward()
        return [v.value.grad for v in model.trainable_weights], loss, outputs

    return _stateful_step(model, perturb, combine, gradients, torch.clone, torch.no_grad)


def _loss_and_outputs(model: keras.Model, batch: Any) -> tuple[Any, Any]:
    x, y, sample_weight = batch
    outputs = model(x, training=True) if model._call_has_training_arg else model(x)
    loss = model._compute_loss(x=x, y=y, y_pred=outputs, sample_weight=sample_weight, training=True)
    return loss, outputs


def _stateful_step(
    model: keras.Model,
    perturb: Any,
    combine: Any,
    gradients: Callable[[Any], Any],
    copy: Callable[[Any], Any],
    no_grad: Callable[[], Any],
) -> Callable[..., Any]:
    """The step of the backends whose variables change in place: what was is kept, and put back."""

    def copies(variables: Sequence[keras.Variable]) -> Tensors:
        return [copy(variable.value) for variable in variables]

    def assign(variables: Sequence[keras.Variable], values: Tensors) -> None:
        for variable, value in zip(variables, values, strict=True):
            variable.assign(value)

    def train_step(data: Any) -> Any:
        batch = keras.utils.unpack_x_y_sample_weight(data)
        weights = model.trainable_weights
        others = model.non_trainable_variables  # of which the seeds and moving averages change
        with no_grad():
            others_before = copies(others)
        first, loss, outputs = gradients(batch)
        with no_grad():
            kept, others_after = copies(weights), copies(others)
            assign(weights, perturb(kept, first, model.optimizer.iterations))
            assign(others, others_before)
        second, _, _ = gradients(batch)
        with no_grad():
            assign(weights, kept)
            assign(others, others_after)
            model.optimizer.apply(combine(first, second), weights)
        x, y, sample_weight = batch
        examples = keras.ops.shape(keras.tree.flatten(x)[0])[0]
        model._loss_tracker.update_state(loss, sample_weight=examples)
        return model.compute_metrics(x, y, outputs, sample_weight=sample_weight)

    return train_step


def random_state() -> dict[str, np.ndarray]:
    """The backend's own generators by device: torch's dropout without a seed draws from them."""
    if keras.backend.backend() != "torch":
        return {}
    import torch

    cuda = torch.cuda.get_rng_state_all() if torch.cuda.is_available() else []
    states = {"cpu": torch.get_rng_state()} | {str(i): state for i, state in enumerate(cuda)}
    return {device: state.numpy() for device, state in states.items()}


def set_random_state(states: dict[str, np.ndarray]) -> None:
    """Sets what `random_state` returned."""
    for device, state in states.items():
        import torch

        if device == "cpu":
            torch.set_rng_state(torch.from_numpy(state))
        else:
            torch.cuda.set_rng_state(torch.from_numpy(state), int(device))
