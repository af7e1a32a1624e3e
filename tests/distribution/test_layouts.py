"""What is cut how, without devices: rules, the table, and the golden table of every named model."""

import difflib
import os
from pathlib import Path

import keras
import pytest

import keras_vit
from keras_vit.distribution.axes import fsdp_axes, tensor_parallel_axes
from tests.models.test_common import KINDS, OTHERS

GOLDEN = Path(__file__).parents[1] / "golden" / "layouts"


def abstract(name: str) -> keras.Model:
    """A named model without the values of its variables."""
    with keras.StatelessScope(initialize_variables=False):
        return keras_vit.create(name)


@pytest.mark.parametrize("name", keras_vit.list_models())
def test_layouts_of_named_models(name: str) -> None:
    """Renaming a layer fails here; `WRITE_GOLDEN=1` writes the tables anew, to be reviewed."""
    model = abstract(name)
    kinds = ["fsdp"] if name.startswith(("BiT", "R")) else ["fsdp", "tensor_parallel"]
    tables = [
        f"{kind}\n{keras_vit.distribution.layout_table(model, kind, devices)}\n"
        for kind, devices in zip(kinds, (8, 2), strict=False)
    ]
    path = GOLDEN / f"{name.replace('/', '-')}.txt"
    if os.environ.get("WRITE_GOLDEN"):
        path.write_text("\n".join(tables))
    expected, found = path.read_text().splitlines(), "\n".join(tables).splitlines()
    assert found == expected, "\n".join(difflib.unified_diff(expected, found, lineterm=""))


@pytest.mark.parametrize("name", ["ViT-Ti/16", "ViT-H/14", "ViT-G/14", "BiT-R152x4", "Mixer-L/16"])
def test_fsdp_cuts_nearly_all(name: str) -> None:
    last = keras_vit.distribution.layout_table(abstract(name), "fsdp", 8).splitlines()[-1]
    assert float(last.split(" %")[0].split()[-1]) < 14


@pytest.mark.parametrize("kind", [k for k in KINDS if k not in OTHERS])
def test_layouts_of_every_kind_of_vit(kind: str) -> None:
    """Options add no large weight that FSDP would leave whole, and heads are cut by heads."""
    sizes = {"patch_size": 16, "hidden_dim": 256, "mlp_dim": 512, "depth": 2, "num_heads": 8}
    with keras.StatelessScope(initialize_variables=False):
        arguments = {**sizes, **KINDS[kind], "input_shape": (64, 64, 3)}
        model = keras_vit.VisionTransformer(**arguments)
    last = keras_vit.distribution.layout_table(model, "fsdp", 8).splitlines()[-1]
    assert float(last.split(" %")[0].split()[-1]) < 16
    table = keras_vit.distribution.layout_table(model, "tensor_parallel", 2)
    assert "query_key_value/kernel" in table


def test_the_largest_axis_that_divides_is_cut() -> None:
    assert fsdp_axes((768, 2304), 8) == (None, "batch")
    assert fsdp_axes((769, 2304), 8) == (None, "batch")
    assert fsdp_axes((2304, 769), 8) == ("batch", None)
    assert fsdp_axes((769, 767), 8) == (None, None)
    assert fsdp_axes((100, 8), 8) == (None, None)  # small


def test_what_the_devices_do_not_divide_is_refused() -> None:
    with pytest.raises(ValueError, match=r"block_0/mlp/dense_0/kernel.*5 parts.*divides 3072"):
        tensor_parallel_axes("block_0/mlp/dense_0/kernel", (768, 3072), 5)


def test_other_backends_name_what_works() -> None:
    if keras.backend.backend() == "jax":
        pytest.skip("of the other backends")
    with pytest.raises(RuntimeError, match="'fsdp' works on JAX, and Keras runs on"):
        keras_vit.distribution.create("fsdp")


@pytest.mark.parametrize("kind", ["ddp", ""])
def test_unknown_kinds(kind: str) -> None:
    with pytest.raises(ValueError, match="data_parallel"):
        keras_vit.distribution.create(kind)
