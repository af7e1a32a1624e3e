"""Commands in messages and documents install this package, under its own distribution name."""

import re
from importlib import metadata

from keras_vit._base.version import DISTRIBUTION, __version__, install_command
from tests.conftest import REPOSITORY

PLACES = ("keras_vit/**/*.py", "examples/*.py", "benchmarks/*.py", "*.md", "docs/*.md")
TEXTS = sorted(path for pattern in PLACES for path in REPOSITORY.glob(pattern))
EXTRAS = set(metadata.metadata(DISTRIBUTION).get_all("Provides-Extra"))


def test_the_distribution_is_this_package() -> None:
    assert metadata.version(DISTRIBUTION) == __version__
    scripts = metadata.distribution(DISTRIBUTION).entry_points
    assert [script.value for script in scripts] == ["keras_vit_cli.start:main"]
    # A message names extras that exist.
    command = f"pip install '{DISTRIBUTION}[tensorflow,plots]'"
    assert install_command("tensorflow", "plots") == command
    assert {"tensorflow", "jax", "torch", "plots", "train", "all"} <= EXTRAS


def test_nothing_installs_the_other_project() -> None:
    assert len(TEXTS) > 100
    wrong: list[str] = []
    for path in TEXTS:
        text = path.read_text("utf-8")
        wrong += [f"{path}: {other}" for other in ("keras_vit[", "keras-vit[") if other in text]
        groups = re.findall(rf"(?:{DISTRIBUTION}|'\.)\[([a-z,]+)\]", text)
        for call in re.findall(r'install_command\(("[^)]*)\)', text):
            groups.append(",".join(re.findall(r"\w+", call)))
        wrong += [f"{path}: [{group}]" for group in groups if not set(group.split(",")) <= EXTRAS]
    assert not wrong
