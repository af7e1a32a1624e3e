"""The page at `/`, from the template `page.html` beside this file."""

import json
from functools import cache
from html import escape

from keras_vit._base.errors import printable
from keras_vit.tasks.class_colors import color_table
from keras_vit_cli.page_parts import sha256_source, template
from keras_vit_cli.serve.model import ServedModel


def render_page(title: str, model: ServedModel, max_bytes: int) -> str:
    """Return the page for a model; names of files and classes may be any text: they are escaped."""
    height, width = model.image_size
    names = "; ".join(model.class_names[:8])
    return template("serve/page.html").substitute(
        title=escape(printable(title)),
        facts=escape(
            f"{model.task.kind.capitalize()} of {model.task.size}: {names}"
            + ("; and more." if len(model.class_names) > 8 else ".")
            + f" The model sees {width} × {height} pixels."
        ),
        attention="yes" if model.explain else "no",
        max_bytes=max_bytes,
        colors=escape(json.dumps(_colors(model))),
    )


def _colors(model: ServedModel) -> dict[str, str]:
    """Return the color of each class of pixels, as the page writes it; of other answers, none."""
    if not hasattr(model.task, "colors"):
        return {}
    table = color_table(model.task.colors)
    return {
        name: "#{:02x}{:02x}{:02x}".format(*table[i].tolist())
        for i, name in enumerate(model.class_names)
    }


@cache
def page_headers() -> dict[str, str]:
    """Return headers that allow the page's own style and script, by their hashes, and no others."""
    page = template("serve/page.html").template
    style, script = (sha256_source(page, tag) for tag in ("style", "script"))
    policy = {
        "default-src": "'none'",
        "style-src": style,
        "script-src": script,
        "img-src": "blob: data:",
        "connect-src": "'self'",
        "base-uri": "'none'",
        "form-action": "'none'",
        "frame-ancestors": "'none'",
    }
    return {
        "content-security-policy": "; ".join(" ".join(rule) for rule in policy.items()),
        "referrer-policy": "no-referrer",
    }
