"""The rooms of the package and the imports between them: the picture in docs/architecture.md.

    python -m docs.tools.house      # writes docs/house.svg

Rooms stand on the floors that docs/architecture.md lists; a line on the right leads from a room to
each one that it imports.
"""

import ast
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PAGE, PICTURE = ROOT / "docs/architecture.md", ROOT / "docs/house.svg"
PACKAGES = ("keras_vit", "keras_vit_cli")
# Points: the height of a floor, the width of a room, the distance of two lines.
FLOOR, WIDTH, GAP = 34, 220, 12
COLORS = ("#0b7285", "#862e9c", "#2b8a3e", "#a61e4d", "#e67700", "#364fc7", "#5f3dc4")


def floors() -> list[str]:
    """The rooms of docs/architecture.md, from the roof to the ground."""
    return list(budgets())


def budgets() -> dict[str, int]:
    """Return how many lines each room may have by docs/architecture.md, from the roof down."""
    block = PAGE.read_text("utf-8").partition("<!-- floors -->\n\n```\n")[2].partition("```")[0]
    rows = [line.split(maxsplit=2) for line in block.splitlines() if line.strip()]
    return {name.rstrip("/"): int(lines.replace(",", "")) for name, lines, _ in rows}


def line_counts() -> dict[str, int]:
    """Return how many lines each room has."""
    counts = dict.fromkeys(map(room, modules()), 0)
    for module, file in modules().items():
        counts[room(module)] += len(file.read_text("utf-8").splitlines())
    return counts


def modules() -> dict[str, Path]:
    """The files of the packages by the names that they are imported by."""
    files = [file for name in PACKAGES for file in sorted((ROOT / name).rglob("*.py"))]
    names = (".".join(file.relative_to(ROOT).with_suffix("").parts) for file in files)
    return dict(zip((name.removesuffix(".__init__") for name in names), files, strict=True))


def room(module: str) -> str:
    """The room that a module stands in, as `floors` names it."""
    parts = module.split(".")
    return "/".join(parts[:2]) if parts[0] == "keras_vit" and len(parts) > 1 else parts[0]


def arrows() -> Iterator[tuple[str, str, int]]:
    """`(module, module that it imports, line)`, wherever the import stands.

    Raises:
        ValueError: An import is relative.
    """
    known = modules()
    for name, file in known.items():
        for node in ast.walk(ast.parse(file.read_text("utf-8"))):
            if not isinstance(node, ast.ImportFrom | ast.Import):
                continue
            targets = [alias.name for alias in node.names]
            if isinstance(node, ast.ImportFrom):
                if node.level:
                    raise ValueError(f"{file}:{node.lineno} imports relatively: name the package.")
                wholes = [f"{node.module}.{name}" for name in targets]
                targets = [w if w in known else str(node.module) for w in wholes]
            yield from ((name, t, node.lineno) for t in targets if t in known and t != name)


def draw() -> str:
    """The picture as SVG."""
    names = floors()
    floor = {name: i for i, name in enumerate(names)}
    pairs = sorted({(floor[room(a)], floor[room(b)]) for a, b, _ in arrows() if room(a) != room(b)})
    columns = {start: i for i, start in enumerate(sorted({start for start, _ in pairs}))}
    width, height = WIDTH + 20 + GAP * (len(columns) + 1), FLOOR * len(names) + 10
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" '
        'font-family="monospace" font-size="12">',
        f'<rect width="{width}" height="{height}" fill="white"/>',
    ]
    for name, i in floor.items():
        top = 8 + FLOOR * i
        lines.append(
            f'<rect x="6" y="{top}" width="{WIDTH - 12}" height="{FLOOR - 10}" rx="4" '
            f'fill="#f1f3f5" stroke="#495057"/><text x="16" y="{top + 16}">{name}</text>'
        )
    for start in columns:
        ends = [end for first, end in pairs if first == start]
        x, color = WIDTH + 10 + GAP * columns[start], COLORS[columns[start] % len(COLORS)]
        first, last = (8 + FLOOR * i + (FLOOR - 10) / 2 for i in (start, max(ends)))
        path = [f"M{WIDTH - 6} {first - 4:g}H{x}V{last + 4:g}"]
        for end in ends:
            y = 8 + FLOOR * end + (FLOOR - 10) / 2 + 4
            path.append(f"M{x} {y:g}H{WIDTH - 6}l5 -3m-5 3l5 3")
        lines.append(f'<path d="{"".join(path)}" fill="none" stroke="{color}"/>')
    return "\n".join([*lines, "</svg>", ""])


if __name__ == "__main__":
    PICTURE.write_text(draw(), "utf-8")
    print(f"drawn: {PICTURE.relative_to(ROOT)}")
