"""Writes the parts of pages that the package itself knows, into `docs/generated`."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from docs.tools import gallery, names, zoo
from docs.tools.docstrings import NAMED_MODELS, path_of
from keras_vit.applications import constructor_name
from keras_vit.models import FAMILIES, model_cost
from keras_vit.training import recipes
from keras_vit_cli.options import COMMANDS
from keras_vit_cli.options.option import Row

FOLDER = Path(__file__).resolve().parents[1] / "generated"


def models() -> str:
    """The named models: constructor, parameters and operations at 224 pixels, 1000 classes."""
    lines = ["| name | constructor | M parameters | GMACs |", "|---|---|---:|---:|"]
    for family in FAMILIES.values():
        for name in family.names:
            constructor = constructor_name(name)
            cost = model_cost(name)
            link = f"[`{constructor}`](#{path_of(constructor)})"
            size = f"{cost.parameters / 1e6:,.1f} | {cost.macs / 1e9:,.1f}"
            lines.append(f"| `{name}` | {link} | {size} |")
    return "\n".join(lines)


def constructors() -> str:
    """An entry of the reference per named model."""
    return "\n".join(f".. autofunction:: {name}" for name in NAMED_MODELS)


def recipe_table() -> str:
    """The training recipes with source and hardware; those that share all of it in one row."""
    lines = ["| recipe | image size | batch size | source | meant for |", "|---|---:|---:|---|---|"]
    rows: dict[str, list[str]] = {}
    for name, recipe in recipes.RECIPES.items():
        numbers = f"{recipe.image_size} | {recipe.batch_size:,}"
        row = f"{numbers} | {recipe.source} | {recipe.hardware or '–'}"
        rows.setdefault(row, []).append(f"`{name}`")
    lines += [f"| {', '.join(names)} | {row} |" for row, names in rows.items()]
    return "\n".join(lines)


def commands() -> str:
    """The options of every command."""
    lines = []
    for name, command in COMMANDS.items():
        lines += [f"## {name}\n", f"{command.help[0].upper()}{command.help[1:]}.\n"]
        lines += [f"```bash\n{command.example}\n```\n", "| option | what it does |", "|---|---|"]
        lines += [_option(row) for rows in command.groups.values() for row in rows]
        lines.append("")
    return "\n".join(lines)


def _option(row: Row) -> str:
    option, settings = row.option, row.settings
    text = re.sub(r"(?<!\w)(--[a-z][a-z-]*)", r"`\1`", option.help)
    if choices := settings.get("choices"):
        text += f": {', '.join(f'`{choice}`' for choice in choices)}"
    elif limits := option.range:
        text += f"; {limits.low:,} to {limits.high:,}"
    default = settings.get("default")
    if default not in (None, False) and "default" not in option.help:
        text += f" (default: `{default}`)"
    if settings.get("required"):
        text += " (required)"
    return f"| `{row.name}` | {text} |".replace("*", "\\*")


PAGES: dict[str, Callable[[], str]] = {
    "names.md": names.markdown,
    "zoo.md": zoo.markdown,
    "models.md": models,
    "constructors.rst": constructors,
    "recipes.md": recipe_table,
    "commands.md": commands,
    "gallery.md": gallery.markdown,
}


def write(app: Any = None) -> None:
    """Writes every page that has changed."""
    FOLDER.mkdir(exist_ok=True)
    for name, content in PAGES.items():
        file, text = FOLDER / name, content() + "\n"
        if not file.exists() or file.read_text("utf-8") != text:
            file.write_text(text, "utf-8")


def setup(app: Any) -> dict[str, bool]:
    """Writes the pages before Sphinx reads them."""
    app.connect("builder-inited", write)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
