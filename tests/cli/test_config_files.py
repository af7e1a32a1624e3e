"""`keras-vit train --config FILE` and `--print-config`: options in a file, and out again."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from keras_vit_cli.arguments import parse
from keras_vit_cli.options.option import UsageError

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
    for words in (["--steps", "50"], ["--ste", "50"], ["--steps=50"]):
        options = parse(["train", f"--config={written(tmp_path, TOML)}", *words])
        assert (options["steps"], options["epochs"]) == (50, None)
    for text, reason in (
        ("epocs = 3", "run.toml has the unknown option 'epocs'. Did you mean epochs?"),
        ("epochs = 0", "run.toml: argument --epochs: '0' is not accepted. Give an integer from 1"),
        ("epochs = true", "run.toml: epochs takes one value, and is true."),
        ("epochs = [1, 2]", "run.toml: epochs takes one value, and is [1, 2]."),
        ("sam = 1", "run.toml: sam takes true or false, and is 1."),
        ("epochs = 3\nsteps = 4", "run.toml: argument --steps: not allowed with argument --epochs"),
        ("precision = 'int4'", "run.toml: argument --precision: invalid choice: 'int4'"),
        ("epochs: 3", "run.toml is not TOML: "),
        (f"augment = {10**5 * '['}", "run.toml is not TOML: "),
        ('augment = ["none", "--overwrite"]', "augment has '--overwrite', which begins with"),
        ("augment = [[1]]", "run.toml: augment takes values, and has [1]."),
    ):
        with pytest.raises(UsageError) as error:
            parse(["train", "--data", "x", "--config", written(tmp_path, text)])
        assert reason in str(error.value)
    written(tmp_path, "", "run.txt")
    (tmp_path / "zero.toml").symlink_to("/dev/zero")
    reasons = {"none.toml": "No such file", "run.txt": "that ends in .toml, .json or .yaml"}
    reasons["zero.toml"] = "is not a regular file"
    for name, reason in reasons.items():
        with pytest.raises(UsageError, match=reason):
            parse(["train", "--config", str(tmp_path / name)])
    monkeypatch.setitem(sys.modules, "yaml", None)
    with pytest.raises(UsageError, match="pip install pyyaml, or give"):
        parse(["train", "--config", written(tmp_path, "data: x", "run.yml")])


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
