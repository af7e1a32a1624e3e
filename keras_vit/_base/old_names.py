"""Names of the version before: they keep working, with a warning that gives the new one."""

import importlib
import warnings
from collections.abc import Callable, Mapping
from typing import Any


def old_names(module: str, table: Mapping[str, str]) -> Callable[[str], Any]:
    """Return a module's `__getattr__`, which finds its old names.

    Args:
        module: The module.
        table: By old name the path of the object; behind a space, how it is called now where that
            is not the path.

    Example:

    >>> from keras_vit._base.old_names import old_names
    >>> old_names("m", {"join": "os.path.join"})("nothing")
    Traceback (most recent call last):
    ...
    AttributeError: module 'm' does not have 'nothing'
    """

    def find(name: str) -> Any:
        if name not in table:
            raise AttributeError(f"module {module!r} does not have {name!r}")
        path, _, call = table[name].partition(" ")
        warnings.warn(
            f"{module}.{name} is now {call or path}: the old name goes with the next version.",
            DeprecationWarning,
            stacklevel=2,
        )
        place, _, attribute = path.rpartition(".")
        return getattr(importlib.import_module(place), attribute)

    return find
