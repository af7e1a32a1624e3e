"""The first page of the reference: every public name with one line."""

import inspect
from collections.abc import Mapping
from operator import attrgetter
from textwrap import shorten
from typing import Any

import keras_vit

# The rooms in the order in which they are learned, each with its page of the reference.
ROOMS = {
    "keras_vit": "models",
    "keras_vit.recipes": "training",
    "keras_vit.data": "data",
    "keras_vit.tasks": "tasks",
    "keras_vit.layers": "layers",
    "keras_vit.distribution": "distribution",
    "keras_vit.training": "training",
    "keras_vit.evaluation": "evaluation",
    "keras_vit.inspection": "inspection",
    "keras_vit.curation": "curation",
    "keras_vit.weights": "weights",
    "keras_vit.exporting": "export",
    "keras_vit.models": "models",
    "keras_vit.applications": "models",
}


def markdown() -> str:
    """Every public name with the first line of what it documents, those of the face first."""
    lines = []
    for room, page in ROOMS.items():
        module = attrgetter(room.partition(".")[2])(keras_vit) if "." in room else keras_vit
        lines += [f"## [{room}]({page}.md)", "", "| name | what it is |", "|---|---|"]
        lines += [f"| `{n}` | {_first_line(getattr(module, n))} |" for n in module.__all__]
        lines.append("")
    return "\n".join(lines)


def _first_line(value: Any) -> str:
    """The first sentence of a docstring; of a constant, its values."""
    if not (inspect.ismodule(value) or inspect.isroutine(value) or inspect.isclass(value)):
        return f"`{shorten(str([*value] if isinstance(value, Mapping) else value), 90)}`"
    paragraph = " ".join((inspect.getdoc(value) or "").partition("\n\n")[0].split())
    return paragraph.replace("|", "\\|")
