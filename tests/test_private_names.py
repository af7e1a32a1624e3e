"""The private names of Keras, torch and Python that the package uses: each exists here.

The suite runs this on the newest Keras, `.ci/oldest` on the oldest that pyproject.toml allows, and
`.ci/nightly` on the next one.
"""

import ast
import importlib
import importlib.util
import inspect
import re
from collections.abc import Iterator
from functools import cache
from typing import Any

import keras
import numpy as np
import pytest

from tests.conftest import REPOSITORY

# The one table: names without a public counterpart, where they are, and what they are. Where is
# "keras" (an object of Keras), "keras.Model.fit" (its source), "torch", or a module of Python.
PRIVATE: dict[str, tuple[str, str]] = {
    "_flatten_layers": ("keras", "all layers inside a layer, at any depth"),
    "_dtype_policy": ("keras", "the policy of a layer that is already built"),
    "_track_variables": ("keras", "torch: registers a layer's variables as parameters"),
    "_jax_state_synced": ("keras", "JAX: whether the variables are up to date"),
    "_symbolic_build": ("keras", "builds the metrics of a compiled model before its first batch"),
    "_get_seed_generator": ("keras", "where an image layer takes its random numbers from"),
    "_layout": ("keras", "JAX: how a variable is cut over devices"),
    "_value": ("keras", "the array of a variable, to put another kind of array in its place"),
    "_get_current_learning_rate": ("keras", "the learning rate at this step"),
    "_learning_rate": ("keras", "the schedule itself, where the public name is its value"),
    "_iterations": ("keras", "micro-steps where gradients accumulate; the public name: updates"),
    "_get_variable_index": ("keras", "the place of a variable among those of an optimizer"),
    "_update_model_variables_moving_average": ("keras", "the exponential moving average"),
    "_model_variables_moving_average": ("keras", "what it averages"),
    "_apply_weight_decay": ("keras", "what follows an update"),
    # Of callbacks: what a resumed run has to know.
    "_batches_seen_since_last_saving": ("keras", "`ModelCheckpoint` with `save_freq`"),
    "_last_batch_seen": ("keras", "`ModelCheckpoint`, likewise"),
    "_global_train_batch": ("keras", "`TensorBoard`: the step it writes next"),
    "_global_test_batch": ("keras", "`TensorBoard`, of validation"),
    # An argument, by which `evaluate` knows that `fit` calls it, and not a user.
    "_use_cached_eval_dataset": ("keras.Model.fit", "passed to `evaluate`"),
    "_forward_hooks": ("torch", "what a module calls after its forward pass"),
    "_forward_pre_hooks": ("torch", "what it calls before it"),
    "_backward_hooks": ("torch", "what it calls after its backward pass"),
    "_backward_pre_hooks": ("torch", "what it calls before it"),
    "_execution_engine": ("torch", "of `torch.autograd.Variable`: calls after a backward pass"),
    "_sym_val": ("coremltools", "what a variable of a program is, where it is known"),
    "_getframe": ("sys", "the line of a user to which a warning belongs"),
    "_EndRecData": ("zipfile", "the end of an archive, with the size of its directory"),
    "_ECD_SIZE": ("zipfile", "the place of that size"),
}
OF_ONE_BACKEND = {"_track_variables": "torch", "_jax_state_synced": "jax", "_layout": "jax"}
OF_TORCH = [name for name, row in PRIVATE.items() if row[0] in ("torch", "coremltools")]
OF_ONE_BACKEND |= dict.fromkeys(OF_TORCH, "torch")
# What is imported from within Keras: it wraps data for several devices.
IMPORTED = "keras.src.trainers.data_adapters.get_data_adapter"


@cache
def objects_of_keras() -> list[Any]:
    inputs = keras.Input((4,))
    model = keras.Model(inputs, keras.layers.Dense(2)(inputs))
    model.compile("sgd", "mse")
    optimizer = keras.optimizers.SGD(use_ema=True)
    optimizer.apply([keras.ops.ones(2)], [keras.Variable([1.0, 1.0], name="kernel")])
    optimizers = [model.optimizer, optimizer, keras.optimizers.LossScaleOptimizer(optimizer)]
    layers = [model.layers[-1], keras.layers.RandomFlip()]
    callbacks = [keras.callbacks.ModelCheckpoint("model.keras"), keras.callbacks.TensorBoard()]
    others = [keras.losses.MeanSquaredError(), keras.metrics.Mean(), keras.Variable(1.0)]
    return [model, *layers, *optimizers, *callbacks, *others]


