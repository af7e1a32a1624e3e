"""What a step should cost by arithmetic, and `keras-vit plan --compile` with and without libtpu."""

import math
from importlib.util import find_spec
from typing import Any

import pytest

from keras_vit.trainer import compiled_step
from keras_vit_cli import commands as cli
from keras_vit_cli.plan import step_cost as costs
from keras_vit_cli.plan.step_cost import expected_cost, step_cost


def test_the_arithmetic_follows_the_kind() -> None:
    parameters = 86_567_656
    one, data, fsdp = (
        expected_cost("ViT-B/16", kind, devices, batch_size=64)
        for kind, devices in (("data_parallel", 1), ("data_parallel", 8), ("fsdp", "v5e:2x4"))
    )
    assert one.state == data.state == 12 * parameters
    assert one.flops == 8 * data.flops == 8 * fsdp.flops
    assert fsdp.state < 0.13 * one.state  # but for norms and biases
    assert one.collectives == 0
    assert data.collectives == 4 * parameters
    assert fsdp.collectives is not None
    assert 2 * data.collectives < fsdp.collectives < 2.2 * data.collectives
    remat = expected_cost("ViT-B/16", devices=8, batch_size=64, remat=True)
    assert remat.temporaries < 0.5 * data.temporaries


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"devices": "v5e"}, "'v5e' is not a TPU"),
        ({"devices": "v5e:0x4"}, "'v5e:0x4' is not a TPU"),
        ({"devices": 0}, "devices=0"),
        ({"batch_size": 0}, "batch_size=0"),
        ({"kind": "parallel"}, "'parallel'"),
    ],
)
def test_wrong_arguments(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        expected_cost("ViT-Ti/16", **arguments)


def test_the_roofline() -> None:
    gib = 2**30
    cost = costs.StepCost(8, costs.CHIPS["v5e"], 4 * gib, 13 * gib, 19.7e12, 81.9e9, None)
    assert cost.least_seconds == pytest.approx(0.1)
    printed = costs.cost_table({"compiled": cost, "by arithmetic": expected_cost("ViT-Ti/16")})
    for text in ("NOT in 16 GiB", "17.00 GiB", "100.00 ms"):
        assert text in printed


def test_a_whole_training(capsys: pytest.CaptureFixture[str]) -> None:
    """Two operations for each of ViT-H/14's 167.4 G products, thrice for training."""
    cost = expected_cost("ViT-H/14", "fsdp", "v5e:16x16", 4096, "mixed_bfloat16", num_classes=21843)
    seconds = 4096 * 3 * 2 * 167.4e9 / 256 / 197e12
    assert cost.least_seconds == pytest.approx(seconds, rel=0.01)
    steps = 90 * math.ceil(14_197_122 / 4096)
    line = costs.run_cost({"by arithmetic": cost}, 14_197_122, 90, 4096)
    hours = steps * cost.least_seconds / 3600
    assert line.startswith(f"14,197,122 images, 90 x: {steps:,} steps, at least {hours:.1f} hours")
    assert cli.main(["plan", "ViT-Ti/16", "--training-images", "100"]) == 2
    assert "--compile v5e:4x4" in capsys.readouterr().err
    with pytest.raises(ValueError, match="images=0"):
        costs.run_cost({"by arithmetic": cost}, 0, 90, 4096)


def test_without_the_compiler_the_arithmetic_stands_alone(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(compiled_step.importlib.util, "find_spec", lambda name: None)
    arguments = ["plan", "ViT-H/14", "--compile", "v5e:4x4", "--distribution", "fsdp"]
    assert cli.main([*arguments, "--batch-size", "4096"]) == 0
    printed = capsys.readouterr().out
    for text in ("by arithmetic", "each of 16 chips", "pip install 'keras3-vit[tpu]'"):
        assert text in printed


@pytest.mark.slow
@pytest.mark.skipif(not find_spec("libtpu"), reason="needs the compiler of TPUs")
def test_steps_on_a_tpu() -> None:
    """By FSDP it keeps an eighth of the state."""
    chip, precision = "v5e:2x4", "mixed_bfloat16"
    too_large = r"does not fit 8 devices by 'fsdp'.*15\.75G\)"
    with pytest.raises(costs.DoesNotFitError, match=too_large):
        step_cost("ViT-Ti/16", "fsdp", chip, 2**17, precision, depth=1)
    whole, cut = (
        step_cost("ViT-B/16", kind, chip, 8, precision, depth=1)
        for kind in ("data_parallel", "fsdp")
    )
    assert cut.state < 0.16 * whole.state
    assert cut.memory < 0.5 * whole.memory
