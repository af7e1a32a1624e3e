"""Every Python block and every command line of the documentation runs, or says why it does not."""

import argparse
import itertools
import json
import os
import re
import runpy
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
from tests.conftest import REPOSITORY
from tests.docs import stand_ins
from tests.docs.blocks import blocks_of, commands, is_script, pages, python_blocks

pytestmark = pytest.mark.backends("torch")  # which does not compile each small model
# More kinds of distribution than torch has; four exports, each in a process of its own.
ON_JAX = ("docs/distributed.md", "docs/guides/distribution.py", "docs/weights.md")
MARKS = {"docs/export.md": pytest.mark.slow} | dict.fromkeys(ON_JAX, pytest.mark.backends("jax"))
PAGES = {page.relative_to(REPOSITORY).as_posix(): page for page in pages()}
# Commands whose effect the continuous integration has: environments, installations, make targets.
RUN_BY_CI = ("make", "pip", "python3", ".", "pytest")
# A reader and the highlighter both need the language; plain blocks are output.
LANGUAGES = {"", "bash", "python", "text", "indented", "yaml", "dockerfile"}
WITH_PYTHON = [
    pytest.param(name, marks=MARKS.get(name, []))
    for name, page in PAGES.items()
    if python_blocks(page)
]


@pytest.mark.parametrize("name", WITH_PYTHON)
def test_python_blocks_run(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Page by page, in one namespace, as a reader would: a block may use names of earlier ones."""
    pytest.importorskip("tensorflow")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    with stand_ins.small_models(monkeypatch):
        names = stand_ins.names(tmp_path, name)
        for block in [block for block in python_blocks(PAGES[name]) if not block.reason]:
            code = block.code
            for text, replacement in stand_ins.REPLACED.items():
                code = code.replace(text, replacement)
            exec(compile("\n" * (block.line - 1) + code, str(PAGES[name]), "exec"), names)


class Accepted(Exception):
    """Raised where a script would begin its work."""


@pytest.mark.parametrize("name", PAGES)
def test_commands_are_accepted_or_marked(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Scripts, commands of other programs, and files for them, say why they are not run."""
    page, parse_args = PAGES[name], argparse.ArgumentParser.parse_args

    def parse_alone(*arguments: Any) -> None:
        parse_args(*arguments)
        raise Accepted

    monkeypatch.setattr(argparse.ArgumentParser, "parse_args", parse_alone)
    monkeypatch.syspath_prepend(str(REPOSITORY / "examples"))
    assert {block.language for block in blocks_of(page)} <= LANGUAGES
    for block in blocks_of(page):
        assert block.language not in ("yaml", "dockerfile") or block.reason, block
    for block, words in commands(page):
        is_python = words[0].endswith("python")
        is_run = words[0] in ("keras-vit", *RUN_BY_CI) or (is_python and not is_script(words))
        is_output = block.language == "indented" and not (is_run or is_python)
        assert is_run or is_output or block.reason, f"{block}: {words[0]} needs a reason"
        if words[0] == "keras-vit":
            parse(words[1:])  # they run below
        elif is_script(words):
            is_module = words[1] == "-m"
            script, *rest = words[2 if is_module else 1 :]
            assert not is_module or script in ("benchmarks", "docs.tools.zoo"), block
            monkeypatch.setattr("sys.argv", [script, *rest])
            path = REPOSITORY / (script.replace(".", "/") if is_module else script)
            with pytest.raises(Accepted):
                runpy.run_path(str(path), run_name="__main__")


def test_files_of_deploy_are_quoted_and_start_commands_that_exist() -> None:
    """In the page of the server: the container and the unit of systemd; others are named."""
    page = PAGES["docs/serving.md"]
    quoted = [block.code for block in blocks_of(page)]
    for file in (REPOSITORY / "deploy").iterdir():
        is_long = file.suffix in (".json", ".py")
        assert is_long or file.read_text("utf-8") in quoted, file.name
        texts = (path.read_text("utf-8") for path in PAGES.values())
        assert any(f"`deploy/{file.name}`" in text for text in texts), file.name
    text = (REPOSITORY / "deploy/Dockerfile").read_text("utf-8")
    found = [re.search(rf"^{name} (\[.*\])$", text, re.M)[1] for name in ("ENTRYPOINT", "CMD")]
    program, *words = [word for line in found for word in json.loads(line)]
    options = parse(words)
    assert (program, options["host"], options["log_requests"]) == ("keras-vit", "0.0.0.0", True)
    assert f"EXPOSE {options['port']}\n" in text
    unit = (REPOSITORY / "deploy/keras-vit.service").read_text("utf-8")
    (line,) = re.findall(r"^ExecStart=(.*)$", unit, re.M)
    program, *words = line.split()
    assert Path(program).name == "keras-vit"
    assert parse(words)["log_requests"]


# Each `keras-vit` line runs, on small models and few photographs: each command with each set of
# options at least once.
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
            chosen.append(pytest.param(lines, id=name, marks=MARKS.get(name.split(":")[0], [])))
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
        others = shutil.ignore_patterns("*.keras", "SHA*")
        shutil.copytree("runs/photos", "runs/masks", ignore=others)
        keras_vit.load("runs/photos").with_classifier(task=masks).save("runs/masks/model.keras")
        for name, layout in (("ViT-B_16.npz", "google"), ("model.safetensors", "timm")):
            keras_vit.save_weights(keras_vit.ViTB16(num_classes=5), name, layout=layout)
        keras_vit.save_weights(keras_vit.ViTB16(), "FOLDER", layout="huggingface")
        _run(("embed", "photos", "--model", "runs/photos", "--out", "index"))
    return folder


@pytest.fixture
def folder(prepared: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
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
