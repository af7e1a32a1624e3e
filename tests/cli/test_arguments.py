"""The command line's options: their ranges, and what works before Keras is imported."""

import argparse
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import keras_vit
from keras_vit._base import installation
from keras_vit.training.resume import CHECKPOINT_SECONDS
from keras_vit_cli import commands as cli
from keras_vit_cli.arguments import make_parser, parse
from keras_vit_cli.exit_status import one_line
from keras_vit_cli.options import COMMANDS
from keras_vit_cli.options.option import Integers, Numbers, UsageError
from keras_vit_cli.options.shared import AUGMENTATIONS

ROOT = Path(__file__).parents[2]
REQUIRED = {
    "train": ["--data", "no/such/folder"],
    "predict": ["no/such/model", "photo.jpg"],
    "evaluate": ["no/such/model", "--data", "no/such/folder"],
    "calibrate": ["no/such/model", "--data", "no/such/folder"],
    "inspect": ["no/such/model", "photo.jpg", "--out", "out"],
    "export": ["no/such/model", "--out", "out"],
    "serve": ["no/such/model"],
    "embed": ["no/such/folder", "--model", "no/such/model", "--out", "index"],
    "search": ["no/such/index", "photo.jpg"],
    "cluster": ["no/such/index", "--out", "clusters.html"],
    "choose": ["no/such/folder", "--among", "no/such/model", "--out", "choice"],
    "audit": ["no/such/index", "--out", "audit"],
    "plan": ["ViT-B/16"],
    "augment": ["--data", "no/such/folder", "--out", "sheet.png"],
}
NEVER = ("nan", "inf", "-1", "1e400", "many", "")
# Every option that is a number, and values that it refuses besides `NEVER`.
REFUSED = {
    ("train", "--batch-size"): ("0", "1.5", "65537"),
    ("train", "--checkpoint-every"): ("-0.5", "1e6"),
    ("train", "--epochs"): ("0", "0.5", "1000000000000"),
    ("train", "--cache"): ("0", "4097", "448px"),
    ("train", "--image-size"): ("0", "100000", "224x224"),
    ("train", "--learning-rate"): ("0", "-1e-3", "100"),
    ("train", "--devices"): ("0", "100000"),
    ("plan", "--epochs"): ("0", "1.5"),
    ("plan", "--training-images"): ("0", "1.5"),
    ("train", "--lora"): ("0", "100000"),
    ("train", "--max-pixels"): ("0",),
    ("train", "--patience"): ("0",),
    ("train", "--seed"): ("4294967296",),
    ("train", "--steps"): ("0", "-3"),
    ("train", "--token-merging"): ("0", "4097"),
    ("train", "--held-out"): ("1", "-0.1", "1.5"),
    ("train", "--val-fraction"): ("0", "1", "1.5"),
    ("train", "--coverage"): ("0", "1", "95"),
    ("calibrate", "--coverage"): ("0", "1", "95"),
    ("calibrate", "--batch-size"): ("0",),
    ("calibrate", "--max-pixels"): ("0",),
    ("predict", "--batch-size"): ("0",),
    ("predict", "--max-pixels"): ("0",),
    ("predict", "--top"): ("0",),
    ("evaluate", "--accumulate"): ("0",),
    ("evaluate", "--batch-size"): ("0",),
    ("evaluate", "--fewshot"): ("0",),
    ("evaluate", "--image-size"): ("0", "100000"),
    ("evaluate", "--knn"): ("0",),
    ("evaluate", "--learning-rates"): ("0",),
    ("evaluate", "--max-pixels"): ("0",),
    ("evaluate", "--seeds"): ("0",),
    ("evaluate", "--steps"): ("0",),
    ("inspect", "--max-pixels"): ("0",),
    ("inspect", "--top"): ("0",),
    ("embed", "--batch-size"): ("0",),
    ("embed", "--max-pixels"): ("0",),
    ("search", "--top"): ("0", "1001"),
    ("cluster", "--clusters"): ("1", "10001"),
    ("cluster", "--examples"): ("0", "101"),
    ("cluster", "--seed"): ("0.5",),
    ("choose", "--batch-size"): ("0",),
    ("choose", "--images"): ("9", "10.5"),
    ("choose", "--max-pixels"): ("0",),
    ("choose", "--neighbors"): ("0", "100001"),
    ("choose", "--sizes"): ("0", "4097"),
    ("audit", "--most"): ("0", "10001"),
    ("audit", "--seed"): ("0.5",),
    ("export", "--image-size"): ("0", "100000"),
    ("serve", "--batch-size"): ("0",),
    ("serve", "--max-bytes"): ("0",),
    ("serve", "--max-images"): ("0",),
    ("serve", "--max-pixels"): ("0",),
    ("serve", "--port"): ("65536",),
    ("serve", "--queue"): ("0",),
    ("serve", "--top"): ("0",),
    ("plan", "--batch-size"): ("0",),
    ("plan", "--image-size"): ("0", "100000"),
    ("plan", "--num-classes"): ("1.0",),
    ("augment", "--image-size"): ("0",),
    ("augment", "--images"): ("0", "101"),
    ("augment", "--max-pixels"): ("0",),
    ("augment", "--seed"): ("0.5",),
    ("augment", "--versions"): ("0", "101"),
}


