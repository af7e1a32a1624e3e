"""The code blocks of README.md, docs/**/*.md and the text of the guides."""

import itertools
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from tests.conftest import REPOSITORY

# `<!-- not run: REASON -->` above a block; the site shows the reason. In the text of a guide, an
# empty line has to follow it.
BLOCK = re.compile(
    r"(?:^<!-- not run: (?P<reason>[^\n]+?) -->\n\n?)?"
    r"^(?P<indent> *)```(?P<language>\w*)[^\n]*\n(?P<code>.*?)^(?P=indent)```",
    re.S | re.M,
)
# The reason for all Python scripts and benchmarks of a page.
OF_SCRIPTS = re.compile(r"^<!-- scripts not run: (?P<reason>[^\n]+?) -->$", re.M)
INDENTED = re.compile(r"(?<=\n\n)(?: {4}\S[^\n]*\n)(?: {4}[^\n]*\n|\n(?= {4}))*")


class Block(NamedTuple):
    page: str
    line: int
    language: str
    code: str
    reason: str | None = None

    def __str__(self) -> str:
        return f"{self.page}:{self.line}"


def pages() -> list[Path]:
    """Every page that is written by hand, and the scripts of the guides."""
    docs = REPOSITORY / "docs"
    written = (page for page in sorted(docs.rglob("*.md")) if "generated" not in page.parts)
    return [REPOSITORY / "README.md", *written, *sorted((docs / "guides").glob("*.py"))]


def text_of(page: Path) -> str:
    """A page; of a guide, only the text between its cells of code, on the same lines."""
    text = page.read_text("utf-8")
    if page.suffix != ".py":
        return text
    lines, is_text = [], False
    for line in text.splitlines():
        if line.startswith("# %%"):
            is_text = "[markdown]" in line
            line = ""
        lines.append(line[2:] if is_text else "")
    return "\n".join(lines) + "\n"


def blocks_of(page: Path) -> list[Block]:
    text, name = text_of(page), page.relative_to(REPOSITORY).as_posix()
    found_at = {}
    for match in BLOCK.finditer(text):
        code = re.sub(rf"^{match['indent']}", "", match["code"], flags=re.M)
        line = text.count("\n", 0, match.start("code")) + 1
        found_at[match.start("code")] = Block(name, line, match["language"], code, match["reason"])
    rest = BLOCK.sub(lambda match: re.sub(r"[^\n]", ".", match.group()), text)
    for match in INDENTED.finditer(rest):
        code = re.sub(r"^ {4}", "", match.group(), flags=re.M)
        line = text.count("\n", 0, match.start()) + 1
        found_at[match.start()] = Block(name, line, "indented", code)
    return [block for _, block in sorted(found_at.items())]


def python_blocks(page: Path) -> list[Block]:
    return [block for block in blocks_of(page) if block.language == "python"]


def commands(page: Path) -> Iterator[tuple[Block, list[str]]]:
    """The words of each shell command of a page, without variables in front of it."""
    of_scripts = OF_SCRIPTS.search(text_of(page))
    for block in blocks_of(page):
        if block.language not in ("bash", "sh", "indented"):
            continue
        for line in block.code.replace("\\\n", " ").splitlines():
            is_ours = "keras-vit" in line or "python " in line  # output may have any quotes
            words = shlex.split(line, comments=True) if is_ours else line.split()
            for command in _simple_commands(words):
                by_page = of_scripts and is_script(command)
                yield block._replace(reason=of_scripts["reason"]) if by_page else block, command


def is_script(command: list[str]) -> bool:
    tools = (["-m", "pytest"], ["-m", "pip"], ["-m", "http.server"])
    return command[0].endswith("python") and command[1:3] not in tools


def _simple_commands(words: list[str]) -> Iterator[list[str]]:
    for is_end, group in itertools.groupby(words, ("&&", "|", ";").__contains__):
        command = [word for word in group if word != "..."]
        command = [*itertools.dropwhile(re.compile(r"[A-Z_]+=.*").fullmatch, command)]
        if command and not is_end:
            yield command
