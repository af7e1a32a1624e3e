"""Every Python block of the documentation runs, and every command line is one that is accepted."""

import argparse
import json
import re
import runpy
from pathlib import Path
from typing import Any

import pytest

from keras_vit_cli.arguments import parse
from tests.conftest import REPOSITORY
from tests.docs import stand_ins
from tests.docs.blocks import blocks_of, commands, is_script, pages, python_blocks

PAGES = {page.relative_to(REPOSITORY).as_posix(): page for page in pages()}
SLOW = ("docs/export.md",)  # four exports, each in a process of its own
# Commands whose effect the continuous integration has: environments, installations, make targets.
RUN_BY_CI = ("make", "pip", "python3", ".", "pytest")
# A reader and the highlighter both need the language; plain blocks are output.
LANGUAGES = {"", "bash", "python", "text", "indented", "mermaid", "yaml", "dockerfile"}
WITH_PYTHON = [
    pytest.param(name, marks=[pytest.mark.slow] * (name in SLOW))
    for name, page in PAGES.items()
    if python_blocks(page)
]


@pytest.mark.backends("jax")  # which has all three kinds of distribution
@pytest.mark.parametrize("name", WITH_PYTHON)
def test_python_blocks_run(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Page by page, in one namespace, as a reader would: a block may use names of earlier ones."""
    pytest.importorskip("tensorflow")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    with stand_ins.small_models(monkeypatch):
        names = stand_ins.names(tmp_path, name)
        for block in [block for block in python_blocks(PAGES[name]) if not block.reason]:
            code = block.code
            for text, replacement in stand_ins.REPLACED.items():
                code = code.replace(text, replacement)
            exec(compile("\n" * (block.line - 1) + code, str(PAGES[name]), "exec"), names)


class Accepted(Exception):
    """Raised where a script would begin its work."""


@pytest.mark.parametrize("name", PAGES)
def test_commands_are_accepted_or_marked(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Scripts, commands of other programs, and files for them, say why they are not run."""
    page, parse_args = PAGES[name], argparse.ArgumentParser.parse_args

    def parse_alone(*arguments: Any) -> None:
        parse_args(*arguments)
        raise Accepted

    monkeypatch.setattr(argparse.ArgumentParser, "parse_args", parse_alone)
    monkeypatch.syspath_prepend(str(REPOSITORY / "examples"))
    assert {block.language for block in blocks_of(page)} <= LANGUAGES
    for block in blocks_of(page):
        assert block.language not in ("yaml", "dockerfile") or block.reason, block
    for block, words in commands(page):
        is_python = words[0].endswith("python")
        is_run = words[0] in ("keras-vit", *RUN_BY_CI) or (is_python and not is_script(words))
        is_output = block.language == "indented" and not (is_run or is_python)
        assert is_run or is_output or block.reason, f"{block}: {words[0]} needs a reason"
        if words[0] == "keras-vit":
            parse(words[1:])  # tests/docs/test_commands.py runs them
        elif is_script(words):
            is_module = words[1] == "-m"
            script, *rest = words[2 if is_module else 1 :]
            assert not is_module or script in ("benchmarks", "docs.tools.zoo"), block
            monkeypatch.setattr("sys.argv", [script, *rest])
            path = REPOSITORY / (script.replace(".", "/") if is_module else script)
            with pytest.raises(Accepted):
                runpy.run_path(str(path), run_name="__main__")


def test_files_of_deploy_are_quoted_and_start_commands_that_exist() -> None:
    """In the page of the server: the container and the unit of systemd; others are named."""
    page = PAGES["docs/serving.md"]
    quoted = [block.code for block in blocks_of(page)]
    for file in (REPOSITORY / "deploy").iterdir():
        is_long = file.suffix in (".json", ".py")
        assert is_long or file.read_text("utf-8") in quoted, file.name
        texts = (path.read_text("utf-8") for path in PAGES.values())
        assert any(f"`deploy/{file.name}`" in text for text in texts), file.name
    text = (REPOSITORY / "deploy/Dockerfile").read_text("utf-8")
    found = [re.search(rf"^{name} (\[.*\])$", text, re.M)[1] for name in ("ENTRYPOINT", "CMD")]
    program, *words = [word for line in found for word in json.loads(line)]
    options = parse(words)
    assert (program, options["host"], options["log_requests"]) == ("keras-vit", "0.0.0.0", True)
    assert f"EXPOSE {options['port']}\n" in text
    unit = (REPOSITORY / "deploy/keras-vit.service").read_text("utf-8")
    (line,) = re.findall(r"^ExecStart=(.*)$", unit, re.M)
    program, *words = line.split()
    assert Path(program).name == "keras-vit"
    assert parse(words)["log_requests"]
