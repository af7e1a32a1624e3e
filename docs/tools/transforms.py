"""What Sphinx changes in a page: tables, plain code, code that is not run."""

import re
from typing import Any

from docutils import nodes
from sphinx.transforms import SphinxTransform
from sphinx.transforms.post_transforms import SphinxPostTransform

MARK = re.compile(r"\s*<!-- (?P<scripts>scripts )?not run: (?P<reason>.+?) -->\s*")


class PlainBlocks(SphinxTransform):
    """Shows code without a language as shell commands or as text, and not as Python."""

    default_priority = 11

    def apply(self, **_: Any) -> None:
        for block in self.document.findall(nodes.literal_block):
            if "language" not in block:
                is_command = re.match(
                    r"(?:[A-Z_]+=\S+ )*(?:keras-vit|python|pip|make|pytest)\b", block.astext()
                )
                block["language"] = "bash" if is_command else "text"


class Cells(SphinxTransform):
    """Marks cells that hold one name in code, which stays whole, and long ones, which stay wide."""

    default_priority = 12
    LONG = 60  # letters

    def apply(self, **_: Any) -> None:
        for entry in self.document.findall(nodes.entry):
            inner = list(entry.findall(nodes.TextElement))
            kinds = [type(node) for node in inner]
            if kinds == [nodes.paragraph, nodes.literal] and len(inner[0].children) == 1:
                entry["classes"].append("name")
            if len(entry.astext()) > self.LONG:
                entry["classes"].append("long")


class Dashes(SphinxPostTransform):
    """Puts a dash between an argument and its description, where Sphinx has two hyphens."""

    default_priority = 12

    def run(self, **_: Any) -> None:
        for text in list(self.document.findall(nodes.Text)):
            if text == " -- ":
                text.parent.replace(text, nodes.Text(" – "))


class NotRun(SphinxTransform):
    """Shows `<!-- not run: REASON -->` above a block of code as a line that a reader sees.

    `<!-- scripts not run: REASON -->` holds for all scripts and benchmarks of its page.
    """

    default_priority = 10

    def apply(self, **_: Any) -> None:
        for raw in list(self.document.findall(nodes.raw)):
            if match := MARK.fullmatch(raw.astext()):
                what = "Scripts of this page are not run" if match["scripts"] else "Not run"
                text = f"{what} by the tests: {match['reason']}"
                raw.replace_self(nodes.paragraph("", text, classes=["not-run"]))


def setup(app: Any) -> dict[str, bool]:
    """Registers the transforms with Sphinx."""
    app.add_transform(PlainBlocks)
    app.add_transform(Cells)
    app.add_post_transform(Dashes)
    app.add_transform(NotRun)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
