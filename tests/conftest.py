"""Fixtures of the whole suite."""

import gc
import itertools
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from tests.xla_flags import QUICK_XLA

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ.setdefault("XLA_FLAGS", QUICK_XLA)
# Each of two workers on two cores with two threads waits for the other's in loops: on torch, tests
# of training took five times as long.
os.environ.setdefault("OMP_NUM_THREADS", "1")

import keras
import pytest

from tests import bank, processes
from tests.backends import COLLECTED, SLOW, THOROUGH, is_in, of_this_backend
from tests.quick_tensorflow import skip_graph_optimization

skip_graph_optimization()
REPOSITORY = Path(__file__).parent.parent
SHARED = Path(os.environ.get("KERAS_VIT_SHARED", REPOSITORY.parent / "shared"))


@pytest.fixture(scope="session")
def shared() -> Path:
    """The folder of recorded outputs, real photographs and real weights; skips where missing."""
    if not SHARED.is_dir():
        pytest.skip(f"{SHARED} is missing; set KERAS_VIT_SHARED to the folder of recorded outputs")
    return SHARED


BROWSERS = {  # engine: the variable that names one, and commands
    "chromium": "KERAS_VIT_BROWSER chromium-headless-shell chromium chromium-browser google-chrome",
    "firefox": "KERAS_VIT_FIREFOX firefox-esr firefox",
}


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--here",
        action="store_true",
        help="run here what runs once, wherever its home is (tests/backends.py)",
    )


@pytest.hookimpl(tryfirst=True)  # before `-m` chooses by marks
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leaves to the other backends what does not run on this one, and marks what is thorough."""
    for item in items:
        if is_in(THOROUGH, item) or "browser" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.thorough)
        if is_in(SLOW, item):
            item.add_marker(pytest.mark.slow)
    config.stash[COLLECTED] = list(items)
    here, elsewhere = of_this_backend(items, config.getoption("--here"))
    if elsewhere:
        config.hook.pytest_deselected(items=elsewhere)
        items[:] = here
    # The file that takes longest begins, while the other process has others to do.
    items.sort(key=lambda item: not item.nodeid.startswith("tests/test_damage.py"))


@pytest.fixture(autouse=True)
def _fresh_keras() -> Iterator[None]:
    """Every test starts from the same seed, policy and folder, and leaves no models behind."""
    keras.utils.set_random_seed(0)
    folder = Path.cwd()
    yield
    os.chdir(folder)
    keras.config.set_dtype_policy("float32")
    keras.config.set_image_data_format("channels_last")
    keras.utils.clear_session(free_memory=False)
    bank.restore()


_modules = itertools.count(1)


@pytest.fixture(scope="module", autouse=True)
def _little_garbage_to_look_through() -> None:
    """Keras collects garbage once per kernel that it quantizes: a third of a second each.

    So every tenth module looks through what is left. (Never, and TensorFlow's graphs take 10 GB.)
    """
    if next(_modules) % 10 == 0:
        gc.unfreeze()
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="module", params=BROWSERS)
def browser(request: pytest.FixtureRequest) -> Iterator[Any]:
    """One of each engine: that of its variable, one on the PATH, or Playwright's; or skips."""
    playwright = pytest.importorskip("playwright.sync_api")
    named, *commands = BROWSERS[request.param].split()
    path = os.environ.get(named) or next(filter(None, map(shutil.which, commands)), None)
    options: dict[str, Any] = {"args": ["--no-sandbox"]}
    with pytest.MonkeyPatch.context() as patch:
        if request.param == "firefox":  # as it comes, which closes a page that was left, too
            patch.setenv("NODE_OPTIONS", f"--require={REPOSITORY / 'tests/firefox.js'}")
            forgets = {"browser.sessionhistory.max_total_viewers": 0}
            options = {"channel": path and "moz-firefox", "firefox_user_prefs": forgets}
        with playwright.sync_playwright() as engines:
            try:
                started = getattr(engines, request.param).launch(executable_path=path, **options)
            except playwright.Error as error:
                if path is not None:
                    raise
                pytest.skip(f"no browser: {error.message.splitlines()[0]}")
            yield started
            started.close()


@pytest.fixture
def run_python(tmp_path: Path) -> Callable[..., str]:
    """Runs code in a process of its own, on a backend of choice, and returns what it printed.

    One that has keras_vit imported, but on another backend or with `new=True`, to see imports.
    """
    number = itertools.count()

    def run(code: str, backend: str | None = None, *arguments: str, new: bool = False) -> str:
        if backend in (None, keras.backend.backend()) and not new:
            return processes.run(code, *arguments, printed=tmp_path / f".printed{next(number)}")
        environment = dict(os.environ, PYTHONPATH=str(REPOSITORY))
        environment["KERAS_BACKEND"] = backend or keras.backend.backend()
        options = {"capture_output": True, "text": True, "timeout": 600}
        command = [sys.executable, "-c", code, *arguments]
        done = subprocess.run(command, env=environment, **options)
        assert done.returncode == 0, done.stderr[-4000:]
        return done.stdout

    return run


class Command:
    """`keras-vit` in this process; `error` is what the last call wrote to standard error."""

    def __init__(self, capsys: pytest.CaptureFixture[str]) -> None:
        self._capsys, self.error = capsys, ""

    def __call__(self, words: Any, *more: object, status: int = 0) -> str:
        """Checks the status; returns what was printed, or the error of 2. `more` holds spaces."""
        from keras_vit_cli import commands  # what most tests do not need

        self._capsys.readouterr()
        actual = commands.main([*words.split(), *map(str, more)])
        printed, self.error = self._capsys.readouterr()
        assert actual == status, printed + self.error
        if status != 2:
            return printed
        assert "Traceback" not in self.error
        lines = [line for line in self.error.splitlines() if not line.startswith("  ")]
        assert lines[-1].startswith("keras-vit: ")  # and further lines of it are indented
        return self.error


@pytest.fixture
def command(capsys: pytest.CaptureFixture[str]) -> Command:
    return Command(capsys)


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder, which is empty, and where downloads would be."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("KERAS_HOME", str(tmp_path))
    return tmp_path
