"""Links of a built site: dead ones within it, and those that leave it."""

from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

LINKS = {"a": "href", "link": "href", "img": "src", "script": "src", "source": "src"}


class _Page(HTMLParser):
    """The links of a page and the anchors that others may point to."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.links: list[str] = []
        self.anchors: set[str] = set()
        self.feed(text)

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        values = {name: value for name, value in attributes if value}
        self.anchors |= {values[name] for name in ("id", "name") if name in values}
        if link := values.get(LINKS.get(tag, "")):
            self.links.append(link)


def _read(site: Path) -> dict[Path, _Page]:
    return {file: _Page(file.read_text("utf-8")) for file in sorted(site.rglob("*.html"))}


def dead_links(site: Path) -> list[str]:
    """Links within the site whose file or anchor does not exist, as `PAGE: LINK`."""
    pages = _read(site)
    return [
        f"{file.relative_to(site)}: {link}"
        for file, page in pages.items()
        for link in sorted(set(page.links))
        if not _leads_somewhere(link, file, pages)
    ]


def external_links(site: Path) -> list[str]:
    """The addresses of other sites that pages link to."""
    return sorted({link for page in _read(site).values() for link in _external(page.links)})


def _external(links: list[str]) -> Iterator[str]:
    return (link for link in links if _is_external(link))


def _is_external(link: str) -> bool:
    return bool(urlsplit(link).scheme) or link.startswith("//")


def _leads_somewhere(link: str, file: Path, pages: dict[Path, _Page]) -> bool:
    if _is_external(link):
        return True
    address = urlsplit(link)
    target = (file.parent / unquote(address.path)).resolve() if address.path else file
    if target.is_dir():
        target /= "index.html"
    if not target.exists():
        return False
    anchor = unquote(address.fragment)
    return not anchor or target not in pages or anchor in pages[target].anchors
