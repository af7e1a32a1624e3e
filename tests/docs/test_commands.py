"""The `keras-vit` lines of the documentation run, on small models and few photographs.

Each command with each set of options at least once; the values of all are parsed elsewhere.
"""

import itertools
import os
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

import keras_vit
from keras_vit.tasks import Segmentation
from keras_vit_cli import commands as cli
from keras_vit_cli.arguments import parse
from keras_vit_cli.options import COMMANDS
from tests.cli.serve.helpers import jpeg, request
from tests.docs import stand_ins
from tests.docs.blocks import commands, pages

pytestmark = pytest.mark.backends("jax")  # which has all three kinds of distribution
PER_CLASS = 52  # `--held-out 0.1` of the training images has to be at least 20
FILES = {"FILE": "model.safetensors", "FLOWERS": "photos"}  # what a reader fills in
LESS = {"train": ["--epochs", "1", "--batch-size", "32"], "pretrain": ["--epochs", "1"]}

Lines = tuple[tuple[str, ...], ...]


def _blocks() -> list[Any]:
    """Blocks with a command or a set of options that no longer block has, by the first's name."""
    of_block: dict[str, Lines] = {}
    for block, words in itertools.chain.from_iterable(map(commands, pages())):
        if words[0] == "keras-vit" and not block.reason:
            line = tuple(FILES.get(word, word) for word in words[1:])
            of_block[str(block)] = (*of_block.get(str(block), ()), line)
    for command in COMMANDS.values():
        words = command.example.split()[1:]
        of_block[f"docs/commands.md:{words[0]}"] = (tuple(words),)
    first = {lines: name for name, lines in reversed(of_block.items())}
    chosen, seen = [], set()
    for lines, name in sorted(first.items(), key=lambda block: -len(block[0])):
        kinds = {(line[0], *sorted(w for w in line if w.startswith("--"))) for line in lines}
        if not kinds <= seen:
            chosen.append(pytest.param(lines, id=name))
        seen |= kinds
    return chosen


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Photographs, a trained run, its copies, and weights in the formats that the lines name."""
    pytest.importorskip("tensorflow")
    folder = tmp_path_factory.mktemp("commands")
    stand_ins.write_photographs(folder, PER_CLASS)
    shutil.copy(folder / "photo.jpg", folder / "new.jpg")
    with pytest.MonkeyPatch.context() as patch, stand_ins.small_models(patch):
        patch.chdir(folder)
        _run(("train", "--data", "photos", "--model", "ViT-Ti/16", "--out", "runs/photos"))
        names = ("seed0", "seed1", "seed2", "flowers_0", "flowers_1", "flowers_2", "teacher")
        for name in (*names, "before", "after"):
            shutil.copytree("runs/photos", f"runs/{name}")
        masks = Segmentation(("sky", "tree"))  # on the same encoder
        shutil.copytree(
            "runs/photos", "runs/masks", ignore=shutil.ignore_patterns("*.keras", "SHA*")
        )
        keras_vit.load("runs/photos").with_classifier(task=masks).save("runs/masks/model.keras")
        for name, layout in (("ViT-B_16.npz", "google"), ("model.safetensors", "timm")):
            keras_vit.save_weights(keras_vit.ViTB16(num_classes=5), name, layout=layout)
        keras_vit.save_weights(keras_vit.ViTB16(), "FOLDER", layout="huggingface")
        _run(("embed", "photos", "--model", "runs/photos", "--out", "index"))
    return folder


@pytest.fixture
def folder(prepared: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A copy of what is prepared, as the working directory."""
    shutil.copytree(prepared, tmp_path / "home", copy_function=os.link)
    monkeypatch.chdir(tmp_path / "home")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    saved = prepared / "runs/photos/saved_models/photos/1"
    # An export is half of a short training, and what is prepared has its own.
    monkeypatch.setattr(keras_vit, "export", lambda _, to, **__: shutil.copytree(saved, to))
    with stand_ins.small_models(monkeypatch):
        yield tmp_path / "home"


@pytest.mark.parametrize("lines", _blocks())
def test_the_lines_of_a_block_run(lines: Lines, folder: Path) -> None:
    for words in lines:
        if (made := _output(words)) is not None:
            # Of what is prepared: a block does not find what it makes.
            shutil.rmtree(made) if made.is_dir() else made.unlink(missing_ok=True)
    for words in lines:
        _run(words)


def _run(words: Sequence[str]) -> None:
    command, *arguments = words
    if command == "serve":
        pytest.importorskip("uvicorn")
        server = pytest.importorskip("benchmarks.serving").start_server(*arguments, "--port", "0")
        status, answer, _ = request(server.port, "/predict", jpeg())
        assert (status, server.stop()) == (200, 0)
        assert {row["class"] for row in answer["predictions"]} == {*stand_ins.CLASSES}
        return
    assert cli.main([command, *arguments, *LESS.get(command, [])]) == 0, words
    if (made := _output(words)) is not None:
        assert made.exists(), words


def _output(words: Sequence[str]) -> Path | None:
    options = parse(words)
    if words[0] == "convert":
        return Path(options["target"])
    default = Path("runs") / Path(options["data"]).name if words[0] == "train" else None
    return options.get("out") or default
