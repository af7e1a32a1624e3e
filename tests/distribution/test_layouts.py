"""What is cut how, without devices: rules, the table, and the golden table of every named model."""

import difflib
import os

import keras
import pytest

import keras_vit
from keras_vit.distribution import create, layout_table
from keras_vit.distribution.axes import fsdp_axes, tensor_parallel_axes
from tests.bank import KINDS, OTHERS
from tests.golden_cases import COMMITTED

# Of which FSDP keeps less than 14 % on each of eight devices.
LARGE = ("ViT-Ti/16", "ViT-H/14", "ViT-G/14", "BiT-R152x4", "Mixer-L/16")


def percent_on_one_device(table: str) -> float:
    return float(table.splitlines()[-1].split(" %")[0].split()[-1])


@pytest.mark.parametrize("name", keras_vit.list_models())
def test_layouts_of_named_models(name: str) -> None:
    """Renaming a layer fails here; `WRITE_GOLDEN=1` writes the tables anew, to be reviewed."""
    with keras.StatelessScope(initialize_variables=False):
        model = keras_vit.create(name)
    kinds = {"fsdp": 8} if name.startswith(("BiT", "R")) else {"fsdp": 8, "tensor_parallel": 2}
    tables = {kind: layout_table(model, kind, devices) for kind, devices in kinds.items()}
    assert name not in LARGE or percent_on_one_device(tables["fsdp"]) < 14
    text = "\n".join(f"{kind}\n{table}\n" for kind, table in tables.items())
    path = COMMITTED / "layouts" / f"{name.replace('/', '-')}.txt"
    if os.environ.get("WRITE_GOLDEN"):
        path.write_text(text)
    expected, found = path.read_text().splitlines(), text.splitlines()
    assert found == expected, "\n".join(difflib.unified_diff(expected, found, lineterm=""))


@pytest.mark.parametrize("kind", [k for k in KINDS if k not in OTHERS])
def test_layouts_of_every_kind_of_vit(kind: str) -> None:
    """Options add no large weight that FSDP would leave whole, and heads are cut by heads."""
    sizes = {"patch_size": 16, "hidden_dim": 256, "mlp_dim": 512, "depth": 2, "num_heads": 8}
    with keras.StatelessScope(initialize_variables=False):
        arguments = {**sizes, **KINDS[kind], "input_shape": (64, 64, 3)}
        model = keras_vit.VisionTransformer(**arguments)
    assert percent_on_one_device(layout_table(model, "fsdp", 8)) < 16
    assert "query_key_value/kernel" in layout_table(model, "tensor_parallel", 2)


def test_the_largest_axis_that_divides_is_cut_by_known_kinds() -> None:
    assert fsdp_axes((768, 2304), 8) == fsdp_axes((769, 2304), 8) == (None, "batch")
    assert fsdp_axes((2304, 769), 8) == ("batch", None)
    assert fsdp_axes((769, 767), 8) == (None, None)
    assert fsdp_axes((100, 8), 8) == (None, None)  # small
    with pytest.raises(ValueError, match=r"block_0/mlp/dense_0/kernel.*5 parts.*divides 3072"):
        tensor_parallel_axes("block_0/mlp/dense_0/kernel", (768, 3072), 5)
    for kind in ("ddp", ""):
        with pytest.raises(ValueError, match="data_parallel"):
            create(kind)
