"""Names of files and classes as text in Markdown, whatever they contain."""

import re

from keras_vit.errors import printable

# What CommonMark and GitHub read as markup within a line, formulas between dollars included.
# An underscore within a word is none.
_MARKUP = re.compile(r"[\\`*\[\]|~$]|(?<![^\W_])_|_(?![^\W_])")
_ENTITIES = {"&": "&amp;", "<": "&lt;", ">": "&gt;"}


def inline(text: str) -> str:
    """A text on one line of Markdown, or in a cell of a table, that is shown as it is.

    Control characters become visible escapes first; see `keras_vit.errors.printable`.

    Example:

    >>> from keras_vit.evaluation.markdown import inline
    >>> print(inline("sun_flower | <script>"))
    sun_flower \\| &lt;script&gt;
    """
    escaped = _MARKUP.sub(r"\\\g<0>", printable(text))
    return "".join(_ENTITIES.get(character, character) for character in escaped)


def code(text: str) -> str:
    """A text as a code span, which no backtick in it ends.

    Example:

    >>> from keras_vit.evaluation.markdown import code
    >>> print(code("a`b"))
    ``a`b``
    """
    text = printable(text)
    fence = "`" * (max(map(len, re.findall("`+", text)), default=0) + 1)
    # A space inside is taken off again where both ends have one.
    padded = f" {text} " if text.startswith(("`", " ")) or text.endswith(("`", " ")) else text
    return f"{fence}{padded}{fence}"
