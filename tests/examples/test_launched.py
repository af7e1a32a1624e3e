"""Examples in processes of their own: the launchers' scripts, and a pre-training that is killed."""

import os
import subprocess
import sys
from pathlib import Path

import keras
import pytest

from keras_vit._base.manifest import read_manifest
from tests.conftest import REPOSITORY
from tests.data.image_fixtures import write
from tests.examples import load_example
from tests.training.common import Killed, StopAt, assert_equal
from tests.xla_flags import QUICK_XLA

EXAMPLES = REPOSITORY / "examples" / "distributed"
TWO_DEVICES = f"--xla_force_host_platform_device_count=2 {QUICK_XLA}"
OPTIONS = ["--data", "digits", "--epochs", "1", "--distribution", "data_parallel"]

# They play the programs: each starts its command twice, at once, as the real one on two machines.
SRUN = """#!/usr/bin/env bash
shift
export SLURM_JOB_ID=$$ SLURM_STEP_NODELIST=localhost SLURM_STEP_NUM_TASKS=2 SLURM_LOCALID=0
SLURM_PROCID=1 "$@" & SLURM_PROCID=0 "$@" && wait $!
"""
GCLOUD = """#!/usr/bin/env bash
export KERAS_DISTRIBUTION_JOB_ADDRESSES=localhost:$((61440 + $$ % 4096))
export KERAS_DISTRIBUTION_NUM_PROCESSES=2
KERAS_DISTRIBUTION_PROCESS_ID=1 bash -c "${@: -1}" &
KERAS_DISTRIBUTION_PROCESS_ID=0 bash -c "${@: -1}" && wait $!
"""


def run(folder: Path, script: str, *arguments: str, **environment: str) -> str:
    """Runs a script in `folder`, with the programs that are there before others."""
    programs = [str(folder), str(Path(sys.executable).parent), os.environ["PATH"]]
    environment |= {"PATH": os.pathsep.join(programs), "PYTHONPATH": str(REPOSITORY)}
    environment |= {"CUDA_VISIBLE_DEVICES": "", "JAX_PLATFORMS": "cpu", "XLA_FLAGS": TWO_DEVICES}
    environment |= {"GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"}
    command = ["bash", str(EXAMPLES / script), *OPTIONS, "--out", "run", *arguments]
    options = {"capture_output": True, "text": True, "timeout": 900}
    process = subprocess.run(command, cwd=folder, env={**os.environ, **environment}, **options)
    assert process.returncode == 0, process.stdout[-3000:] + process.stderr[-3000:]
    manifest = read_manifest(folder / "run")
    assert manifest is not None
    assert manifest.complete
    return process.stdout


@pytest.mark.backends("torch")
def test_torchrun(tmp_path: Path) -> None:
    assert run(tmp_path, "torchrun.sh").count("written to run") == 1  # by the first process


@pytest.mark.backends("jax")
@pytest.mark.slow
def test_slurm_and_a_tpu_pod(tmp_path: Path) -> None:
    programs = {"slurm/srun": SRUN.encode(), "pod/gcloud": GCLOUD.encode()}
    for name in programs:
        (write(tmp_path, programs) / name).chmod(0o755)
    assert run(tmp_path / "slurm", "slurm.sbatch").count("written to run") == 1
    printed = run(tmp_path / "slurm", "slurm.sbatch", SLURM_RESTART_COUNT="1")
    assert "nothing to resume" in printed
    run(tmp_path / "pod", "tpu_pod.sh", "--seed", "1", TPU="slice", ZONE="zone")


@pytest.mark.slow  # resume is tested elsewhere
def test_a_stopped_pretraining_ends_with_the_same_weights(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    script = load_example("pretrain_imagenet21k")
    words = ["--stand-in", "--steps", "9", "--batch-size", "32", "--every-steps", "2", "--out"]
    callbacks = script.default_callbacks

    def pretrained(out: Path) -> keras.Model:
        script.main([*words, str(out)])
        return keras.saving.load_model(out / "model.keras", compile=False)

    with monkeypatch.context() as patch:
        stopped = lambda *a, **k: [*callbacks(*a, **k), StopAt(5)]  # noqa: E731
        patch.setattr(script, "default_callbacks", stopped)
        with pytest.raises(Killed):
            pretrained(tmp_path / "stopped")
    assert_equal(pretrained(tmp_path / "stopped"), pretrained(tmp_path / "whole"))
    assert "continues with step 5 (epoch 1 of 1, step 5 of 9)" in capsys.readouterr().out