def numeric_options() -> set[tuple[str, str]]:
    """Every option of every command that is a number."""
    (commands,) = (
        action
        for action in make_parser()._actions
        if isinstance(action, argparse._SubParsersAction)
    )
    options = set()
    for command, parser in commands.choices.items():
        for action in parser._actions:
            assert action.type not in (int, float), f"{command} {action.dest} has no range"
            if isinstance(action.type, Integers | Numbers):
                options.add((command, action.option_strings[0]))
    return options


def test_every_number_has_a_range_and_a_row() -> None:
    assert numeric_options() == REFUSED.keys()


@pytest.mark.parametrize(("command", "option"), REFUSED)
def test_numbers_out_of_range(
    command: str, option: str, capsys: pytest.CaptureFixture[str]
) -> None:
    for value in (*NEVER, *REFUSED[command, option]):
        assert cli.main([command, *REQUIRED[command], option, value]) == 2
        printed, error = capsys.readouterr()
        assert not printed
        assert error.startswith(f"keras-vit: argument {option}")
        assert error.count("\n") == 1
        if value != "-1e-3":  # which argparse may take for an option
            assert repr(value) in error
            assert "Give a" in error


def test_the_ends_of_a_range_are_accepted() -> None:
    for option, low, high in (("--image-size", 1, 4096), ("--num-classes", 0, 1_000_000)):
        for value in (low, high):
            options = parse(["plan", "ViT-B/16", option, str(value)])
            assert options[option[2:].replace("-", "_")] == value
    options = parse(["train", "--data", "x", "--learning-rate", "1e-3", "--seed", "0"])
    assert (options["learning_rate"], options["seed"]) == (1e-3, 0)
    assert parse(["predict", "m", "x.png"])["max_pixels"] == keras_vit.data.MAX_PIXELS
    assert tuple(keras_vit.data.AUGMENTATIONS) == AUGMENTATIONS
    assert parse(["train", "--data", "x"])["checkpoint_seconds"] == CHECKPOINT_SECONDS


@pytest.mark.parametrize("word", ["--notes", "--class-weights", "--gpu", "--momentum", "--folds"])
@pytest.mark.parametrize("command", ["train", "predict", "evaluate"])
def test_an_option_that_is_like_no_other_gets_no_proposal(command: str, word: str) -> None:
    with pytest.raises(UsageError) as error:
        parse([command, *REQUIRED[command], word, "3"])
    assert "Did you mean" not in str(error.value)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (
            ["train", "--data", "x", "--distill", "hard"],
            "--distill has no effect without --teacher",
        ),
        (["train", "--data", "x", "--task", "ordinal"], "--task has no effect without --labels"),
        (["calibrate", "m", "--data", "x", "--separator", ";"], "--separator has no effect"),
        (["evaluate", "m"], "evaluate needs --data"),
        (["evaluate", "m", "--vtab"], "--vtab needs --out"),
        (["evaluate", "m", "--vtab", "--out", "x", "--accumulate", "3"], "--accumulate 3 does not"),
        (
            ["evaluate", "m", "--data", "d", "--tasks", "dtd"],
            "--tasks has no effect without --vtab",
        ),
        (["evaluate", "m", "--data", "d", "--image-size", "9"], "--image-size has no effect"),
        (["evaluate", "m", "--vtab", "--out", "x", "--knn"], "--knn has no effect with --vtab"),
        (["evaluate", "m", "--data", "d", "--knn", "--seeds", "5"], "no effect without --fewshot"),
        (["evaluate", "m", "--data", "d", "--cache-dir", "c"], "no effect without --probe"),
        (["augment", "--data", "digits", "--out", "folder"], "argument --out: 'folder'"),
        (["augment", "--data", "digits", "--out", "sheet.txt"], "argument --out: 'sheet.txt'"),
        (["trian"], "invalid choice: 'trian'"),
        (["trian"], "Did you mean 'train'?"),
        (["train"], "required: --data"),
        (["train", "--data", "x", "--sam\x1b[2J"], "--sam\\x1b[2J"),
        (["train", "--data", "x", "--two\nlines"], "unrecognized arguments: --two lines"),
        (["train", "--data", "x", "--epocs", "3"], "Did you mean --epochs?"),
        (["train", "--data", "x", "--lr=3"], "(see keras-vit train --help). Did you mean --learni"),
        (["predict", "x", "y", "--lr=3"], "(see keras-vit predict --help)."),
        (["train", "--data", "x", "--num-epochs", "3"], "Did you mean --epochs?"),
        (["train", "--data", "x", "--lora-rank", "3"], "Did you mean --lora?"),
        (["train", "--data", "x", "--Batch_Size", "3"], "Did you mean --batch-size?"),
        (["plan", "ViT-B/16", "--precision", "int4"], "'int4'"),
    ],
)
def test_usage_errors(arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(UsageError):
        parse(arguments)
    assert cli.main(arguments) == 2
    error = capsys.readouterr().err
    assert words in error
    assert error.count("\n") == 1
    assert error.isascii()
    assert error.rstrip("\n").isprintable()


def command_line(
    *arguments: str, stdin: int | None = None, **environment: str
) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "keras_vit_cli.start", *arguments],
        stdin=stdin,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT), **environment},
        # Shells start background jobs, such as a whole test run, with Ctrl-C ignored.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )


