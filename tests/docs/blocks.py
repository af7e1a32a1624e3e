"""The code blocks of README.md and docs/**/*.md."""

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.conftest import REPOSITORY

# `<!-- not run: REASON -->` directly above a block; the site shows the reason.
BLOCK = re.compile(
    r"(?:^<!-- not run: (?P<reason>[^\n]+?) -->\n)?"
    r"^(?P<indent> *)```(?P<language>\w*)[^\n]*\n(?P<code>.*?)^(?P=indent)```",
    re.S | re.M,
)
INDENTED = re.compile(r"(?<=\n\n)(?: {4}\S[^\n]*\n)(?: {4}[^\n]*\n|\n(?= {4}))*")


@dataclass(frozen=True)
class Block:
    """One block of code: its page and first line, language, text, and why it is not run."""

    page: str
    line: int
    language: str
    code: str
    reason: str | None = None

    def __str__(self) -> str:
        return f"{self.page}:{self.line}"


def pages() -> list[Path]:
    """Every page that is written by hand."""
    docs = REPOSITORY / "docs"
    written = (page for page in sorted(docs.rglob("*.md")) if "generated" not in page.parts)
    return [REPOSITORY / "README.md", *written]


def blocks_of(page: Path) -> list[Block]:
    """The fenced and the indented blocks of a page, in their order."""
    text, name = page.read_text("utf-8"), page.relative_to(REPOSITORY).as_posix()
    found_at = {
        match.start("code"): Block(
            name,
            text.count("\n", 0, match.start("code")) + 1,
            match["language"],
            re.sub(rf"^{match['indent']}", "", match["code"], flags=re.M),
            match["reason"],
        )
        for match in BLOCK.finditer(text)
    }
    rest = BLOCK.sub(lambda match: re.sub(r"[^\n]", ".", match.group()), text)
    for match in INDENTED.finditer(rest):
        code = re.sub(r"^ {4}", "", match.group(), flags=re.M)
        line = text.count("\n", 0, match.start()) + 1
        found_at[match.start()] = Block(name, line, "indented", code)
    return [block for _, block in sorted(found_at.items())]


def python_blocks(page: Path) -> list[Block]:
    """The blocks of a page in Python."""
    return [block for block in blocks_of(page) if block.language == "python"]


def commands(page: Path) -> Iterator[tuple[Block, list[str]]]:
    """The words of each shell command of a page, without variables in front of it."""
    for block in blocks_of(page):
        if block.language not in ("bash", "sh", "indented"):
            continue
        for line in block.code.replace("\\\n", " ").splitlines():
            words = shlex.split(line, comments=True) if "keras-vit" in line else line.split()
            for command in _simple_commands(words):
                yield block, command


def _simple_commands(words: list[str]) -> Iterator[list[str]]:
    command: list[str] = []
    for word in [*words, "&&"]:
        if word in ("&&", "|", ";"):
            while command and re.fullmatch(r"[A-Z_]+=.*", command[0]):
                del command[0]
            if command:
                yield command
            command = []
        elif word not in ("...",):
            command.append(word)
