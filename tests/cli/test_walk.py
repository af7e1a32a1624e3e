"""How many functions of ours a reader passes from `keras-vit train` to the loss."""

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
APPLICATION = f"{OURS}_cli"
MOST = 30


class AtTheLossError(Exception):
    """Stops the training where its loss is computed."""


@pytest.mark.once
def test_few_functions_lie_between_the_command_and_the_loss(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those of the application that run, and those of the library that wait for the loss."""
    pytest.importorskip("tensorflow")
    walk: dict[str, None] = {}

    def name(frame: FrameType) -> str:
        file = frame.f_code.co_filename
        function = frame.f_code.co_qualname.split(".<locals>.<")[0]  # without comprehensions
        return f"{file.removeprefix(OURS)}:{function}" if file.startswith(OURS) else ""

    def enter(frame: FrameType, event: str, argument: Any) -> None:
        if event == "call" and frame.f_code.co_filename.startswith(APPLICATION):
            walk[name(frame)] = None

    def stop(*_: Any, **__: Any) -> None:
        sys.setprofile(None)
        frames = [frame for frame, _ in traceback.walk_stack(sys._getframe())]
        walk.update(dict.fromkeys(filter(None, map(name, reversed(frames)))))
        raise AtTheLossError

    monkeypatch.setattr(keras.losses.Loss, "__call__", stop)
    options = parse(["train", "--data", "digits", "--out", str(tmp_path / "run"), "--steps", "2"])
    sys.setprofile(enter)
    try:
        with pytest.raises(AtTheLossError):
            cli.run(options)
    finally:
        sys.setprofile(None)
    assert any("Run.fit" in function for function in walk)
    assert len(walk) <= MOST, "\n".join(walk)
