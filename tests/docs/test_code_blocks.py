"""Every Python block of the documentation runs, and every command line is one that is accepted."""

import argparse
import runpy
from pathlib import Path
from typing import Any

import pytest

from keras_vit_cli.arguments import parse
from tests.conftest import REPOSITORY
from tests.docs import stand_ins
from tests.docs.blocks import blocks_of, commands, is_script, pages, python_blocks

SLOW = ("docs/export.md",)  # four exports, each in a process of its own
EACH_PAGE = pytest.mark.parametrize(
    "page", [pytest.param(p, id=p.relative_to(REPOSITORY).as_posix()) for p in pages()]
)


def _pages_with_python() -> list[Any]:
    names = {page.relative_to(REPOSITORY).as_posix(): page for page in pages()}
    return [
        pytest.param(page, id=name, marks=[pytest.mark.slow] * (name in SLOW))
        for name, page in names.items()
        if python_blocks(page)
    ]


@pytest.mark.backends("jax")  # which has all three kinds of distribution
@pytest.mark.parametrize("page", _pages_with_python())
def test_python_blocks_run(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Page by page, in one namespace, as a reader would: a block may use names of earlier ones."""
    pytest.importorskip("tensorflow")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    with stand_ins.small_models(monkeypatch):
        names = stand_ins.names(tmp_path, page.relative_to(REPOSITORY).as_posix())
        for block in python_blocks(page):
            if block.reason:
                continue
            code = block.code
            for text, replacement in stand_ins.REPLACED.items():
                code = code.replace(text, replacement)
            exec(compile("\n" * (block.line - 1) + code, str(page), "exec"), names)


class Accepted(Exception):
    """Raised where a script would begin its work."""


@EACH_PAGE
def test_commands_are_accepted(page: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    parse_args = argparse.ArgumentParser.parse_args

    def parse_alone(*arguments: Any) -> None:
        parse_args(*arguments)
        raise Accepted

    monkeypatch.setattr(argparse.ArgumentParser, "parse_args", parse_alone)
    monkeypatch.syspath_prepend(str(REPOSITORY / "examples"))
    for block, words in commands(page):
        if words[0] == "keras-vit":
            parse(words[1:])  # tests/docs/test_commands.py runs them
        elif words[0].endswith("python") and is_script(words):
            _parse_script(words[1:], monkeypatch, str(block))


def _parse_script(words: list[str], patch: pytest.MonkeyPatch, block: str) -> None:
    patch.setattr("sys.argv", words)
    if words[0] == "-m":
        assert words[1] in ("benchmarks", "docs.tools.zoo"), block
        patch.setattr("sys.argv", words[1:])
        words = [words[1].replace(".", "/")]
    with pytest.raises(Accepted):
        runpy.run_path(str(REPOSITORY / words[0]), run_name="__main__")


# Commands whose effect the continuous integration has: environments, installations, make targets.
RUN_BY_CI = ("make", "pip", "python3", ".", "pytest")


# A reader and the highlighter both need the language; plain blocks are output.
LANGUAGES = {"", "bash", "python", "text", "indented", "mermaid", "yaml", "dockerfile"}


@EACH_PAGE
def test_what_no_test_runs_is_marked(page: Path) -> None:
    """Scripts, commands of other programs, and files for them, say why they are not run."""
    assert {block.language for block in blocks_of(page)} <= LANGUAGES
    for block, words in commands(page):
        is_python = words[0].endswith("python")
        is_run = words[0] in ("keras-vit", *RUN_BY_CI) or (is_python and not is_script(words))
        is_output = block.language == "indented" and not (is_run or is_python)
        assert is_run or is_output or block.reason, f"{block}: {words[0]} needs a reason"
    for block in blocks_of(page):
        assert block.language not in ("yaml", "dockerfile") or block.reason, block
