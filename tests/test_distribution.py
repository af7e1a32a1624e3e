"""Commands in messages and documents install this package, under its own distribution name."""

import re
from importlib import metadata
from pathlib import Path

import pytest

from keras_vit._base.version import DISTRIBUTION, __version__, install_command
from tests.conftest import REPOSITORY

TEXTS = sorted(
    path
    for pattern in ("keras_vit/**/*.py", "examples/*.py", "benchmarks/*.py", "*.md", "docs/*.md")
    for path in REPOSITORY.glob(pattern)
)


@pytest.fixture(scope="module")
def extras() -> set[str]:
    """Of the installed distribution, as its metadata has them."""
    return set(metadata.metadata(DISTRIBUTION).get_all("Provides-Extra"))


def test_the_distribution_is_this_package() -> None:
    assert metadata.version(DISTRIBUTION) == __version__
    scripts = metadata.distribution(DISTRIBUTION).entry_points
    assert [script.value for script in scripts] == ["keras_vit_cli.start:main"]


@pytest.mark.parametrize("path", TEXTS, ids=lambda path: path.relative_to(REPOSITORY).as_posix())
def test_nothing_installs_the_other_project(path: Path, extras: set[str]) -> None:
    text = path.read_text("utf-8")
    assert "keras_vit[" not in text
    assert "keras-vit[" not in text
    groups = re.findall(rf"(?:{DISTRIBUTION}|'\.)\[([a-z,]+)\]", text)
    for call in re.findall(r'install_command\(("[^)]*)\)', text):
        groups.append(",".join(re.findall(r"\w+", call)))
    for group in groups:
        assert set(group.split(",")) <= extras, group


def test_a_message_names_extras_that_exist(extras: set[str]) -> None:
    command = f"pip install '{DISTRIBUTION}[tensorflow,plots]'"
    assert install_command("tensorflow", "plots") == command
    assert {"tensorflow", "jax", "torch", "plots", "train", "all"} <= extras
