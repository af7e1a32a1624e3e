"""Parts of the pages that commands write: templates, style, names, images, data."""

import base64
import hashlib
import io
import json
import re
from collections.abc import Mapping
from functools import cache
from html import escape
from importlib.resources import files
from string import Template
from typing import Any

from keras_vit._base.errors import printable

_END = 8  # letters of a name that stay together: "_2.jpeg" is a line, "g" is not


def packaged(path: str) -> str:
    """Return the text of a file of this package."""
    return files("keras_vit_cli").joinpath(path).read_text("utf-8")


@cache
def template(path: str) -> Template:
    """Return the template of a page in this package."""
    return Template(packaged(path))


def script_data(data: Any) -> str:
    """Return JSON for a page's script: `</script>` in a file's name would end the element."""
    return json.dumps(data).replace("<", "\\u003c")


def file_list(reasons: Mapping[Any, str]) -> str:
    """Return the items of a list of files that cannot be read, each with the reason, as HTML."""
    return "".join(
        f"<li>{escape(printable(file))}: {escape(printable(reason))}</li>"
        for file, reason in reasons.items()
    )


def page_head(command: str, title: str, scripts: str = "'unsafe-inline'") -> str:
    """Return how a page begins, up to the style that is its own.

    Args:
        command: Which writes it, by which its file is recognized.
        title: Escaped.
        scripts: The scripts that the page may run, a source of a Content-Security-Policy.
    """
    page = template("head.html")
    return page.substitute(command=command, title=title, scripts=scripts)


def breakable(name: str) -> str:
    """Return a name as HTML that breaks after its marks, but not within its last letters."""
    head, end = name[:-_END], name[-_END:]
    parts = re.split(r"(?<=[-_ ./])", head)
    return "<wbr>".join(map(escape, parts)) + f"<span class=end>{escape(end)}</span>"


def in_base64(content: bytes) -> str:
    """Return bytes as a page has them."""
    return base64.b64encode(content).decode("ascii")


def jpeg_uri(image: Any, quality: int) -> str:
    """Return a Pillow image as a JPEG file that stands in the page itself."""
    buffer = io.BytesIO()
    image.save(buffer, "JPEG", quality=quality)
    return f"data:image/jpeg;base64,{in_base64(buffer.getvalue())}"


def sha256_source(page: str, tag: str) -> str:
    """Return the source of a Content-Security-Policy that allows a page's script or style alone."""
    text = page.partition(f"<{tag}>")[2].partition(f"</{tag}>")[0]
    return f"'sha256-{in_base64(hashlib.sha256(text.encode()).digest())}'"
