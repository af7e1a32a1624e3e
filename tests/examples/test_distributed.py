"""The launchers' scripts train in two processes here; SLURM and gcloud are played by scripts."""

import os
import subprocess
import sys
from pathlib import Path

import keras
import pytest

from keras_vit._base.manifest import read_manifest
from tests.conftest import REPOSITORY
from tests.xla_flags import QUICK_XLA

EXAMPLES = REPOSITORY / "examples" / "distributed"
OPTIONS = ["--data", "digits", "--epochs", "1", "--distribution", "data_parallel"]
BACKEND = keras.backend.backend()

# Each starts its command twice, at once, as the real one does on two machines.
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
    environment = {
        **os.environ,
        **environment,
        "PATH": os.pathsep.join(programs),
        "PYTHONPATH": str(REPOSITORY),
        "CUDA_VISIBLE_DEVICES": "",
        "JAX_PLATFORMS": "cpu",
        "GLOO_SOCKET_IFNAME": "lo",
        "OMP_NUM_THREADS": "1",
        "XLA_FLAGS": f"--xla_force_host_platform_device_count=2 {QUICK_XLA}",
    }
    command = ["bash", str(EXAMPLES / script), *OPTIONS, "--out", "run", *arguments]
    process = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=900
    )
    assert process.returncode == 0, process.stdout[-3000:] + process.stderr[-3000:]
    manifest = read_manifest(folder / "run")
    assert manifest is not None
    assert manifest.complete
    return process.stdout


def program(folder: Path, name: str, text: str) -> None:
    (folder / name).write_text(text)
    (folder / name).chmod(0o755)


@pytest.mark.skipif(BACKEND != "torch", reason="runs on torch")
def test_torchrun(tmp_path: Path) -> None:
    assert run(tmp_path, "torchrun.sh").count("written to run") == 1  # by the first process


@pytest.mark.skipif(BACKEND != "jax", reason="runs on JAX")
@pytest.mark.slow
def test_slurm(tmp_path: Path) -> None:
    program(tmp_path, "srun", SRUN)
    assert run(tmp_path, "slurm.sbatch").count("written to run") == 1
    printed = run(tmp_path, "slurm.sbatch", SLURM_RESTART_COUNT="1")
    assert "nothing to resume" in printed


@pytest.mark.slow
@pytest.mark.skipif(BACKEND != "jax", reason="runs on JAX")
def test_tpu_pod(tmp_path: Path) -> None:
    program(tmp_path, "gcloud", GCLOUD)
    run(tmp_path, "tpu_pod.sh", "--seed", "1", TPU="slice", ZONE="zone")
