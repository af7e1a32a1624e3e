"""What is cut how, and what a step costs, without devices: rules, tables and arithmetic."""

import difflib
import math
import os

import keras
import pytest

import keras_vit
from benchmarks import _steps as costs
from benchmarks import plan
from benchmarks._steps import expected_cost
from keras_vit.distribution import layout_table
from keras_vit.distribution.axes import fsdp_axes, tensor_parallel_axes
from keras_vit.distribution.kinds import distribution_of
from tests.backend import refused
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
        refused("data_parallel", distribution_of, kind)


def test_the_arithmetic_follows_the_kind() -> None:
    parameters = 86_567_656
    one = expected_cost("ViT-B/16", "data_parallel", 1, batch_size=64)
    data = expected_cost("ViT-B/16", "data_parallel", 8, batch_size=64)
    fsdp = expected_cost("ViT-B/16", "fsdp", "v5e:2x4", batch_size=64)
    assert one.state == data.state == 12 * parameters
    assert one.flops == 8 * data.flops == 8 * fsdp.flops
    assert fsdp.state < 0.13 * one.state  # but for norms and biases
    assert one.collectives == 0
    assert data.collectives == 4 * parameters
    assert fsdp.collectives is not None
    assert 2 * data.collectives < fsdp.collectives < 2.2 * data.collectives
    remat = expected_cost("ViT-B/16", devices=8, batch_size=64, remat=True)
    assert remat.temporaries < 0.5 * data.temporaries


def test_a_whole_training() -> None:
    """Two operations for each of ViT-H/14's 167.4 G products, thrice for training."""
    cost = expected_cost("ViT-H/14", "fsdp", "v5e:16x16", 4096, "mixed_bfloat16", num_classes=21843)
    seconds = 4096 * 3 * 2 * 167.4e9 / 256 / 197e12
    assert cost.least_seconds == pytest.approx(seconds, rel=0.01)
    steps = 90 * math.ceil(14_197_122 / 4096)
    line = costs.run_cost({"by arithmetic": cost}, 14_197_122, 90, 4096)
    hours = steps * cost.least_seconds / 3600
    assert line.startswith(f"14,197,122 images, 90 x: {steps:,} steps, at least {hours:.1f} hours")
    gib = 2**30
    cost = costs.StepCost(8, costs.CHIPS["v5e"], 4 * gib, 13 * gib, 19.7e12, 81.9e9, None)
    assert cost.least_seconds == pytest.approx(0.1)
    printed = costs.cost_table({"compiled": cost})
    for text in ("NOT in 16 GiB", "17.00 GiB", "100.00 ms"):
        assert text in printed
    for name, value in (("devices", "v5e:0x4"), ("devices", 0), ("batch_size", 0), ("kind", "p")):
        refused(str(value), expected_cost, "ViT-Ti/16", **{name: value})


def test_without_the_compiler_the_arithmetic_stands_alone(monkeypatch, capsys) -> None:
    monkeypatch.setattr(costs.importlib.util, "find_spec", lambda name: None)
    monkeypatch.setenv("KERAS_BACKEND", keras.backend.backend())  # which `main` changes
    arguments = ["ViT-H/14", "--compile", "v5e:4x4", "--distribution", "fsdp"]
    assert plan.main([*arguments, "--batch-size", "4096"]) == 0
    printed = capsys.readouterr().out
    for text in ("by arithmetic", "each of 16 chips", "pip install 'keras3-vit[tpu]'"):
        assert text in printed
