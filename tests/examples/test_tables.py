"""Examples: those that print a table, studies, those in processes of their own, a pre-training."""

import json
import math
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
from PIL import Image

import keras_vit
from keras_vit import data
from keras_vit._base.manifest import read_manifest
from keras_vit.layers.novelty_score import unit_rows
from keras_vit.tasks import Classification
from keras_vit.tasks.scores import Score
from keras_vit.training import recipes
from keras_vit.training.callbacks import NonFiniteLossError
from tests import bank
from tests.backend import refused
from tests.cli.helpers import rows_of as rows_of_file
from tests.conftest import REPOSITORY, Command
from tests.data.image_fixtures import write
from tests.examples import Run, load_example
from tests.xla_flags import QUICK_XLA

pytest.importorskip("tensorflow")
pytest.importorskip("sklearn")
Figure = pytest.importorskip("matplotlib.figure").Figure
Text = pytest.importorskip("matplotlib.text").Text
GOLDEN = dict(np.load(Path(__file__).parents[1] / "golden" / "novelty.npz"))

# Accuracy and calibration error of the ViT by seed, as trained for the README.
STRATIFIED = [(0.99722, 0.02119), (0.98889, 0.02275), (0.99722, 0.02193), (0.98889, 0.0174)]
STRATIFIED += [(0.99444, 0.02011)]
HALVES = [(0.97442, 0.02245), (0.9822, 0.01502), (0.98443, 0.02483), (0.96997, 0.01779)]
HALVES += [(0.96774, 0.02232)]
RESULTS = {"digits": STRATIFIED, "digits/half": HALVES}


@pytest.fixture(scope="module")
def digits() -> data.Splits:
    return data.load("digits")


