"""Names of files and classes as plain text in Markdown, whatever they contain, and tables."""

import re
from collections.abc import Iterable, Sequence

from keras_vit._base.errors import printable

# What CommonMark and GitHub read as markup within a line, formulas between dollars included.
# An underscore within a word is not markup.
_MARKUP = re.compile(r"[\\`*\[\]|~$]|(?<![^\W_])_|_(?![^\W_])")
_ENTITIES = {"&": "&amp;", "<": "&lt;", ">": "&gt;"}


def inline(text: str) -> str:
    """Escapes a text for one line of Markdown or a cell of a table.

    Control characters become visible escapes first; see `keras_vit._base.errors.printable`.

    Example:

    >>> from keras_vit.evaluation.markdown import inline
    >>> print(inline("sun_flower | <script>"))
    sun_flower \\| &lt;script&gt;
    """
    escaped = _MARKUP.sub(r"\\\g<0>", printable(text))
    return "".join(_ENTITIES.get(character, character) for character in escaped)


def code(text: str) -> str:
    """Return a text as a code span, which no backtick in it ends.

    Example:

    >>> from keras_vit.evaluation.markdown import code
    >>> print(code("a`b"))
    ``a`b``
    """
    text = printable(text)
    fence = "`" * (max(map(len, re.findall("`+", text)), default=0) + 1)
    # One space is stripped again where both ends have one.
    padded = f" {text} " if text.startswith(("`", " ")) or text.endswith(("`", " ")) else text
    return f"{fence}{padded}{fence}"


def table(header: Sequence[str], rows: Iterable[Sequence[object]], align: str = "") -> str:
    """Return a table whose cells are plain text; `align` has an "l" or "r" per column, or is empty.

    Example:

    >>> from keras_vit.evaluation.markdown import table
    >>> print(table(("class", "F1"), [("cat", 0.5)], "lr"))
    | class | F1 |
    |---|---:|
    | cat | 0.5 |
    """
    rule = "|".join("---:" if side == "r" else "---" for side in align or "l" * len(header))
    cells = [header, *([inline(str(cell)) for cell in row] for row in rows)]
    first, *body = (f"| {' | '.join(row)} |" for row in cells)
    return "\n".join([first, f"|{rule}|", *body])
