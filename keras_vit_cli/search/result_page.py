"""A page of photographs in groups: one HTML file with thumbnails that needs no other file."""

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from html import escape
from itertools import chain
from pathlib import Path
from typing import Any
from urllib.parse import quote

from keras_vit._base.errors import printable
from keras_vit._base.files import atomic_write, begins_with_mark, path_from
from keras_vit._base.processors import available_processors
from keras_vit.data import BadImageError
from keras_vit.data.decode.image_files import displayed_image, read_contents
from keras_vit_cli.page_parts import (
    breakable,
    file_list,
    jpeg_uri,
    packaged,
    page_head,
    script_data,
    template,
)
from keras_vit_cli.search.result_table import is_result_table

MARK = b'content="keras_vit search"'
SIDE = 240  # pixels of a thumbnail's longer side
_AHEAD = 64  # thumbnails that are in memory at once


@dataclass(frozen=True)
class Card:
    """A photograph: its name, its file, and a line on it; `source` is an image in its place."""

    name: str
    path: Path
    facts: str
    source: str | None = None


@dataclass(frozen=True)
class Section:
    """Photographs under a heading; `query` is the one that they are like, if there is one."""

    title: str
    note: str
    cards: Sequence[Card]
    query: Path | None = None


def check_page(out: Path, overwrite: bool) -> None:
    """Refuses a page that would replace a file, before any work.

    Raises:
        ValueError: `out` does not end in .html.
        FileExistsError: There is a page, and `overwrite` is False; or a file that this package did
            not write.
    """
    if out.suffix.lower() not in (".html", ".htm"):
        raise ValueError(f"--out {printable(out)} must end in .html: a CSV file is put beside it.")
    table = out.with_suffix(".csv")
    if not os.path.lexists(out):
        if os.path.lexists(table):
            raise FileExistsError(
                f"{printable(table)} would be replaced, and there is no page beside it that would "
                "show who wrote it. Give another --out."
            )
        return
    is_table = not os.path.lexists(table) or is_result_table(table)
    if not (is_table and begins_with_mark(out, MARK)):
        raise FileExistsError(
            f"{printable(out if is_table else table)} was not written by keras-vit search or "
            "cluster, and would be replaced. Give another --out."
        )
    if not overwrite:
        raise FileExistsError(f"{printable(out)} exists. Give another --out, or --overwrite.")


def write_result_page(
    out: Path,
    title: str,
    facts: str,
    sections: Iterable[Section],
    failed: Mapping[Path, str],
    bands: tuple[int, ...] | None = None,
) -> None:
    """Writes the page from the template `results.html` beside this file, a thumbnail at a time.

    Thumbnails of raster files are of these `bands`.
    Names of files and classes may be any text, even bytes that are not UTF-8: they are escaped.
    """
    rows, title = file_list(failed), escape(printable(title))
    page = template("search/results.html").substitute(
        head=page_head("search", title, "'none'") + packaged("search/cards.css"),
        title=title,
        facts=escape(printable(facts)),
        failed=f"<div class=failed>Not read:<ul>{rows}</ul></div>" if rows else "",
        sections="\0",
    )
    write_parts(out, page, chain.from_iterable(_section(s, out.parent, bands) for s in sections))


def write_parts(out: Path, page: str, parts: Iterable[str]) -> None:
    """Write a page with these parts, one after the other, in place of its zero byte."""
    out.parent.mkdir(parents=True, exist_ok=True)
    begin, end = page.split("\0")
    with atomic_write(out) as temporary, temporary.open("w", encoding="utf-8") as file:
        file.writelines(chain([begin], parts, [end]))


def deciding_page(command: str, title: str, facts: str, data: Any) -> str:
    """Return the page of a command on which photographs are decided on, a zero byte for these.

    From the template of the command, `COMMAND.html` in its folder, and what such pages share.

    Args:
        data: For the script: `key`, under which the browser keeps decisions, `columns` of the
            table to download, `photos` by their rows, with `name` and `digest`; and the page's own.
    """
    title = escape(printable(title))
    styles = packaged("search/cards.css") + packaged("search/deciding.css")
    return template(f"{command}/{command}.html").substitute(
        head=page_head(command, title) + styles,
        title=title,
        facts=escape(printable(facts)),
        photos="\0",
        data=script_data(data),
        script=packaged("search/deciding.js"),
    )


def _section(section: Section, folder: Path, bands: tuple[int, ...] | None) -> Iterator[str]:
    yield "<section><div class=head>"
    if section.query is not None:
        source = thumbnail(section.query, bands)
        yield (
            f'<img class=query src="{source}" alt="The photograph searched for">' if source else ""
        )
    note = escape(printable(section.note))
    yield f"<div><h2>{breakable(printable(section.title))}</h2><p class=note>{note}</p></div></div>"
    yield '<ul class="cards">\n'
    made = thumbnails([card.path for card in section.cards if card.source is None], bands)
    for card in section.cards:
        source = next(made) if card.source is None else card.source
        yield f"<li>{photo(card, source, folder)}</li>\n"
    yield "</ul></section>\n"


def photo(card: Card, source: str | None, folder: Path, link: str = "") -> str:
    """Return a photograph with its name and facts, as HTML; `link` has attributes of its link."""
    name = printable(card.name)
    if source is None:
        image = "<span class=gone>the file is gone, or cannot be read</span>"
    else:
        image = f'<img src="{source}" alt="{escape(name)}" loading="lazy">'
    return (
        f'<a {link}href="{link_to(card.path, folder)}">{image}</a><p>{breakable(name)}</p>'
        f"<p class=facts>{escape(printable(card.facts))}</p>"
    )


def link_to(path: Path, folder: Path) -> str:
    """Return the address of a file on a page in `folder`."""
    # Bytes, as the file system has them: a name need not be UTF-8.
    return quote(os.fsencode(path_from(folder, path)))


def thumbnails(paths: Sequence[Path], bands: tuple[int, ...] | None) -> Iterator[str | None]:
    """Yield the `thumbnail` of each file, made by threads, some before they are asked for."""
    with ThreadPoolExecutor(min(4, available_processors())) as threads:
        for start in range(0, len(paths), _AHEAD):
            some = paths[start : start + _AHEAD]
            yield from threads.map(lambda path: thumbnail(path, bands), some)


def thumbnail(path: Path, bands: tuple[int, ...] | None = None) -> str | None:
    """Return a small JPEG file as a URI; None for a file that is gone or cannot be read.

    Of a raster file it shows the first three of `bands`, or the first one.
    """
    from PIL import Image

    try:
        image = Image.fromarray(displayed_image(read_contents(path), bands))
    except (OSError, BadImageError):
        return None
    image.thumbnail((SIDE, SIDE))
    return jpeg_uri(image, quality=80)
