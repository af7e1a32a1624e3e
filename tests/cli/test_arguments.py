"""The command line's options: ranges, files of them, and what works before Keras is imported."""

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

import keras_vit
from keras_vit._base import installation
from keras_vit.data.sources import split_names
from keras_vit.training.resume import CHECKPOINT_SECONDS
from keras_vit_cli import commands as cli
from keras_vit_cli.arguments import make_parser, parse
from keras_vit_cli.exit_status import CLOSED_PIPE, message_of
from keras_vit_cli.options import COMMANDS, shared
from keras_vit_cli.options.option import Integers, Numbers, UsageError
from tests.backend import refused
from tests.conftest import Command

ROOT = Path(__file__).parents[2]
NEVER = ("nan", "inf", "-1", "1e400", "many", "")
# Options that are numbers, and what they refuse besides `NEVER`: of all commands, or of one.
ROWS = """
batch-size 0 1.5 65537; blocks 0 1001; cache 0 4097 448px; checkpoint-every -0.5 1e6
clusters 1 10001; count 0 10001; coverage 0 1 95; depth-scale 0 1e6; devices 0 100000
epochs 0 0.5 1000000000000; examples 0 101; fewshot 0; held-out 1 -0.1 1.5; knn 0
image-size 0 100000 224x224; augment:images 0 101; choose:images 9 10.5
learning-rate 0 -1e-3 100; lora 0 100000; max-bytes 0
max-images 0; max-pixels 0; most 0 10001; neighbors 0 100001; num-classes 1.0
patience 0; port 65536; queue 0; seeds 0; seed 0.5 4294967296; sizes 0 4097; steps 0 -3; top 0
search:top 0 1001; token-merging 0 4097; val-fraction 0 1 1.5; versions 0 101
"""
REFUSED = {row.split()[0]: row.split()[1:] for row in re.split("[;\n]", ROWS.strip())}


def numeric_options() -> list[tuple[str, str]]:
    (commands,) = (action for action in make_parser()._actions if action.dest == "command")
    choices = commands.choices.items()
    actions = [(name, action) for name, parser in choices for action in parser._actions]
    for name, action in actions:
        assert action.type not in (int, float), f"{name} {action.dest} has no range"
    numbers = [pair for pair in actions if isinstance(pair[1].type, Integers | Numbers)]
    return [(name, action.option_strings[0]) for name, action in numbers]


def row_of(name: str, option: str) -> str:
    own = f"{name}:{option[2:]}"
    return own if own in REFUSED else option[2:]


def test_every_number_has_a_row() -> None:
    options = numeric_options()
    assert {row_of(*each) for each in options} == REFUSED.keys()
    for option, low, high in (("--image-size", 1, 4096), ("--num-classes", 0, 1_000_000)):
        for value in (low, high):
            options = parse(["plan", "ViT-B/16", option, str(value)])
            assert options[option[2:].replace("-", "_")] == value
    assert tuple(keras_vit.data.AUGMENTATIONS) == shared.AUGMENTATIONS
    assert split_names.SPLIT_NAMES == shared.SPLIT_NAMES
    assert parse(["train", "--data", "x"])["checkpoint_seconds"] == CHECKPOINT_SECONDS


@pytest.mark.parametrize("name", sorted({name for name, _ in numeric_options()}))
def test_numbers_out_of_range(name: str, command: Command) -> None:
    words = COMMANDS[name].example.split()[1:]
    for option in (option for of, option in numeric_options() if of == name):
        for value in (*NEVER, *REFUSED[row_of(name, option)]):
            error = command(*words, option, value, status=2)
            assert error.startswith(f"keras-vit: argument {option}")
            assert error.count("\n") == 1
            if value not in ("-1e-3", "-0.5", "-0.1"):  # which argparse may take for an option
                assert repr(value) in error
                assert "Give a" in error


