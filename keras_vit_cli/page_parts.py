"""Parts of the pages that commands write: style, names, images."""

import base64
import hashlib
import io
import re
from html import escape
from importlib.resources import files
from typing import Any

_END = 8  # letters of a name that stay together: "_2.jpeg" is a line, "g" is not


def base_style() -> str:
    """Return the colors and letters of every page, for its `<style>`."""
    return files("keras_vit_cli").joinpath("base.css").read_text("utf-8")


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


def sha256_source(text: str) -> str:
    """Return the source of a Content-Security-Policy that allows this script or style alone."""
    return f"'sha256-{in_base64(hashlib.sha256(text.encode()).digest())}'"
