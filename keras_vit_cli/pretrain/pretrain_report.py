"""What `keras-vit pretrain` found, in words: a table, a sentence, and a page."""

from collections.abc import Mapping
from typing import Any

from keras_vit._base.errors import counted
from keras_vit.evaluation.markdown import inline, table

_NAMES = {"knn": "k-NN", "probe": "linear probe"}
_METHODS = {"diet": "each a class of its own", "visreg": "views of each compared by VISReg"}
_PARTS = ("accuracy", "balanced_accuracy", "mean_average_precision")  # shown in per cent
HEADER = ("", "before", "after", "difference", "95 % interval")


def rows_of(facts: Mapping[str, Any]) -> list[tuple[str, ...]]:
    """Return a row per measure: the scores before and after, the difference and its interval.

    >>> score = {"before": [0.5], "after": [0.75], "difference": [0.25, 0.1, 0.4]}
    >>> rows_of({"comparison": {"measure": "accuracy", "knn": score, "probe": score}})[1]
    ('k-NN', '50.0%', '75.0%', '+25.0', '+10.0 to +40.0')
    """
    comparison = facts["comparison"]
    if comparison is None:
        return []
    is_part = comparison["measure"] in _PARTS
    rows: list[tuple[str, ...]] = [HEADER]
    for key, name in _NAMES.items():
        score = comparison[key]
        values = [score[time][0] for time in ("before", "after")]
        changes = [_shown(v, is_part, "+") for v in score["difference"]]
        shown = [_shown(v, is_part) for v in values]
        rows.append((name, *shown, changes[0], f"{changes[1]} to {changes[2]}"))
    return rows


def _shown(value: float | None, is_part: bool, sign: str = "") -> str:
    """Return a score, or with a sign a difference; a dash for what is not defined."""
    if value is None:
        return "-"
    if not is_part:
        return f"{value:{sign}.3f}"
    return f"{100 * value:{sign}.1f}" if sign else f"{value:.1%}"


def conclusion(facts: Mapping[str, Any]) -> str:
    """Return which weights were kept, and why, as a sentence."""
    comparison, weights = facts["comparison"], facts["weights"]
    first = "the random weights it began with" if weights == "none" else weights
    if comparison is None:
        clause = "kept the trained weights, and nothing says that they are better than"
        return f"no labels: {clause} {first}"
    differences = {name: comparison[key]["difference"] for key, name in _NAMES.items()}
    # What is not defined is neither.
    gains = " and ".join(n for n, change in differences.items() if (change[1] or 0) > 0)
    losses = " and ".join(n for n, change in differences.items() if (change[2] or 0) < 0)
    parts = [f"a {what} of {of}" for what, of in (("gain", gains), ("loss", losses)) if of]
    result = "the trained weights" if facts["kept"] == "after" else first
    is_asked = facts["kept"] == "after" and (losses or not gains)
    return (
        f"{', '.join(parts) or 'no gain'}: kept {result}{', as --keep after asks' * bool(is_asked)}"
    )


def markdown(facts: Mapping[str, Any]) -> str:
    """Return the page: what was kept, the table, and what it says nothing about."""
    comparison = facts["comparison"]
    sentence = conclusion(facts)
    parts = [
        "# Pre-training without labels",
        f"{inline(sentence[0].upper() + sentence[1:])}.",
    ]
    if comparison is not None:
        rows = rows_of(facts)
        parts += [
            table(rows[0], rows[1:], "lrrrr"),
            f"{comparison['measure'].replace('_', ' ')} of "
            f"{counted(comparison['scored'], 'labeled image')} that were not trained on, each "
            f"answered by the {facts['voters']:,} labeled training images and by the others "
            "of them. The interval is that of the paired difference. It is about frozen features: "
            "whether fine-tuning from these weights gains is not measured here.",
        ]
    blocks = "the whole model" if facts["blocks"] is None else f"the last {facts['blocks']} blocks"
    parts.append(
        f"Trained: {blocks}, for {counted(facts['epochs'], 'epoch')} of "
        f"{counted(facts['images'], 'image')}, {_METHODS[facts['method']]}. Left out: "
        f"{counted(facts['copies'], 'copy', 'copies')} of other images, "
        f"{counted(len(facts['unreadable']), 'file')} that cannot be read."
    )
    return "\n\n".join(parts) + "\n"