# Words between single spaces, and what their error holds.
USAGE = [
    ("train --data x --distill hard", "--distill has no effect without --teacher"),
    *((f"train --data x --bands {bad}", "--bands") for bad in ("0", "4,4", "red", "1,,2", "")),
    ("calibrate m --data x --separator ;", "--separator has no effect"),
    ("train --data x --labels l --order a,b --task regression", "--order is for the grades of"),
    ("train --data x --labels l --depth-scale 1 --task ordinal", "--depth-scale is for --task d"),
    ("evaluate m --data d --knn --seeds 5", "no effect without --fewshot"),
    ("augment --data digits --out sheet.txt", "argument --out: 'sheet.txt'"),
    ("train --data x --sam\x1b[2J", "--sam\\x1b[2J"),
    ("train --data x --two\nlines", "unrecognized arguments: --two\\nlines"),
    ("train --data x --lr=3", "(see keras-vit train --help). Did you mean --learni"),
    ("predict x y --lr=3", "(see keras-vit predict --help).\n"),
    *((f"train --data x --{word} 3", "--help).\n") for word in ("notes", "gpu", "class-weights")),
    ("train --data x --Batch_Size 3", "Did you mean --batch-size?"),
    ("predict no/model a.png --out a.txt", "does not end in .csv"),
    ("predict no/model a.png --format table --out a.csv", "--format table is printed"),
    ("predict no/model a.png --format parquet", "give --out FILE"),
    ("predict no/model a.png --resume", "--resume goes on with a file"),
    ("predict no/model a.png --resume --out a.parquet", "--resume goes on with a file"),
]


@pytest.mark.parametrize(("words", "reason"), USAGE)
def test_usage_errors(words: str, reason: str, command: Command) -> None:
    refused("", parse, words.split(" "), error=UsageError)
    error = command(*words.split(" "), status=2)
    assert reason in error
    assert error.count("\n") == 1
    assert error.isascii()
    assert error.rstrip("\n").isprintable()


@pytest.mark.usefixtures("here")
def test_a_backend_that_is_missing_or_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KERAS_BACKEND", "torch")
    for installed, fix in (
        ("jax", "set KERAS_BACKEND=jax, or pip install 'keras3-vit[torch]'"),
        ("", "torch is not installed: pip install 'keras3-vit[torch]'"),
    ):
        with monkeypatch.context() as patch:
            patch.setattr(installation, "find_spec", lambda name, it=installed: name == it or None)
            refused([fix], installation.check_backend, error=ImportError)
    Path("keras.json").write_text('{"backend": "coffee"}')
    monkeypatch.delenv("KERAS_BACKEND", raising=False)
    refused("coffee is not a backend", installation.check_backend, error=ImportError)
    monkeypatch.setattr(installation, "find_spec", lambda name: name == "tensorflow")
    for without_a_backend in ("not JSON", '{"floatx": "float32"}'):
        Path("keras.json").write_text(without_a_backend)
        installation.check_backend()


def start(*arguments: str, **environment: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "keras_vit_cli", *arguments],
        **dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE),
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT), **environment},
        # Shells start background jobs, such as a whole test run, with Ctrl-C ignored.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )


def fake_modules(folder: Path, code: str, *names: str) -> str:
    """A PYTHONPATH on which to import these runs this code alone."""
    for name in names:
        (folder / f"{name}.py").write_text(f"import os, sys, time\n{code}\n")
    return os.pathsep.join([str(folder), str(ROOT)])


def test_help_imports_no_backend_and_errors_name_it(tmp_path: Path) -> None:
    names = ("keras", "tensorflow", "jax", "torch", "numpy", "yaml", "rich")
    path = fake_modules(tmp_path, "raise SystemExit(f'{__name__} was imported')", *names)
    for words, status, expected in (
        ("--help", 0, "KERAS_VIT_PLAIN=1"),
        ("train --help", 0, "example: keras-vit train"),
        ("--version", 0, f"keras-vit {keras_vit.__version__}\n"),
        ("train --epochs 0", 2, "argument --epochs: '0' is not accepted"),
        ("train --data x --print-config", 0, 'data = "x"\n'),
        ("train --data CIFAR1O", 2, "Did you mean cifar10?"),
        ("train --data cifar10/3.0.2", 1, "was imported"),
        ("predict no/such/run a.jpg", 2, "There is no model at no/such/run"),
        ("list", 1, "was imported"),  # the test's own check
    ):
        process = start(*words.split(), PYTHONPATH=path)
        printed, error = process.communicate()
        assert process.returncode == status
        assert expected in (error if status else printed)
        assert "Traceback" not in error
        assert status or not error
    # A failing import is one line that names the backend.
    process = start("list", KERAS_BACKEND="teapot")
    _, error = process.communicate()
    line = "KERAS_BACKEND=teapot is not a backend. Give one of tensorflow, jax, torch."
    assert process.returncode == 2
    assert error.startswith(f"keras-vit: {line}")
    assert error.count("\n") == 1


