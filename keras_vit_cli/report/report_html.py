"""The report for a browser: `report.html`, one file with its plots, tables that sort."""

from html import escape
from pathlib import Path

from markdown_it import MarkdownIt

from keras_vit_cli.page_parts import in_base64, page_head, sha256_source, template


def report_html(page: str, folder: Path, plots: tuple[str, ...]) -> str:
    """Return a report in Markdown as a page that needs no other file and requests none.

    Args:
        page: What `report_page` wrote. HTML within it is text.
        plots: Names of PNG files there; another image is left out.

    Raises:
        OSError: A plot cannot be read.
    """
    # As GitHub reads `report.md`, without HTML; Keras brings the parser, by rich.
    reader = MarkdownIt("commonmark", {"html": False}).enable("table")
    tokens = reader.parse(page)
    inner = [child for token in tokens for child in token.children or ()]
    for image in (token for token in inner if token.type == "image"):
        if image.attrs["src"] in plots:
            content = (folder / str(image.attrs["src"])).read_bytes()
            image.attrs["src"] = f"data:image/png;base64,{in_base64(content)}"
        else:
            image.attrs["src"] = "data:,"
    html = template("report", "report.html")
    # The text of the first heading, for the name of the window.
    title = escape("".join(child.content for child in tokens[1].children or ()))
    return html.substitute(
        head=page_head("report", title, sha256_source(html.template, "script")),
        body=reader.renderer.render(tokens, reader.options, {}),
    )
