"""What a step should cost by arithmetic, and `keras-vit plan --compile` with and without libtpu."""

import importlib.util
import math
from typing import Any

import pytest

from keras_vit.trainer import compiled_step
from keras_vit_cli import commands as cli
from keras_vit_cli.plan.step_cost import (
    CHIPS,
    DoesNotFitError,
    StepCost,
    cost_table,
    expected_cost,
    run_cost,
    step_cost,
)

NEEDS_TPU = pytest.mark.skipif(
    not importlib.util.find_spec("libtpu"), reason="needs the compiler of TPUs"
)


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
    cost = StepCost(8, CHIPS["v5e"], 4 * gib, 13 * gib, 19.7e12, 81.9e9, None)
    assert cost.least_seconds == pytest.approx(0.1)
    printed = cost_table({"compiled": cost, "by arithmetic": expected_cost("ViT-Ti/16")})
    assert "NOT in 16 GiB" in printed
    assert "17.00 GiB" in printed
    assert "100.00 ms" in printed


def test_a_whole_training(capsys: pytest.CaptureFixture[str]) -> None:
    """Two operations for each of ViT-H/14's 167.4 G products, thrice for training."""
    cost = expected_cost("ViT-H/14", "fsdp", "v5e:16x16", 4096, "mixed_bfloat16", num_classes=21843)
    seconds = 4096 * 3 * 2 * 167.4e9 / 256 / 197e12
    assert cost.least_seconds == pytest.approx(seconds, rel=0.01)
    steps = 90 * math.ceil(14_197_122 / 4096)
    line = run_cost({"by arithmetic": cost}, 14_197_122, 90, 4096)
    hours = steps * cost.least_seconds / 3600
    assert line.startswith(f"14,197,122 images, 90 x: {steps:,} steps, at least {hours:.1f} hours")
    assert cli.main(["plan", "ViT-Ti/16", "--training-images", "100"]) == 2
    assert "--compile v5e:4x4" in capsys.readouterr().err
    with pytest.raises(ValueError, match="images=0"):
        run_cost({"by arithmetic": cost}, 0, 90, 4096)


def test_without_the_compiler_the_arithmetic_stands_alone(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(compiled_step.importlib.util, "find_spec", lambda name: None)
    arguments = ["plan", "ViT-H/14", "--compile", "v5e:4x4", "--distribution", "fsdp"]
    assert cli.main([*arguments, "--batch-size", "4096"]) == 0
    printed = capsys.readouterr().out
    assert "by arithmetic" in printed
    assert "each of 16 chips" in printed
    assert "pip install 'keras3-vit[tpu]'" in printed


@pytest.mark.slow
@NEEDS_TPU
def test_a_step_that_does_not_fit_a_tpu() -> None:
    with pytest.raises(DoesNotFitError, match=r"does not fit 8 devices by 'fsdp'.*15\.75G\)"):
        step_cost("ViT-Ti/16", "fsdp", "v5e:2x4", 2**17, "mixed_bfloat16", depth=1)


@pytest.mark.slow
@NEEDS_TPU
def test_fsdp_on_a_tpu_keeps_an_eighth_of_the_state() -> None:
    whole, cut = (
        step_cost("ViT-B/16", kind, "v5e:2x4", 8, "mixed_bfloat16", depth=1)
        for kind in ("data_parallel", "fsdp")
    )
    assert cut.state < 0.16 * whole.state
    assert cut.memory < 0.5 * whole.memory
