"""The kinds of heads for every pixel that have options, a row of the table `MAP_HEADS` each."""

from collections.abc import Mapping
from typing import Any

from keras_vit._base.errors import check_arguments
from keras_vit.models.dpt import NEW_OUTPUTS, DPTHead
from keras_vit.models.eomt import EoMTHead
from keras_vit.tasks import TASKS

MapHead = DPTHead | EoMTHead
MAP_HEADS: dict[str, type[DPTHead] | type[EoMTHead]] = {
    head.kind: head for head in (DPTHead, EoMTHead)
}


def kind_of(map_head: Mapping[str, Any]) -> Any:
    """Return the kind that arguments are of; those of a DPT head need not say it."""
    return map_head.get("kind", DPTHead.kind)


def map_head_of(value: Any) -> MapHead:
    """Return the options that a kind, a mapping of arguments, or options themselves stand for.

    Raises:
        ValueError: It is something else, or an argument is unknown or out of range.

    >>> map_head_of({"kind": "eomt", "queries": 50}).queries
    50
    """
    if isinstance(value, MapHead):
        return value
    arguments = dict(value) if isinstance(value, Mapping) else {"kind": value}
    kind = arguments.pop("kind", DPTHead.kind)
    if kind not in MAP_HEADS:
        raise ValueError(
            f'map_head={value!r} is not a head: give "linear", "dpt", "eomt", or the arguments of '
            'a DPTHead as a dictionary, such as {"width": 64}, or of an EoMTHead, such as '
            '{"kind": "eomt", "queries": 50}; None for that of the task.'
        )
    check_arguments(MAP_HEADS[kind], arguments)
    return MAP_HEADS[kind](**arguments)


def head_of_other_outputs(map_head: Any, task: Any) -> Any:
    """Return the `map_head` of a model whose outputs are to be of another task; None for rows.

    The neck of a DPT head stays as it is, and so do queries, for classes alone.
    """
    kind = task.get("kind") if isinstance(task, Mapping) else getattr(task, "kind", task)
    if kind not in TASKS or TASKS[kind].head == "row":
        return None
    if not isinstance(map_head, Mapping):
        return map_head
    if kind_of(map_head) == EoMTHead.kind:
        return map_head if kind == "segmentation" else None
    return {**map_head, **NEW_OUTPUTS}