@pytest.fixture
def no_backend(tmp_path: Path) -> str:
    """A PYTHONPATH on which to import Keras or a backend fails."""
    for name in ("keras", "tensorflow", "jax", "torch", "numpy"):
        (tmp_path / f"{name}.py").write_text(f"raise SystemExit('{name} was imported')")
    return os.pathsep.join([str(tmp_path), str(ROOT)])


@pytest.mark.parametrize(
    ("arguments", "status", "words"),
    [
        ([], 2, "print or write what a model answers for images"),
        (["--help"], 0, "print or write what a model answers for images"),
        (["train", "--help"], 0, "example: keras-vit train"),
        (["--version"], 0, f"keras-vit {keras_vit.__version__}\n"),
        (["train", "--epochs", "0"], 2, "argument --epochs: '0' is not accepted"),
        (["predict"], 2, "the following arguments are required: model, IMAGE"),
        (["list"], 1, "was imported"),  # the test's own check
    ],
)
def test_help_and_usage_errors_import_no_backend(
    arguments: list[str], status: int, words: str, no_backend: str
) -> None:
    process = command_line(*arguments, PYTHONPATH=no_backend)
    printed, error = process.communicate()
    assert process.returncode == status
    assert words in (error if status else printed)
    assert "Traceback" not in error


def test_a_failing_import_is_one_line() -> None:
    process = command_line("list", KERAS_BACKEND="teapot")
    _, error = process.communicate()
    assert process.returncode == 2
    assert error.startswith("keras-vit: ")
    assert "KERAS_BACKEND=teapot is not a backend. Give one of tensorflow, jax, torch." in error
    assert error.count("\n") == 1


def test_importing_the_package_says_that_the_backend_is_missing(
    run_python: Callable[..., str],
) -> None:
    code = """
try:
    import keras_vit
except ImportError as error:
    print(error)
"""
    assert run_python(code, "teapot").startswith("KERAS_BACKEND=teapot is not a backend. Give one")


@pytest.mark.parametrize(
    ("installed", "fix"),
    [("jax", "set KERAS_BACKEND=jax, or pip install 'keras3-vit[torch]'"),
     ("", "torch is not installed: pip install 'keras3-vit[torch]'")],
)  # fmt: skip
def test_a_missing_backend_is_an_error_with_the_fix(
    installed: str, fix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KERAS_BACKEND", "torch")
    monkeypatch.setattr(installation, "find_spec", lambda name: name == installed or None)
    with pytest.raises(ImportError) as error:
        installation.check_backend()
    assert fix in str(error.value)


def test_the_backend_of_the_configuration_file_is_checked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "keras.json").write_text('{"backend": "coffee"}')
    monkeypatch.setenv("KERAS_HOME", str(tmp_path))
    monkeypatch.delenv("KERAS_BACKEND", raising=False)
    with pytest.raises(ImportError, match="coffee is not a backend"):
        installation.check_backend()
    monkeypatch.setattr(installation, "find_spec", lambda name: name == "tensorflow")
    for without_a_backend in ("not JSON", '{"floatx": "float32"}'):
        (tmp_path / "keras.json").write_text(without_a_backend)
        installation.check_backend()


TENSORFLOW_ERROR = """Graph execution error:

Detected at node StatefulPartitionedCall defined at (most recent call last):
  File "/usr/bin/keras-vit", line 8, in <module>

  File "/lib/keras/trainer.py", line 399, in fit

OOM when allocating tensor with shape[64,12,577,577] and type float
  [[{{node StatefulPartitionedCall}}]]
"""


