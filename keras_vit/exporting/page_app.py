"""What stands beside a page in a folder, so that browsers install it and open it offline."""

import hashlib
import json
from importlib.resources import files
from pathlib import Path
from string import Template

INDEX, MANIFEST, ICON, WORKER = "index.html", "manifest.webmanifest", "icon.svg", "worker.js"
# Parts of a page that are files of their own there. They are compressed, and not called .gz: some
# servers unpack that on the way, and then its sum is another.
BESIDE = {"graph": "graph.bin", "wasm": "wasm.bin"}
LINKS = f'<link rel="icon" href="{ICON}">\n<link rel="manifest" href="{MANIFEST}">'


def asset(name: str) -> str:
    """Return a file of the folder `page`."""
    return files("keras_vit.exporting").joinpath("page", name).read_text("utf-8")


def write_app(folder: Path, name: str) -> None:
    """Writes the manifest of a web application, and the service worker that keeps its files.

    The worker keeps all files or none, by their sums; another export has a cache of its own.
    """
    manifest = {
        "name": name,
        "start_url": "./",
        "scope": "./",
        "display": "standalone",
        "background_color": "#f5f6f8",
        "theme_color": "#0b5cad",
        "icons": [{"src": ICON, "sizes": "any", "type": "image/svg+xml"}],
    }
    (folder / MANIFEST).write_text(json.dumps(manifest, indent=1), "utf-8")
    (folder / ICON).write_text(asset(ICON), "utf-8")
    # Servers redirect index.html to the folder, or have both: the folder's address is kept.
    names = {"./": INDEX, **{name: name for name in (*BESIDE.values(), MANIFEST, ICON)}}
    sums = {
        address: hashlib.sha256((folder / file).read_bytes()).hexdigest()
        for address, file in names.items()
    }
    text = json.dumps(sums, indent=1)
    worker = Template(asset(WORKER)).substitute(
        files=text, sum=hashlib.sha256(text.encode()).hexdigest()
    )
    (folder / WORKER).write_text(worker, "utf-8")