def private_names() -> set[str]:
    """Those of Keras's objects, without what torch's modules have besides."""
    names = {name for each in objects_of_keras() for name in dir(each)}
    if keras.backend.backend() == "torch":
        names -= {*dir(importlib.import_module("torch").nn.Module())}
    return {name for name in names if re.match("_[a-z]", name)}


NAME = re.compile(r"_[A-Za-z]\w*(?<![_\d])")  # a digit ends parts of texts, such as "_reg4"
DOTTED = re.compile(r"(?:\w+\.)*\w+")


def names_in_code(tree: ast.AST) -> Iterator[str]:
    """Names of attributes, methods, arguments and strings, and imports from within Keras."""
    nodes = list(ast.walk(tree))
    # Parts of texts are not names.
    parts = {id(part) for node in nodes if isinstance(node, ast.JoinedStr) for part in node.values}
    for node in nodes:
        match node:
            case ast.Attribute(attr=name) | ast.keyword(arg=str(name)):
                yield name
            case ast.ClassDef(body=body):
                yield from (part.name for part in body if isinstance(part, ast.FunctionDef))
            case ast.Constant(value=str(text)) if DOTTED.fullmatch(text) and id(node) not in parts:
                yield from text.split(".")
            case ast.ImportFrom(module=str(module)) if module.startswith("keras.src"):
                yield from (f"{module}.{name.name}" for name in node.names)
            case ast.Import(names=names):
                yield from (name.name for name in names if name.name.startswith("keras.src"))


def names_defined(tree: ast.AST) -> Iterator[str]:
    """What a file gives a name: functions, classes, arguments, variables, attributes of `self`."""
    for node in ast.walk(tree):
        match node:
            case (
                ast.FunctionDef(name=name)
                | ast.AsyncFunctionDef(name=name)
                | ast.ClassDef(name=name)
                | ast.arg(arg=name)
            ):
                yield name
            case ast.Name(id=name, ctx=ast.Store()):
                yield name
            case ast.Attribute(value=ast.Name(id="self"), attr=name, ctx=ast.Store()):
                yield name


def exists(name: str, where: str) -> bool:
    if where == "keras":
        return name in private_names()
    if where == "keras.Model.fit":
        return f"{name}=True" in inspect.getsource(keras.Model.fit)
    if where == "coremltools":
        is_here = importlib.util.find_spec(where) is not None
        module = is_here and importlib.import_module("coremltools.converters.mil.mil")
        return not module or hasattr(module.Var, name)
    module = importlib.import_module(where)
    if where != "torch":
        return hasattr(module, name)
    owners = (module.nn.Module(), module.autograd.Variable, module.ops.aten)
    return any(hasattr(owner, name) for owner in owners)


@pytest.mark.every_backend
def test_they_exist_and_do_what_our_steps_rely_on() -> None:
    here = keras.backend.backend()
    names = [name for name in PRIVATE if OF_ONE_BACKEND.get(name, here) == here]
    assert [name for name in names if not exists(name, PRIVATE[name][0])] == []
    # `trainer/device_batches.py` wraps an adapter of data, which can be given as data.
    module, _, name = IMPORTED.rpartition(".")
    get_data_adapter = getattr(importlib.import_module(module), name)
    adapter = get_data_adapter(np.ones((1, 1)))
    assert get_data_adapter(adapter) is adapter
    assert callable(adapter.get_jax_iterator)
    # `trainer/two_pass_step.py` updates the mean of the loss as Keras's own step does.
    assert objects_of_keras()[0].metrics[0].name == "loss"


@pytest.mark.every_backend
def test_no_other_private_name_is_used() -> None:
    rooms = [REPOSITORY / name for name in ("keras_vit", "keras_vit_cli")]
    files = [file for room in rooms for file in sorted(room.rglob("*.py"))]
    trees = [ast.parse(file.read_text("utf-8")) for file in files]
    used = {name for tree in trees for name in names_in_code(tree)}
    ours = {part for file in files for part in file.relative_to(REPOSITORY).with_suffix("").parts}
    ours |= {name for tree in trees for name in names_defined(tree)}
    private = {name for name in used if NAME.fullmatch(name)} - {"_replace", "_asdict", "_fields"}
    imports = {name for name in used if name.startswith("keras.src.")}
    private, allowed = imports | private & private_names() | private - ours, {*PRIVATE, IMPORTED}
    assert private <= allowed, f"{private - allowed} are not in the table"
    assert allowed <= used, f"{allowed - used} are not used any more: leave them out of the table"
