"""Every file of these tests is written once per process, by a second process that is warm."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import keras
import pytest

from keras_vit.exporting import formats, page_engine
from tests import processes
from tests.conftest import SHARED
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


@pytest.fixture(scope="session", autouse=True)
def _no_engine() -> Iterator[None]:
    """Pages of these tests, which Python runs, have a few bytes for an engine: nothing to load."""
    with pytest.MonkeyPatch.context() as patch:
        stand_ins = {page_engine.ENGINE: b"export default 1", page_engine.WASM: b"\0asm"}
        patch.setattr(formats, "engine_files", lambda _: stand_ins)
        yield


@pytest.fixture(scope="session")
def real_engine() -> dict[str, bytes]:
    """ONNX Runtime Web of the cache, or its npm package in the shared folder; or skips."""
    folder = page_engine.engine_folder()
    if all((folder / name).is_file() for name in page_engine.SUMS):
        return page_engine.engine_files()
    package = SHARED / f"onnxruntime-web-{page_engine.VERSION}.tgz"
    package = Path(os.environ.get("KERAS_VIT_ENGINE", package))
    if not package.is_file():
        pytest.skip(f"{folder} lacks the engine of pages; KERAS_VIT_ENGINE may name its .tgz")
    return page_engine.engine_files(package)
