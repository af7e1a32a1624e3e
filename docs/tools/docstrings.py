"""Shows docstrings as they were meant: named models briefly, flow charts with their line breaks."""

import inspect
import re
from itertools import pairwise
from typing import Any

from sphinx.util.inspect import stringify_signature
from sphinx.util.logging import getLogger

import keras_vit
from keras_vit import applications
from keras_vit.applications import constructor_name
from keras_vit.models import MODEL_NAMES, family_of

logger = getLogger(__name__)


def path_of(name: str) -> str:
    """Return where a constructor or a class of models is documented."""
    if name in keras_vit.__all__:
        return f"keras_vit.{name}"
    return f"keras_vit.{'applications' if name in applications.__all__ else 'models'}.{name}"


# The constructors of the table of sizes, with the class whose arguments they take.
NAMED_MODELS = {
    path_of(constructor_name(name)): path_of(family_of(name).model.__name__) for name in MODEL_NAMES
}


def shorten_named_models(
    app: Any, what: str, name: str, obj: Any, options: Any, lines: list[str]
) -> None:
    """Keeps the sizes of `ViTB16` and so on, and links the class that has the arguments."""
    if name in NAMED_MODELS:
        model = NAMED_MODELS[name]
        arguments = f"Takes every argument of :class:`{model}`, by name"
        lines[:] = [lines[0], "", f"{arguments}, and `weights` and `sha256` as `keras_vit.create`."]


def shorten_signatures(
    app: Any, what: str, name: str, obj: Any, options: Any, signature: str, returns: str
) -> tuple[str, str] | None:
    """Shows the arguments of named models as `(**arguments)`, and those of Keras classes.

    Sphinx finds `(*args, **kwargs)` there, the signature of the base class's `__new__`.
    """
    if name in NAMED_MODELS:
        return "(**arguments)", NAMED_MODELS[name]
    if what == "class" and signature and re.search(r"\(\*args|~|<factory>", signature):
        found = inspect.signature(obj.__init__)
        found = found.replace(
            parameters=[
                parameter.replace(default=_shown(parameter.default))
                for parameter in found.parameters.values()
                if parameter.name not in ("self", "kwargs")
            ],
            return_annotation=inspect.Signature.empty,
        )
        return stringify_signature(found, unqualified_typehints=True), returns
    return None


def _shown(default: Any) -> Any:
    """A default as a reader writes it."""
    if repr(default) == "<factory>":
        return ...
    return _Name(default.__name__) if inspect.isroutine(default) else default


class _Name(str):
    __repr__ = str.__str__


def warn_of_colons(
    app: Any, what: str, name: str, obj: Any, options: Any, lines: list[str]
) -> None:
    """Warns where Napoleon would take what stands before a colon for a type."""
    first = [lines[0]] if what in ("property", "attribute") and lines else []
    first += [line for before, line in pairwise(lines) if before.strip() == "Returns:"]
    for line in first:
        if ": " in re.sub("`[^`]*`", "", line):
            logger.warning("%s: a colon divides its first line: %s", name, line.strip())


def keep_flow_charts(
    app: Any, what: str, name: str, obj: Any, options: Any, lines: list[str]
) -> None:
    """Turns paragraphs drawn with lines and arrows, and listings, into literal blocks."""
    paragraphs = "\n".join(lines).split("\n\n")
    shown = []
    for paragraph in paragraphs:
        drawn = any(sign in paragraph for sign in ("──", "►", "keras.distribution.set_d"))
        if drawn and what == "module":
            body = "\n".join(f"    {line}" for line in paragraph.splitlines())
            paragraph = f".. code-block:: text\n\n{body}"
        shown.append(paragraph)
    lines[:] = "\n\n".join(shown).split("\n")


def convert_tables(
    app: Any, what: str, name: str, obj: Any, options: Any, lines: list[str]
) -> None:
    """Turns Markdown tables into tables of reStructuredText."""
    shown: list[str] = []
    for number, line in enumerate(lines):
        if not line.startswith("|"):
            shown.append(line)
        elif not set(line) <= set("|-: "):  # all but the rule under the head
            if not (number and lines[number - 1].startswith("|")):
                shown += [".. list-table::", "   :header-rows: 1", ""]
            first, *others = (cell.strip() for cell in line.strip("|").split("|"))
            shown += [f"   * - {first}", *(f"     - {cell}" for cell in others)]
    lines[:] = shown


def forget_modules_without_source(app: Any) -> list[Any]:
    """Keeps `builtins` out of viewcode's index, where its link would be dead."""
    modules = getattr(app.env, "_viewcode_modules", {})
    for name in [name for name, entry in modules.items() if not entry]:
        del modules[name]
    return []


def setup(app: Any) -> dict[str, bool]:
    """Registers the hooks with autodoc."""
    app.connect("autodoc-process-docstring", shorten_named_models, priority=400)
    app.connect("autodoc-process-docstring", warn_of_colons, priority=400)
    app.connect("autodoc-process-docstring", keep_flow_charts, priority=401)
    app.connect("autodoc-process-docstring", convert_tables, priority=402)
    app.connect("autodoc-process-signature", shorten_signatures)
    app.connect("html-collect-pages", forget_modules_without_source, priority=400)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
