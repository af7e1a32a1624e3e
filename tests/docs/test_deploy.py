"""The files in `deploy/`: the page of the server quotes them, and their commands exist."""

import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from keras_vit_cli.arguments import parse
from tests.conftest import REPOSITORY
from tests.docs.blocks import blocks_of

FILES = sorted((REPOSITORY / "deploy").iterdir())
PAGE = REPOSITORY / "docs/serving.md"


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.name)
def test_the_page_quotes_the_file(file: Path) -> None:
    assert file.read_text("utf-8") in [block.code for block in blocks_of(PAGE)]
    assert f"`deploy/{file.name}`" in PAGE.read_text("utf-8")


def test_the_container_starts_a_command_that_exists() -> None:
    text = (REPOSITORY / "deploy/Dockerfile").read_text("utf-8")
    words = []
    for instruction in ("ENTRYPOINT", "CMD"):
        words += json.loads(re.search(rf"^{instruction} (\[.*\])$", text, re.M)[1])
    assert words[0] == "keras-vit"
    options = parse(words[1:])
    assert (options["host"], options["log_requests"]) == ("0.0.0.0", True)
    assert f"EXPOSE {options['port']}\n" in text
    assert f"http://127.0.0.1:{options['port']}/ready" in text


def test_the_unit_starts_a_command_that_exists(tmp_path: Path) -> None:
    file = REPOSITORY / "deploy/keras-vit.service"
    (line,) = re.findall(r"^ExecStart=(.*)$", file.read_text("utf-8"), re.M)
    program, *words = line.split()
    assert Path(program).name == "keras-vit"
    assert parse(words)["log_requests"]
    if shutil.which("systemd-analyze"):
        unit = tmp_path / file.name  # the program is not installed here
        unit.write_text(file.read_text("utf-8").replace(program, "/bin/true"))
        done = subprocess.run(
            ["systemd-analyze", "verify", str(unit)], capture_output=True, text=True
        )
        assert file.name not in done.stderr, done.stderr