TENSORFLOW_ERROR = """Graph execution error:

Detected at node StatefulPartitionedCall defined at (most recent call last):
  File "/usr/bin/keras-vit", line 8, in <module>

  File "/lib/keras/trainer.py", line 399, in fit

OOM when allocating tensor with shape[64,12,577,577] and type float
  [[{{node StatefulPartitionedCall}}]]
"""


def test_any_error_is_a_message(monkeypatch: pytest.MonkeyPatch, command: Command) -> None:
    fix = "Out of memory. Give a smaller batch, image size or model. "
    tensor = "OOM when allocating tensor with shape[64,12,577,577] and type float"
    assert message_of(RuntimeError(TENSORFLOW_ERROR)) == fix + tensor
    other = message_of(RuntimeError(TENSORFLOW_ERROR.replace("OOM when", "No")))
    assert other.startswith("Graph execution error:\n  No allocating")
    for message in ("RESOURCE_EXHAUSTED: Out of memory allocating 9 bytes", "CUDA out of memory."):
        assert message in message_of(RuntimeError(message))
    for raised, line in (
        (KeyError("kernel"), "KeyError: 'kernel' (KERAS_VIT_TRACEBACK=1 shows where)"),
        (ValueError("a\n    b\x1b[0m\nc"), "a\n    b\\x1b[0m\n  c\n"),
        (OSError(28, "No space left on device", "a\nb"), "No space left on device: a\\nb\n"),
        (FileNotFoundError("There is no model."), "There is no model."),
        (MemoryError(), "Out of memory. Give a smaller batch, image size or model."),
        (UnicodeDecodeError("utf-8", b"\xff", 0, 1, "invalid"), "'utf-8' codec can't decode"),
    ):
        monkeypatch.setattr(cli, "plan", mock.Mock(side_effect=raised))
        monkeypatch.delenv("KERAS_VIT_TRACEBACK", raising=False)
        error = command("plan", "ViT-B/16", status=2)
        assert error.startswith(f"keras-vit: {line}")
        assert error.count("\n") == max(line.count("\n"), 1)
        monkeypatch.setenv("KERAS_VIT_TRACEBACK", "1")
        refused("", cli.main, ["plan", "ViT-B/16"], error=type(raised))


@pytest.mark.skipif(os.name == "nt", reason="Windows does not send SIGINT to one process")
@pytest.mark.parametrize("raised", ["KeyboardInterrupt", "SystemError('of a callback')"])
def test_stopped_while_importing(raised: str, tmp_path: Path) -> None:
    code = "print('importing', flush=True)\ntry:\n    time.sleep(60)\n"
    code += f"except KeyboardInterrupt:\n    raise {raised}"  # as libraries in C make of it
    process = start("list", PYTHONPATH=fake_modules(tmp_path, code, "keras"))
    assert process.stdout.readline() == "importing\n"
    process.send_signal(signal.SIGINT)
    _, error = process.communicate(timeout=30)
    assert (process.returncode, error) == (130, "keras-vit: stopped\n")


NOTES = "WARNING: All log messages before absl::InitializeLog()\\nI0000 00:00 port.cc] oneDNN\\n"


@pytest.mark.parametrize("plain", ["", "1"])
def test_text_is_shown_at_once_while_importing(plain: str, tmp_path: Path) -> None:
    """And a crash, after a line is read, loses nothing."""
    code = "os.write(2, b'still loading\\n')\nsys.stdin.readline()\n"
    code += f"os.write(2, b'{NOTES}fatal: first line\\nsecond line')\nos.abort()"
    path = fake_modules(tmp_path, code, "keras")
    process = start("list", PYTHONPATH=path, KERAS_VIT_PLAIN=plain)
    assert process.stderr.readline() == "still loading\n"
    _, error = process.communicate("\n", timeout=60)
    assert process.returncode != 0
    assert "fatal: first line\nsecond line" in error
    assert ("oneDNN" in error) == (plain == "1")


@pytest.mark.parametrize("text", ["'one line'", "'many' * 60_000"])
def test_a_closed_pipe_is_not_an_error(text: str) -> None:
    code = "import sys\nfrom keras_vit_cli.exit_status import exit_status\n"
    code += f"sys.exit(exit_status(lambda options: print({text}) or 0, ['list']))"
    process = subprocess.Popen([sys.executable, "-c", code], stdout=-1, stderr=-1, cwd=ROOT)
    process.stdout.close()  # as `head` does, which has read enough
    assert process.stderr.read() == b""
    assert process.wait() == CLOSED_PIPE


