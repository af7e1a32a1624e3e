"""The pre-training from records: killed and continued, it ends with the same weights."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import keras
import pytest

from tests.conftest import REPOSITORY

pytest.importorskip("tensorflow")
# Resume is tested on every backend elsewhere, and each run here starts four times.
pytestmark = [] if keras.backend.backend() == "tensorflow" else [pytest.mark.slow]

OPTIONS = ["--stand-in", "--steps", "9", "--batch-size", "32", "--every-steps", "2", "--out"]

# Killed by the system in the middle of its sixth step.
KILLED = """
import os, signal, sys
import keras
import pretrain_imagenet21k as script

class Kill(keras.callbacks.Callback):
    def on_train_batch_begin(self, batch, logs=None):
        if batch == 5:
            os.kill(os.getpid(), signal.SIGKILL)

callbacks = script.default_callbacks
script.default_callbacks = lambda *a, **k: [*callbacks(*a, **k), Kill()]
script.main(sys.argv[1:])
"""

# Continues that run, and makes one that was never stopped.
COMPARED = """
import sys
import keras, numpy
import pretrain_imagenet21k as script

*options, killed, whole = sys.argv[1:]
weights = []
for out in (killed, whole):
    script.main([*options, out])
    keras.utils.clear_session()
    weights.append(keras.saving.load_model(out + "/model.keras", compile=False).get_weights())
differ = [i for i, (one, other) in enumerate(zip(*weights)) if (one != other).any()]
assert len(weights[0]) == len(weights[1]) > 30
print("differ", differ)
"""


def run(code: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {
        **os.environ,
        "PYTHONPATH": f"{REPOSITORY}{os.pathsep}{REPOSITORY / 'examples'}",
        "KERAS_BACKEND": keras.backend.backend(),
        "XLA_FLAGS": f"{os.environ['XLA_FLAGS']} --xla_force_host_platform_device_count=2",
    }
    return subprocess.run(
        [sys.executable, "-c", code, *arguments],
        env=environment,
        capture_output=True,
        text=True,
        timeout=600,
    )


@pytest.mark.slow
def test_a_killed_pretraining_ends_with_the_same_weights(tmp_path: Path) -> None:
    """On JAX, over two simulated devices."""
    options = OPTIONS
    if keras.backend.backend() == "jax":
        options = ["--distribution", "data_parallel", "--devices", "2", *OPTIONS]
    killed, whole = str(tmp_path / "killed"), str(tmp_path / "whole")
    first = run(KILLED, *options, killed)
    assert first.returncode == -signal.SIGKILL, first.stderr[-4000:]
    assert not (tmp_path / "killed" / "model.keras").exists()
    compared = run(COMPARED, *options, killed, whole)
    assert compared.returncode == 0, compared.stderr[-4000:]
    assert "continues with step 5 (epoch 1 of 1, step 5 of 9)" in compared.stdout
    assert compared.stdout.count("accuracy") >= 2
    assert "differ []" in compared.stdout
