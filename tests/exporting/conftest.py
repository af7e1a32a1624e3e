"""Every file of these tests is written once per process, by a second process that is warm."""

import subprocess
import sys
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import keras
import pytest

from keras_vit.exporting import formats
from tests import processes
from tests.exporting.artifacts import Artifacts


@pytest.fixture(scope="session")
def artifacts(tmp_path_factory: pytest.TempPathFactory) -> Artifacts:
    return Artifacts(tmp_path_factory.mktemp("artifacts"))


@pytest.fixture(scope="module", autouse=True)
def _warm_writer(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """A format of this backend is written by a fork, another's by a new process, as users have."""
    folder = tmp_path_factory.mktemp("writers")

    def run(command: list[str], env: dict[str, str], **options: Any) -> Any:
        python, flag, code, *arguments = command
        if env["KERAS_BACKEND"] != keras.backend.backend():
            return subprocess.run(command, env=env, **options)
        assert python == sys.executable
        code = f"-m {code}" if flag == "-m" else code
        process = processes.start(code, *arguments, printed=folder / "printed")
        return subprocess.CompletedProcess(command, process.wait(), "", process.output())

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(formats, "subprocess", SimpleNamespace(run=run))
        yield
