"""Builds the site: `make docs`, or `make docs VERSION=0.1.0` for a release.

    python -m docs.tools.build --version dev

Writes `site/VERSION`, the list of versions `site/switcher.json`, and `site/index.html`, which leads
to the newest release. Fails on every warning of Sphinx and on every dead link within the site;
`site/VERSION/external_links.txt` lists links to other sites, which are not followed.
"""

import argparse
import json
import re
import subprocess
import sys
from pathlib import Path

from docs.tools.links import dead_links, external_links

ROOT = Path(__file__).resolve().parents[2]
REDIRECT = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>keras_vit</title>
<meta http-equiv="refresh" content="0; url={folder}/index.html"></head>
<body><a href="{folder}/index.html">keras_vit {folder}</a></body></html>
"""


def versions(site: Path) -> list[str]:
    """The versions that are built: releases from the newest to the oldest, then the others."""
    names = [page.parent.name for page in site.glob("*/index.html")]
    releases = [name for name in names if re.fullmatch(r"\d+(\.\d+)*", name)]
    releases.sort(key=lambda name: [int(part) for part in name.split(".")], reverse=True)
    return releases + sorted(set(names) - set(releases))


def write_versions(site: Path) -> None:
    """Writes the list of versions and the page that leads to the first of them."""
    names = versions(site)
    rows = [{"name": name, "url": f"{name}/"} for name in names]
    (site / "switcher.json").write_text(json.dumps(rows, indent=1) + "\n", "utf-8")
    (site / "index.html").write_text(REDIRECT.format(folder=names[0]), "utf-8")


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--version", default="dev", help="name of the folder in site/")
    parser.add_argument("--site", type=Path, default=ROOT / "site", help="folder of all versions")
    options = parser.parse_args(arguments)
    if not re.fullmatch(r"\w[\w.-]*", options.version):
        parser.error(f"--version {options.version!r} must be a folder name, such as 0.1.0 or dev.")
    output = options.site / options.version
    sphinx = [sys.executable, "-m", "sphinx", "-W", "--keep-going", "-q", "-j", "auto"]
    caches = options.site / ".doctrees" / options.version
    built = subprocess.run([*sphinx, "-d", str(caches), str(ROOT / "docs"), str(output)])
    if built.returncode:
        return built.returncode
    (output / "external_links.txt").write_text("\n".join(external_links(output)) + "\n", "utf-8")
    write_versions(options.site)
    dead = dead_links(output)
    print(*dead, sep="\n", end="\n" if dead else "")
    print(f"{len(dead)} dead links; open {output / 'index.html'}")
    return bool(dead)


if __name__ == "__main__":
    sys.exit(main())
