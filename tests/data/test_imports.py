"""Importing `keras_vit.data` costs nothing, and a missing package is named with its remedy."""

import pytest

from keras_vit._base.version import install_command

pytestmark = pytest.mark.every_backend


def test_import_is_light_and_a_missing_package_is_explained(run_python) -> None:
    # On JAX, because Keras itself imports TensorFlow on its own backend. Keras also takes Pillow
    # where it finds it, hence the comparison with what `import keras` alone has brought in.
    code = """
import sys, keras
before = set(sys.modules)
import keras_vit.data
heavy = {"tensorflow", "tensorflow_datasets", "sklearn", "PIL"}
print(sorted(heavy & (set(sys.modules) - before)), "tensorflow" in sys.modules)

sys.modules["tensorflow"] = None  # as if it were not installed
try:
    keras_vit.data.decode_image(b"")
except ImportError as error:
    print(error)
"""
    light, explained = run_python(code, backend="jax").splitlines()
    assert light == "[] False"
    assert explained == f"keras_vit.data needs tensorflow: {install_command('tensorflow')}"


def test_gpus_are_left_to_the_backend(run_python) -> None:
    # A stand-in, for there may be no GPU here; as on JAX and torch, where Keras may import
    # TensorFlow before this package does.
    code = """
import os, sys, types, keras
tensorflow = types.ModuleType("tensorflow")
tensorflow.config = types.SimpleNamespace(set_visible_devices=lambda *seen: print("seen", *seen))
sys.modules["tensorflow"] = tensorflow
sys.argv = ["keras-vit", "evaluate", "none.keras", "--data", "none"]
import keras_vit_cli.exit_status, keras_vit_cli.start
keras_vit_cli.start.find_spec = lambda name: True
sys.exit(keras_vit_cli.exit_status.exit_status(keras_vit_cli.start._start) != 2)
"""
    assert run_python(code, backend="jax").splitlines() == ["seen [] GPU"]