LOUD = """
import logging, os, sys
from keras_vit_cli.quiet import without_noise
with without_noise():
    os.write(2, b"TIFFReadDirectory: Warning, Unknown field with tag 42113.\\nof another\\n")
    from absl import logging as absl
    absl.warning("Failed to load jax profiler")
    logging.getLogger("tensorflow").warning("triggered tf.function retracing")
    print("keras-vit: warning: ours", file=sys.stderr)
"""


def test_what_libraries_write_does_not_stand_between_ours() -> None:
    command = [sys.executable, "-c", LOUD]
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=ROOT)
    assert sorted(done.stderr.splitlines()) == ["keras-vit: warning: ours", "of another"]


TOML = """
data = "photos"
epochs = 3
augment = ["randaugment"]
sam = true
held_out = 0.1
checkpoint-every = 0
distill = "hard"
teacher = "runs/teacher"
"""


def written(folder: Path, text: str, name: str = "run.toml") -> str:
    (folder / name).write_text(text, "utf-8")
    return str(folder / name)


def test_options_come_from_a_file_or_errors_name_it(tmp_path: Path, monkeypatch: Any) -> None:
    file = written(tmp_path, TOML)
    options = parse(["train", "--config", file, "--held-out", "0.25", "--seed", "7"])
    words = "--data photos --epochs 3 --augment randaugment --sam --seed 7 --held-out 0.25"
    words += " --checkpoint-every 0 --distill hard --teacher runs/teacher"
    assert options == parse(["train", *words.split()])
    # Also over an option that they exclude.
    for words in (["--steps", "50"], ["--steps=50"]):
        options = parse(["train", f"--config={written(tmp_path, TOML)}", *words])
        assert (options["steps"], options["epochs"]) == (50, None)
    for text, reason in (
        ("epocs = 3", "run.toml has the unknown option 'epocs'. Did you mean epochs?"),
        ("epochs = [1, 2]", "run.toml: epochs takes one value, and is [1, 2]."),
        ("augment = [[1]]", "run.toml: augment takes values, and has [1]."),
        ("epochs = 3\nsteps = 4", "run.toml: argument --steps: not allowed with argument --epochs"),
        ("epochs: 3", "run.toml is not TOML: "),
        ('augment = ["none", "--overwrite"]', "augment has '--overwrite', which begins with"),
    ):
        words = ["train", "--data", "x", "--config", written(tmp_path, text)]
        refused([reason], parse, words, error=UsageError)
    written(tmp_path, "", "run.txt")
    (tmp_path / "zero.toml").symlink_to("/dev/zero")
    reasons = {"none.toml": "No such file", "run.txt": "that ends in .toml, .json or .yaml"}
    reasons["zero.toml"] = "is not a regular file"
    for name, reason in reasons.items():
        refused(reason, parse, ["train", "--config", str(tmp_path / name)], error=UsageError)
    monkeypatch.setitem(sys.modules, "yaml", None)
    words = ["train", "--config", written(tmp_path, "data: x", "run.yml")]
    refused("pip install pyyaml, or give", parse, words, error=UsageError)


def test_what_is_printed_is_read(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["train", "--data", 'a "quoted" näme', "--steps", "3", "--learning-rate", "1e-5"]
    words += ["--augment", "randaugment", "--out", "runs/a"]
    with pytest.raises(SystemExit) as stop:
        parse([*words, "--print-config"])
    assert not stop.value.code
    file = written(tmp_path, capsys.readouterr().out)
    assert parse(["train", "--config", file]) == parse(words)
    # As `keras-vit train` writes it: how the run was started does not belong to it.
    job: dict[str, Any] = {"data": "digits", "out": "runs/a", "epochs": 2, "overwrite": True}
    config = {"command": "keras-vit train ...", "job": {**job, "augment": None}, "identity": {}}
    file = written(tmp_path, json.dumps(config), "config.json")
    options = parse(["train", "--config", file, "--out", "runs/b"])
    assert options == parse(["train", "--data", "digits", "--epochs", "2", "--out", "runs/b"])
    pytest.importorskip("yaml")
    file = written(tmp_path, "data: digits\nepochs: 2\nout: runs/b\nmodel:\n", "run.yaml")
    assert parse(["train", "--config", file]) == options
