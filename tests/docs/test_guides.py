"""Every guide runs, and its result is at least what its first paragraph promises."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from docs.tools import guides
from tests.conftest import SHARED

# Numbers of a guide's `result`, and what its first paragraph promises that they are at least.
RESULTS = {
    "digits": {"accuracy": 0.97},
    "finetune_folder": {"accuracy": 0.94},
    "report": {"accuracy": 0.93, "agrees_with_scikit_learn": 1, "evaluate_agrees": 1},
    "coverage": {"coverage": 0.945, "right_answers": 0.97, "noise_found": 0.9},
    "weights": {"comparisons_that_agree": 1, "damaged_files_refused": 1},
    "resolutions": {"worst accuracy at a new size": 0.8},
    "dense": {"mean_iou": 0.75, "f1": 0.85},
    "search": {"same_flower_of_12": 0.85, "rand_index": 0.5, "nothing_read_again": 1},
    "choose": {"probe_accuracy": 0.85, "new_photographs": 0.85, "released_before_random": 1},
    "audit": {"wrong_labels_found": 0.8, "duplicates_found": 0.95},
    "inspection": {"rollout on the orange digit": 0.65},
    "distribution": {"equal_decimal_places": 5, "fsdp_saves": 5, "accuracy": 0.9},
    "serve": {"same_class": 1, "accuracy": 0.93},
    "resume": {"weights_equal": 1, "history_equal": 1, "checksums_hold": 1},
    "own_parts": {"fourier_accuracy": 0.9, "saved_model_agrees": 1, "foreign_weights_agree": 1},
}
# The others take more than a minute, mostly of processes that start and compile.
QUICK = ("inspection", "own_parts")
WEIGHTS = SHARED / "weights/vit_tiny_patch16_224.augreg_in21k_ft_in1k/model.safetensors"
PRETRAINED = {"KERAS_VIT_TI16": WEIGHTS, "KERAS_VIT_FLOWERS": SHARED / "photos/flowers"}
NEEDS_SHARED = {
    "weights": {"KERAS_VIT_TI16": WEIGHTS},
    **dict.fromkeys(("search", "choose", "audit", "finetune_folder"), PRETRAINED),
}

RUN = """
import json, runpy, sys
print("\\n" + json.dumps(runpy.run_path(sys.argv[1])["result"]))
"""


def test_every_guide_makes_a_promise() -> None:
    assert {script.stem for script in guides.FOLDER.glob("*.py")} == {*RESULTS}


@pytest.mark.parametrize("name", RESULTS)
def test_guides_have_the_outputs_of_their_scripts(name: str) -> None:
    script = guides.FOLDER / f"{name}.py"
    assert guides.is_current(script), f"run `make guides GUIDES={name}`"
    assert f"\n{name}\n" in (guides.FOLDER / "index.md").read_text("utf-8")


def executed_guide(folder: Path, script: str, source: str, outputs: list[Any]) -> Path:
    """A guide of one cell of code, and the notebook of an earlier run of it."""
    nbformat = pytest.importorskip("nbformat")
    pytest.importorskip("jupytext")
    path = folder / "guide.py"
    path.write_text(script)
    cell = nbformat.v4.new_code_cell(source, execution_count=1, outputs=outputs)
    nbformat.write(nbformat.v4.new_notebook(cells=[cell]), path.with_suffix(".ipynb"))
    return path


def test_new_text_keeps_the_outputs_and_new_code_does_not(tmp_path: Path) -> None:
    """Blank lines around cells and pieces of printed text are mended, too."""
    nbformat = pytest.importorskip("nbformat")
    output = nbformat.v4.new_output("execute_result", {"text/plain": "2"})
    old = "# %% [markdown]\n# Old text.\n\n# %%\n1 + 1\n"
    script = executed_guide(tmp_path, old, "1 + 1", [output])
    script.write_text('# %% [markdown]\n# New text.\n\n# %% tags=["hide-input"]\n1 + 1\n')
    assert guides.update_text(script)
    assert guides.is_current(script)
    text, code = nbformat.read(script.with_suffix(".ipynb"), as_version=4).cells
    assert (text.source, code.metadata.tags) == ("New text.", ["hide-input"])
    assert code.outputs[0].data == {"text/plain": "2"}
    script.write_text("# %%\n1 + 2\n")
    assert not guides.update_text(script)
    assert not guides.is_current(script)
    source = "def f():\n    return 1\n\n\nf()"
    streams = [("stdout", "a\n"), ("stdout", "\nb\n"), ("stderr", "c\n"), ("stdout", "d\n")]
    outputs = [nbformat.v4.new_output("stream", name=name, text=text) for name, text in streams]
    # With blank lines around the code, as notebooks were written before.
    script = executed_guide(tmp_path, f"# %%\n\n\n{source}\n", f"\n\n{source}\n", outputs)
    assert guides.update_text(script)
    (code,) = nbformat.read(script.with_suffix(".ipynb"), as_version=4).cells
    assert code.source == source
    texts = [(output.name, output.text) for output in code.outputs]
    assert texts == [("stdout", "a\n\nb\n"), ("stderr", "c\n"), ("stdout", "d\n")]


@pytest.mark.backends("jax")  # as their committed outputs did
@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=[] if n in QUICK else [pytest.mark.slow]) for n in RESULTS]
)
def test_guides_keep_their_promises(name: str) -> None:
    files = NEEDS_SHARED.get(name, {})
    if not all(file.exists() for file in files.values()):
        pytest.skip(f"{SHARED} is missing: the guide would download its weights")
    environment = os.environ | {"MPLBACKEND": "Agg", "KERAS_BACKEND": "jax", "PYTHONWARNINGS": ""}
    environment |= {variable: str(file) for variable, file in files.items()}
    # In a process of its own: a guide chooses devices before its backend starts.
    command = [sys.executable, "-c", RUN, str(guides.FOLDER / f"{name}.py")]
    run = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr[-3000:]
    result = json.loads(run.stdout.splitlines()[-1])
    for number, least in RESULTS[name].items():
        assert result[number] >= least, number
