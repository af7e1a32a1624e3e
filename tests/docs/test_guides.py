"""Every guide runs, and its result is at least what its first paragraph promises."""

import json
import os
import subprocess
import sys

import keras
import pytest

from docs.tools import guides
from tests.conftest import SHARED

# The numbers of a guide's `result`, and the least that each may be on any processor.
RESULTS = {
    "digits": {"accuracy": 0.97},
}
SLOW = ("finetune_folder",)  # trains on photographs
WEIGHTS = SHARED / "weights/vit_tiny_patch16_224.augreg_in21k_ft_in1k/model.safetensors"
NEEDS_SHARED = {
    "weights": {"KERAS_VIT_TI16": WEIGHTS},
    "finetune_folder": {"KERAS_VIT_TI16": WEIGHTS, "KERAS_VIT_FLOWERS": SHARED / "photos/flowers"},
}

RUN = """
import json, runpy, sys
result = runpy.run_path(sys.argv[1])["result"]
print("\\n" + json.dumps(result))
"""


@pytest.mark.once
def test_every_guide_makes_a_promise() -> None:
    assert {script.stem for script in guides.FOLDER.glob("*.py")} == {*RESULTS}


@pytest.mark.once
@pytest.mark.parametrize("name", RESULTS)
def test_guides_have_the_outputs_of_their_scripts(name: str) -> None:
    script = guides.FOLDER / f"{name}.py"
    assert guides.is_current(script), f"run `make guides GUIDES={name}`"
    assert f"\n{name}\n" in (guides.FOLDER / "index.md").read_text("utf-8")


@pytest.mark.skipif(
    keras.backend.backend() != "jax", reason="guides run on JAX, as their committed outputs did"
)
@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=[pytest.mark.slow] if n in SLOW else []) for n in RESULTS]
)
def test_guides_keep_their_promises(name: str) -> None:
    files = NEEDS_SHARED.get(name, {})
    if not all(file.exists() for file in files.values()):
        pytest.skip(f"{SHARED} is missing: the guide would download its weights")
    environment = os.environ | {"MPLBACKEND": "Agg", "KERAS_BACKEND": "jax", "PYTHONWARNINGS": ""}
    environment |= {variable: str(file) for variable, file in files.items()}
    # In a process of its own: a guide chooses devices before its backend starts.
    run = subprocess.run(
        [sys.executable, "-c", RUN, str(guides.FOLDER / f"{name}.py")],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 0, run.stderr[-3000:]
    result = json.loads(run.stdout.splitlines()[-1])
    assert {*result} == {*RESULTS[name]}
    for number, least in RESULTS[name].items():
        assert result[number] >= least, number
