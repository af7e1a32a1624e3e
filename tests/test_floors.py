"""An arrow points one way: imports, those inside functions too, go down the floors of the house."""

import ast
from collections.abc import Iterator
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

from tests.conftest import REPOSITORY

pytestmark = pytest.mark.once
PACKAGES = ("keras_vit", "keras_vit_cli")


def floors() -> list[str]:
    """The rooms of docs/architecture.md, from the roof to the ground."""
    text = (REPOSITORY / "docs/architecture.md").read_text("utf-8")
    block = text.partition("```floors\n")[2].partition("```")[0]
    return [line.split()[0].rstrip("/") for line in block.splitlines() if line.strip()]


def modules() -> dict[str, Path]:
    files = [file for name in PACKAGES for file in sorted((REPOSITORY / name).rglob("*.py"))]
    names = (".".join(file.relative_to(REPOSITORY).with_suffix("").parts) for file in files)
    return dict(zip((name.removesuffix(".__init__") for name in names), files, strict=True))


def arrows() -> Iterator[tuple[str, str, int]]:
    """`(module, module that it imports, line)`, wherever the import stands."""
    known = modules()
    for name, file in known.items():
        for node in ast.walk(ast.parse(file.read_text("utf-8"))):
            targets: list[str] = []
            if isinstance(node, ast.ImportFrom):
                assert node.level == 0, f"{file}:{node.lineno}: a relative import"
                for alias in node.names:
                    whole = f"{node.module}.{alias.name}"
                    targets.append(whole if whole in known else str(node.module))
            elif isinstance(node, ast.Import):
                targets = [alias.name for alias in node.names]
            for target in targets:
                if target in known and target != name:
                    yield name, target, node.lineno


def room(module: str) -> str:
    """The room that a module stands in, as `floors` names it."""
    parts = module.split(".")
    return "/".join(parts[:2]) if parts[0] == "keras_vit" and len(parts) > 1 else parts[0]


def test_every_room_has_a_floor() -> None:
    assert {room(module) for module in modules()} == set(floors())
    assert len(set(floors())) == len(floors())


def test_arrows_point_down() -> None:
    floor = {name: i for i, name in enumerate(floors())}
    back = [
        f"{module}:{line} imports {target}"
        for module, target, line in arrows()
        if room(module) != room(target) and floor[room(module)] > floor[room(target)]
    ]
    assert not back, "\n".join(back)


def test_no_files_import_each_other_in_a_circle() -> None:
    below: dict[str, set[str]] = {module: set() for module in modules()}
    for module, target, _ in arrows():
        below[module].add(target)
    TopologicalSorter(below).prepare()  # a CycleError names the circle