@pytest.fixture
def run_example(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """Calls `main` of a module with these words and names replaced: what it prints."""

    def run(script: Any, *words: Any, **replaced: Any) -> str:
        for name, value in replaced.items():
            monkeypatch.setattr(script, name, value)
        monkeypatch.setattr("sys.argv", [f"{script.__name__}.py", *map(str, words)])
        script.main()
        return capsys.readouterr().out

    return run


def recorded_train(jobs: list[Any], result: Callable[[Any], tuple[float, float]]) -> Any:
    """A `train` that keeps its job, and returns a report of the job's accuracy and error."""

    def train(job: Any) -> Any:
        jobs.append(job)
        accuracy, error = result(job)
        job.out.mkdir(parents=True, exist_ok=True)
        scores = {"accuracy": Score(accuracy, 0, 1)}
        return SimpleNamespace(scores=scores, calibration=SimpleNamespace(error=error))

    return train


def test_digits(tmp_path: Path, run_example: Run) -> None:
    """It prints the lines of the README: scikit-learn is computed, and the ViT was trained."""
    script, jobs = load_example("digits"), []
    train = recorded_train(jobs, lambda job: RESULTS[job.data][job.seed])
    words = ["--out", tmp_path / "runs", "--overwrite", "--seeds", 5]
    *printed, _ = run_example(script, *words, train=train).strip().splitlines()
    readme = (REPOSITORY / "README.md").read_text("utf-8")
    assert [line.split(": ")[0] for line in printed] == ["stratified 80/20", "first/second half"]
    for line in printed:
        assert f"    {line}\n" in readme
    expected = [(name, seed, True) for name in RESULTS for seed in range(5)]
    assert [(job.data, job.seed, job.overwrite) for job in jobs] == expected


def test_few_photographs(digits: data.Splits, tmp_path: Path, run_example: Run) -> None:
    script, calls = load_example("few_photographs"), []
    part, final = (script.subset(digits, 8, seed=0, final=is_final) for is_final in (False, True))
    for split, count in ((part.train, 8), (part.val, 60)):
        assert np.bincount(split.labels()).tolist() == [count] * 10
    parts = (part.train, part.val, digits.val)
    images = [image.tobytes() for split in parts for image in split.as_arrays()[0]]
    assert len(set(images)) == len(images)
    np.testing.assert_array_equal(final.train.as_arrays()[0], part.train.as_arrays()[0])
    assert final.val is digits.val
    refused("--shots 500 leaves no", script.subset, digits, 500, seed=0, final=False)

    def run(options: Any, splits: Any, name: str, seed: int, folder: Path) -> dict[str, float]:
        calls.append((name, seed))
        return {"accuracy": 0.9 + 0.02 * seed, "error": 0.01, "minutes": 2.0}

    words = ["--data", "digits", "--shots", 8, "--seeds", 2, "--out", tmp_path]
    words += ["--recipes", "probe", "finetune_few"]
    for _ in range(2):  # then all rows are there
        out = run_example(script, *words, run=run)
        text = (tmp_path / "table.md").read_text()
        assert "| 8 | finetune_few | 91.00% ± 1.41 | 1.00% ± 0.00 | 2.0 | chosen |" in text
        assert text in out
        assert len(calls) == 4


def test_imbalance(digits: data.Splits, tmp_path: Path) -> None:
    script, stats = load_example("imbalance"), pytest.importorskip("scipy.stats")
    labels = np.random.default_rng(0).permutation(np.repeat(range(10), 400))
    tail = script.long_tail(labels, 100, seed=0)
    # The long-tailed CIFAR-10 of Cui et al., of 400 in place of 5,000 images per class.
    counts = sorted(np.bincount(labels[tail]), reverse=True)
    assert counts == [400, 240, 144, 86, 52, 31, 19, 11, 7, 4]
    assert len(set(tail)) == len(tail)
    differences = [0.01, 0.03, 0.02, 0.05, 0.02]
    theirs = stats.ttest_1samp(differences, 0).confidence_interval(0.95)
    np.testing.assert_allclose(script.interval(differences), [0.026, theirs.low, theirs.high])
    bank.tiny(depth=2, input_shape=(16, 16, 1)).save(tmp_path / "start.keras")
    words = ["--weights", str(tmp_path / "start.keras"), "--image-size", "16", "--blocks", "1"]
    options = script.parser.parse_args([*words, "--epochs", "1", "--out", str(tmp_path)])
    tail = script.long_tail(digits.train.labels(), 10, seed=0)
    with patch.multiple(script, PROBE_SIZE=16, cache_folder=lambda: tmp_path):
        for train, way in ((script.frozen, "none"), (script.fine_tuned, "sampling")):
            recall = train(options, digits, tail, way, 0)
            assert len(recall) == 10
            assert 0 < np.mean(recall) < 1


def test_the_five_panels_of_what_it_sees(tmp_path: Path, run_example: Run) -> None:
    script, names = load_example("what_it_sees"), Classification(tuple("abcdef"))
    model = bank.tiny(patch_size=16, num_classes=6, task=names, input_shape=(48, 32, 3))
    model.save(tmp_path / "model.keras")
    Image.fromarray(bank.pixels(60, 60, 3)).save(tmp_path / "photo.png")
    words = ["--weights", tmp_path / "model.keras", "--out", tmp_path / "out.png", "--photo"]
    run_example(script, *words, tmp_path / "photo.png")
    assert Image.open(tmp_path / "out.png").size == (1200, 264)
    figure = script.draw(model, np.zeros((48, 32, 3), "float32"))
    titles = [panel.get_title() for panel in figure.axes]
    assert titles[:3] == ["a photograph", "3 x 2 patches", "where the class token looks"]


def labeled(count: int = 120) -> tuple[np.ndarray, np.ndarray]:
    """Features of three classes, the first two of which are alike."""
    random = np.random.default_rng(0)
    labels = random.integers(0, 3, count)
    centers = np.array([[1, 0.8, 0, 0], [1, -0.2, 0, 0], [0, 0, 1, 0]])
    return (centers[labels] + random.normal(0, 0.2, (count, 4))).astype("float32"), labels


def cells(line: str) -> list[str]:
    return [cell.strip() for cell in line.strip("|").split("|")]


def test_coverage_and_novelty() -> None:
    script = load_example("coverage_and_novelty")
    with patch.multiple(script, PROBED=150, HALVES=5):
        lines = script.table_of_sets(*labeled(450)).splitlines()
    assert len(lines) == 2 + 2 * len(script.METHODS)
    for line in lines[2:]:
        promised, covered = (float(cells(line)[i].rstrip("%")) for i in (0, 2))
        assert covered > promised - 5
    with patch.multiple(script, DRAWS=2):
        lines = script.table_of_novelty(*labeled(450), {"far": -4 * np.ones((50, 4))}).splitlines()
    assert cells(lines[0]) == ["score", "false alarms", script.UNKNOWN, "far"]
    assert len(lines) == 2 + 6
    train, new = unit_rows(GOLDEN["train"]), unit_rows(GOLDEN["new"])
    score = script.mahalanobis_per_class(train, np.zeros(len(train), int))
    np.testing.assert_allclose(score(new) / 2, GOLDEN["mahalanobis"], rtol=1e-5)


@pytest.mark.parametrize("size", [(480, 640), (100, 37), (518, 518)])
def test_the_size_for_depth_is_that_of_transformers(size: tuple[int, int]) -> None:
    name = "transformers.models.dpt.image_processing_dpt"
    theirs = pytest.importorskip(name, exc_type=ImportError)
    image = np.empty((3, *size), np.uint8)
    expected = theirs.get_resize_output_image_size(image, (518, 518), True, 14)
    assert load_example("depth").size_for(*size) == (expected.height, expected.width)


@pytest.mark.usefixtures("here")
def test_depth_of_a_photograph(command: Command, capsys: Any) -> None:
    head = {"width": 8, "depth_width": 4, "activation": "relu"}
    model = keras_vit.VisionTransformer(
        patch_size=14, hidden_dim=16, depth=4, num_heads=2, layer_scale=1.0, num_classes=1,
        map_head=head, input_shape=(28, 28, 3), activation="gelu", normalization="imagenet",
    )  # fmt: skip
    keras_vit.save_weights(model, "folder", "huggingface")
    pixels = bank.pixels(30, 47, 3)
    Image.fromarray(pixels).save("photo.png")
    load_example("depth").main(["folder", "photo.png", "--side", "28", "--out", "depth.png"])
    assert "depth from" in capsys.readouterr().out
    found = np.asarray(Image.open("depth.png"))
    assert found.shape == (30, 94, 3)
    np.testing.assert_array_equal(found[:, :47], pixels)
    assert len(np.unique(found[:, 47:].reshape(-1, 3), axis=0)) > 20
    command("predict folder photo.png --out rows.jsonl --maps maps")
    (row,) = map(json.loads, Path("rows.jsonl").read_text().splitlines())
    with Image.open("maps/photo.tiff") as file:
        assert (file.size, file.mode) == ((47, 30), "F")
        assert row["predictions"][2]["value"] == pytest.approx(np.max(file), rel=0.05)
    assert Path("maps/photo.color.png").exists()


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
    assert "nothing to resume" in run(tmp_path / "slurm", "slurm.sbatch", SLURM_RESTART_COUNT="1")
    run(tmp_path / "pod", "tpu_pod.sh", "--seed", "1", TPU="slice", ZONE="zone")


# Studies: results survive an interruption, and scripts list the trials that they should.
study = load_example("study")
Trial = study.Trial

VIT = {"patch_size": 4, "hidden_dim": 8, "depth": 1, "num_heads": 1, "mlp_dim": 8}
RECIPE = recipes.get("digits").scaled(steps=3, batch_size=16)
ROW = {"seconds": 1.0, "parameters": 1, "macs": 1, "images": 1, "identity": "x", "seed": 0}


def trial(name: str, **sizes: Any) -> Any:
    return Trial(name, "ViT-Ti/16", {**VIT, **sizes}, RECIPE, {"width": sizes.get("hidden_dim", 8)})


def test_an_interrupted_study_keeps_its_rows(digits: data.Splits, tmp_path: Path) -> None:
    trials, lines = [trial("narrow"), trial("wide", hidden_dim=16)], []
    with patch.object(study, "fit", side_effect=[None, KeyboardInterrupt, None]):
        refused("", study.run_study, trials, digits, tmp_path, str, error=KeyboardInterrupt)
        (before,) = study.read_rows(tmp_path)
        rows = study.run_study(trials, digits, tmp_path, lines.append)
    assert (before["name"], rows[0]) == ("narrow", before)
    assert "trained before" in lines[0]
    assert [(row["width"], row["images"]) for row in rows] == [(8, 48), (16, 48)]
    assert rows == study.read_rows(tmp_path)
    table = rows_of_file(tmp_path / "results.csv")
    assert table == [{name: str(value) for name, value in row.items()} for row in rows]


def test_a_diverged_trial_is_a_row(digits: data.Splits, tmp_path: Path) -> None:
    """And of the files of a run, its checkpoints alone are deleted."""
    diverged = NonFiniteLossError("The loss is nan in step 2", 2, math.nan, None)
    with patch.object(study, "fit", side_effect=diverged):
        rows = study.run_study([trial("a")], digits, tmp_path / "diverged", str)
    assert math.isnan(float(rows[0]["accuracy"]))
    assert study.to_markdown(rows, {"accuracy": "{accuracy:.1%}"}).endswith("| – |")
    one = trial("smallest")
    folder = study.run_folder(one, digits, tmp_path) / "checkpoints"
    write(folder, {"step-000000001.txt": b"mine"})
    (row,) = study.run_study([one], digits, tmp_path, str)
    assert [path.name for path in folder.iterdir()] == ["step-000000001.txt"]
    assert study.curve_of(tmp_path, row["identity"])[-1] == pytest.approx(row["accuracy"], abs=1e-5)


def rows_of(trials: Sequence[Any], *_: Any) -> list[dict[str, Any]]:
    """What `run_study` returns, without training: each trial is better than the one before."""
    return [
        {**one.about, **ROW, "name": one.name, "seed": one.seed, "accuracy": 0.3 + i / 100}
        for i, one in enumerate(trials)
    ]


# The number of trials of each study, and what the page says first of such rows.
STUDIES = {
    "scaling_study": (24, "**Mixer 6 blocks of 128** reaches the highest accuracy, 53.00%"),
    "ablations": (11, "Best by positions: **sines and cosines, 2-D** with 34.00%"),
    "flowers_systems": (16, "**Mixer, AugReg medium1** reaches the highest accuracy, 45.00%."),
    "small_data": (10, "points above the plain"),
}


@pytest.mark.parametrize("name", STUDIES)
def test_a_study_plans_and_writes_its_page(name: str, tmp_path: Path, run_example: Run) -> None:
    script, (count, conclusion) = load_example(name), STUDIES[name]
    words = ["--data", "digits", "--seeds", 1, "--out", tmp_path]
    planned = run_example(script, *words, "--plan").splitlines()
    assert len([line for line in planned if line.startswith("| ")]) == count + 1
    replaced: dict[str, Any] = {"run_study": rows_of}
    if name == "ablations":
        replaced["curve_of"] = lambda *_: [0.2, 0.3]
    with patch.object(Figure, "savefig", autospec=True, side_effect=Figure.savefig) as save:
        run_example(script, *words, **replaced)
    figure = save.call_args_list[0].args[0]
    assert figure.get_figwidth() <= 5.5  # legible on a phone
    assert min(text.get_fontsize() for text in figure.findobj(Text) if text.get_text()) >= 9
    page = (tmp_path / "table.md").read_text("utf-8")
    assert conclusion in page
    assert f"python examples/{name}.py --data digits" in page
