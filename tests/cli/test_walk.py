"""How many functions of ours a reader passes to the loss."""

import sys
import traceback
from pathlib import Path
from types import FrameType
from typing import Any

import keras
import pytest

from keras_vit_cli import commands as cli
from keras_vit_cli.arguments import parse

OURS = str(Path(__file__).parents[2] / "keras_vit")  # and keras_vit_cli
# Two say who saw which image and how JPEG files are decoded, and one notes doubts.
# Five say arguments of the library as options, three of them once per process; two ask what is
# to be measured.
MOST_TO_THE_LOSS = 40


def name(frame: FrameType) -> str:
    """A function of ours, without the comprehensions in it; empty for those of others."""
    file = frame.f_code.co_filename
    function = frame.f_code.co_qualname.split(".<locals>.<")[0]
    return f"{file.removeprefix(OURS)}:{function}" if file.startswith(OURS) else ""


def test_from_the_command_to_the_loss(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of the application that run, and those of the library that wait for the loss."""
    pytest.importorskip("tensorflow")
    walk: dict[str, None] = {}

    def enter(frame: FrameType, event: str, argument: Any) -> None:
        if event == "call" and frame.f_code.co_filename.startswith(f"{OURS}_cli"):
            walk[name(frame)] = None

    def stop(*_: Any, **__: Any) -> None:
        sys.setprofile(None)
        waiting = [name(frame) for frame, _ in traceback.walk_stack(sys._getframe())]
        walk.update(dict.fromkeys(filter(None, reversed(waiting))))
        raise AssertionError("here the loss is computed")

    monkeypatch.setattr(keras.losses.Loss, "__call__", stop)
    options = parse(f"train --data digits --steps 2 --out {tmp_path / 'run'}".split())
    sys.setprofile(enter)
    try:
        with pytest.raises(AssertionError, match="here the loss is computed"):
            cli.run(options)
    finally:
        sys.setprofile(None)
    assert any("Run.fit" in function for function in walk)
    assert len(walk) <= MOST_TO_THE_LOSS, "\n".join(walk)