def test_exhausted_memory_is_a_short_line() -> None:
    line = one_line(RuntimeError(TENSORFLOW_ERROR))
    assert line == (
        "Out of memory. Give a smaller batch, image size or model. "
        "OOM when allocating tensor with shape[64,12,577,577] and type float"
    )
    other = one_line(RuntimeError(TENSORFLOW_ERROR.replace("OOM when", "No")))
    assert other.startswith("Graph execution error: No allocating")
    for message in ("RESOURCE_EXHAUSTED: Out of memory allocating 9 bytes", "CUDA out of memory."):
        assert message in one_line(RuntimeError(message))


@pytest.mark.skipif(os.name == "nt", reason="Windows does not send SIGINT to one process")
def test_stopped_while_importing(tmp_path: Path) -> None:
    (tmp_path / "keras.py").write_text(
        "import time\nprint('importing', flush=True)\ntime.sleep(60)\n"
    )
    process = command_line("list", PYTHONPATH=os.pathsep.join([str(tmp_path), str(ROOT)]))
    assert process.stdout is not None
    assert process.stdout.readline() == "importing\n"
    process.send_signal(signal.SIGINT)
    _, error = process.communicate(timeout=30)
    assert (process.returncode, error) == (130, "keras-vit: stopped\n")


NOTES = "WARNING: All log messages before absl::InitializeLog()\\nI0000 00:00 port.cc] oneDNN\\n"


def fake_keras(folder: Path, code: str) -> str:
    """A PYTHONPATH on which `import keras` runs this code alone."""
    (folder / "keras.py").write_text(f"import os, sys\n{code}\n")
    return os.pathsep.join([str(folder), str(ROOT)])


@pytest.mark.parametrize("plain", ["", "1"])
def test_a_crash_while_importing_loses_no_text(plain: str, tmp_path: Path) -> None:
    code = f"os.write(2, b'{NOTES}fatal: first line\\nsecond line')\nos.abort()"
    path = fake_keras(tmp_path, code)
    process = command_line("list", PYTHONPATH=path, KERAS_VIT_PLAIN=plain)
    _, error = process.communicate(timeout=60)
    assert process.returncode != 0
    assert "fatal: first line\nsecond line" in error
    assert ("oneDNN" in error) == (plain == "1")


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["jax", "torch"])
def test_an_export_is_quiet_while_it_imports_tensorflow(backend: str, tmp_path: Path) -> None:
    for package in (backend, "tensorflow"):
        pytest.importorskip(package)
    from tests.cli.serve.helpers import save, tiny_model

    model = save(tiny_model(), tmp_path / "model.keras")
    words = ("export", str(model), "--out", str(tmp_path / "1"))
    process = command_line(*words, KERAS_BACKEND=backend)
    printed, error = process.communicate(timeout=120)
    assert (process.returncode, error) == (0, ""), error
    assert printed.startswith("written to ")


def test_text_is_shown_at_once_while_importing(tmp_path: Path) -> None:
    code = "os.write(2, b'still loading\\n')\nsys.stdin.readline()\nraise ImportError('over')"
    process = command_line("list", PYTHONPATH=fake_keras(tmp_path, code), stdin=subprocess.PIPE)
    assert process.stderr is not None
    assert process.stderr.readline() == "still loading\n"
    assert process.communicate("\n", timeout=60)[1] == "keras-vit: over\n"


def test_the_help_explains_the_environment(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parse(["--help"])
    printed = capsys.readouterr().out
    assert "KERAS_VIT_PLAIN=1" in printed


def test_options_stand_in_groups() -> None:
    for command in COMMANDS.values():
        assert command.groups.keys() <= {"data", "model", "recipe", "run"}


@pytest.mark.parametrize(
    ("raised", "line"),
    [
        (KeyError("kernel"), "KeyError: 'kernel' (KERAS_VIT_TRACEBACK=1 shows where)"),
        (AssertionError(), "AssertionError (KERAS_VIT_TRACEBACK=1 shows where)"),
        (ValueError("a\n  b\x1b[0m"), "a b\\x1b[0m"),
        (OSError(28, "No space left on device", "a/b"), "No space left on device: a/b"),
        (FileNotFoundError("There is no model."), "There is no model."),
        (MemoryError(), "Out of memory. Give a smaller batch, image size or model."),
        (UnicodeDecodeError("utf-8", b"\xff", 0, 1, "invalid"), "'utf-8' codec can't decode"),
    ],
)
def test_any_error_is_one_line(
    raised: Exception,
    line: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def fail(_: object) -> None:
        raise raised

    monkeypatch.setattr(cli, "plan", fail)
    monkeypatch.delenv("KERAS_VIT_TRACEBACK", raising=False)
    assert cli.main(["plan", "ViT-B/16"]) == 2
    error = capsys.readouterr().err
    assert error.startswith(f"keras-vit: {line}")
    assert error.count("\n") == 1
    monkeypatch.setenv("KERAS_VIT_TRACEBACK", "1")
    with pytest.raises(type(raised)):
        cli.main(["plan", "ViT-B/16"])
